"""Measuring the samples of shards, in processes: pieces of columns, one for each shard."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.data.files import LocalFile
from energize.data.tar import scan
from energize.errors import PrepareError, ShardError
from energize.preparation.measures import Absent, Measure, RawSample, Value, checked_value
from energize.preparation.parallel import map_in_order

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Piece:
    """A column of one shard: its numbers, or words; and which samples have no value, numbers of
    which are 0 here.
    """

    values: npt.NDArray[Any]
    categories: tuple[str, ...] | None
    absent: Int64Array
    why: str = ""
    """Of the first sample without a value: where it is, and why it has none."""
    odd: dict[str, str] = field(default_factory=dict)
    """By kind, numbers or words, a sample that has such a value."""


@dataclass(frozen=True)
class _Shard:
    """Measures the samples of a shard of `root`."""

    root: Path
    measures: Mapping[str, Measure]

    def __call__(self, shard: str) -> dict[str, Piece]:
        path = self.root / shard
        file = LocalFile(str(path))
        found: dict[str, list[tuple[RawSample, Value | Absent]]] = {n: [] for n in self.measures}
        for number, scanned in enumerate(scan(path).samples):
            sample = RawSample(str(self.root), shard, number, scanned, file)
            for name, measure in self.measures.items():
                found[name].append((sample, _measured(name, measure, sample)))
        return {name: _piece(values) for name, values in found.items()}


def _measured(name: str, measure: Measure, sample: RawSample) -> Value | Absent:
    try:
        return checked_value(sample, measure(sample))
    except PrepareError as reason:
        raise PrepareError(f"column {name!r}: {reason}") from reason


def _piece(found: Sequence[tuple[RawSample, Value | Absent]]) -> Piece:
    absent = [i for i, (_, value) in enumerate(found) if isinstance(value, Absent)]
    odd: dict[str, str] = {}
    for sample, value in found:
        if not isinstance(value, Absent):
            kind = "words" if isinstance(value, str) else "numbers"
            odd.setdefault(kind, f"{sample.where} has {str(value)[:80]!r}")
    why = ""
    if absent:
        sample, value = found[absent[0]]
        why = f"{sample.where}: {value.why}" if isinstance(value, Absent) else ""
    missing = np.array(absent, dtype=np.int64)
    if len(odd) > 1:  # told of together with the other shards
        return Piece(np.zeros(len(found)), None, missing, why, odd)
    if "words" in odd:
        words = Column.of([None if isinstance(v, Absent) else v for _, v in found], "")
        return Piece(words.values, words.categories, missing, why, odd)
    numbers = [0 if isinstance(value, Absent) else value for _, value in found]
    whole = all(isinstance(value, int) for value in numbers)
    return Piece(np.array(numbers, np.int64 if whole else np.float64), None, missing, why, odd)


@dataclass(frozen=True, slots=True)
class MeasuredShard:
    """What was measured of a shard, by column."""

    name: str
    pieces: dict[str, Piece]


def measure_shards(
    root: Path,
    measures: Mapping[str, Measure],
    counts: Mapping[str, int],
    workers: int,
    on_progress: Progress,
) -> Generator[MeasuredShard, None, None]:
    """Measure the shards of a folder in processes; `counts` says how many samples each has.

    Raises `PrepareError` for shards that are damaged or not those that were indexed, and for values
    that no column could have. It is to be closed, which ends the processes.
    """
    on_progress(0, len(counts))
    with closing(map_in_order(_Shard(root, measures), list(counts), workers)) as results:
        for done, (result, (shard, count)) in enumerate(
            zip(results, counts.items(), strict=True), 1
        ):
            if isinstance(result, ShardError | OSError):
                raise PrepareError(str(result)) from result
            if isinstance(result, Exception):
                raise result
            for piece in result.values():
                if len(piece.values) != count:
                    raise PrepareError(
                        f"{root / shard} has {len(piece.values)} samples, and .info.json says "
                        f"{count}: the shard was changed. Prepare the folder again first, with: "
                        f"energize prepare --force-overwrite {root}"
                    )
            on_progress(done, len(counts))
            yield MeasuredShard(shard, result)

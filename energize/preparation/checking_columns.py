"""Whether the columns of a folder still say of its samples what they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.columns import Column
from energize.data.columns import column_command, read_columns, read_values
from energize.errors import ConfigError, DatasetError, PrepareError
from energize.preparation.measures import named, written
from energize.preparation.measuring import MeasuredShard, Progress, measure_shards


@dataclass(frozen=True, slots=True)
class CheckedColumns:
    """What is wrong with columns, and which of them only their functions could tell."""

    faults: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


def check_columns(path: Path, workers: int, on_progress: Progress) -> CheckedColumns:
    """Measure the columns of a prepared folder again, and compare.

    Those that a function of the user measured are read, not measured. Raises nothing for what is
    wrong: it is in the answer.
    """
    try:
        index = read_columns(path)
    except DatasetError as reason:
        return CheckedColumns((str(reason),))
    if index is None:
        return CheckedColumns()
    samples = sum(index.shard_counts.values())
    faults: list[str] = []
    stored: dict[str, Column] = {}
    for name, column in index.columns.items():
        try:
            stored[name] = read_values(path, name, column, samples)
        except DatasetError as reason:
            faults.append(str(reason))
    again = {name: how for name, how in index.measured.items() if name in stored and written(how)}
    if again:
        try:
            measures, counts = dict(named(again)), index.shard_counts
            with closing(measure_shards(path, measures, counts, workers, on_progress)) as shards:
                faults += _differences(path, shards, stored, again)
        except (ConfigError, PrepareError) as reason:
            faults.append(str(reason))
    unchecked = tuple(name for name in stored if name not in again)
    return CheckedColumns(tuple(faults), unchecked)


def _differences(
    path: Path,
    shards: Iterator[MeasuredShard],
    stored: dict[str, Column],
    measured: dict[str, str],
) -> Iterator[str]:
    counts = dict.fromkeys(measured, 0)
    first: dict[str, str] = {}
    before = 0
    for shard in shards:
        size = 0
        for name, piece in shard.pieces.items():
            size = len(piece.values)
            now = _texts(Column(piece.values, piece.categories))
            was = _texts(stored[name].part(slice(before, before + size)))
            other = now != was
            other[piece.absent] = False  # which have a default, or none
            rows = np.flatnonzero(other)
            counts[name] += len(rows)
            if len(rows) and name not in first:
                row = int(rows[0])
                first[name] = f"{path / shard.name}, sample {row}: {was[row]}, and now {now[row]}"
        before += size
    for name, count in counts.items():
        if count:
            command = column_command(path, {name: measured[name]})
            yield (
                f"{path}: the column {name!r} says something else of {count} of {before} samples "
                f"than they do, the first of them {first[name]}; measure it again with: {command}"
            )


def _texts(column: Column) -> npt.NDArray[Any]:
    """What a column says of each sample, to be compared: numbers, or words."""
    if column.categories is None:
        return column.values
    words: npt.NDArray[Any] = np.array([*column.categories, ""], dtype=object)
    values: npt.NDArray[Any] = words[column.values]
    return values

"""Reading all samples of split parts in processes, and what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from energize.cli.faults import Fault
from energize.cli.progress import OnProgress
from energize.core.arrays import Int64Array, UInt64Array
from energize.core.dataset import IndexedDataset
from energize.core.lazy import torch
from energize.core.samples import METADATA, Sample, fields_of
from energize.core.trace import Failed, Reading, Trace, where
from energize.errors import EnergizeError, PrepareError
from energize.preparation.scan import key_hashes
from energize.preparation.workers import map_in_order
from energize.task.fields import contradiction

_AT_ONCE = 32
"""Samples that are read together; images of as many lie in memory."""


_WRONG_TYPE = re.compile(
    r"(the field '\w+' of \w+ is declared as .+?, and its value is .+?), from .+?\. Cor"
)


class Checked(NamedTuple):
    """What reading a stretch found; a hash of each key, 0 for a sample that has none."""

    part: int
    samples: int
    faults: list[Fault]
    hashes: UInt64Array


def check_all(
    parts: Mapping[str, IndexedDataset[Any]], workers: int, on_progress: OnProgress
) -> Iterator[Checked]:
    """Read every sample of all parts, given by name, in so many processes; what was found, in their
    order.

    Raises `PrepareError` naming the samples at which a process was killed.
    """
    # One thread each, and torch is imported once, for processes are forked from this one.
    torch.set_num_threads(1)
    checker = _Checker(tuple(parts), tuple(parts.values()))
    total, done = sum(part.size for part in parts.values()), 0
    on_progress(0, total)
    with closing(map_in_order(checker, range(checker.stretches), workers)) as results:
        for number in range(checker.stretches):
            try:
                checked = next(results)
            except PrepareError as reason:
                raise PrepareError(
                    f"the process that was reading {checker.named(number)} was killed: by the "
                    "system when memory is short, then try fewer --parallel; or by what decodes "
                    "one of these samples"
                ) from reason
            if isinstance(checked, Exception):
                raise checked
            done += checked.samples
            on_progress(done, total)
            yield checked


@dataclass(frozen=True)
class _Checker:
    """Reads a stretch of neighbouring samples, all stretches of all parts being numbered."""

    names: Sequence[str]
    parts: Sequence[IndexedDataset[Any]]

    @cached_property
    def _ends(self) -> Int64Array:
        """For each part, how many stretches come before its end."""
        return np.cumsum([-(-part.size // _AT_ONCE) for part in self.parts], dtype=np.int64)

    @property
    def stretches(self) -> int:
        """How many there are."""
        return int(self._ends[-1]) if self.parts else 0

    def named(self, number: int) -> str:
        """A stretch, for messages."""
        part, positions = self._stretch(number)
        return f"samples {positions[0]} to {positions[-1]} of {self.names[part]}"

    def __call__(self, number: int) -> Checked:
        part, positions = self._stretch(number)
        dataset = self.parts[part]
        found = [
            _checked(dataset, int(position), item)
            for position, item in zip(positions, _items(dataset, positions), strict=True)
        ]
        faults = [each for each in found if isinstance(each, Fault)]
        keys = ["" if isinstance(each, Fault) else _key(each) for each in found]
        hashes = np.where([bool(key) for key in keys], key_hashes(keys), np.uint64(0))
        return Checked(part, len(found), faults, hashes)

    def _stretch(self, number: int) -> tuple[int, Int64Array]:
        """The part it is of, and positions there."""
        part = int(np.searchsorted(self._ends, number, side="right"))
        start = (number - int(self._ends[part - 1] if part else 0)) * _AT_ONCE
        stop = min(start + _AT_ONCE, self.parts[part].size)
        return part, np.arange(start, stop, dtype=np.int64)


def _items(part: IndexedDataset[Any], positions: Int64Array) -> list[Any]:
    """The samples; where reading them together is not possible, one by one, with faults."""
    try:
        return Trace(part, positions).read(Reading())
    except EnergizeError as reason:
        if len(positions) == 1:
            return [_raised(where(part, int(positions[0])), reason)]
    return [_items(part, positions[i : i + 1])[0] for i in range(len(positions))]


def _raised(at: str, reason: EnergizeError) -> Fault:
    """The fault that an error tells of.

    What makes samples compares the types of the first few itself; they are told of as the others.
    """
    told = _WRONG_TYPE.search(str(reason))
    if told is not None:
        return Fault(at, "wrong type", told[1])
    return Fault(at, type(reason).__name__, str(reason))


def _checked(part: IndexedDataset[Any], position: int, item: Any) -> Any:
    """The sample, or what is wrong with it."""
    if isinstance(item, Failed):
        return Fault(item.where, type(item.reason).__name__, str(item.reason))
    if not isinstance(item, Sample):
        return item
    values = {name: each for name, each in fields_of(item).items() if name not in METADATA}
    found = contradiction(type(item), values)
    if found is None:
        return item
    text = f"the field {found[0]!r} of {type(item).__name__} {found[1]}"
    return Fault(where(part, position), "wrong type", text)


def _key(item: Any) -> str:
    key = item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
    return key if isinstance(key, str) else ""

"""Which samples items are made of, in the rows of the levels of a mix."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from energize.core.arrays import Int64Array, rows_by_value
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.trace import Origin, Trace
from energize.ledger.levels import Level, Phased

Made: TypeAlias = "int | array[int]"
"""What an item is made of: its position, or the origins of a stream's, one after another."""

NOTHING: Made = array("q")
"""What is made of nothing that is known."""

_NUMBERS = len(Origin._fields)


class Found(NamedTuple):
    """Samples of items, a row each, ordered by item: int64 of one length.

    `item`: the number of the item among those asked for. `row`: that of its source. `sample`: its
    number in the source, and `epoch`, how often that had been passed through before.
    """

    item: Int64Array
    row: Int64Array
    sample: Int64Array
    epoch: Int64Array


def flat(origins: Sequence[Origin]) -> array[int]:
    """Origins as they travel and wait: the four numbers of each in a row."""
    return array("q", chain.from_iterable(origins))


class Places:
    """Finds samples in the rows of the levels of `dataset`, without reading."""

    def __init__(self, dataset: Dataset[Any], levels: Level) -> None:
        self._dataset = dataset
        self.rows = len(levels.rows)

    def found(self, made: Sequence[Made], *, which: bool = True) -> Found:
        """What some items are made of; unless it matters `which` samples, `sample` may be -1."""
        if self._dataset.indexed:
            return self._parts[0].found(np.array(made, dtype=np.int64), which=which)
        numbers = cast("Sequence[array[int]]", made)
        counts = np.array([len(each) // _NUMBERS for each in numbers], dtype=np.int64)
        item = np.repeat(np.arange(len(made)), counts)
        joined = np.frombuffer(b"".join(numbers), dtype=np.int64).reshape(-1, _NUMBERS)
        part, position, epoch, attempt = joined.T
        some = []
        for number, rows in rows_by_value(part):
            for tried, at in rows_by_value(attempt[rows]):
                of = rows[at]
                each = self._parts[number].found(position[of], epoch[of], tried, which=which)
                some.append(each._replace(item=of[each.item]))
        if not some:
            nothing = np.zeros(0, dtype=np.int64)
            return Found(nothing, nothing, nothing, nothing)
        together = [np.concatenate(column) for column in zip(*some, strict=True)]
        order = np.argsort(together[0], kind="stable")
        at, row, index, pass_ = (column[order] for column in together)
        return Found(item[at], row, index, pass_)

    def planned(self, items: int) -> Int64Array | None:
        """How many samples of each row the first `items` items are made of, by the order; None of a
        stream.
        """
        return self._parts[0].planned(items) if self._dataset.indexed else None

    @cached_property
    def _parts(self) -> list[_Part]:
        parts: list[_Part] = []
        first = 0
        for each in self._dataset._parts:
            parts.append(_Part(each, first))
            first += parts[-1].rows
        return parts


class _Part:
    """An indexed dataset, or a source without random access, whose rows begin with `first`."""

    def __init__(self, dataset: Dataset[Any], first: int) -> None:
        self._dataset, self._first = dataset, first
        node = dataset
        while len(node.inputs) == 1 and (node._passes_on or node._ends_loops):
            node = node.inputs[0]
        self._phased = node if isinstance(node, Phased) and node.indexed else None
        self.rows = len(dataset.sources)
        if self._phased is not None:
            self.rows = sum(len(each) for each in self._numbers)

    @cached_property
    def _numbers(self) -> list[Int64Array]:
        """The numbers among the sources of those of each phase."""
        phased = cast("Any", self._phased)
        return [phased.numbers_of(number) for number in range(len(phased.inputs))]

    @cached_property
    def _row_of(self) -> Int64Array:
        """The row of each source (columns) in each phase (rows)."""
        table = np.full((len(self._numbers), len(self._dataset.sources)), -1, dtype=np.int64)
        first = self._first + self.rows
        for phase in range(len(self._numbers) - 1, -1, -1):
            numbers = self._numbers[phase]
            first -= len(numbers)
            table[phase, numbers[::-1]] = np.arange(first, first + len(numbers))[::-1]
        return table

    def found(
        self,
        positions: Int64Array,
        epochs: Int64Array | None = None,
        attempt: int = 0,
        *,
        which: bool = True,
    ) -> Found:
        if not self._dataset.indexed:
            item = np.arange(len(positions))
            row = np.full(len(positions), self._first, dtype=np.int64)
            return Found(item, row, positions, cast("Int64Array", epochs))
        dataset = cast("IndexedDataset[Any]", self._dataset)
        known = which or attempt or self._phased is not None
        refs = Trace(dataset, positions, exact=bool(known)).refs(attempt)
        row = refs.source + self._first
        if self._phased is not None:
            row = self._row_of[self._phased.phase_of(positions)[refs.item], refs.source]
        return Found(refs.item, row, refs.index, refs.epoch)

    def planned(self, items: int) -> Int64Array:
        dataset = cast("IndexedDataset[Any]", self._dataset)
        if self._phased is None:
            return dataset.consumed(items)
        starts = [min(each, items) for each in self._phased.phase_starts] + [items]
        counts = [dataset.consumed(each) for each in starts]
        rows = np.zeros(self.rows, dtype=np.int64)
        for phase, numbers in enumerate(self._numbers):
            rows[self._row_of[phase, numbers]] = (counts[phase + 1] - counts[phase])[numbers]
        return rows

"""In which item of a dataset the n-th sample of a source comes, for many sources at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array
from energize.dataset import IndexedDataset
from energize.sources.base import Source
from energize.wrappers.routed import indexed_inputs

__all__ = ["first_above", "items_with"]

Counts = Callable[[int], npt.ArrayLike]

_HALVED = 6
"""Every so many guesses the bracket is halved, so that none is narrowed slowly for ever."""


def items_with(dataset: IndexedDataset[Any], nth: Mapping[int, int], end: int) -> dict[int, int]:
    """The item with sample `nth[s]`, counted from 0, of each source s of the first `end` items.

    All of them have to lie there. Counts are probed where a mix shares out slots, not above it: a
    probe there costs no walk through all that is mixed.

    >>> from energize import BatchDataset, BlendDataset, ListSource
    >>> blend = BlendDataset((ListSource(range(90)), 9), (ListSource(range(9)), 1), scheme="exact")
    >>> items_with(BatchDataset(blend, 10, list), {0: 90, 1: 9}, 100)
    {0: 10, 1: 9}
    """
    if isinstance(dataset, Source):
        return dict(nth)
    node, above = dataset, []
    while node.in_turn and len(node.inputs) == 1:
        above.append(node)
        node = indexed_inputs(node)[0]

    def through(n: int) -> int:
        for each in above:
            (n,) = each.taken(n) or (n,)
        return n

    if not node.in_turn:
        columns, wanted = list(nth), list(nth.values())
        found = first_above(lambda n: node.consumed(through(n)), columns, wanted, end)
        return dict(zip(nth, found, strict=True))
    below = _items_of_inputs(node, nth, node.taken(through(end)) or ())
    columns = [column for column, _ in below.values()]
    wanted = [item for _, item in below.values()]
    found = first_above(lambda n: node.taken(through(n)) or (), columns, wanted, end)
    return dict(zip(below, found, strict=True))


def _items_of_inputs(
    node: IndexedDataset[Any], nth: Mapping[int, int], ends: npt.ArrayLike
) -> dict[int, tuple[int, int]]:
    """For each source the input it belongs to, and the item there."""
    below: dict[int, tuple[int, int]] = {}
    first = 0
    for number, (each, end) in enumerate(
        zip(indexed_inputs(node), np.asarray(ends).tolist(), strict=True)
    ):
        behind = first + len(each.sources)
        inner = {source - first: nth[source] for source in range(first, behind) if source in nth}
        for source, item in (items_with(each, inner, end) if inner else {}).items():
            below[first + source] = number, item
        first = behind
    return below


def first_above(counts: Counts, columns: list[int], wanted: list[int], end: int) -> list[int]:
    """For each pair of a column and a number, the least n for which `counts(n + 1)` has more than
    that number in that column.

    Counts are 0 at 0, do not fall, and are above all numbers at `end`. Every probe narrows all
    brackets; pairs are found one after another by place, as a scheme keeps what it worked out for
    the last probes.

    >>> first_above(lambda n: [n // 2, n // 3], [0, 1, 1], [4, 0, 3], 100)
    [9, 2, 11]
    """
    search = _Search(counts, columns, wanted, end)
    guesses = [search.guess(pair, 0) for pair in range(len(wanted))]
    for pair in np.argsort(guesses, kind="stable").tolist():
        search.finish(pair)
    return search.low.tolist()


class _Search:
    """Brackets of all pairs: the count at `low` is not above what is wanted, that at `high` is."""

    def __init__(self, counts: Counts, columns: list[int], wanted: list[int], end: int) -> None:
        self._counts = counts
        self._columns = np.array(columns, dtype=np.int64)
        self._wanted = np.array(wanted, dtype=np.int64)
        self.low = np.zeros(len(wanted), dtype=np.int64)
        self._high = np.full_like(self.low, end)
        self._at_low = np.zeros_like(self.low)
        self._at_high = self._count(end)

    def finish(self, pair: int) -> None:
        """Probe until the bracket is one wide."""
        low, reach, tried = int(self.low[pair]), 0, 0
        while self._high[pair] - low > 1:
            tried += 1
            probe = self.guess(pair, reach)
            if not tried % _HALVED:
                probe = (low + int(self._high[pair])) // 2
            self._probe(probe)
            if self.low[pair] > low:
                reach = 2 * reach + 1 if reach >= 0 else 0
            else:
                reach = 2 * reach - 1 if reach <= 0 else 0
            low = int(self.low[pair])

    def guess(self, pair: int, reach: int) -> int:
        """Where an even source has the sample that is wanted, or one `reach` samples behind it."""
        low, high = int(self.low[pair]), int(self._high[pair])
        before, behind = int(self._at_low[pair]), int(self._at_high[pair])
        ahead = int(self._wanted[pair]) - before + reach
        return min(max(low + (high - low) * ahead // (behind - before), low + 1), high - 1)

    def _probe(self, n: int) -> None:
        count = self._count(n)
        under = count <= self._wanted
        up = under & (n > self.low)
        down = ~under & (n < self._high)
        self.low[up], self._at_low[up] = n, count[up]
        self._high[down], self._at_high[down] = n, count[down]

    def _count(self, n: int) -> Int64Array:
        counts: Int64Array = np.asarray(self._counts(n), dtype=np.int64)[self._columns]
        return counts

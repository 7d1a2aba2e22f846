"""Whole slots out of fractional dues: exact in their sum, never taken back, never far off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from energize.order.remembered import Remembered
from energize.order.schedules.integral import UNIT, UNIT_BITS, Dues
from energize.rng import hash_positions

__all__ = ["Apportionment"]

Int64Array = npt.NDArray[np.int64]


class Apportionment:
    """How many of the first slots each source gets, at marks: points 0 .. `last` of a run.

    The counts at a mark sum to its slot, never fall from one mark to a later one, and are computed
    from that mark alone. A source is within log2(n) / 2 slots of its due (within log2(n), with a
    `key`), rounded up to whole levels, at every mark; one that is due nothing gets nothing.

    How: the sources are the leaves of a balanced binary tree. A node that has m slots looks up when
    it is due m, and its left child gets what is due to it by then, rounded; the rest is the right
    child's. Since a child's due never grows faster than its parent's, one slot more for the parent
    is one slot more for just one of its children. All of it in integers.

    `slot_of` gives the slot of a mark. A `key` rounds each node at a random threshold instead of
    one half: over many runs joined end to end, tiny dues are then met on average.
    """

    def __init__(
        self, dues: Dues, slot_of: Callable[[int], int], last: int, key: int | None = None
    ) -> None:
        self._dues = dues
        self._slot_of = slot_of
        self._last = last
        self._sources = len(dues.units(slot_of(0)))
        self._thresholds = self._drawn_thresholds(key)
        self._due_before = Remembered(self._cumulated, 256)

    def counts(self, mark: int) -> Int64Array:
        """The slots of each source before a mark."""
        counts = np.zeros(self._sources, dtype=np.int64)
        waiting = [(0, self._sources, self._slot_of(mark) - self._slot_of(0))]
        while waiting:
            low, high, slots = waiting.pop()
            if not slots:
                continue
            if high - low == 1:
                counts[low] = slots
                continue
            middle = (low + high) // 2
            left = self._left_of(low, middle, high, slots, mark)
            waiting += [(low, middle, left), (middle, high, slots - left)]
        return counts

    def _left_of(self, low: int, middle: int, high: int, slots: int, mark: int) -> int:
        """What the left child of a node gets of the node's `slots`."""
        wanted = slots << UNIT_BITS
        at = self._mark_of(low, high, wanted, mark)
        due, left = self._due(low, high, at), self._due(low, middle, at)
        if at < self._last:
            grown = self._due(low, high, at + 1) - due
            grown_left = self._due(low, middle, at + 1) - left
            left += grown_left * (wanted - due) // grown
        elif due:  # rounding may give a node a little more than it is ever due
            left += left * (wanted - due) // due
        return (left + self._thresholds[middle]) >> UNIT_BITS

    def _mark_of(self, low: int, high: int, wanted: int, near: int) -> int:
        """The last mark at which the node is due `wanted` at most, sought from `near` outwards."""
        step, first, behind = 1, near, near
        if self._due(low, high, near) <= wanted:
            while behind <= self._last and self._due(low, high, behind) <= wanted:
                first, behind, step = behind, behind + step, 2 * step
            behind = min(behind, self._last + 1)
        else:
            while self._due(low, high, first) > wanted:
                first, behind, step = max(first - step, 0), first, 2 * step
        while behind - first > 1:
            middle = (first + behind) // 2
            if self._due(low, high, middle) <= wanted:
                first = middle
            else:
                behind = middle
        return first

    def _due(self, low: int, high: int, mark: int) -> int:
        before = self._due_before(mark)
        return before.item(high) - before.item(low)

    def _cumulated(self, mark: int) -> Int64Array:
        """Dues at a mark, summed over the sources before each."""
        dues = self._dues.units(self._slot_of(mark))
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(dues)])

    def _drawn_thresholds(self, key: int | None) -> list[int]:
        """The threshold of the node whose children meet at each source."""
        if key is None:
            return [UNIT // 2] * self._sources
        words = hash_positions(key, np.arange(self._sources))
        drawn: list[int] = (words >> np.uint64(64 - UNIT_BITS)).tolist()
        return drawn

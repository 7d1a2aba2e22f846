"""Slots that are spread evenly over all slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from energize.arrays import Int64Array
from energize.order.quotients import EXACT_BITS, ceil_quotient

__all__ = ["BalancedSlots"]


@dataclass(frozen=True, slots=True)
class BalancedSlots:
    """A share `weight / total` of all slots: among the first t, the share of t rounded to a whole
    number, halves up or down. So any x slots in a row have the floor or the ceiling of their share.

    `total` is below 2**61, positions below 2**62.

    >>> third = BalancedSlots(1, 3)
    >>> third.before(np.arange(8)).tolist(), [third.position(number) for number in range(3)]
    ([0, 0, 1, 1, 1, 2, 2, 2], [1, 4, 7])
    """

    weight: int
    total: int
    halves_up: bool = True

    def others(self) -> BalancedSlots:
        """The slots that are not among these."""
        return BalancedSlots(self.total - self.weight, self.total, not self.halves_up)

    def before(self, ts: Int64Array) -> Int64Array:
        """How many are among the first `t` slots, for each t."""
        if self.weight == self.total:
            return ts
        before = np.empty_like(ts)
        runs = ts >> EXACT_BITS
        for run in np.unique(runs).tolist():
            rows = runs == run
            start = run << EXACT_BITS
            due = 2 * self.weight * start + self.total - (not self.halves_up)
            whole, rest = divmod(due, 2 * self.total)
            after = ts[rows] - start
            about = after * float(2 * self.weight) + rest
            above = after * (2 * self.weight) + (rest + 1)
            before[rows] = whole + ceil_quotient(above, about, 2 * self.total) - 1
        return before

    def among_first(self, t: int) -> int:
        """How many are among the first `t` slots."""
        return (2 * self.weight * t + self.total - (not self.halves_up)) // (2 * self.total)

    def position(self, number: int) -> int:
        """The slot that is the one of this number, from 0."""
        return ((2 * number + 1) * self.total - self.halves_up) // (2 * self.weight)

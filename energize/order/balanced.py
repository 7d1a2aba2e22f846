"""Slots that are spread evenly over all slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from energize.order.quotients import ceil_quotient

__all__ = ["BalancedSlots"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BalancedSlots:
    """A share `weight / total` of all slots: among the first t, the share of t rounded to a whole
    number, halves up or down. So any x slots in a row have the floor or the ceiling of their share.

    `total` is below 2**61, positions below 2**50.

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
        weight, total = 2 * self.weight, self.total
        due, about = ts * weight, ts * float(weight)
        if self.halves_up:
            return ceil_quotient(due + (total + 1), about + (total + 1), 2 * total) - 1
        return ceil_quotient(due - total, about - total, 2 * total)

    def position(self, number: int) -> int:
        """The slot that is the one of this number, from 0."""
        return ((2 * number + 1) * self.total - self.halves_up) // (2 * self.weight)

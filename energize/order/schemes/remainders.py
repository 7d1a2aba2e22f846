"""Counts that are the exact shares, rounded by largest remainder."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.quotients import EXACT_BITS, ceil_quotient
from energize.order.remembered import Remembered

__all__ = ["LargestRemainders"]


class LargestRemainders:
    """How many of the first t slots sources have whose shares are `weights / total`: the whole
    parts of their exact shares, and one more each for those with the largest remainders, ties to
    the first. The weights are positive and `total` is below 2**61.

    Whoever is asked at places at which each exact share has grown by 1 or more finds counts that
    never fall. When the shares sum to 1, each count is within `1 - 1 / n` of its share: k largest
    of n remainders that sum to k are no less than 1 / (n - k + 1) each, the others no more than
    k / (k + 1).

    Source: the method of Hamilton; Balinski, Young, "Fair representation", 2001.

    >>> thirds = LargestRemainders(np.array([1, 1, 1]), 3)
    >>> thirds.counts(1000, 1000).tolist(), thirds.counts(2000, 2000).tolist()
    ([334, 333, 333], [667, 667, 666])
    """

    def __init__(self, weights: Int64Array, total: int) -> None:
        self._weights, self._total = weights, total
        self._far = Remembered(self._exactly, 2)

    def counts(self, t: int, seats: int) -> Int64Array:
        """Slots of each source among the first `t` of all, `seats` of which are theirs together."""
        run, after = divmod(t, 1 << EXACT_BITS)
        whole, rest = self._far(run << EXACT_BITS)
        above = after * self._weights + rest
        about = float(after) * self._weights + rest
        grown = ceil_quotient(above + 1, about + 1, self._total) - 1
        counts: Int64Array = whole + grown
        missing = seats - int(counts.sum())
        if missing:
            remainders = above - grown * self._total
            counts[np.argsort(-remainders, kind="stable")[:missing]] += 1
        return counts

    def _exactly(self, t: int) -> tuple[Int64Array, Int64Array]:
        """The whole part of each share of `t` slots, and the rest in units of one over `total`."""
        parts = [divmod(weight * t, self._total) for weight in self._weights.tolist()]
        return (
            np.array([whole for whole, _ in parts], dtype=np.int64),
            np.array([rest for _, rest in parts], dtype=np.int64),
        )

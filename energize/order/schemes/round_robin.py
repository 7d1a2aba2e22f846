"""The round-robin scheme: the sources in turn."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.protocol import WeightedScheme
from energize.order.weights import Weights

__all__ = ["RoundRobinScheme"]


class RoundRobinScheme(WeightedScheme):
    """The sources in turn, first to last, over and over; those of weight 0 are left out.

    Other weights decide nothing. No random choice is made, so `key` decides nothing either.
    Raises `WeightError`.

    >>> RoundRobinScheme([1, 0, 5]).locate(np.arange(4))[0].tolist()
    [0, 2, 0, 2]
    """

    scheme = "round_robin"

    def __init__(self, weights: Weights, *, key: int = 0) -> None:
        super().__init__(weights, key)
        self._count = len(self._integers)
        self._drawn = np.flatnonzero(self._integers > 0)

    def _counts(self, n: int) -> Int64Array:
        rounds, rest = divmod(n, len(self._drawn))
        counts = np.zeros(self._count, dtype=np.int64)
        counts[self._drawn] = rounds
        counts[self._drawn[:rest]] += 1
        return counts

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        rounds, turn = np.divmod(ks, len(self._drawn))
        return self._drawn[turn], rounds

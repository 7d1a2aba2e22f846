"""The round-robin scheme: the sources in turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energize.order.weights import Weights, integer_weights, names_of

__all__ = ["RoundRobinScheme"]

Int64Array = npt.NDArray[np.int64]


class RoundRobinScheme:
    """The sources in turn, first to last, over and over; those of weight 0 are left out.

    Other weights decide nothing. No random choice is made, so `key` decides nothing either.
    Raises `WeightError`.

    >>> RoundRobinScheme([1, 0, 5]).locate(np.arange(4))[0].tolist()
    [0, 2, 0, 2]
    """

    def __init__(self, weights: Weights, *, key: int = 0) -> None:
        self.names = names_of(weights)
        integers = integer_weights(weights)
        self._count = len(integers)
        self._drawn = np.flatnonzero(integers > 0)

    def describe(self) -> dict[str, Any]:
        return {"scheme": "round_robin"}

    def counts(self, n: int) -> Int64Array:
        rounds, rest = divmod(n, len(self._drawn))
        counts = np.zeros(self._count, dtype=np.int64)
        counts[self._drawn] = rounds
        counts[self._drawn[:rest]] += 1
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        rounds, turn = np.divmod(ks, len(self._drawn))
        return self._drawn[turn], rounds

"""The greedy scheme: each slot to the source that is furthest behind."""

from __future__ import annotations

import reprlib

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array
from energize.errors import ConfigError
from energize.order.pieces import ranks_within
from energize.order.protocol import WeightedScheme
from energize.order.weights import Weights

__all__ = ["GreedyScheme"]


_LONGEST_PERIOD = 2**20


class GreedyScheme(WeightedScheme):
    """The order of Megatron's blending index: slot t goes to the source with the largest
    `w * max(t, 1) - count`, ties to the first.

    It is there to repeat runs of Megatron; `exact` keeps tighter shares. Integers take the place of
    Megatron's floats, which break ties by rounding errors. A weight of 0 never receives a slot. No
    random choice is made, so `key` decides nothing.

    The order repeats after as many slots as the weights sum to, as integers without a common
    divisor (only the first round begins differently), and a table of two rounds is made, at about
    1 us per slot. Raises `WeightError`, and `ConfigError` when the sum is above 2**20.

    >>> GreedyScheme([0.1, 0.5, 0.3, 0.1]).locate(np.arange(10))[0].tolist()
    [1, 2, 0, 1, 3, 1, 2, 1, 2, 1]
    """

    scheme = "greedy"

    def __init__(self, weights: Weights, *, key: int = 0) -> None:
        super().__init__(weights, key)
        self._weights = self._integers
        self._period = int(self._weights.sum())
        if self._period > _LONGEST_PERIOD:
            raise ConfigError(
                "the scheme 'greedy' makes a table of one period, and these weights repeat only "
                f"after {reprlib.repr(self._period)} slots, more than {_LONGEST_PERIOD}: round "
                "them to fewer digits, or use the scheme 'exact', which needs no table"
            )
        self._sources = _greedy_order(self._weights, 2 * self._period)
        self._ranks = ranks_within(self._sources, 2 * self._weights)

    def _counts(self, n: int) -> Int64Array:
        round_, place = self._placed(np.array([n], dtype=np.int64))
        table = np.bincount(self._sources[: int(place[0])], minlength=len(self._weights))
        counts: Int64Array = self._weights * int(round_[0]) + table
        return counts

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        round_, place = self._placed(ks)
        source = self._sources[place].astype(np.int64)
        return source, self._ranks[place] + self._weights[source] * round_

    def _placed(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """How many rounds behind the table's place for a slot lies, and that place: in the first
        round for its own slots, in the second for all later ones.
        """
        round_ = np.maximum(ks // self._period - 1, 0)
        return round_, ks - round_ * self._period


def _greedy_order(weights: Int64Array, slots: int) -> npt.NDArray[np.int32]:
    """The source of each of the first slots. What a source is behind is kept times the sum of the
    weights, so that it is an integer.
    """
    drawn = np.flatnonzero(weights > 0)
    step, total = weights[drawn], int(weights.sum())
    behind = step.copy()
    chosen = np.empty(slots, dtype=np.int64)
    for slot in range(slots):
        if slot > 1:
            behind += step
        first = int(behind.argmax())
        chosen[slot] = first
        behind[first] -= total
    return drawn[chosen].astype(np.int32)

"""The exact scheme: every prefix holds the asked shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energize.order.eras import LONGEST_ERA, Eras
from energize.order.quotients import ceil_quotient
from energize.order.weights import Weights, bounded_weights, integer_weights, names_of

__all__ = ["ExactScheme"]

Int64Array = npt.NDArray[np.int64]

_WEIGHT_BITS = 60


class ExactScheme:
    """After any number t of slots, each source has had its share `w * t` within `bound` slots.

    `bound` is proven (see `energize.order.eras`), for n sources with weights above zero:

    - `1 - 1 / (2 n - 2)` when the weights, as integers without a common divisor, sum to at most
      2**17: shares in percent, per mille, small counts;
    - 1, never reached, for other weights;
    - 1.6 when a share is below 2**-20: such rare sources have slots of their own, evenly spread.

    Where all exact shares are whole numbers, the counts are equal to them. Arithmetic is in
    integers, so the order is the same on every machine; weights of more than 60 bits together are
    rounded to that. Ties go to the first source, and a weight of 0 never receives a slot. No
    random choice is made, so `key` decides nothing.

    Any position below 2**50 costs the same: an era of 4096 to 2**20 slots is computed, and kept.
    Raises `WeightError`.

    >>> scheme = ExactScheme({"code": 0.5, "text": 0.3, "math": 0.2})
    >>> scheme.names, scheme.counts(10**12 + 1).tolist(), scheme.bound
    (('code', 'text', 'math'), [500000000001, 300000000000, 200000000000], 0.75)
    """

    def __init__(self, weights: Weights, *, key: int = 0) -> None:
        self.names = names_of(weights)
        integers = integer_weights(weights)
        self._count = len(integers)
        drawn = np.flatnonzero(integers > 0)
        bounded = bounded_weights(integers[drawn], _WEIGHT_BITS)
        self._total = int(bounded.sum())
        rare = bounded < -(-self._total // LONGEST_ERA)
        self._common_sources, self._rare_sources = drawn[~rare], drawn[rare]
        self._common = Eras(bounded[~rare])
        self._rare_weight = int(bounded[rare].sum())
        self._rare = ExactScheme(bounded[rare].tolist()) if rare.any() else None
        # Giving rare sources every slot at which their common share rounds up puts all others off
        # by half a slot times their weight, and a rare source of rare ones by little more.
        self.bound = self._common.bound if self._rare is None else 1.6

    def describe(self) -> dict[str, Any]:
        return {"scheme": "exact"}

    def counts(self, n: int) -> Int64Array:
        counts = np.zeros(self._count, dtype=np.int64)
        rare = (2 * self._rare_weight * n + self._total) // (2 * self._total)
        counts[self._common_sources] = self._common.counts(n - rare)
        if self._rare is not None:
            counts[self._rare_sources] = self._rare.counts(rare)
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self._rare is None:
            source, nth = self._common.locate(ks)
            return self._common_sources[source], nth
        before = self._rare_before(ks)
        rare = self._rare_before(ks + 1) > before
        source, nth = np.empty_like(ks), np.empty_like(ks)
        inner, nth[rare] = self._rare.locate(before[rare])
        source[rare] = self._rare_sources[inner]
        inner, nth[~rare] = self._common.locate((ks - before)[~rare])
        source[~rare] = self._common_sources[inner]
        return source, nth

    def _rare_before(self, ks: Int64Array) -> Int64Array:
        """How many of the slots before each one are of rare sources: their share, rounded."""
        weight, until = 2 * self._rare_weight, self._total + 1
        about = ks * float(weight) + until
        return ceil_quotient(ks * weight + until, about, 2 * self._total) - 1

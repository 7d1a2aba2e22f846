"""The exact scheme: every prefix holds the asked shares."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.protocol import WeightedScheme
from energize.order.schemes.balanced import BalancedSlots
from energize.order.schemes.eras import Eras, slots_per_era
from energize.order.weights import Weights, bounded_weights

__all__ = ["ExactScheme", "RareSources"]


_LONGEST_ERA = 2**20
_LONGEST_RARE_ERA = 2**48


class ExactScheme(WeightedScheme):
    """After any number t of slots, each source has had its share `w * t` within `bound` slots.

    `bound` is proven (see `energize.order.schemes.eras`), for n sources with weights above zero:

    - `1 - 1 / (2 n - 2)` when the weights, as integers without a common divisor, sum to at most
      2**17: shares in percent, per mille, small counts;
    - 1, never reached, for other weights;
    - 1.51 when a share is below 2**-40, or below 2**-20 of what all shares below 2**-20 are
      together.

    Where all exact shares are whole numbers, the counts are equal to them. Arithmetic is in
    integers, so the order is the same on every machine; weights of more than 60 bits together are
    rounded to that. Ties go to the first source, and a weight of 0 never receives a slot. No
    random choice is made, so `key` decides nothing.

    Any position below 2**62 costs the same: an era of 4096 to 2**20 slots is computed, and kept;
    rare sources, with a share below 2**-20, have slots of their own, evenly spread.
    Raises `WeightError`.

    >>> scheme = ExactScheme({"code": 0.5, "text": 0.3, "math": 0.2})
    >>> scheme.names, scheme.counts(10**12 + 1).tolist(), scheme.bound
    (('code', 'text', 'math'), [500000000001, 300000000000, 200000000000], 0.75)
    """

    scheme = "exact"

    def __init__(self, weights: Weights, *, key: int = 0) -> None:
        super().__init__(weights, key)
        integers = self._integers
        self._count = len(integers)
        drawn = np.flatnonzero(integers > 0)
        bounded = bounded_weights(integers[drawn])
        slots = BalancedSlots(int(bounded.sum()), int(bounded.sum()))
        rare = bounded < -(-slots.total // max(_LONGEST_ERA - 1, 2 * len(bounded)))
        self._common_sources, self._rare_sources = drawn[~rare], drawn[rare]
        self._rare: RareSources | None = None
        if rare.any():
            self._rare = RareSources(bounded[rare], slots.total)
            slots = self._rare.slots.others()
        self._common = Eras(bounded[~rare], slots)
        self.bound = self._common.bound if self._rare is None else self._rare.bound

    def _counts(self, n: int) -> Int64Array:
        counts = np.zeros(self._count, dtype=np.int64)
        of_rare = 0
        if self._rare is not None:
            of_rare = self._rare.slots.among_first(n)
            counts[self._rare_sources] = self._rare.shares.counts(of_rare)
        counts[self._common_sources] = self._common.counts(n - of_rare)
        return counts

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self._rare is None:
            source, nth = self._common.locate(ks)
            return self._common_sources[source], nth
        before = self._rare.slots.before(ks)
        rare = self._rare.slots.before(ks + 1) > before
        source, nth = np.empty_like(ks), np.empty_like(ks)
        inner, nth[rare] = self._rare.shares.locate(before[rare])
        source[rare] = self._rare_sources[inner]
        inner, nth[~rare] = self._common.locate((ks - before)[~rare])
        source[~rare] = self._common_sources[inner]
        return source, nth


class RareSources:
    """Sources that are not due a slot in every era, or every block, of all: `slots`, which they
    have together, spread evenly, and `shares`, how they share these. Each stays within `bound` of
    its exact share.
    """

    def __init__(self, weights: Int64Array, total: int) -> None:
        self.slots = BalancedSlots(int(weights.sum()), total)
        self.shares: Eras | ExactScheme
        era = slots_per_era(weights, self.slots)
        if era <= _LONGEST_ERA and self.slots.position(era) < _LONGEST_RARE_ERA:
            self.shares = Eras(weights, self.slots)
            self.bound = self.shares.bound
        else:
            # In the slots of rare sources, a source strays by at most 1, or 1.51 if it is rare
            # among them too; and these slots, unless they are all, by half a slot from their share.
            self.shares = ExactScheme(weights.tolist())
            self.bound = self.shares.bound if self.slots.weight == total else 1.51

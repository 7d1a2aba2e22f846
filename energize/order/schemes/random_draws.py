"""The random schemes: every slot is drawn on its own."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int64Array
from energize.order.pieces import Piece, locate_in_pieces
from energize.order.protocol import WeightedScheme
from energize.order.remembered import Remembered
from energize.order.schemes.portions import multinomial
from energize.order.schemes.random_order import RandomOrder, leaf_bits
from energize.order.weights import Weights, bounded_weights
from energize.rng import derive

__all__ = ["RandomScheme", "UniformScheme"]


_FIRST_BITS, _LARGEST_BITS = 30, 40
_WEIGHT_BITS = 50


class RandomScheme(WeightedScheme):
    """Each slot is drawn independently of all others, a source with the probability of its weight.

    Counts are known without drawing what lies before: slots come in runs, the first of 2**30 slots,
    each other of as many as all before it, up to 2**40. How many slots of a run each source has is
    drawn first (multinomial), then in which order they come (`RandomOrder`); together these are
    independent draws. So any position below 2**40 costs about the same, ten to twenty halvings of a
    run once, and two for each smallest block when read on. Beyond, the totals of all runs before
    are drawn too.

    All draws are functions of `key` and the position, the same on every machine and with every
    version of numpy. Weights of more than 50 bits together are rounded to that; a weight of 0
    never receives a slot. Raises `WeightError`.

    >>> scheme = RandomScheme([3, 1], key=5)
    >>> scheme.counts(10**9).tolist()
    [749991390, 250008610]
    """

    scheme = "random"

    def __init__(self, weights: Weights, *, key: int = 0) -> None:
        super().__init__(weights, key)
        self._key = derive(self.scheme, self._given_key)
        integers = self._drawn_by()
        self._count = len(integers)
        self._drawn = np.flatnonzero(integers > 0)
        self._weights = bounded_weights(integers[self._drawn], _WEIGHT_BITS)
        self._leaf = leaf_bits(len(self._drawn))
        self._run = Remembered(self._made, _LARGEST_BITS - _FIRST_BITS + 2)
        self._before = Remembered(self._before_run, 4)
        self._layout = Remembered(self._laid_out, 2)

    def _drawn_by(self) -> Int64Array:
        """The weights that decide."""
        return self._integers

    def _counts(self, n: int) -> Int64Array:
        leaf, rest = divmod(n, 1 << self._leaf)
        run, within = self._place(leaf)
        drawn = self._before(run) + self._run(run).before(within)
        if rest:
            drawn += np.bincount(self._layout(leaf).source[:rest], minlength=len(drawn))
        counts = np.zeros(self._count, dtype=np.int64)
        counts[self._drawn] = drawn
        return counts

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        source, nth = locate_in_pieces(ks, 1 << self._leaf, self._layout)
        return self._drawn[source], nth

    def _laid_out(self, leaf: int) -> Piece:
        run, within = self._place(leaf)
        order = self._run(run)
        source, rank = order.laid_out(within)
        return Piece(source, rank, self._before(run) + order.before(within))

    # Runs are numbered; run 0 has 2**30 slots, run i begins at 2**(29 + i) and ends at twice that.
    # Those from 2**40 on all have 2**40.

    def _place(self, leaf: int) -> tuple[int, int]:
        """The run of a leaf, and the leaf's number in it."""
        slot = leaf << self._leaf
        doubled = max(slot.bit_length() - _FIRST_BITS, 0)
        run = min(doubled, _LARGEST_BITS - _FIRST_BITS) + (slot >> _LARGEST_BITS)
        return run, (slot - _span(run)[0]) >> self._leaf

    def _made(self, run: int) -> RandomOrder:
        start, length = _span(run)
        key = derive(self._key, "run", start)
        [totals] = multinomial(key, np.array([length]), self._weights[np.newaxis])
        return RandomOrder(totals, key, self._leaf)

    def _before_run(self, run: int) -> Int64Array:
        before = np.zeros_like(self._weights)
        for each in range(run):
            before += self._run(each).totals
        return before


class UniformScheme(RandomScheme):
    """As `RandomScheme`, with the same probability for every source of a weight above 0.

    >>> UniformScheme([1, 0, 9], key=5).counts(10**6).tolist()
    [500841, 0, 499159]
    """

    scheme = "uniform"

    def _drawn_by(self) -> Int64Array:
        equal: Int64Array = (self._integers > 0).astype(np.int64)
        return equal


def _span(run: int) -> tuple[int, int]:
    """The first slot of a run, and its length."""
    if run == 0:
        return 0, 1 << _FIRST_BITS
    doubled = _FIRST_BITS - 1 + run
    if doubled < _LARGEST_BITS:
        return 1 << doubled, 1 << doubled
    return (doubled - _LARGEST_BITS + 1) << _LARGEST_BITS, 1 << _LARGEST_BITS

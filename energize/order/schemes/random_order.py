"""A run of slots in random order, any part of which is known without the others."""

from __future__ import annotations

import numpy as np

from energize.arrays import Int32Array, Int64Array
from energize.order.pieces import ranks_within
from energize.order.remembered import Remembered
from energize.order.schemes.portions import without_replacement
from energize.rng import derive, shuffled

__all__ = ["RandomOrder", "leaf_bits"]


class RandomOrder:
    """A run in which source s has `totals[s]` slots, in random order: all orders are as likely.

    A block of the run is halved by drawing which of its slots, without replacement, are in its
    first half; and a smallest block, a leaf of 2**`leaf` slots, puts its own in random order. The
    run has 1 to 2**40 slots; its last leaf may be shorter.
    """

    def __init__(self, totals: Int64Array, key: int, leaf: int) -> None:
        self.totals = totals
        self._length = int(totals.sum())
        self._key, self._leaf = key, leaf
        self._root = max((self._length - 1).bit_length(), leaf)
        path = self._root - leaf + 4
        self._block = Remembered(self._counted, path)
        self._first_half = Remembered(self._halved, path)

    def before(self, leaf: int) -> Int64Array:
        """The slots of each source before a leaf."""
        if leaf << self._leaf >= self._length:
            return self.totals
        before, _ = self._block(self._leaf, leaf)
        return before

    def laid_out(self, leaf: int) -> tuple[Int32Array, Int32Array]:
        """For each slot of a leaf its source, and that source's slots before it in the leaf."""
        _, counts = self._block(self._leaf, leaf)
        order = shuffled(derive(self._key, "order"), leaf, int(counts.sum()))
        source = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[order]
        return source, ranks_within(source, counts)

    # A block has 2**bits slots and a number: it begins at slot number * 2**bits. The last ones may
    # reach beyond the run.

    def _counted(self, bits: int, number: int) -> tuple[Int64Array, Int64Array]:
        """The slots of each source before a block, and in it."""
        if bits == self._root:
            return np.zeros_like(self.totals), self.totals
        before, counts = self._block(bits + 1, number // 2)
        first = self._first_half(bits + 1, number // 2)
        return (before + first, counts - first) if number % 2 else (before, first)

    def _halved(self, bits: int, number: int) -> Int64Array:
        """The slots of each source in the first half of a block."""
        _, counts = self._block(bits, number)
        there = min(1 << (bits - 1), self._length - (number << bits))
        return without_replacement(derive(self._key, "half", bits, number), counts, there)


def leaf_bits(sources: int) -> int:
    """How large leaves are for so many sources: as cheap to lay out as to split off."""
    return min(20, max(14, (sources - 1).bit_length()))

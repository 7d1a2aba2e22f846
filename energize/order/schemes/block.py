"""The block scheme: exact shares in every block, in random order inside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from energize.arrays import Int32Array, Int64Array
from energize.errors import ConfigError
from energize.order.numeric import whole_number
from energize.order.pieces import Piece, by_source, locate_in_pieces
from energize.order.protocol import WeightedScheme
from energize.order.remembered import Remembered
from energize.order.schemes.exact import RareSources
from energize.order.schemes.remainders import LargestRemainders
from energize.order.weights import Weights, bounded_weights
from energize.rng import shuffled

__all__ = ["BlockScheme"]


_LARGEST_BLOCK = 2**24


class BlockScheme(WeightedScheme):
    """Slots in blocks of `block_size`, each with the exact shares, in random order.

    At every block boundary each source is within `bound` slots of its exact share: what rounding
    owes a source in one block it gets in the next, nothing drifts, and a block in which all shares
    are whole numbers holds exactly those. Any block is computed alone.

    When each of n sources is due a slot in every block, its counts at boundaries are rounded by
    largest remainder, and `bound` is `1 - 1 / n`. Sources with smaller shares have slots of their
    own, evenly spread, and share them as in the scheme `exact`, whose bound then holds for all.

    `weights` need not sum to 1; ties go to the first, and a weight of 0 never receives a slot.
    Raises `WeightError` or `ConfigError`.

    >>> scheme = BlockScheme([0.5, 0.3, 0.2], block_size=10, key=1)
    >>> scheme.counts(10).tolist(), scheme.counts(10**12).tolist()
    ([5, 3, 2], [500000000000, 300000000000, 200000000000])
    """

    scheme = "block"

    def __init__(self, weights: Weights, *, block_size: int = 1000, key: int = 0) -> None:
        size = whole_number(block_size)
        if size is None or size < 1:
            raise ConfigError(f"block_size counts slots, 1 or more; got {block_size!r}")
        if size > _LARGEST_BLOCK:
            raise ConfigError(
                f"block_size is {size}, and a block is laid out in memory: it has {_LARGEST_BLOCK} "
                "slots at most. The scheme 'random' has no blocks"
            )
        super().__init__(weights, key)
        self.block_size = size
        drawn = np.flatnonzero(self._integers > 0)
        bounded = bounded_weights(self._integers[drawn])
        total = int(bounded.sum())
        rare = bounded < -(-total // size)
        self._common_sources, self._rare_sources = drawn[~rare], drawn[rare]
        self._common = LargestRemainders(bounded[~rare], total)
        self._rare = RareSources(bounded[rare], total) if rare.any() else None
        self.bound = 1 - 1 / len(drawn) if self._rare is None else max(1.0, self._rare.bound)
        if self._rare is not None and rare.all():
            self.bound = self._rare.bound
        self._start = Remembered(self._at_start, 4)
        self._layout = Remembered(self._shuffled, 4)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "block_size": self.block_size}

    def _counts(self, n: int) -> Int64Array:
        block, rest = divmod(n, self.block_size)
        of_common, of_rare = self._start(block)
        counts = np.zeros(len(self._integers), dtype=np.int64)
        counts[self._common_sources] = of_common
        if self._rare is not None:
            counts[self._rare_sources] = self._rare.shares.counts(of_rare)
        if rest:
            counts += np.bincount(self._layout(block).source[:rest], minlength=len(counts))
        return counts

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        return locate_in_pieces(ks, self.block_size, self._layout)

    def _at_start(self, block: int) -> tuple[Int64Array, int]:
        """The slots before a block of each common source, and of all rare ones together."""
        start = block * self.block_size
        of_rare = 0
        if self._rare is not None:
            of_rare = self._rare.slots.among_first(start)
        return self._common.counts(start, start - of_rare), of_rare

    def _ordered(self, block: int) -> tuple[Int32Array, Int64Array]:
        """The source of each slot of a block, sources in order, and that source's slots before."""
        (first, rare), (last, rare_last) = self._start(block), self._start(block + 1)
        slots = last - first
        source = np.repeat(self._common_sources, slots).astype(np.int32)
        nth = np.arange(len(source)) + np.repeat(first - (np.cumsum(slots) - slots), slots)
        if self._rare is None:
            return source, nth
        inner, nth_of_rare = self._rare.shares.locate(np.arange(rare, rare_last))
        source = np.concatenate([source, self._rare_sources[inner].astype(np.int32)])
        order = by_source(source, len(self._integers))
        return source[order], np.concatenate([nth, nth_of_rare])[order]

    def _shuffled(self, block: int) -> Piece:
        source, nth = self._ordered(block)
        order = shuffled(self._given_key, block, self.block_size)
        placed = source[order]
        ranks = np.empty_like(nth)
        ranks[by_source(placed, len(self._integers))] = nth
        return Piece(placed, ranks)

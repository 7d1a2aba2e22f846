"""The block scheme: exact shares in every block, in random order inside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.errors import ConfigError
from energize.order.weights import integer_weights, largest_remainder
from energize.rng import derive, shuffled

__all__ = ["BlockScheme"]

Int64Array = npt.NDArray[np.int64]

_MOST_BLOCKS = 64
"""A superblock is at most this many blocks: the work for one lookup stays bounded."""


class BlockScheme:
    """Slots in blocks of `block_size`; each block shares out its slots by largest remainder,
    carries what rounding owes a source into the next, and shuffles inside.

    Nothing drifts, and any block is computed alone: blocks are grouped in superblocks large enough
    that each source is due two slots in one, the shares up to a superblock's end are rounded from
    the start of the run (within 1.5 slots of exact, for ever), and each superblock is split into
    its blocks with carry. Sources too small for that are rounded together as one, and share its
    slots by the same scheme among themselves. A weight of 0 never receives a slot.

    `weights` need not sum to 1; ties go to the first. Raises `WeightError` or `ConfigError`.

    >>> scheme = BlockScheme([0.5, 0.3, 0.2], block_size=10, key=1)
    >>> scheme.counts(10).tolist(), scheme.counts(10**12).tolist()
    ([5, 3, 2], [500000000000, 300000000000, 200000000000])
    """

    def __init__(self, weights: Sequence[float], *, block_size: int = 1000, key: int = 0) -> None:
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ConfigError(f"block_size counts slots, 1 or more; got {block_size!r}")
        self.block_size = block_size
        self._key = key
        self._weights = integer_weights(weights)
        self._total = int(self._weights.sum())
        self._plan()
        self._block = lru_cache(maxsize=4)(self._layout)
        self._split = lru_cache(maxsize=4)(self._superblock)

    def describe(self) -> dict[str, Any]:
        return {"scheme": "block", "block_size": self.block_size}

    def _plan(self) -> None:
        """Choose the superblock, and gather the sources that are too small for it."""
        weights, total, size = self._weights, self._total, self.block_size
        least = int(weights[weights > 0].min())
        self._blocks = min(_MOST_BLOCKS, -(-2 * total // (least * size)))
        self._slots = self._blocks * size
        small = (weights > 0) & (weights * self._slots < 2 * total)
        self._large = np.flatnonzero((weights > 0) & ~small)
        self._small = np.flatnonzero(small)
        self._small_weight = int(weights[small].sum())
        self._inner = None
        if self._small.size:
            small_key = derive(self._key, "small sources")
            self._inner = _inner_scheme(weights[small], size, small_key)

    def counts(self, n: int) -> Int64Array:
        block, rest = divmod(n, self.block_size)
        entries = self._entry_counts(block)
        if rest:
            entries += np.bincount(self._block(block)[0][:rest], minlength=len(entries))
        return self._by_source(entries)

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        block, offset = np.divmod(ks, self.block_size)
        entry = np.empty(len(ks), dtype=np.int64)
        rank = np.empty(len(ks), dtype=np.int64)
        for each in np.unique(block).tolist():
            rows = np.flatnonzero(block == each)
            entries, ranks = self._block(each)
            entry[rows], rank[rows] = entries[offset[rows]], ranks[offset[rows]]
        return self._unfold(entry, rank)

    # An entry is a large source, or, behind the last of them, all small ones together.

    def _unfold(self, entry: Int64Array, rank: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self._inner is None:
            return self._large[entry], rank
        source, nth = np.empty_like(entry), rank.copy()
        folded = entry == self._large.size
        source[~folded] = self._large[entry[~folded]]
        if folded.any():
            inner, nth[folded] = self._inner.locate(rank[folded])
            source[folded] = self._small[inner]
        return source, nth

    def _by_source(self, entries: Int64Array) -> Int64Array:
        counts = np.zeros(len(self._weights), dtype=np.int64)
        counts[self._large] = entries[: self._large.size]
        if self._inner is not None:
            counts[self._small] = self._inner.counts(int(entries[-1]))
        return counts

    def _entry_counts(self, block: int) -> Int64Array:
        """Slots given to each entry in all blocks before `block`."""
        superblock, inside = divmod(block, self._blocks)
        start = self._rounded(superblock)
        return start + self._split(superblock)[:inside].sum(axis=0)

    def _rounded(self, superblock: int) -> Int64Array:
        """Cumulative shares at a superblock boundary: monotone, since large entries are due at
        least two slots per superblock and the small ones together are rounded on their own.
        """
        slots = superblock * self._slots
        large = self._weights[self._large]
        if self._inner is None:
            return largest_remainder(large, slots)
        if self._small_weight * self._slots >= 2 * self._total:
            return largest_remainder(np.append(large, self._small_weight), slots)
        small = (2 * self._small_weight * slots + self._total) // (2 * self._total)
        return np.append(largest_remainder(large, slots - small), small)

    def _superblock(self, superblock: int) -> Int64Array:
        """The slots of each entry (columns) in each block (rows) of a superblock."""
        due = self._rounded(superblock + 1) - self._rounded(superblock)
        rows = np.empty((self._blocks, len(due)), dtype=np.int64)
        given = np.zeros_like(due)
        for i in range(self._blocks):
            rows[i] = _split_block(due * (i + 1) - given * self._blocks, self._blocks)
            given += rows[i]
        return rows

    def _layout(self, block: int) -> tuple[Int64Array, Int64Array]:
        """For each slot of a block its entry, and that entry's slots before it since the start."""
        superblock, inside = divmod(block, self._blocks)
        counts = self._split(superblock)[inside]
        entries = np.repeat(np.arange(len(counts)), counts)
        ranks = np.empty(self.block_size, dtype=np.int64)
        order = shuffled(self._key, block, self.block_size)
        placed = entries[order]
        by_entry = np.argsort(placed, kind="stable")
        first = np.cumsum(counts) - counts
        ranks[by_entry] = np.arange(self.block_size) - np.repeat(first, counts)
        return placed, ranks + self._entry_counts(block)[placed]

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        del kept["_block"], kept["_split"]
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._block = lru_cache(maxsize=4)(self._layout)
        self._split = lru_cache(maxsize=4)(self._superblock)


def _inner_scheme(weights: Int64Array, block_size: int, key: int) -> BlockScheme:
    return BlockScheme(weights.tolist(), block_size=block_size, key=key)


def _split_block(owed: Int64Array, parts: int) -> Int64Array:
    """One block's slots: `owed / parts` rounded to integers of the same sum, none negative.

    `owed` may be negative where earlier blocks gave more than was due.
    """
    slots = int(owed.sum()) // parts
    given, remainders = np.divmod(np.maximum(owed, 0), parts)
    missing = slots - int(given.sum())
    if missing > 0:
        given[np.argsort(-remainders, kind="stable")[:missing]] += 1
    while missing < 0:
        takers = np.flatnonzero(given)
        take = takers[np.argsort(remainders[takers], kind="stable")[:-missing]]
        given[take] -= 1
        missing += len(take)
    return given

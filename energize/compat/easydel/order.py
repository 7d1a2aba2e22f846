"""The exact order of EasyDeL 0.3, for runs that have to repeat one of its."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from energize.arrays import FloatArray, Int64Array, rows_by_value
from energize.describing import described
from energize.errors import ConfigError
from energize.order import Schedule
from energize.order.protocol import CheckedScheme
from energize.order.varying import Weight, weights_at

_TABLE_BLOCKS = 2**24
_BLOCKS_AT_ONCE = 2**14


class EasydelScheme(CheckedScheme):
    """Blocks that hold floor(share * block_size) slots of each source, the rest of them going to
    the largest share, in the order that numpy's `default_rng(seed + block).shuffle` gives them.

    Nothing is carried from block to block, so sources with a share below 1 / block_size never come.
    Weights that are schedules are read at the first slot of each block. The order of the sources
    matters.

    >>> scheme = EasydelScheme([0.3, 0.7], block_size=10, seed=42)
    >>> scheme.locate(np.arange(10))[0].tolist()
    [1, 1, 0, 1, 1, 0, 1, 1, 0, 1]
    """

    names = None

    def __init__(self, weights: Sequence[Weight], *, block_size: int, seed: int) -> None:
        self._weights, self._block_size, self._seed = tuple(weights), block_size, seed
        self._points = [0]
        for each in self._weights:
            self._points += each.slots if isinstance(each, Schedule) else []
        self._changing = -(-max(self._points) // block_size)
        if self._changing > _TABLE_BLOCKS:
            raise ConfigError(
                f"order='easydel' needs a table of all blocks up to the last point of a schedule; "
                f"{self._changing} blocks of {block_size} are too many. Use order='energize'"
            )

    @property
    def highest(self) -> list[float]:
        """The highest weight of each source at any slot."""
        weights = weights_at(self._weights, np.array(self._points, dtype=np.float64))
        highest: list[float] = weights.max(axis=0).tolist()
        return highest

    def describe(self) -> dict[str, Any]:
        return {
            "scheme": "easydel",
            "block_size": self._block_size,
            "seed": self._seed,
            "weights": described(self._weights),
        }

    def _counts(self, n: int) -> Int64Array:
        block, rest = divmod(n, self._block_size)
        sources, _ = self._layout(block)
        return self._before(block) + np.bincount(sources[:rest], minlength=len(self._weights))

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        blocks, offset = np.divmod(ks, self._block_size)
        source, nth = np.empty_like(ks), np.empty_like(ks)
        for block, rows in rows_by_value(blocks):
            sources, ranks = self._layout(block)
            source[rows] = sources[offset[rows]]
            nth[rows] = ranks[offset[rows]] + self._before(block)[source[rows]]
        return source, nth

    def _layout(self, block: int) -> tuple[Int64Array, Int64Array]:
        counts = self._block_counts(np.array([block]))[0]
        return _layout(tuple(counts.tolist()), self._seed + block)

    def _before(self, block: int) -> Int64Array:
        """Slots of each source in all blocks before `block`; after the last point they repeat."""
        known = min(block, self._changing)
        repeated = self._block_counts(np.array([self._changing]))[0]
        return np.asarray(self._table[known] + repeated * (block - known))

    @cached_property
    def _table(self) -> Int64Array:
        """Slots of each source (columns) before each block up to the last point (rows)."""
        blocks = np.arange(self._changing)
        cuts = range(_BLOCKS_AT_ONCE, self._changing, _BLOCKS_AT_ONCE)
        parts = [self._block_counts(each) for each in np.split(blocks, cuts)]
        zero = np.zeros((1, len(self._weights)), dtype=np.int64)
        return np.cumsum(np.concatenate([zero, *parts]), axis=0)

    def _block_counts(self, blocks: Int64Array) -> Int64Array:
        """The slots of each source (columns) in each block (rows)."""
        weights: FloatArray = weights_at(self._weights, blocks * float(self._block_size))
        shares = weights / np.cumsum(weights, axis=1)[:, -1:]  # summed from left to right
        counts = np.floor(shares * self._block_size).astype(np.int64)
        largest = np.argmax(shares, axis=1)
        counts[np.arange(len(blocks)), largest] += self._block_size - counts.sum(axis=1)
        return np.asarray(counts)


@lru_cache(maxsize=8)
def _layout(counts: tuple[int, ...], seed: int) -> tuple[Int64Array, Int64Array]:
    """For each slot of a block its source, and that source's slots before it in the block."""
    sources = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(sources)
    ranks = np.empty_like(sources)
    ranks[np.argsort(sources, kind="stable")] = np.concatenate([*map(np.arange, counts)])
    return sources, ranks

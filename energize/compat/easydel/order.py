"""The exact order of EasyDeL 0.3, for runs that have to repeat one of its."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.describing import described
from energize.errors import ConfigError
from energize.order.schedules.varying import Weight, schedules_in, weights_at

__all__ = ["EasydelScheme"]


_TABLE_BLOCKS = 2**24
_BLOCKS_AT_ONCE = 2**14


class EasydelScheme:
    """Blocks that hold floor(share * block_size) slots of each source, the rest of them going to
    the largest share, in the order that numpy's `default_rng(seed + block).shuffle` gives them.

    Nothing is carried from block to block, so sources with a share below 1 / block_size never come.
    Weights that are schedules are read at the first slot of each block. The order of the sources
    matters.

    >>> scheme = EasydelScheme([0.3, 0.7], block_size=10, seed=42)
    >>> scheme.locate(np.arange(10))[0].tolist()
    [1, 1, 0, 1, 1, 0, 1, 1, 0, 1]
    """

    def __init__(self, weights: Sequence[Weight], *, block_size: int, seed: int) -> None:
        self._weights = tuple(weights)
        self.block_size = block_size
        self.seed = seed
        points = [slot for each in weights for one in schedules_in(each) for slot in one.slots]
        self._changing = -(-max(points, default=0) // block_size)
        if self._changing > _TABLE_BLOCKS:
            raise ConfigError(
                f"order='easydel' needs a table of all blocks up to the last point of a schedule; "
                f"{self._changing} blocks of {block_size} are too many. Use order='energize'"
            )
        self._block = lru_cache(maxsize=4)(self._layout)

    def describe(self) -> dict[str, Any]:
        weights = described(self._weights)
        return {
            "scheme": "easydel",
            "block_size": self.block_size,
            "seed": self.seed,
            "weights": weights,
        }

    def counts(self, n: int) -> Int64Array:
        block, rest = divmod(n, self.block_size)
        counts = self._before(block)
        if rest:
            counts = counts + np.bincount(self._block(block)[0][:rest], minlength=len(counts))
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        block, offset = np.divmod(ks, self.block_size)
        source = np.empty(len(ks), dtype=np.int64)
        nth = np.empty(len(ks), dtype=np.int64)
        for each in np.unique(block).tolist():
            rows = np.flatnonzero(block == each)
            sources, ranks = self._block(each)
            source[rows], nth[rows] = sources[offset[rows]], ranks[offset[rows]]
        return source, nth

    def _before(self, block: int) -> Int64Array:
        """Slots of each source in all blocks before `block`; behind the last point they repeat."""
        known = min(block, self._changing)
        repeated = self._block_counts(np.array([self._changing]))[0]
        return np.asarray(self._table[known] + repeated * (block - known))

    @cached_property
    def _table(self) -> Int64Array:
        """Slots of each source (columns) before each block up to the last point (rows)."""
        blocks = np.arange(self._changing)
        parts = [
            self._block_counts(blocks[first : first + _BLOCKS_AT_ONCE])
            for first in range(0, len(blocks), _BLOCKS_AT_ONCE)
        ]
        zero = np.zeros((1, len(self._weights)), dtype=np.int64)
        return np.cumsum(np.concatenate([zero, *parts]), axis=0)

    def _block_counts(self, blocks: Int64Array) -> Int64Array:
        """The slots of each source (columns) in each block (rows)."""
        weights = weights_at(self._weights, blocks * self.block_size)
        shares = weights / np.cumsum(weights, axis=1)[:, -1:]  # summed from left to right
        counts = np.floor(shares * self.block_size).astype(np.int64)
        largest = np.argmax(shares, axis=1)
        counts[np.arange(len(blocks)), largest] += self.block_size - counts.sum(axis=1)
        return np.asarray(counts)

    def _layout(self, block: int) -> tuple[Int64Array, Int64Array]:
        """For each slot of a block its source, and that source's slots before it in the run."""
        counts = self._block_counts(np.array([block]))[0]
        sources = np.repeat(np.arange(len(counts)), counts)
        np.random.default_rng(self.seed + block).shuffle(sources)
        ranks = np.empty_like(sources)
        ranks[np.argsort(sources, kind="stable")] = np.concatenate(
            [np.arange(count) for count in counts.tolist()]
        )
        return sources, ranks + self._before(block)[sources]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EasydelScheme) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((self.block_size, self.seed, len(self._weights)))

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if name != "_block"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._block = lru_cache(maxsize=4)(self._layout)

"""Blocks under weights that change: a stretch of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energize.arrays import Int32Array, Int64Array
from energize.order.pieces import by_source
from energize.order.remembered import Remembered
from energize.order.schedules.apportion import Apportionment
from energize.order.schedules.integral import Dues, ShareIntegral
from energize.order.schedules.marks import Marks, Stretch
from energize.rng import derive, shuffled

__all__ = ["BlockStage"]


_LARGEST_GROUP = 64
_LARGEST_TABLE = 2**20


class BlockStage:
    """Blocks of `block_size` slots in `stretches` that follow one another, each with the share that
    is due to each of `sources`, shuffled.

    Slot 0 is the start of the first stretch. The last block of each may be short. A group of blocks
    is computed at once: the counts at their ends; or, for more sources than a block has slots,
    where each of their slots goes. Then block ends are no marks, and counts there may be 1/16 slot
    further from the integral.
    """

    def __init__(
        self,
        dues: Dues,
        stretches: Sequence[Stretch],
        sources: int,
        block_size: int,
        key: int,
        *,
        carried: bool,
    ) -> None:
        self.start, self.end = stretches[0].begin, stretches[-1].end
        self._sources, self._block_size, self._key = sources, block_size, key
        self._blocks = Marks(stretches)
        self._by_slots = sources > block_size
        self._group_size = min(max(_LARGEST_TABLE // sources, 1), _LARGEST_GROUP)
        self._large_group_size = -(-sources // block_size)
        threshold_key = derive(key, "thresholds") if carried else None
        marks = self._blocks
        if self._by_slots and isinstance(dues, ShareIntegral):
            marks = dues.marks()
        self._apportionment = Apportionment(dues, marks, threshold_key)
        self._group = Remembered(self._counts_in_group, 4)
        self._large_group = Remembered(self._located_in_group, 2)
        self._laid_out = Remembered(self._layout, 4)

    def describe(self) -> dict[str, Any]:
        return {"scheme": "block", "block_size": self._block_size}

    def counts(self, n: int) -> Int64Array:
        slot = min(self.start + n, self.end)
        [block] = self._blocks.before(np.array([slot])).tolist()
        counts = self._counts_at(block).copy()
        rest = slot - self._mark(block)
        if rest:
            counts += np.bincount(self._laid_out(block)[0][:rest], minlength=len(counts))
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        blocks = self._blocks.before(self.start + ks)
        source, nth = np.empty(len(ks), dtype=np.int64), np.empty(len(ks), dtype=np.int64)
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            sources, ranks = self._laid_out(block)
            offsets = ks[rows] + (self.start - self._mark(block))
            source[rows], nth[rows] = sources[offsets], ranks[offsets]
        return source, nth

    def _mark(self, block: int) -> int:
        """The slot of the schedules at which a block begins, or the stage ends."""
        return int(self._blocks.slots(np.array([block]))[0])

    def _counts_at(self, block: int) -> Int64Array:
        group, number = divmod(block, self._group_size)
        counts: Int64Array = self._group(group)[number]
        return counts

    def _counts_in_group(self, group: int) -> Int64Array:
        """The slots of each source (columns) before each block of a group (rows)."""
        first = group * self._group_size
        behind = min(first + self._group_size, self._blocks.last + 1)
        return self._apportionment.counts(self._blocks.slots(np.arange(first, behind)) - self.start)

    def _located_in_group(self, group: int) -> tuple[int, Int64Array, Int64Array]:
        """The first slot of a large group; for each of its slots a source, and the slots of that
        source before it.
        """
        first = group * self._large_group_size
        behind = min(first + self._large_group_size, self._blocks.last)
        begin, end = (self._blocks.slots(np.array([first, behind])) - self.start).tolist()
        return begin, *self._apportionment.located(begin, end)

    def _ordered(self, block: int) -> tuple[Int32Array, Int64Array]:
        """The sources of a block's slots, in order of the sources, and the slots of the source
        before each of them.
        """
        if self._by_slots:
            begin, source, nth = self._large_group(block // self._large_group_size)
            here = slice(*(self._mark(each) - self.start - begin for each in (block, block + 1)))
            order = by_source(source[here].astype(np.int32), self._sources)
            return source[here][order].astype(np.int32), nth[here][order]
        before = self._counts_at(block)
        given = self._counts_at(block + 1) - before
        ordered = np.repeat(np.arange(len(given), dtype=np.int32), given)
        first = np.cumsum(given) - given
        return ordered, np.arange(len(ordered)) + (before - first)[ordered]

    def _layout(self, block: int) -> tuple[Int32Array, Int64Array]:
        """For each slot of a block its source, and the slots of that source before it."""
        ordered, nth = self._ordered(block)
        placed = ordered[shuffled(self._key, block, len(ordered))]
        ranks = np.empty_like(nth)
        ranks[by_source(placed, self._sources)] = nth
        return placed, ranks

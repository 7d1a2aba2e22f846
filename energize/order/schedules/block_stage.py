"""Blocks under weights that change: a stretch of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.order.remembered import Remembered
from energize.order.schedules.apportion import Apportionment
from energize.order.schedules.integral import Dues, Piece
from energize.rng import derive, shuffled

__all__ = ["BlockStage"]

Int64Array = npt.NDArray[np.int64]


class BlockStage:
    """Blocks from `start` to `end`, each with the share that is due to each source, shuffled.

    Slot 0 is `start`. Every piece begins with a new block; its last one may be short.
    """

    def __init__(
        self, dues: Dues, pieces: Sequence[Piece], block_size: int, key: int, *, carried: bool
    ) -> None:
        self.start, self.end = pieces[0].start, pieces[-1].end
        self._block_size, self._key = block_size, key
        self._begins = [piece.start - self.start for piece in pieces]
        self._length = self.end - self.start
        blocks = [-(-(piece.end - piece.start) // block_size) for piece in pieces]
        self._first_block = list(accumulate(blocks, initial=0))
        threshold_key = derive(key, "thresholds") if carried else None
        apportionment = Apportionment(dues, self._slot_of, self._first_block[-1], threshold_key)
        self._counts_at = Remembered(apportionment.counts, 64)
        self._laid_out = Remembered(self._layout, 4)

    def describe(self) -> dict[str, Any]:
        return {"scheme": "block", "block_size": self._block_size}

    def counts(self, n: int) -> Int64Array:
        if n >= self._length:
            return self._counts_at(self._first_block[-1]).copy()
        block = int(self._block_of(np.array([n]))[0])
        counts = self._counts_at(block).copy()
        rest = n - self._mark(block)
        if rest:
            counts += np.bincount(self._laid_out(block)[0][:rest], minlength=len(counts))
        return counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        blocks = self._block_of(ks)
        source, nth = np.empty(len(ks), dtype=np.int64), np.empty(len(ks), dtype=np.int64)
        for block in np.unique(blocks).tolist():
            rows = np.flatnonzero(blocks == block)
            sources, ranks = self._laid_out(block)
            offsets = ks[rows] - self._mark(block)
            source[rows], nth[rows] = sources[offsets], ranks[offsets]
        return source, nth

    def _block_of(self, slots: Int64Array) -> Int64Array:
        piece = np.searchsorted(self._begins, slots, side="right") - 1
        offset = slots - np.array(self._begins)[piece]
        blocks: Int64Array = np.array(self._first_block)[piece] + offset // self._block_size
        return blocks

    def _mark(self, block: int) -> int:
        """The slot at which a block begins, or the stage ends."""
        piece = bisect_right(self._first_block, block) - 1
        if piece == len(self._begins):
            return self._length
        return self._begins[piece] + (block - self._first_block[piece]) * self._block_size

    def _slot_of(self, block: int) -> int:
        return self.start + self._mark(block)

    def _layout(self, block: int) -> tuple[Int64Array, Int64Array]:
        """For each slot of a block its source, and the slots of that source before it."""
        before = self._counts_at(block)
        given = self._counts_at(block + 1) - before
        placed = np.repeat(np.arange(len(given)), given)[shuffled(self._key, block, given.sum())]
        ranks = np.empty_like(placed)
        ranks[np.argsort(placed, kind="stable")] = np.arange(len(placed))
        first = np.cumsum(given) - given
        ranks += (before - first)[placed]
        return placed, ranks

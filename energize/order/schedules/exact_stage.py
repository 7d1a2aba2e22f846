"""Exact shares in every prefix under weights that change: a stretch of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.order.pieces import Piece, locate_in_pieces
from energize.order.remembered import Remembered
from energize.order.schedules.apportion import Apportionment
from energize.order.schedules.integral import ShareIntegral
from energize.rng import derive

__all__ = ["ExactStage"]


_SHORTEST_PIECE = 2**12


class ExactStage:
    """Slots from the first piece of `dues` to the end of its last, apportioned one by one.

    After each of them, each of the n sources is within ceil(log2(n)) / 2 + 1/16 slots of its due:
    the rounding, half a slot for each level of a tree over the sources, and the bend of the
    integral between marks, between which it is taken to be straight. `carried` is said of a stretch
    that others went before; then roundings are at random thresholds, which makes them fair over
    many stretches, and up to twice as large. Slot 0 is the first one.
    """

    def __init__(self, dues: ShareIntegral, sources: int, key: int, *, carried: bool) -> None:
        marks = dues.marks()
        self.start, self.end = marks.start, marks.end
        threshold_key = derive(key, "thresholds") if carried else None
        self._apportionment = Apportionment(dues, marks, threshold_key)
        self._piece_size = max(_SHORTEST_PIECE, 1 << (4 * sources - 1).bit_length())
        self._counts = Remembered(self._counts_before, 4)
        self._located = Remembered(self._piece, 2)

    def describe(self) -> dict[str, Any]:
        return {"scheme": "exact"}

    def counts(self, n: int) -> Int64Array:
        return self._counts(min(n, self.end - self.start)).copy()

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        return locate_in_pieces(ks, self._piece_size, self._located)

    def _counts_before(self, n: int) -> Int64Array:
        counts: Int64Array = self._apportionment.counts(np.array([n]))[0]
        return counts

    def _piece(self, number: int) -> Piece:
        first = number * self._piece_size
        behind = min(first + self._piece_size, self.end - self.start)
        source, nth = self._apportionment.located(first, behind)
        return Piece(source.astype(np.int32), nth)

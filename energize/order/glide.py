"""Slots while shares change evenly: short pieces, each with whole numbers of slots."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np

from energize.arrays import BoolArray, FloatArray, Int64Array, rows_by_value
from energize.order.apportionment import Apportionment
from energize.order.remembered import Remembered

_MOST_PIECES = 2048
_LARGEST_TABLE = 2**20
_GAUSS = (0.1127016653792583, 0.5, 0.8872983346207417)
_GAUSS_WEIGHTS = (5 / 18, 8 / 18, 5 / 18)
"""Gauss-Legendre quadrature over 0 to 1."""


def glide_edges(length: int, sources: int) -> Int64Array:
    """Where the pieces of `length` slots begin, and the end of the last.

    There are so many that shares are nearly straight within a piece: with up to 512 sources and 8
    million slots no source strays by more than 0.4 slots for it. It is more in proportion to the
    length beyond that, and to the square of the number of sources.
    """
    pieces = min(isqrt(length // 2) + 1, _MOST_PIECES, max(_LARGEST_TABLE // sources, 16), length)
    return np.arange(pieces + 1) * length // pieces


class Glide:
    """Slots from `edges[0]` = 0 on, shared out piece by piece: what sources are due in a piece
    is rounded by largest remainder, and what rounding owes them is carried to the next.

    `shares` are those of each source (columns) in each piece (rows), and sum to 1. `owed` is what
    they are due from slots before the first.
    """

    def __init__(
        self, edges: Int64Array, shares: FloatArray, *, key: int | None, owed: FloatArray
    ) -> None:
        self._edges, self._key = edges, key
        self.length = int(edges[-1])
        self.first_shares: FloatArray = shares[0]
        totals = np.empty_like(shares, dtype=np.int64)
        due = shares * np.diff(edges)[:, np.newaxis]
        for piece, size in enumerate(np.diff(edges).tolist()):
            owed = owed + due[piece]
            totals[piece] = _rounded(owed, size, shares[piece] > 0)
            owed = owed - totals[piece]
        self._owed = owed
        self._before = np.zeros((len(totals) + 1, len(owed)), dtype=np.int64)
        np.cumsum(totals, axis=0, out=self._before[1:])
        self._run = Remembered(self._run_of, 4)

    def counts(self, slots: Int64Array) -> Int64Array:
        pieces = self._piece(slots)
        counts = self._before[pieces]
        for piece, rows in rows_by_value(pieces):
            members, run = self._run(piece)
            found = counts[rows]
            found[:, members] += run.counts(slots[rows] - self._edges[piece])
            counts[rows] = found
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        pieces = self._piece(slots)
        source, nth = np.empty((2, len(slots)), dtype=np.int64)
        for piece, rows in rows_by_value(pieces):
            members, run = self._run(piece)
            member, found = run.locate(slots[rows] - self._edges[piece])
            source[rows] = members[member]
            nth[rows] = found + self._before[piece, members[member]]
        return source, nth

    def due(self, slot: int) -> FloatArray:
        """What each source is due before a slot: what it has, and inside a piece its part of that;
        at the end also what rounding still owes it.
        """
        piece = int(self._piece(np.array([slot]))[0])
        before, after = self._before[piece : piece + 2]
        begin, end = self._edges[piece : piece + 2].tolist()
        due: FloatArray = before + (after - before) * ((slot - begin) / (end - begin))
        return due + self._owed if slot == self.length else due

    def _piece(self, slots: Int64Array) -> Int64Array:
        """The piece of each slot; of the end the last one."""
        found = np.searchsorted(self._edges, slots, side="right") - 1
        return np.minimum(found, len(self._edges) - 2)

    def _run_of(self, piece: int) -> tuple[Int64Array, Apportionment]:
        totals = self._before[piece + 1] - self._before[piece]
        members = np.flatnonzero(totals)
        key = None if self._key is None else self._key + piece
        return members, Apportionment(totals[members], key=key)


def mean_shares(shares_at: Callable[[FloatArray], FloatArray], edges: FloatArray) -> FloatArray:
    """The mean of shares (columns) between each two edges (rows)."""
    lengths = np.diff(edges)
    means = np.zeros(0)
    for way, weight in zip(_GAUSS, _GAUSS_WEIGHTS, strict=True):
        found = weight * shares_at(edges[:-1] + way * lengths)
        means = found if not means.size else means + found
    return means


def _rounded(due: FloatArray, size: int, drawn: BoolArray) -> Int64Array:
    """Whole numbers that sum to `size`, which is about the sum of `due`: floors, but 0 at least,
    then one each to the largest remainders. Those not `drawn` get nothing.
    """
    totals = np.where(drawn, np.floor(np.maximum(due, 0.0)), 0.0).astype(np.int64)
    missing = size - int(totals.sum())
    while missing:
        # Mostly once: what is owed below 0 and not drawn may leave more to give, or too much given.
        step = 1 if missing > 0 else -1
        able = np.flatnonzero(drawn if step > 0 else totals > 0)
        first = np.argsort(step * (totals - due)[able], kind="stable")[: abs(missing)]
        totals[able[first]] += step
        missing = size - int(totals.sum())
    return totals

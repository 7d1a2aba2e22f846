"""Runs of slots: gliding shares, sources in turn, and slots laid out in windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias, TypeVar

import numpy as np

from energize.core.arrays import (
    BoolArray,
    FloatArray,
    Int32Array,
    Int64Array,
    Rows,
    pairs_by_value,
)
from energize.core.rng import shuffled
from energize.order.apportionment import Apportionment
from energize.order.scheme import Scheme

A = TypeVar("A", Int32Array, Int64Array)


class Glide:
    """Slots from `edges[0]` = 0 on, shared out piece by piece: what sources are due in
    a piece is rounded by largest remainder, and what rounding owes them is carried to
    the next.

    `shares` are those of each source (columns) in each piece (rows), and sum to 1.
    `owed` is what they are due from slots before the first.
    """

    def __init__(
        self,
        edges: Int64Array,
        shares: FloatArray,
        *,
        key: int | None,
        owed: FloatArray,
    ) -> None:
        self._edges = edges
        self._key = key
        self._length = int(edges[-1])
        self.first_shares: FloatArray = shares[0]
        totals = np.empty_like(shares, dtype=np.int64)
        due = shares * np.diff(edges)[:, np.newaxis]
        for piece, size in enumerate(np.diff(edges).tolist()):
            owed = owed + due[piece]
            totals[piece] = rounded_shares(owed, size, shares[piece] > 0)
            owed = owed - totals[piece]
        self._owed = owed
        self._before = np.zeros((len(totals) + 1, len(owed)), dtype=np.int64)
        np.cumsum(totals, axis=0, out=self._before[1:])
        self._run = lru_cache(4)(self._run_of)

    def counts(self, slots: int) -> Int64Array:
        piece = int(self._piece(np.array([slots]))[0])
        members, run = self._run(piece)
        counts: Int64Array = self._before[piece].copy()
        counts[members] += run.counts(slots - int(self._edges[piece]))
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        def in_piece(piece: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
            members, run = self._run(piece)
            member, nth = run.locate(slots[rows] - self._edges[piece])
            source = members[member]
            return source, nth + self._before[piece, source]

        return pairs_by_value(self._piece(slots), in_piece)

    def due(self, slot: int) -> FloatArray:
        """Return what each source is due before a slot: what it has, in a piece its
        part of that; at the end also what rounding still owes it.
        """
        piece = int(self._piece(np.array([slot]))[0])
        before, after = self._before[piece : piece + 2]
        begin, end = self._edges[piece : piece + 2].tolist()
        due: FloatArray = before + (after - before) * ((slot - begin) / (end - begin))
        return due + self._owed if slot == self._length else due

    def _piece(self, slots: Int64Array) -> Int64Array:
        """Return the piece of each slot; of the end the last one."""
        found = np.searchsorted(self._edges, slots, side="right") - 1
        return np.minimum(found, len(self._edges) - 2)

    def _run_of(self, piece: int) -> tuple[Int64Array, Apportionment]:
        totals = self._before[piece + 1] - self._before[piece]
        members = np.flatnonzero(totals)
        key = None if self._key is None else self._key + piece
        return members, Apportionment(totals[members], key=key)


def rounded_shares(due: FloatArray, size: int, drawn: BoolArray) -> Int64Array:
    """Return integers that sum to `size`, which is about the sum of `due`: floors, but
    0 at least, then one each to the largest remainders. Those not `drawn` get nothing.
    """
    totals = np.where(drawn, np.floor(np.maximum(due, 0.0)), 0.0).astype(np.int64)
    missing = size - int(totals.sum())
    while missing:
        # Mostly once: what is owed below 0 and not drawn may leave more to give, or too
        # much given.
        step = 1 if missing > 0 else -1
        able = np.flatnonzero(drawn if step > 0 else totals > 0)
        first = np.argsort(step * (totals - due)[able], kind="stable")[: abs(missing)]
        totals[able[first]] += step
        missing = size - int(totals.sum())
    return totals


_AHEAD = 8192

LAYOUTS_KEPT = 8
"""Slots that are laid out at once: enough that calls of numpy cost little beside their
work; and of how many such windows of a scheme the layout is kept."""

_Layout: TypeAlias = tuple[Int32Array, Int64Array]

_DENSE = 8
"""Where one slot of so many is asked for, laying out all costs less than finding it
alone."""


class Turns:
    """The sources in turn, from source `first` on, over and over."""

    def __init__(self, sources: int, first: int) -> None:
        self._sources = sources
        self._first = first

    def counts(self, slots: int) -> Int64Array:
        turns = (np.arange(self._sources) - self._first) % self._sources
        return (slots - turns - 1) // self._sources + 1

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        return (slots + self._first) % self._sources, slots // self._sources


class Windows:
    """A run of `length` slots, or without end, in windows of `size` slots that are laid
    out at once.

    With a `key`, the slots of each window are shuffled: at its end sources have what
    the run gives them. Without, slots are where the run has them, and laid out only
    where they are read on. `layouts` is `laid_out`, some of whose answers are kept.
    """

    def __init__(
        self,
        run: Scheme,
        length: int | None,
        sources: int,
        layouts: Callable[[Windows, int], _Layout],
        *,
        size: int = _AHEAD,
        key: int | None = None,
    ) -> None:
        self._run = run
        self._length = length
        self._size = size
        self._sources = sources
        self._key = key
        self._layout = partial(layouts, self)
        self._last = 0
        """The first slot of the last call."""

    def counts(self, slots: int) -> Int64Array:
        within = 0 if self._key is None else slots % self._size
        counts = self._run.counts(slots - within)
        if not within:
            return counts
        source, _ = self._layout(slots // self._size)
        return counts + np.bincount(source[:within], minlength=self._sources)

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self._key is None:
            first = self._last
            self._last = int(slots[0])
            near = abs(self._last - first) <= _DENSE * len(slots)
            if not near or int(np.ptp(slots)) > _DENSE * len(slots):
                return self._run.locate(slots)
        windows, within = np.divmod(slots, self._size)

        def in_window(window: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
            source, nth = self._layout(window)
            return source[within[rows]].astype(np.int64), nth[within[rows]]

        return pairs_by_value(windows, in_window)

    def laid_out(self, window: int) -> _Layout:
        """Return the sources of the slots of a window, and which of its source each
        is.
        """
        start = window * self._size
        end = (window + 1) * self._size
        if self._length is not None:
            end = min(end, self._length)
        if self._key is None:
            source, nth = self._run.locate(np.arange(start, end))
            return source.astype(np.int32), nth
        first = self._run.counts(start)
        last = self._run.counts(end)
        ordered = np.repeat(np.arange(self._sources, dtype=np.int32), last - first)
        before = (last - np.cumsum(last - first))[ordered]
        order = shuffled(self._key, window, end - start)
        return rearranged(ordered, before + np.arange(end - start), order)


def rearranged(source: A, nth: Int64Array, order: Int64Array) -> tuple[A, Int64Array]:
    """Return the sources of slots in another order, and which of its source each slot
    now is.
    """
    placed = source[order]
    found = np.empty_like(nth)
    found[_by_source(placed)] = nth[_by_source(source)]
    return placed, found


def _by_source(source: Int32Array | Int64Array) -> Int64Array:
    """Return the slots of the first source, then those of the second, ..., each in
    order.
    """
    # Numpy sorts 16-bit integers by radix, several times as fast as longer ones.
    small = not len(source) or int(source.max()) < 2**16
    return np.argsort(source.astype(np.uint16) if small else source, kind="stable")

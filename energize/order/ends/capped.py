"""Schemes without the slots of sources that have had enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from energize.arrays import FloatArray, Int64Array
from energize.order.ends.searching import first_where
from energize.order.pieces import Piece
from energize.order.protocol import Scheme
from energize.order.remembered import Remembered
from energize.order.schedules.varying import normalised

__all__ = ["FARTHEST", "CappedScheme", "enough_over"]


FARTHEST = 2**62
"""As far as schemes are asked."""

_PIECE = 1000
"""As long as the blocks of the scheme `block` are by default: counts at their ends cost less."""

_SOURCES_PER_PIECE = 4096

_ENOUGH = 0.25
"""With sources of this part of all, or of all slots, over, the others get a scheme of their own."""

_MOST_BEHIND = 2
"""Schemes that are not random give a source no fewer slots than its share less this many."""


def enough_over(over: npt.NDArray[np.bool_], weights: FloatArray) -> bool:
    """Whether so many sources, or such heavy ones, are over that a scheme over the others does
    better than leaving their slots out.
    """
    return bool(max(over.mean(), normalised(weights)[over].sum()) >= _ENOUGH)


class CappedScheme:
    """A scheme in which each source has its first `limits` slots (above 0), and no others: these
    are left out, and the slots behind them move up. So the order of the other sources stays what
    it was, and what a source has no use for goes to them in the ratio of their weights.

    `shares` are what the sources have of the scheme's slots: they only say where to look.

    >>> from energize.order.making import make_scheme
    >>> turns = make_scheme("round_robin", [1, 1, 1])
    >>> capped = CappedScheme(turns, np.array([1, 3, 2]), np.array([1, 1, 1]) / 3)
    >>> capped.locate(np.arange(6))[0].tolist(), capped.counts(5).tolist()
    ([0, 1, 2, 1, 2, 1], [1, 2, 2])
    """

    def __init__(self, scheme: Scheme, limits: Int64Array, shares: FloatArray) -> None:
        self._scheme, self._limits = scheme, limits
        self._length = _PIECE * (1 + len(limits) // _SOURCES_PER_PIECE)
        self._expected = _Expected(limits, shares)
        self._whole = (0, False)
        self._taken_at = Remembered(self._taken_before, 8)
        self._kept = Remembered(self._kept_of, 4)

    def describe(self) -> dict[str, Any]:
        return self._scheme.describe()

    def taken(self, slots: int) -> Int64Array:
        """What sources take of the first `slots` of the whole scheme."""
        return np.minimum(self._scheme.counts(slots), self._limits)

    def counts(self, n: int) -> Int64Array:
        if n <= self.whole_to(n):
            return self._scheme.counts(n)
        number = self._piece_of(n - 1)
        before, _ = self._taken_at(number)
        kept = self._kept(number).source[: n - int(before.sum())]
        return before + np.bincount(kept, minlength=len(before))

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        whole_to = self.whole_to(int(ks.max()) + 1) if len(ks) else 0
        order = np.argsort(ks, kind="stable")
        ordered = ks[order]
        at = int(np.searchsorted(ordered, whole_to))
        source, nth = np.empty(len(ks), dtype=np.int64), np.empty(len(ks), dtype=np.int64)
        if at:
            source[order[:at]], nth[order[:at]] = self._scheme.locate(ordered[:at])
        while at < len(ks):
            number = self._piece_of(int(ordered[at]))
            _, begin = self._taken_at(number)
            _, end = self._taken_at(number + 1)
            behind = int(np.searchsorted(ordered, end))
            kept, rows = self._kept(number), order[at:behind]
            places = ordered[at:behind] - begin
            source[rows], nth[rows] = kept.source[places], kept.rank[places]
            at = behind
        return source, nth

    def whole_to(self, n: int) -> int:
        """How many slots lie before the first that is left out, if they are fewer than `n`; else
        `n`, or a higher number of slots of which none is left out.
        """
        known, ends = self._whole
        if known < n and not ends:
            ahead = min(2 * n, FARTHEST)
            if self._leaves_out(ahead):
                guess = self._expected.first_end
                behind = first_where(self._leaves_out, above=known, upto=ahead, guess=guess)
                known, ends = behind - 1, True
            else:
                known = ahead
            self._whole = known, ends
        return known

    def enough(self, start: int) -> int:
        """A number of slots of the whole scheme, up to which most are used, and behind which a
        scheme over the sources that are left does better, for a scheme that begins at slot `start`
        of a mix.

        It is where a quarter of the sources, or sources with a quarter of the slots, are expected
        to be over; or sooner, where the mix goes on for as long again until the next one is.
        """
        slots = self._expected.enough(start)
        return min(-(-int(min(slots, FARTHEST)) // self._length) * self._length, FARTHEST)

    def _leaves_out(self, slots: int) -> bool:
        """Whether one of the first slots is left out."""
        return bool((self._scheme.counts(slots) > self._limits).any())

    def _piece_of(self, k: int) -> int:
        """The piece of the whole scheme in which slot k lies."""

        def ends_behind(pieces: int) -> bool:
            return self._taken_at(pieces)[1] > k

        guess = self._expected.slot(k) // self._length + 1
        most = FARTHEST // self._length
        return first_where(ends_behind, above=0, upto=most, guess=guess) - 1

    def _taken_before(self, number: int) -> tuple[Int64Array, int]:
        """What sources take before a piece, each and together."""
        taken = self.taken(number * self._length)
        return taken, int(taken.sum())

    def _kept_of(self, number: int) -> Piece:
        start = number * self._length
        source, nth = self._scheme.locate(np.arange(start, start + self._length))
        used = nth < self._limits[source]
        return Piece(source[used].astype(np.int32), nth[used])


class _Expected:
    """Where sources are over if each has just its share of all slots."""

    def __init__(self, limits: Int64Array, shares: FloatArray) -> None:
        slots = np.full(len(limits), np.inf)
        ending = (limits < FARTHEST) & (shares > 0)
        np.divide(limits + float(_MOST_BEHIND), shares, out=slots, where=ending)
        order = np.argsort(slots)
        over, left = slots[order], np.cumsum(shares[order][::-1])[::-1]
        self.first_end = float(over[0])
        self._over, self._left = over, left
        finite = over[np.isfinite(over)]
        self._kept = np.cumsum(np.diff(finite, prepend=0.0) * left[: len(finite)])

    def enough(self, start: int) -> float:
        """Where many are over, or one as long before the next as the mix has gone on."""
        over, count = self._over, len(self._over)
        gone = np.maximum(np.arange(1, count + 1) / count, 1 - np.append(self._left[1:], 0))
        rare = np.append(over[1:], np.inf) >= 2 * over + start
        return float(over[np.argmax((gone >= _ENOUGH) | rare)])

    def slot(self, kept: int) -> float:
        """The slot of the whole scheme that is the one of number `kept` of those not left out."""
        number = int(np.searchsorted(self._kept, kept))
        before = (self._over[number - 1], self._kept[number - 1]) if number else (0.0, 0.0)
        left = self._left[number] if number < len(self._left) else 0.0
        return float(before[0] + (kept - before[1]) / left) if left > 0 else float(before[0])

"""A mix as a timeline of segments: in each the same sources, by fixed or interpolated weights.

Each segment is made from the ones before it, so nothing that comes later changes what came before.
"""

from __future__ import annotations

import copy
import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from energize.arrays import FloatArray, Int64Array, rows_by_value
from energize.cursor import INFINITE
from energize.order.apportionment import divided
from energize.order.arrangement import Arrangement
from energize.order.glide import Glide
from energize.order.searching import first_where
from energize.order.weighing import Weighing
from energize.order.windows import Run

FARTHEST = 2**62
"""As far as schemes are asked."""

_CLOSING = 64
"""Sources end together that end within a part of what lies before: one by this number."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The slots from `start` to `end` belong to the sources `members`, by a `run` of their own.

    `before` are the slots of every source before `start`; `owed` what each was due by then and had
    not had. `dues` are the members' weights, or what a glide gives them; None in a segment in which
    sources reach their limits.
    """

    start: int
    end: int
    members: Int64Array
    run: Run
    dues: Int64Array | Glide | None
    before: Int64Array
    owed: FloatArray
    asked: bytes
    """A digest of what the run was made from."""

    def counts(self, slot: int) -> Int64Array:
        """The slots of every source before a slot of this segment, or its end."""
        counts = self.before.copy()
        counts[self.members] += self.run.counts(np.array([slot - self.start]))[0]
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For slots of this segment their sources, and how many slots before went to those."""
        if not self.start and len(self.members) == len(self.before):  # as in most mixes
            return self.run.locate(slots)
        member, nth = self.run.locate(slots - self.start)
        source = self.members[member]
        return source, nth + self.before[source]

    @property
    def shares(self) -> FloatArray:
        """Those of the members at the start, in any unit."""
        if isinstance(self.dues, Glide):
            return self.dues.first_shares
        return np.array(self.dues, dtype=np.float64)

    def owed_after(self, after: Int64Array) -> FloatArray:
        """What every source was due by the end and has not had, with its slots `after` that."""
        length, owed = self.end - self.start, np.zeros(len(self.owed))
        had = (after - self.before)[self.members]
        if isinstance(self.dues, Glide):
            owed[self.members] = self.dues.due(length) - had
        elif self.dues is not None:
            total = int(self.dues.sum())
            passes, rest = divmod(length, total)
            same = np.ones_like(self.dues)
            due, part = divided(rest * same, self.dues, 0 * same, total * same)
            owed = self.owed.copy()
            owed[self.members] += (passes * self.dues + due - had) + part / total
        return owed

    def first_beyond(self, limits: Int64Array, window: int = 1) -> int | None:
        """The number of the first window of slots, counted from the start, that gives a source more
        than its limit.
        """
        most = -(-(min(self.end, FARTHEST) - self.start) // window)

        def beyond(windows: int) -> bool:
            slot = min(self.start + windows * window, self.end, FARTHEST)
            return bool((self.counts(slot) > limits).any())

        if (limits == INFINITE).all() or not beyond(most):
            return None
        guess = self._expected(limits)
        guess = None if guess is None else guess / window
        return first_where(beyond, above=0, upto=most, guess=guess) - 1

    def _expected(self, limits: Int64Array) -> float | None:
        if not isinstance(self.dues, np.ndarray):
            return None
        left = (limits - self.before)[self.members]
        return float((left / self.dues).min()) * int(self.dues.sum())


class Timeline:
    """Slots 0, 1, 2, ... of a mix, by `weighings` in force one after the other.

    Sources have their first `limits` slots and no others. Where sources end, the others take over
    their slots by weight; those left without a weight share them evenly. When none is left the mix
    ends.

    Sources that reach their limits soon after one another do so in one segment, with whole numbers
    of slots for all: within a slot per source, or a 64th of what lies before.

    Segments are found when they are needed, each from those before it.
    """

    def __init__(
        self,
        weighings: Sequence[Weighing],
        arrangement: Arrangement,
        limits: Int64Array | None = None,
    ) -> None:
        self._weighings, self._arrangement = list(weighings), arrangement
        self._limits = np.full_like(weighings[0].drawn, INFINITE, np.int64)
        if limits is not None:
            self._limits = limits
        self._left_out: tuple[tuple[int, int], ...] = ()
        self._segments: tuple[Segment, ...] = (self._first(),)

    def without(self, source: int, slot: int) -> Timeline:
        """The same timeline, with no more slots for a source from `slot` on; all slots before it
        stay as they are.
        """
        segments = self._reach(slot)
        other = copy.copy(self)
        other._left_out = (*self._left_out, (slot, source))
        kept = [each for each in segments if each.start < slot]
        if kept:
            kept[-1] = replace(kept[-1], end=min(kept[-1].end, slot))
        other._segments = tuple(kept) or (other._first(),)
        return other

    def _first(self) -> Segment:
        sources = len(self._limits)
        return self._segment(0, np.zeros(sources, dtype=np.int64), np.zeros(sources))

    def counts(self, n: int) -> Int64Array:
        """The slots of every source among the first `n`."""
        segments = self._reach(n)
        return segments[_number(segments, max(n - 1, 0))].counts(n)

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""
        if not len(slots):
            return slots, slots
        segments = self._reach(int(slots.max()) + 1)
        first = _number(segments, int(slots.min())) if len(segments) > 1 else 0
        if first == len(segments) - 1 or first == _number(segments, int(slots.max())):
            return segments[first].locate(slots)
        source, nth = np.empty((2, len(slots)), dtype=np.int64)
        starts = np.array([segment.start for segment in segments])
        numbers = np.searchsorted(starts, slots, side="right") - 1
        for number, rows in rows_by_value(numbers):
            source[rows], nth[rows] = segments[number].locate(slots[rows])
        return source, nth

    def first_beyond(self, limits: Int64Array) -> int | None:
        """The first slot that a source has beyond its limit; None when there is none."""
        number, segments = 0, self._segments
        while True:
            segment = segments[number]
            found = segment.first_beyond(limits)
            if found is not None or segment.end >= FARTHEST:
                return None if found is None else segment.start + found
            segments = self._reach(segment.end + 1)
            number += 1

    def first_difference(self, other: Timeline, end: int) -> int | None:
        """The first slot before `end` from which on the two may give slots to other sources; None
        when all before it are the same.
        """
        for mine, others in zip(self._reach(end), other._reach(end), strict=False):
            if mine.start >= end:
                break
            if (mine.start, mine.asked) != (others.start, others.asked):
                return min(mine.start, others.start)
            if min(mine.end, end) != min(others.end, end):
                return min(mine.end, others.end)
        return None

    def _reach(self, n: int) -> tuple[Segment, ...]:
        """The segments of the first `n` slots, and those known after them."""
        segments = self._segments
        while (last := segments[-1]).end < n:
            before = last.counts(last.end)
            found = self._segment(last.end, before, last.owed_after(before), last)
            segments = (*segments, found)
        if len(segments) > len(self._segments):  # another thread may have come farther
            self._segments = segments
        return segments

    def _segment(
        self, start: int, before: Int64Array, owed: FloatArray, last: Segment | None = None
    ) -> Segment:
        left = np.where(self._limits < INFINITE, self._limits - before, INFINITE)
        left[[source for slot, source in self._left_out if slot <= start]] = 0
        if not left.any():
            raise IndexError(f"the mix ends after {start} slots")
        changes = [each.start for each in self._weighings] + [slot for slot, _ in self._left_out]
        weighing = next(each for each in reversed(self._weighings) if each.start <= start)
        point = weighing.next_point(start)
        cut = min([point, *(slot for slot in changes if slot > start)])
        glides = point < INFINITE and weighing.glides(start)
        end = point if glides else INFINITE
        weights = weighing.drawn.astype(np.int64) if glides else weighing.fixed(start)
        members = np.flatnonzero((left > 0) & (weights > 0))
        if not members.size:
            weights, glides = np.ones(len(left), dtype=np.int64), False
            members = np.flatnonzero(left > 0)
        run: Run
        dues: Int64Array | Glide = weights[members]
        if glides:
            edges, shares = weighing.gliding(start, point, members)
            run, dues = self._arrangement.gliding(edges, shares, start, owed[members])
            asked = _digest(members, edges, shares)
        else:
            first = self._next_turn(members, last)
            run = self._arrangement.fixed(weights[members], start, owed[members], first)
            asked = _digest(members, weights[members])
        # Cut last: nothing before the cut may depend on it.
        found = self._closed(Segment(start, end, members, run, dues, before, owed, asked), left)
        return replace(found, end=min(found.end, cut))

    def _next_turn(self, members: Int64Array, last: Segment | None) -> int:
        """Which of the members has the next turn, where sources take turns."""
        if last is None or not self._arrangement.takes_turns:
            return 0
        member, _ = last.run.locate(np.array([last.end - last.start - 1]))
        return int(np.searchsorted(members, last.members[member[0]], side="right")) % len(members)

    def _closed(self, segment: Segment, left: Int64Array) -> Segment:
        """A segment up to where sources begin to reach their limits; or one in which they do."""
        window = self._arrangement.closing(len(segment.members), segment.start // _CLOSING)
        limits = np.where(left < INFINITE, segment.before + left, INFINITE)
        windows = segment.first_beyond(limits, window)
        if windows is None:
            return segment
        if windows:
            return replace(segment, end=segment.start + windows * window)
        left = left[segment.members]
        size = min(window, segment.end - segment.start, sum(left.tolist()))
        totals = _capped(segment.shares, left, size)
        drawn = np.flatnonzero(totals)
        run = self._arrangement.whole(totals[drawn], segment.start)
        members = segment.members[drawn]
        return replace(
            segment,
            end=segment.start + size,
            members=members,
            run=run,
            dues=None,
            asked=_digest(members, totals),
        )


def _number(segments: Sequence[Segment], slot: int) -> int:
    """The segment that a slot lies in."""
    return bisect_right(segments, slot, key=lambda segment: segment.start) - 1


def _digest(*arrays: Int64Array | FloatArray) -> bytes:
    return hashlib.blake2b(b"".join(each.tobytes() for each in arrays), digest_size=16).digest()


def _capped(weights: FloatArray, left: Int64Array, size: int) -> Int64Array:
    """`size` slots by weight, but for each source no more than are `left`, rounded by largest
    remainder.
    """
    totals = np.zeros(len(left), dtype=np.int64)
    able = np.ones(len(left), dtype=np.bool_)
    while True:
        due = np.where(able, weights, 0.0)
        if not due.any():  # those that are left have no weight yet
            due = able.astype(np.float64)
        due *= (size - int(totals.sum())) / due.sum()
        full = able & (due >= left)
        if not full.any():
            break
        totals[full] = left[full]
        able &= ~full
        if not able.any():
            return totals
    totals[able] = np.floor(due[able]).astype(np.int64)
    missing = size - int(totals.sum())
    totals[np.argsort(np.where(able, totals - due, 1.0), kind="stable")[:missing]] += 1
    return totals

"""A mix as a timeline of segments: in each the same sources, by fixed or interpolated weights.

Each segment is made from the ones before it, so nothing that comes later changes what came before.
"""

from __future__ import annotations

import copy
import hashlib
import reprlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from energize.core.arrays import BoolArray, FloatArray, Int64Array, rows_by_value
from energize.core.checks import whole_number
from energize.core.description import described
from energize.core.stream import INFINITE
from energize.errors import ConfigError, WeightError, nearest
from energize.order.apportionment import Glide, divided, first_where
from energize.order.weights import (
    Product,
    Schedule,
    Share,
    Sum,
    Weighing,
    Weight,
    WeightScheduler,
    ever_positive,
    exact_weight,
    integer_weights,
    listed_weights,
    names_apart,
    names_of,
    schedules_in,
    shares_at,
    weight_as_described,
)
from energize.order.windows import WEIGHTLESS, Arrangement, Run, check_options

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


# What every scheme answers, and the checks of what it is asked.

_MOST_SLOTS = 2**62


class Scheme(Protocol):
    """Slots 0, 1, 2, ... given to sources 0 .. n-1; positions only, nothing is read."""

    def counts(self, n: int) -> Int64Array:
        """Slots given to each source among the first `n`: int64, sums to `n`, monotone in `n`."""

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON: what a saved state is checked against."""


class CheckedScheme(ABC):
    """A scheme that checks what it is asked; two of equal descriptions are equal.

    Slots are whole numbers from 0, below 2**62, in an array of one dimension or a list. Raises
    `ConfigError` for others.
    """

    names: tuple[str, ...] | None

    def counts(self, n: int) -> Int64Array:
        """Slots given to each source among the first `n`: int64, sums to `n`, monotone in `n`."""
        slots = whole_number(n)
        if slots is None or not 0 <= slots <= _MOST_SLOTS:
            raise ConfigError(f"counts(n): n is a number of slots, from 0 to 2**62; got {n!r}")
        return self._counts(slots)

    def locate(self, ks: npt.ArrayLike) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""
        return self._locate(_checked_slots(ks))

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON: what a saved state is checked against."""

    @abstractmethod
    def _counts(self, n: int) -> Int64Array: ...

    @abstractmethod
    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]: ...

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CheckedScheme):
            return NotImplemented
        return self is other or self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.names))

    def __repr__(self) -> str:
        shown = [f"{name}={reprlib.repr(value)}" for name, value in self.describe().items()]
        return f"{type(self).__name__}({', '.join(shown)})"


def _checked_slots(ks: npt.ArrayLike) -> Int64Array:
    slots = np.asarray(ks)
    if slots.dtype != np.int64:
        if slots.size and slots.dtype.kind not in "iu":
            raise ConfigError(
                f"locate(ks): slots are an array of whole numbers; got {slots.dtype} in {ks!r}"
            )
        slots = slots.astype(np.int64)
    if slots.ndim != 1:
        raise ConfigError(
            "locate(ks): slots are an array of one dimension, for one slot [k]; got "
            f"{reprlib.repr(ks)}"
        )
    # Seen as unsigned, negative numbers are too large as well.
    if slots.size and slots.view(np.uint64).max() >= _MOST_SLOTS:
        wrong = slots[slots.view(np.uint64) >= _MOST_SLOTS]
        raise ConfigError(f"locate(ks): slots are from 0 to 2**62 - 1; got {wrong[0]}")
    return slots


# What schemes by weights have in common: their weights over time, and what these are called.

T = TypeVar("T")

GivenWeights: TypeAlias = Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
"""A weight for each source: by position, by name in the order of the mapping, or over steps."""


class WeightedScheme(CheckedScheme):
    """A scheme by `weights`, which other ones follow from some slots on: its `changes`.

    Subclasses say by `_begin` how slots are made of them, and keep what they computed in
    `_computed`, so that a copy or a pickle has none of it.
    """

    changes: tuple[tuple[int, tuple[Weight, ...]], ...] = ()
    _weights: tuple[Weight, ...]

    _computed: tuple[str, ...] = ()

    def with_weights_from(self, slot: int, weights: GivenWeights) -> Self:
        """The same scheme with other weights from a slot on; all slots before it stay as they are.

        Weights are given as those of the scheme are: of all sources, by name where they have names.
        Raises `ConfigError` for a slot before that of an earlier change.

        >>> from energize.order import make_scheme
        >>> scheme = make_scheme("exact", {"code": 1, "text": 1})
        >>> changed = scheme.with_weights_from(100, {"code": 3, "text": 1})
        >>> changed.counts(100).tolist(), changed.counts(200).tolist()
        ([50, 50], [125, 75])
        """
        at = whole_number(slot, 0)
        if at is None:
            raise ConfigError(f"weights change at a slot, a whole number from 0; got {slot!r}")
        if self.changes and at <= self.changes[-1][0]:
            raise ConfigError(
                f"weights change at slot {self.changes[-1][0]} already; give a later slot than "
                f"{at}, or begin from the scheme without that change"
            )
        given = weights.schedules() if isinstance(weights, WeightScheduler) else weights
        other = copy.copy(self)
        other.changes = (*self.changes, (at, tuple(checked_weights(self._in_order(given)))))
        other._begin()
        return other

    def as_described(self, weights: Sequence[Any], changes: Sequence[Sequence[Any]]) -> Self:
        """The same scheme with weights as `described` tells them, and (slot, weights) of changes.

        Raises `KeyError`, `TypeError` or `ValueError` for what was not told so.
        """
        scheme = copy.copy(self)
        scheme._weights = tuple(weight_as_described(each) for each in weights)
        scheme.changes = ()
        scheme._begin()
        for slot, later in changes:
            scheme = scheme.with_weights_from(slot, [weight_as_described(each) for each in later])
        return scheme

    def shares(self, slot: int = 0) -> list[float]:
        """The asked share of each source at a slot: its weight divided by the sum."""
        weights = next(w for start, w in reversed(self._eras) if start <= slot)
        shares: list[float] = shares_at(weights, [slot])[0].tolist()
        return shares

    def by_name(self, values: Sequence[T] | Int64Array) -> dict[str, T]:
        """Counts or shares with the names of the sources; by position where they have none.

        >>> from energize.order import make_scheme
        >>> scheme = make_scheme("exact", {"code": 3, "text": 1})
        >>> scheme.by_name(scheme.counts(8)), scheme.by_name(scheme.shares())
        ({'code': 6, 'text': 2}, {'code': 0.75, 'text': 0.25})
        """
        listed: list[T] = values.tolist() if isinstance(values, np.ndarray) else list(values)
        names = self.names or tuple(map(str, range(len(listed))))
        return dict(zip(names, listed, strict=True))

    @abstractmethod
    def first_difference(self, other: Self, end: int) -> int | None:
        """The first slot before `end` from which on `other`, which differs in its weights alone,
        may give slots to other sources; None when all before it are the same.
        """

    @cached_property
    def drawn(self) -> BoolArray:
        """Whether each source ever has a weight above 0."""
        eras = [[ever_positive(each) for each in weights] for _, weights in self._eras]
        return np.asarray(np.any(eras, axis=0))

    @property
    def varies(self) -> bool:
        """Whether shares are not the same at all slots."""
        return bool(self.changes) or any(True for w in self._weights for _ in schedules_in(w))

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: not what was computed."""
        left_out = ("drawn", *self._computed)
        return {k: v for k, v in self.__dict__.items() if k not in left_out}

    @property
    def _eras(self) -> list[tuple[int, tuple[Weight, ...]]]:
        return [(0, self._weights), *self.changes]

    @abstractmethod
    def _begin(self) -> None:
        """Look at the weights: whatever is wrong with them shows here."""

    def _described(self, weights: Sequence[Weight]) -> Any:
        whole = not any(isinstance(each, Schedule | Share | Product | Sum) for each in weights)
        told = integer_weights(weights).tolist() if whole else described(list(weights))  # type: ignore[arg-type]
        return told if self.names is None else dict(zip(self.names, told, strict=True))

    def _changes_described(self) -> dict[str, Any]:
        changes = [[slot, self._described(weights)] for slot, weights in self.changes]
        return {"changes": changes} if changes else {}

    def _in_order(self, weights: Any) -> list[tuple[str | int, Any]]:
        """Given weights in the order of the sources."""
        named = listed_weights(weights)
        if self.names is not None and isinstance(weights, Mapping):
            difference = names_apart(self.names, weights)
            if difference:
                raise WeightError(f"the weights do not name the sources: {difference}")
            return [(name, weights[name]) for name in self.names]
        if len(named) != len(self._weights):
            raise WeightError(f"{len(named)} weights are given for {len(self._weights)} sources")
        return named


def checked_weights(named: Sequence[tuple[str | int, Any]]) -> list[Weight]:
    """The weights of a listing, numbers in their exact values; `WeightError` for what is none."""
    return [
        weight
        if isinstance(weight, Schedule | Share | Product | Sum)
        else exact_weight(weight, f"weight {which!r}")
        for which, weight in named
    ]


# The door to all schemes: which source each slot of a mix belongs to.


def make_scheme(name: str, weights: GivenWeights, *, key: int = 0, **options: Any) -> MixingScheme:
    """The scheme called `name` over sources with these `weights`, which need not sum to 1.

    Weights are given by position, or by name in a mapping; sources are numbered in its order, and
    one of weight 0 keeps its number. A weight is a number or a `Schedule`; a `WeightScheduler` has
    those of all sources. `key` is what random choices depend on. `options` are the scheme's own:
    `block_size` of `block`.

    | name | promise |
    |---|---|
    | `even` | exact shares in every prefix, within 3.36 slots; the order is drawn |
    | `exact` | exact shares in every prefix, within 1.68 slots; no draws |
    | `block` | the counts of `exact` at the ends of blocks of `block_size`, random order inside |
    | `random` | random order in windows of 65,536 slots, whose ends have the counts of `exact` |
    | `uniform` | as `random`, all sources alike |
    | `round_robin` | all sources in turn |
    | `greedy` | the order of Megatron's blending index |

    Under schedules, sources are due the integral of their shares. What a source is owed at a point
    is carried on, so roundings do not add up; where shares are interpolated, up to 8 million slots
    from point to point, each of up to 512 sources is within another 0.4 slots of the integral. Any
    slot before a point of a schedule that changes in steps, or before a change of weights
    (`with_weights_from`), is where it is without it.

    Raises `WeightError` for weights that cannot be used, also where all are 0 at some slot, and
    `ConfigError` for an unknown name or option, and for schedules that the scheme cannot follow.

    >>> scheme = make_scheme("block", {"code": 3, "text": 1}, block_size=4)
    >>> scheme.names, scheme.counts(8).tolist()
    (('code', 'text'), [6, 2])
    """
    given = weights.schedules() if isinstance(weights, WeightScheduler) else weights
    named = listed_weights(given)
    return MixingScheme(name, checked_weights(named), names_of(given), key, options)


class MixingScheme(WeightedScheme):
    """A scheme by name; see `make_scheme`."""

    _computed = ("_timeline",)

    def __init__(
        self,
        name: str,
        weights: Sequence[Weight],
        names: tuple[str, ...] | None,
        key: int,
        options: Mapping[str, Any],
    ) -> None:
        check_options(name, options)
        number = whole_number(key)
        if number is None:
            raise ConfigError(f"the key of a scheme is a whole number, got {key!r}")
        self.names = names
        self._name, self._key, self._options = name, number, dict(options)
        self._arrangement = Arrangement(name, number, **options)
        self._weights = tuple(weights)
        self._begin()

    def timeline(self, limits: Int64Array | None = None) -> Timeline:
        """The same slots, with sources that end at `limits`; see `Timeline`."""
        weighings = [self._weighing(weights, start) for start, weights in self._eras]
        return Timeline(weighings, self._arrangement, limits)

    def first_difference(self, other: Self, end: int) -> int | None:
        """See `WeightedScheme`."""
        return self.timeline().first_difference(other.timeline(), end)

    def describe(self) -> dict[str, Any]:
        return {
            "scheme": self._name,
            "weights": self._described(self._weights),
            **self._changes_described(),
            "key": self._key,
            **described(self._options),
        }

    @cached_property
    def _timeline(self) -> Timeline:
        return self.timeline()

    def _begin(self) -> None:
        _ = self._timeline

    def _counts(self, n: int) -> Int64Array:
        return self._timeline.counts(n)

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        return self._timeline.locate(ks)

    def _weighing(self, weights: Sequence[Weight], start: int) -> Weighing:
        schedules = [each for weight in weights for each in schedules_in(weight)]
        if schedules:
            self._arrangement.check_follows(each.interpolation for each in schedules)
        if self._name in WEIGHTLESS:
            weights = [float(ever_positive(each)) for each in _with_some(weights)]
        size = self._arrangement.block_size
        change = _common({each.change for each in schedules}) if size > 1 else "sample"
        block = 1 if change == "sample" else size
        return Weighing(weights, start, block_size=block, by_first_slot=change == "block_start")


def _with_some(weights: Sequence[Weight]) -> Sequence[Weight]:
    """The weights, if they are of any use; `WeightError` otherwise."""
    integer_weights(weights)  # type: ignore[arg-type]  # schedules have been refused
    return weights


def _common(changes: set[str]) -> str:
    if len(changes) > 1:
        raise ConfigError(
            f"the schedules of a mix have different values of change: {sorted(changes)}; use one"
        )
    return next(iter(changes), "block")


# Where a mix of finite sources ends.

STOP_RULES = ("restart", "first_exhausted", "all_exhausted")


def slot_limits(sizes: Sequence[int], stop: str, max_epochs: Sequence[int | None]) -> Int64Array:
    """How many slots each source may take: `max_epochs` times its size, or `INFINITE`.

    Where `max_epochs` is None, it is without limit under `restart`, and one epoch otherwise.
    Raises `ConfigError` for an unknown rule or an epoch count below 1.

    >>> slot_limits([10, 30], "all_exhausted", [None, 2]).tolist()
    [10, 60]
    """
    if stop not in STOP_RULES:
        raise ConfigError(
            f"unknown stop rule {stop!r}{nearest(str(stop), STOP_RULES) or '.'} "
            f"Known: {', '.join(STOP_RULES)}"
        )
    limits = []
    for number, (size, epochs) in enumerate(zip(sizes, max_epochs, strict=True)):
        if epochs is None:
            limits.append(INFINITE if stop == "restart" else size)
            continue
        passes = whole_number(epochs)
        if passes is None or passes < 1:
            raise ConfigError(
                f"max_epochs, dataset {number}: a whole number of epochs, 1 or more, or None for "
                f"no limit; got {epochs!r}. Give a dataset that shall not be read the weight 0"
            )
        limits.append(min(size * passes, INFINITE))
    return np.array(limits, dtype=np.int64)


def stopped_scheme(scheme: Scheme, limits: Int64Array, stop: str) -> tuple[Scheme, int]:
    """`scheme` ended by a stop rule where sources have had their `limits`; and its size.

    `first_exhausted` ends before the first slot that asks a source for more than its limit. Under
    the other rules a source that has reached its limit drops out and its slots go to those that are
    left, by weight; it ends when no source is left, so every source takes its limit exactly. The
    size is `INFINITE` when that never comes. After the end the same slots come again, and every
    source goes on where it was.

    Sources that can never be drawn, of weight 0, count for nothing. Only schemes that `make_scheme`
    made can leave out sources.

    >>> from energize.order.timeline import make_scheme
    >>> halves = make_scheme("exact", [0.5, 0.5])
    >>> scheme, size = stopped_scheme(halves, np.array([10, 30]), "all_exhausted")
    >>> size, scheme.counts(20).tolist(), scheme.counts(30).tolist()
    (40, [10, 10], [10, 20])
    """
    drawn = scheme.drawn if isinstance(scheme, MixingScheme) else np.ones(len(limits), np.bool_)
    if stop == "first_exhausted" or not isinstance(scheme, MixingScheme):
        end = _first_beyond(scheme, np.where(drawn, limits, INFINITE))
        if end is None:
            return scheme, INFINITE
        return _Epochs(scheme, scheme, scheme.counts(end)), end
    wanted = np.where(drawn, limits, 0)
    size = min(sum(wanted.tolist()), INFINITE)
    if not size or (wanted[drawn] == INFINITE).all():
        return scheme, size
    timeline = scheme.timeline(wanted)
    if size >= FARTHEST:
        return _Epochs(scheme, timeline, np.full(len(limits), INFINITE)), INFINITE
    return _Epochs(scheme, timeline, wanted), size


def _first_beyond(scheme: Scheme, limits: Int64Array) -> int | None:
    """The first slot that a source has beyond its limit; None when there is none."""
    if isinstance(scheme, MixingScheme):
        return scheme.timeline().first_beyond(limits)

    def beyond(slots: int) -> bool:
        return bool((scheme.counts(slots) > limits).any())

    end = 1
    while not beyond(end):
        if end >= FARTHEST:
            return None
        end *= 2
    return first_where(beyond, above=end // 2, upto=end) - 1


class _Epochs:
    """The first slots of a scheme over and over, `each` of every source, as `slots` has them."""

    def __init__(self, scheme: Scheme, slots: Scheme | Timeline, each: Int64Array) -> None:
        self._scheme, self._slots, self._each = scheme, slots, each
        self._size = min(sum(each.tolist()), INFINITE)

    def describe(self) -> dict[str, Any]:
        return {**self._scheme.describe(), "size": self._size}

    def counts(self, n: int) -> Int64Array:
        epochs, rest = divmod(n, self._size)
        counts = self._slots.counts(rest)
        return counts + self._each * epochs if epochs else counts

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        epochs, at = np.divmod(ks, self._size)
        source, nth = self._slots.locate(at)
        before: Int64Array = epochs * self._each[source]
        return source, nth + before


# How much of the first slots of a mix weights ask for: the integral of their shares.

_PIECES = 64
"""Into which the way between two points of schedules is cut: shares are smooth there."""

Era = tuple[int, Sequence[Weight]]
"""Weights, and the slot from which they are in force."""


def asked_shares(weights: Sequence[Weight]) -> FloatArray | None:
    """The shares that weights ask for, in their order; None where they change.

    >>> asked_shares([3, 1]).tolist()
    [0.75, 0.25]
    """
    if any(True for each in weights for _ in schedules_in(each)):
        return None
    shares: FloatArray = shares_at(weights, [0])[0]
    return shares


def asked_until(eras: Sequence[Era], slots: int) -> FloatArray:
    """How many of the first `slots` are asked for of each source: float64, sums to `slots`.

    The eras follow one another. Between two points of schedules the mean of shares is taken at 64
    places: exact where they do not change, and within a millionth where they change gradually.

    >>> from energize.order.weights import Schedule
    >>> glide = Schedule([(0, 0), (100, 1)], "linear")
    >>> asked_until([(0, [glide, Schedule([(0, 1), (100, 0)], "linear")])], 100).round(6).tolist()
    [50.0, 50.0]
    """
    total = np.zeros(len(eras[0][1]))
    starts = [start for start, _ in eras]
    for (start, weights), end in zip(eras, [*starts[1:], slots], strict=True):
        total += _asked_between(weights, min(start, slots), min(end, slots))
    return total


def _asked_between(weights: Sequence[Weight], start: int, end: int) -> FloatArray:
    if end <= start:
        return np.zeros(len(weights))
    schedules = [each for weight in weights for each in schedules_in(weight)]
    points = {slot for each in schedules for slot in each.slots if start < slot < end}
    gliding = any(each.interpolation != "step" for each in schedules)
    total = np.zeros(len(weights))
    for first, last in pairwise(sorted({start, end, *points})):
        pieces = min(_PIECES, last - first) if gliding else 1
        places = first + (np.arange(pieces) + 0.5) * (last - first) / pieces
        total += shares_at(weights, places).mean(axis=0) * (last - first)
    return total

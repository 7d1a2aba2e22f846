"""Schemes by weight, which assign the slots of a mix to sources.

A scheme is a timeline of segments. Within a segment, the sources are the same, and
weights are fixed or interpolated. Each segment depends only on earlier segments, so a
later change never affects earlier slots.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.arrays import (
    FloatArray,
    Int64Array,
    pairs_by_value,
)
from energize.core.checks import checked_choice, checked_whole, whole_number
from energize.core.description import described
from energize.core.node import INFINITE
from energize.core.rng import derive
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.order.runs import (
    LAYOUTS_KEPT,
    Apportionment,
    Glide,
    Turns,
    Windows,
    divided,
    rounded_shares,
)
from energize.order.scheme import FARTHEST, Scheme, first_true
from energize.order.weights import (
    Era,
    Weight,
    WeightsArgument,
    describe_differences,
    era_at,
    ever_positive,
    named_weights,
    schedules_in,
    shares_at,
    weight_as_described,
)

# Schemes: timelines of segments.

SCHEMES = ("even", "exact", "block", "random", "uniform", "round_robin")
"""The names of all schemes. `block` has the option `block_size`."""

WEIGHTLESS = frozenset({"uniform", "round_robin"})
"""Schemes that give all sources equal shares."""

_CLOSING = 64
"""Sources that end within start / 64 slots of each other share a closing segment."""

_BLOCK_SIZE = 1000

_LARGEST_BLOCK = 2**24

_RANDOM_WINDOW = 2**16

Names: TypeAlias = tuple[str, ...] | None

Settings: TypeAlias = dict[str, Any]

Changes: TypeAlias = tuple[tuple[int, tuple[Weight, ...]], ...]
"""Slots, and the weights from these slots on; the first slot is 0."""


@dataclass(frozen=True, eq=False)
class Segment(ABC):
    """A range of slots.

    Attributes:
        start: The first slot.
        end: The slot after the last one.
        before: Slots of each source before `start`.
    """

    start: int
    end: int
    before: Int64Array

    @abstractmethod
    def counts(self, slot: int) -> Int64Array:
        """Return the slots of each source before a slot.

        Args:
            slot: A slot of this segment, or its end.
        """

    @abstractmethod
    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source of each slot, and the number of its earlier slots."""


class WeightedScheme(ABC):
    """Base of schemes by weights.

    Segments are computed when they are needed. Schemes with equal descriptions are
    equal.

    Args:
        names: Names of the sources; None if they have none.
        changes: Slots, and the weights from these slots on.
        settings: Parameters of the scheme.
    """

    def __init__(self, names: Names, changes: Changes, settings: Settings) -> None:
        self.names = names
        self._settings = settings
        self.eras = [self._era(slot, weights) for slot, weights in changes]
        self._begin_with(())

    @abstractmethod
    def _era(self, slot: int, weights: Sequence[Weight]) -> Era:
        """Return the era of weights from a slot on."""

    @abstractmethod
    def _after(self, last: Any) -> Segment | None:
        """Return the segment after `last`; None at the end of the mix."""

    def counts(self, n: int) -> Int64Array:
        """Return the number of slots of each source among the first `n`.

        Args:
            n: Number of slots, up to 2**62.

        Returns:
            Counts that sum to `n`, int64, shape (num_sources,).

        Raises:
            ConfigError: If `n` is not a number of slots.
        """
        slots = n if type(n) is int else whole_number(n)
        if slots is None or not 0 <= slots <= FARTHEST:
            raise ConfigError(
                f"counts(n): n must be a whole number from 0 to 2**62, got {n!r}"
            )
        self.reach(slots)
        at = int(np.searchsorted(self._starts, max(slots - 1, 0), side="right"))
        return self._segments[at - 1].counts(slots)

    def locate(self, ks: npt.ArrayLike) -> tuple[Int64Array, Int64Array]:
        """Return the source of each slot, and the number of its earlier slots.

        Args:
            ks: Slots below 2**62, one dimension.

        Returns:
            Sources and counts, int64, shape (n,) each.

        Raises:
            ConfigError: If `ks` are not slots.
        """
        slots = np.asarray(ks)
        if not slots.size:
            return slots.astype(np.int64), slots.astype(np.int64)
        first, last = (
            (int(slots.min()), int(slots.max()))
            if slots.dtype.kind in "iu"
            else (-1, 0)
        )
        if slots.ndim != 1 or first < 0 or last >= FARTHEST:
            raise ConfigError(
                "locate(ks): ks must be a one-dimensional array of whole numbers "
                f"from 0 to 2**62 - 1, got {reprlib.repr(ks)}"
            )
        slots = slots.astype(np.int64, copy=False)
        if last < self._segments[0].end:  # as in most mixes
            return self._segments[0].locate(slots)
        self.reach(last + 1)
        numbers = np.searchsorted(self._starts, slots, side="right") - 1
        return pairs_by_value(
            numbers, lambda at, rows: self._segments[at].locate(slots[rows])
        )

    def reach(self, n: int) -> int:
        """Compute the segments of the first `n` slots.

        Returns:
            `n`, or the size of a mix that ends earlier.
        """
        segments = self._segments
        while segments[-1].end < n:
            following = self._after(segments[-1])
            if following is None:
                n = segments[-1].end
                break
            segments = (*segments, following)
        if len(segments) > len(self._segments):  # another thread may have come farther
            self._begin_with(segments)
        return n

    def _begin_with(self, segments: tuple[Segment, ...]) -> None:
        if not segments:
            first = self._after(None)
            if first is None:
                raise EmptyDatasetError(
                    "no source with items has a weight above 0 at slot 0. Set one"
                )
            segments = (first,)
        self._segments = segments
        self._starts = np.array([segment.start for segment in self._segments])

    @property
    def changes(self) -> Changes:
        """The slots at which weights change, and the new weights."""
        return tuple((era.start, era.original) for era in self.eras[1:])

    def with_weights_from(self, slot: int, weights: WeightsArgument) -> Self:
        """Return the same scheme with other weights from a slot on.

        Earlier slots stay the same.

        Args:
            slot: The first slot with the new weights.
            weights: Weights of all sources, by name if the sources have names.

        Raises:
            ConfigError: If an earlier change is at `slot` or later.
            WeightError: If weights are invalid, or not those of the sources.

        Example:
            >>> scheme = make_scheme("exact", {"code": 1, "text": 1})
            >>> changed = scheme.with_weights_from(100, {"code": 3, "text": 1})
            >>> changed.counts(100).tolist(), changed.counts(200).tolist()
            ([50, 50], [125, 75])
        """
        at = checked_whole(slot, "the slot from which weights change", 0)
        if self.changes and at <= (previous := self.eras[-1].start):
            raise ConfigError(
                f"weights already change at slot {previous}, got slot {at}. Pass a "
                "later slot"
            )
        names, listed = named_weights(weights)
        if names and self.names:
            if difference := describe_differences(self.names, names):
                raise WeightError(
                    f"the names of the weights differ from the sources: {difference}"
                )
            listed = tuple(
                map(dict(zip(names, listed, strict=True)).__getitem__, self.names)
            )
        if len(listed) != (count := len(self.eras[0].original)):
            raise WeightError(f"{len(listed)} weights were passed for {count} sources")
        return self._with(self._until(at), eras=[*self.eras, self._era(at, listed)])

    def as_described(
        self, weights: Sequence[Any], changes: Sequence[Sequence[Any]]
    ) -> Self:
        """Return the same scheme with weights from a saved description.

        Args:
            weights: Described weights at slot 0.
            changes: Slots and described weights from these slots on.

        Raises:
            KeyError: For an incomplete description; `TypeError` and `ValueError` for
                other faults.
        """
        described_eras = [(0, weights), *changes]
        eras = tuple(
            (at, tuple(map(weight_as_described, w))) for at, w in described_eras
        )
        return type(self)(self.names, eras, self._settings)

    def _until(self, slot: int) -> tuple[Any, ...]:
        """Return the computed segments before a slot, cut there."""
        return ()

    def _with(self, segments: tuple[Segment, ...], **changed: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__ | changed)
        other._begin_with(segments)
        return other

    def first_difference(self, other: Self, end: int) -> int | None:
        """Return the first slot at which another scheme can differ.

        Args:
            other: A scheme that differs only in its weights.
            end: The end of the comparison.

        Returns:
            The slot; None if all slots before `end` are equal.
        """
        slot = 0
        while slot < end:
            (mine, cut), (their, their_cut) = (
                era_at(self.eras, slot),
                era_at(other.eras, slot),
            )
            if mine.asks(slot) != their.asks(slot):
                return slot
            slot = min(cut, their_cut)
            if cut != their_cut:
                return slot if slot < end else None
        return None

    def shares(self, slot: int = 0) -> list[float]:
        """Return the requested share of each source at a slot.

        Args:
            slot: Slot of the mix.
        """
        era, _ = era_at(self.eras, slot)
        shares: list[float] = shares_at(era.original, [slot])[0].tolist()
        return shares

    @property
    def varies(self) -> bool:
        """Whether shares change over time."""
        return len(self.eras) > 1 or bool(self.eras[0].points)

    def describe(self) -> dict[str, Any]:
        """Return the parameters as JSON, which saved states are compared with."""
        tree: dict[str, Any] = self._settings | {
            "names": self.names,
            "weights": self.eras,
        }
        return {name: described(value) for name, value in tree.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightedScheme) and self.describe() == other.describe()

    __hash__ = None  # type: ignore[assignment]  # its description is compared

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parameters, without computed segments."""
        changes = (0, self.eras[0].original), *self.changes
        return type(self), (self.names, changes, self._settings)


# Schemes by their names.


@dataclass(frozen=True, eq=False)
class MixingSegment(Segment):
    """A segment of a `MixingScheme`.

    Attributes:
        members: The sources with slots.
        run: The order of their slots.
        dues: The weights of the members, or a `Glide`. None in a closing segment.
        owed: Slots that each source was due before the start and did not get.
    """

    members: Int64Array
    run: Scheme
    dues: Int64Array | Glide | None
    owed: FloatArray

    def counts(self, slot: int) -> Int64Array:
        counts = self.before.copy()
        counts[self.members] += self.run.counts(slot - self.start)
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        if not self.start and len(self.members) == len(self.before):  # as in most mixes
            return self.run.locate(slots)
        member, nth = self.run.locate(slots - self.start)
        source = self.members[member]
        return source, nth + self.before[source]

    @property
    def shares(self) -> FloatArray:
        """The weights of the members at the start, in any unit."""
        dues: Any = self.dues
        return dues.first_shares if isinstance(dues, Glide) else dues.astype(np.float64)

    def owed_after(self, counts: Int64Array) -> FloatArray:
        """Return the slots that each source was due by the end and did not get.

        Args:
            counts: Slots of each source before the end.
        """
        length = self.end - self.start
        owed = np.zeros(len(self.owed))
        had = (counts - self.before)[self.members]
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

    def windows_within(self, limits: Int64Array, window: int) -> int | None:
        """Return how many windows from the start keep all sources within limits.

        Args:
            limits: Slots that each source can take.
            window: Slots of a window.

        Returns:
            The number of windows; None if no limit is reached.
        """
        end = min(self.end, FARTHEST)

        def beyond(windows: int) -> bool:
            return bool(
                (self.counts(min(self.start + windows * window, end)) > limits).any()
            )

        most = -(-(end - self.start) // window)
        if (limits == INFINITE).all() or not beyond(most):
            return None
        left = (limits - self.before)[self.members]
        shares = self.shares
        guess = float((left / np.maximum(shares, 1e-18)).min() * shares.sum()) / window
        return first_true(beyond, most, guess) - 1


class MixingScheme(WeightedScheme):
    """A scheme by name; see `make_scheme`.

    With `limited`, sources have no slots after a limit: the other sources take over by
    weight, and the mix ends when no source with a weight is left. Sources that reach
    their limits at nearly the same time do so in one closing segment, with whole
    numbers of slots for all: within a slot of each source, or 1/64 of the earlier
    slots.

    Args:
        names: Names of the sources; None if they have none.
        changes: Slots, and the weights from these slots on.
        settings: The name, key and options of the scheme.
    """

    def __init__(self, names: Names, changes: Changes, settings: Settings) -> None:
        self._name: str = settings["scheme"]
        self._key = derive(self._name, settings["key"])
        self._window: int = settings.get("block_size", _RANDOM_WINDOW)
        self._limits = np.full(len(changes[0][1]), INFINITE, dtype=np.int64)
        self._gone: tuple[tuple[int, int], ...] = ()
        """Slots from which on a source is left out."""
        self._layouts = lru_cache(LAYOUTS_KEPT)(
            Windows.laid_out
        )  # of all segments: there may be many
        super().__init__(names, changes, settings)

    def limited(self, limits: Int64Array) -> MixingScheme:
        """Return the same scheme with a maximum number of slots for each source."""
        return self._with((), _limits=limits)

    def without(self, source: int, slot: int) -> MixingScheme:
        """Return the same scheme without a source from a slot on.

        Earlier slots stay the same.

        Args:
            source: The source.
            slot: The first slot without the source.
        """
        self.reach(slot)
        return self._with(self._until(slot), _gone=(*self._gone, (slot, source)))

    def _until(self, slot: int) -> tuple[Segment, ...]:
        segments = [segment for segment in self._segments if segment.start < slot]
        if segments:
            segments[-1] = replace(segments[-1], end=min(segments[-1].end, slot))
        return tuple(segments)

    def _era(self, slot: int, weights: Sequence[Weight]) -> Era:
        if self._name in WEIGHTLESS:
            if any(schedules_in(weights)):
                raise ConfigError(
                    f"the scheme {self._name!r} ignores weights. Use 'even'"
                )
            era = Era(slot, [float(ever_positive(weight)) for weight in weights])
            era.original = tuple(weights)
            return era
        return Era(slot, weights, self._window if self._name == "block" else 1)

    def _after(self, last: MixingSegment | None) -> MixingSegment | None:
        start = 0
        counts = np.zeros_like(self._limits)
        owed = counts.astype(np.float64)
        if last is not None:
            start = last.end
            counts = last.counts(last.end)
            owed = last.owed_after(counts)
        left = np.where(self._limits < INFINITE, self._limits - counts, INFINITE)
        left[[source for slot, source in self._gone if slot <= start]] = 0
        era, cut = era_at(self.eras, start)
        if not left[era.has_weight(start)].any():
            return None
        cut = min([cut, *(slot for slot, _ in self._gone if slot > start)])
        glides = era.glides(start)
        weights = era.drawn.astype(np.int64) if glides else era.fixed(start)
        members = np.flatnonzero((left > 0) & (weights > 0))
        key = self._rounding(start)
        mine = owed[members]
        end = INFINITE
        dues: Int64Array | Glide = weights[members]
        if glides:
            end = era.next_point(start)
            dues = Glide(*era.gliding(start, members), key=key, owed=mine)
            run = self._arranged(dues, start, len(members), end - start)
        elif self._name == "round_robin":
            run = Turns(len(members), _next_turn(members, last))
        else:
            whole = Apportionment(weights[members], key=key, owed=mine)
            run = self._arranged(whole, start, len(members), None)
        # Cut last: nothing before the cut may depend on it.
        segment = self._closed(
            MixingSegment(start, end, counts, members, run, dues, owed), left
        )
        return replace(segment, end=min(segment.end, cut))

    def _rounding(self, start: int) -> int | None:
        """Return the key of random rounding for `even`; else None."""
        return derive(self._key, start) if self._name == "even" else None

    def _arranged(
        self, run: Scheme, start: int, sources: int, length: int | None
    ) -> Scheme:
        """Return a run in the windows of the scheme."""
        if self._name in {"even", "exact"}:
            return Windows(run, length, sources, self._layouts)
        key = derive(self._key, start)
        return Windows(run, length, sources, self._layouts, size=self._window, key=key)

    def _closed(self, segment: MixingSegment, left: Int64Array) -> MixingSegment:
        """Return a segment up to the first limit, or a closing segment."""
        start = segment.start
        members = segment.members
        turns = self._name == "round_robin"
        window = 1 if turns else max(len(members), start // _CLOSING, 1)
        limits = np.where(left < INFINITE, segment.before + left, INFINITE)
        windows = segment.windows_within(limits, window)
        if windows is None:
            return segment
        if windows:
            return replace(segment, end=start + windows * window)
        able = members[segment.shares > 0]
        size = min(window, segment.end - start, sum(left[able].tolist()))
        totals = _capped(segment.shares, left[members], size)
        drawn = np.flatnonzero(totals)
        whole = Apportionment(totals[drawn], key=self._rounding(start))
        run = self._arranged(whole, start, len(drawn), size)
        return replace(
            segment, end=start + size, members=members[drawn], run=run, dues=None
        )


def _next_turn(members: Int64Array, last: MixingSegment | None) -> int:
    """Return the member with the next turn."""
    if last is None:
        return 0
    member, _ = last.run.locate(np.array([last.end - last.start - 1]))
    return int(np.searchsorted(members, last.members[member[0]], side="right")) % len(
        members
    )


def _capped(weights: FloatArray, left: Int64Array, size: int) -> Int64Array:
    """Divide `size` slots by weight, at most `left` for each source.

    Rounds by largest remainder.
    """
    totals = np.zeros_like(left)
    able = (left > 0) & (weights > 0)
    while able.any():
        due = np.where(able, weights, 0.0)
        due *= (size - int(totals.sum())) / due.sum()
        full = able & (due >= left)
        if not full.any():
            return totals + rounded_shares(due, size - int(totals.sum()), able)
        totals[full] = left[full]
        able &= ~full
    return totals


def make_scheme(
    name: str, weights: WeightsArgument, *, key: int = 0, **options: Any
) -> MixingScheme:
    """Return a scheme over sources with weights.

    | name | guarantee |
    |---|---|
    | `even` | exact shares in every prefix, within 3.36 slots; random order |
    | `exact` | exact shares in every prefix, within 1.68 slots; deterministic order |
    | `block` | counts of `exact` at ends of blocks of `block_size`; random within |
    | `random` | counts of `exact` at ends of windows of 65,536 slots; random within |
    | `uniform` | as `random`, with equal shares |
    | `round_robin` | all sources in turn |

    With schedules, sources are due the integral of their shares. Rounding errors are
    carried over points, so they do not accumulate. While shares are interpolated (up to
    8 million slots between points, up to 512 sources), a source is within another 0.4
    slots. Slots before a point of a step schedule, or before a change of weights, do
    not depend on it.

    Args:
        name: One of `SCHEMES`.
        weights: A weight for each source: a list, a mapping by name, or a
            `WeightScheduler`. A weight is a number or a `Schedule`; weights need not
            sum to 1. Sources with weight 0 keep their numbers.
        key: Key of random choices.
        **options: `block_size` of `block`.

    Raises:
        WeightError: If weights are invalid, or all 0 at some slot.
        ConfigError: For an unknown name or option, or schedules in a scheme without
            weights.

    Example:
        >>> scheme = make_scheme("block", {"code": 3, "text": 1}, block_size=4)
        >>> scheme.names, scheme.counts(8).tolist()
        (('code', 'text'), [6, 2])
    """
    for option in options:
        checked_choice(option, "option", option_names(name), f"the scheme {name!r}")
    settings = {"scheme": name, "key": checked_whole(key, "the key of a scheme")}
    if option_names(name):
        size = checked_whole(options.get("block_size", _BLOCK_SIZE), "block_size", 1)
        if size > _LARGEST_BLOCK:
            raise ConfigError(
                f"block_size must be at most {_LARGEST_BLOCK}, got {size}. Use 'random'"
            )
        settings["block_size"] = size
    names, listed = named_weights(weights)
    return MixingScheme(names, ((0, listed),), settings)


def option_names(name: str) -> tuple[str, ...]:
    """Return the names of the options of a scheme.

    Args:
        name: One of `SCHEMES`.

    Raises:
        ConfigError: For an unknown name.

    Example:
        >>> option_names("block")
        ('block_size',)
    """
    return ("block_size",) if checked_choice(name, "scheme", SCHEMES) == "block" else ()

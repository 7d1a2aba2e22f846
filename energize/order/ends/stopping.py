"""Where a mix of finite sources ends, and who takes the slots of a source that is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import INFINITE
from energize.errors import ConfigError, nearest
from energize.order.ends.capped import FARTHEST, CappedScheme
from energize.order.ends.searching import first_where
from energize.order.numeric import whole_number
from energize.order.protocol import Scheme
from energize.order.schedules.varying import (
    Weight,
    ever_positive,
    final_weights,
    normalised,
    shares_at,
)
from energize.order.schemes.plain import WEIGHTLESS
from energize.order.segments import EpochScheme, Segment, SegmentedScheme

__all__ = ["STOP_RULES", "SchemeMaker", "slot_limits", "stopped_scheme"]


STOP_RULES = ("restart", "first_exhausted", "all_exhausted")

_FARTHEST_END: Mapping[str, int] = MappingProxyType({"random": 2**42, "uniform": 2**42})
"""How far ends are looked for under schemes whose counts take long far out."""


class SchemeMaker(Protocol):
    """Makes the scheme over some of the sources that counts from a slot of the mix."""

    def __call__(self, members: Int64Array, start: int) -> Scheme: ...


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


def stopped_scheme(
    make: SchemeMaker,
    limits: Int64Array,
    weights: Sequence[Weight],
    stop: str,
    *,
    name: str = "",
) -> tuple[Scheme, int]:
    """The scheme `name` that `make` gives for all sources, of these weights, ended by a stop rule;
    and its size.

    `first_exhausted` ends before the first slot that asks a source for more than its limit. Under
    the other rules a source that has reached its limit drops out and its slots go to those that are
    left, by weight; it ends when no source is left, so every source takes its limit exactly. The
    size is `INFINITE` when that never comes. Behind the end the same slots come again, and every
    source goes on where it was.

    Sources that can never be drawn, of weight 0, count for nothing. Raises `ConfigError` when a
    `random` or `uniform` mix ends under `first_exhausted`, but not within 2**42 slots.

    >>> from energize.order.making import make_scheme
    >>> weights = np.array([0.5, 0.5])
    >>> def make(members, start):
    ...     return make_scheme("block", weights[members], block_size=2)
    >>> scheme, size = stopped_scheme(make, np.array([10, 30]), [0.5, 0.5], "all_exhausted")
    >>> size, scheme.counts(20).tolist(), scheme.counts(30).tolist()
    (40, [10, 10], [10, 20])
    """
    everyone = np.arange(len(limits))
    drawn = np.array([ever_positive(weight) for weight in weights], dtype=np.bool_)
    if name in WEIGHTLESS:
        weights = np.where(drawn, 1.0, 0.0).tolist()
    wanted = np.where(drawn, limits, 0)
    scheme: Scheme
    if stop == "first_exhausted":
        scheme = make(everyone, 0)
        limits = np.where(drawn, limits, INFINITE)
        size = _first_asked_too_much(scheme, limits, weights, _FARTHEST_END.get(name, FARTHEST)) - 1
        wanted = scheme.counts(size) if size < FARTHEST else wanted
    else:
        size = min(sum(wanted.tolist()), INFINITE)
        if size == 0 or (wanted[drawn] == INFINITE).all():
            return make(everyone, 0), size
        scheme = _DroppingScheme(make, wanted, weights)
    if size >= FARTHEST or size == 0:
        return scheme, INFINITE if size else 0
    return EpochScheme(scheme, wanted), size


class _Found(NamedTuple):
    """Segments, and the slot up to which no other begins."""

    segments: tuple[Segment, ...]
    last: CappedScheme
    reach: int


class _DroppingScheme(SegmentedScheme):
    """Sources that have had `limits` slots have no more, and their slots go to the others.

    In a segment, the slots of sources that are over are left out of its scheme; where these are
    many, a new segment begins without them. While weights change, a segment ends before the first
    slot that would be left out, so slots stay in step with schedules. Segments are found when they
    are needed, each from the one before it. Slots lie below the sum of the limits.
    """

    def __init__(self, make: SchemeMaker, limits: Int64Array, weights: Sequence[Weight]) -> None:
        self._make = make
        self._limits = limits
        self._weights = weights
        self._settled_at, self._final = final_weights(weights)
        self._found = self._with_segment((), 0, np.zeros(len(limits), dtype=np.int64))
        super().__init__(self._found.segments, self._found.last.describe())

    def _segments_to(self, n: int) -> tuple[Segment, ...]:
        found = self._found
        while found.reach <= n:
            found = self._further(found, n)
        self._found = found
        return found.segments

    def _further(self, found: _Found, n: int) -> _Found:
        """A longer reach, or one more segment."""
        segment, capped = found.segments[-1], found.last
        asked = n - segment.start + 1
        if segment.start < self._settled_at:
            kept = capped.whole_to(asked)
            taken = capped.taken(kept)
        else:
            taken = _taken(capped, asked, capped.enough(segment.start))
            kept = int(taken.sum())
        if kept >= asked:
            return found._replace(reach=segment.start + kept)
        counts = segment.before.copy()
        counts[segment.members] += taken
        return self._with_segment(found.segments, segment.start + kept, counts)

    def _with_segment(
        self, segments: tuple[Segment, ...], start: int, counts: Int64Array
    ) -> _Found:
        """A segment behind those known, unless all sources are over."""
        members = np.flatnonzero(counts < self._limits)
        if not members.size:
            return _Found(segments, self._found.last, INFINITE)
        if start < self._settled_at:
            shares = shares_at([self._weights[each] for each in members.tolist()], [start])[0]
        else:
            shares = normalised(self._final[members])
        left = (self._limits - counts)[members]
        capped = CappedScheme(self._make(members, start), left, shares)
        return _Found((*segments, Segment(start, capped, members, counts)), capped, start)


def _taken(capped: CappedScheme, asked: int, most: int) -> Int64Array:
    """What sources take of so many slots of the whole scheme that they take `asked` or more
    together; or of `most` slots, when these are too few.
    """
    at = min(2 * asked, most)
    while (taken := capped.taken(at)).sum() < asked and at < most:
        at = min(2 * at, most)
    return taken


def _first_asked_too_much(
    scheme: Scheme, limits: Int64Array, weights: Sequence[Weight], farthest: int
) -> int:
    """The least number of slots that take more of a source than its limit, or `INFINITE`."""

    def too_much(n: int) -> bool:
        return bool((scheme.counts(n) > limits).any())

    _, final = final_weights(weights)
    ending = (limits < INFINITE) & (final > 0)
    if not ending.any():  # it comes before the last segment, or never
        settled = scheme.settled if isinstance(scheme, SegmentedScheme) else 0
        return first_where(too_much, above=0, upto=settled) if too_much(settled) else INFINITE
    expected = min(float((limits[ending] / normalised(final)[ending]).min()), farthest)
    end = max(int(expected), 1)
    while not too_much(end):
        if end == FARTHEST:
            return INFINITE
        if end == farthest:
            raise ConfigError(
                f"stop='first_exhausted': no dataset is over within {farthest} slots, and behind "
                "them random draws take too long to count; use scheme='block' or 'exact', give the "
                "dataset that shall end the mix a larger weight, or use stop='restart'"
            )
        end = min(2 * end, farthest)
    return first_where(too_much, above=0, upto=end, guess=expected)

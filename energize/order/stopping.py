"""Where a mix of finite sources ends, and who takes the slots of a source that is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from energize.cursor import INFINITE
from energize.errors import ConfigError, nearest
from energize.order.numeric import whole_number
from energize.order.plain import WEIGHTLESS
from energize.order.protocol import Scheme
from energize.order.segments import EpochScheme, Segment, SegmentedScheme
from energize.order.varying import Weight, ever_positive, finally_positive, shares_at

__all__ = ["STOP_RULES", "SchemeMaker", "slot_limits", "stopped_scheme"]

Int64Array = npt.NDArray[np.int64]

STOP_RULES = ("restart", "first_exhausted", "all_exhausted")

_FARTHEST = 2**62

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

    >>> from energize.order.schemes import make_scheme
    >>> weights = np.array([0.5, 0.5])
    >>> def make(members, start):
    ...     return make_scheme("block", weights[members], block_size=2)
    >>> scheme, size = stopped_scheme(make, np.array([10, 30]), [0.5, 0.5], "all_exhausted")
    >>> size, scheme.counts(20).tolist(), scheme.counts(30).tolist()
    (40, [10, 10], [10, 20])
    """
    everyone = np.arange(len(limits))
    drawn = np.array([ever_positive(weight) for weight in weights], dtype=np.bool_)
    scheme: Scheme
    wanted = np.where(drawn, limits, 0)
    size = min(sum(wanted.tolist()), INFINITE)
    if stop == "first_exhausted":
        scheme = make(everyone, 0)
        limits = np.where(drawn, limits, INFINITE)
        lasting = (limits[finally_positive(weights)] < INFINITE).any()
        farthest = _FARTHEST_END.get(name, _FARTHEST)
        size = _first_asked_too_much(scheme, limits, size, bool(lasting), farthest) - 1
    elif (wanted[drawn] == INFINITE).all():
        return make(everyone, 0), INFINITE
    else:
        scheme = _DroppingScheme(
            make, wanted, [1.0] * len(limits) if name in WEIGHTLESS else weights
        )
    if size >= _FARTHEST or size == 0:
        return scheme, INFINITE if size else 0
    each = scheme.counts(size) if stop == "first_exhausted" else wanted
    return EpochScheme(scheme, each), size


class _DroppingScheme(SegmentedScheme):
    """A source that has had `limits` slots drops out; a new segment begins without it.

    Segments are found when they are needed, each from the one before it: sought from where it would
    begin if shares held exactly. Slots lie below the sum of the limits.
    """

    def __init__(self, make: SchemeMaker, limits: Int64Array, weights: Sequence[Weight]) -> None:
        self._make = make
        self._limits = limits
        self._weights = weights
        members = np.flatnonzero(limits)
        first = Segment(0, make(members, 0), members, np.zeros(len(limits), dtype=np.int64))
        super().__init__([first], first.scheme.describe())

    def _segments_to(self, n: int) -> tuple[Segment, ...]:
        segments = self._segments
        while (follower := self._after(segments[-1], n)) is not None:
            segments = (*segments, follower)
        self._segments = segments
        return segments

    def _after(self, segment: Segment, n: int) -> Segment | None:
        """The segment behind `segment`, if it begins at slot `n` or before it."""

        def over(slot: int) -> bool:
            return bool((segment.counts(slot) >= self._limits)[segment.members].any())

        if n <= segment.start:
            return None
        low, high = _around(over, self._expected(segment), segment.start, n)
        if low == high:
            return None
        start = _first(over, low, high)
        counts = segment.counts(start)
        members = segment.members[(counts < self._limits)[segment.members]]
        if not members.size:
            return None
        return Segment(start, self._make(members, start), members, counts)

    def _expected(self, segment: Segment) -> int:
        """About where the first source of a segment is over."""
        weights = [self._weights[each] for each in segment.members.tolist()]
        shares = shares_at(weights, [segment.start])[0]
        left = (self._limits - segment.before)[segment.members]
        slots = (left[shares > 0] / shares[shares > 0]).min()
        return segment.start + int(min(slots, _FARTHEST))


def _around(holds: Callable[[int], bool], guess: int, low: int, high: int) -> tuple[int, int]:
    """A number for which `holds` is false, `low` or above, and a higher one for which it is true:
    close together when the guess is close. Twice `high` when it is false up to there.
    """
    step, at = 1, min(max(guess, low + 1), high)
    if holds(at):
        high = at
        while (at := high - step) > low and holds(at):
            high, step = at, 2 * step
        return max(low, at), high
    while at < high:
        low, at, step = at, min(at + step, high), 2 * step
        if holds(at):
            return low, at
    return high, high


def _first_asked_too_much(
    scheme: Scheme, limits: Int64Array, total: int, lasting: bool, farthest: int
) -> int:
    """The least number of slots that take more of a source than its limit.

    `total` slots may be taken in all; `lasting` says whether the last segment can draw a source
    that has a limit. If not, the end comes before that segment, or never.
    """

    def too_much(n: int) -> bool:
        return bool((scheme.counts(n) > limits).any())

    settled = scheme.settled if isinstance(scheme, SegmentedScheme) else 0
    if not lasting:
        return _first(too_much, 0, settled) if too_much(settled) else INFINITE
    end = total + 1 if total < _FARTHEST else 1
    while end < farthest and not too_much(end):
        end *= 2
    if end >= _FARTHEST == farthest:
        return INFINITE
    if end < farthest or too_much(farthest):
        return _first(too_much, 0, min(end, farthest))
    raise ConfigError(
        f"stop='first_exhausted': no dataset is over within {farthest} slots, and behind them "
        "random draws take too long to count; use scheme='block' or 'exact', give the dataset that "
        "shall end the mix a larger weight, or use stop='restart'"
    )


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least number above `low` for which `holds`, which is true of `high` and all above."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high

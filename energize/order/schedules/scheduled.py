"""Schemes whose weights change with the slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.arrays import FloatArray, Int64Array
from energize.errors import ConfigError, WeightError
from energize.order.protocol import Scheme
from energize.order.schedules.block_stage import BlockStage
from energize.order.schedules.drawn_stage import DrawnStage, run_starts
from energize.order.schedules.exact_stage import ExactStage
from energize.order.schedules.integral import BlockStartSum, Dues, ShareIntegral
from energize.order.schedules.marks import Stretch
from energize.order.schedules.panels import Piece, Shares
from energize.order.schedules.varying import (
    Weight,
    schedules_in,
    shares_at,
    stepping_at_blocks,
    weights_at,
)
from energize.order.schemes.plain import WEIGHTLESS, plain_scheme
from energize.order.segments import Segment, SegmentedScheme
from energize.rng import derive

__all__ = ["mixing_scheme"]


_BLOCK_SIZE = 1000
_LAST_POINT = 2**40
_LARGEST_TABLE = 2**24
_SAME = 1e-12
"""Shares that differ by less are the same."""


def mixing_scheme(
    name: str, weights: Sequence[Weight], *, key: int = 0, start: int = 0, **options: Any
) -> Scheme:
    """The scheme called `name` over sources whose weights may be schedules.

    Slot 0 of the scheme is slot `start` of the schedules. Behind the last point it is the plain
    scheme of that name. Before that, sources are due the integral of their shares:

    - `block`: every block holds the integral over its slots, rounded with carry from block to
      block, in random order. With `Schedule.change` "block", steps act at block starts, and glides
      from point to point, wherever these lie. A source is within ceil(log2(n)) / 2 slots of the
      integral at every block end, and 1/16 more when a block has fewer slots than there are
      sources.
    - `exact`: a source is within ceil(log2(n)) / 2 + 1/16 slots of the integral at every slot.
      Points act at their own slots.

    However many points there are, roundings do not add up. But where a source comes in (its share
    leaves 0) or goes out, the carry ends and begins anew, at random; so a source whose share is 0
    is never drawn. From then on n sources may stray twice as far from the integral since, and where
    that happens k times, about sqrt(k) times as far from all of it. Any slot is computed alone:
    nothing is replayed.

    - `random`: each slot is drawn on its own, with the shares as probabilities. Where they glide,
      up to 1024 runs of equal length stand for the way from one point to the next, and each has its
      mean shares (see `run_starts`). Points act at their own slots.

    `greedy` can follow weights that change in steps: each stretch between points is drawn by the
    plain scheme on its own.

    Raises `WeightError` where all weights are 0 at some slot; `ConfigError` for schedules that
    disagree about `change` under `block`, glide under a scheme that cannot, or end beyond slot
    2**40.

    >>> from energize.order.schedules.schedule import Schedule
    >>> rising = Schedule([(0, 0), (1000, 1)], "linear")
    >>> falling = Schedule([(0, 1), (1000, 0)], "linear")
    >>> mixing_scheme("exact", [rising, falling]).counts(500).tolist()
    [125, 375]
    """
    schedules = [schedule for weight in weights for schedule in schedules_in(weight)]
    if not schedules:
        return plain_scheme(name, weights, key=key, **options)  # type: ignore[arg-type]  # numbers
    _check_never_all_zero(weights, start)
    change = _common({each.change for each in schedules}) if name == "block" else "sample"
    size = options.get("block_size", _BLOCK_SIZE)
    if change == "block":
        weights = stepping_at_blocks(weights, size, start)
        _check_never_all_zero(weights, start)
    points = _points(weights, start)
    last = float(points[-1] if points else start)
    tail = plain_scheme(name, _tail_weights(weights, last), key=derive(key, "tail"), **options)
    cuts = [0, *(point - start for point in points)]
    if name == "block":
        timeline = _BlockTimeline(weights, start, cuts, key, change=change, block_size=size)
        return timeline.scheme(tail)
    if name in _TIMELINES:
        return _TIMELINES[name](weights, start, cuts, key).scheme(tail)
    _check_steps_only(name, {each.interpolation for each in schedules})
    return _joined_steps(name, weights, [start, *points], tail=tail, key=key, options=options)


class _Timeline:
    """The stretches of a scheme under schedules, `exact` unless a subclass knows better. Slots are
    counted from its own start, and shares are smooth between `cuts`.
    """

    def __init__(
        self, weights: Sequence[Weight], start: int, cuts: Sequence[int], key: int
    ) -> None:
        self._weights, self._start, self._key = weights, start, key
        self._pieces = [Piece(*each) for each in pairwise(cuts)]

    def scheme(self, tail: Scheme) -> Scheme:
        """Stages, in each of which the same sources have a share, and the tail behind them."""
        before = np.zeros(len(self._weights), dtype=np.int64)
        segments = []
        drawn = dict(zip(self._pieces, self._drawn(), strict=True))
        for flags, group in groupby(self._pieces, drawn.__getitem__):
            pieces = list(group)
            members = np.flatnonzero(np.frombuffer(flags, dtype=np.bool_))
            stage = self._stage(pieces, members, derive(self._key, "stage", pieces[0].start))
            segments.append(Segment(pieces[0].start, stage, members, before))
            before = segments[-1].counts(pieces[-1].end)
        end = self._pieces[-1].end if self._pieces else 0
        segments.append(Segment(end, tail, np.arange(len(before)), before))
        return SegmentedScheme(segments, tail.describe())

    def _stage(self, pieces: list[Piece], members: Int64Array, key: int) -> Scheme:
        dues = ShareIntegral(self._shares_of(members), pieces)
        return ExactStage(dues, len(members), key, carried=pieces[0].start > 0)

    def _drawn(self) -> list[bytes]:
        """Which sources have a share in each piece."""
        drawn: list[bytes] = []
        at_once = max(_LARGEST_TABLE // (4 * len(self._weights)), 1)
        for first in range(0, len(self._pieces), at_once):
            pieces = self._pieces[first : first + at_once]
            slots = np.array([_along(each, self._probes()) for each in pieces])
            shares = self._shares(slots.ravel()).reshape(*slots.shape, -1)
            flags = np.asarray((shares > 0).any(axis=1))
            drawn += [each.tobytes() for each in flags]
        return drawn

    def _probes(self) -> FloatArray:
        """Ways through a piece at which a source has a share if it has one in the piece."""
        return np.array([0.25, 0.5, 0.75])

    def _shares(self, slots: npt.ArrayLike) -> FloatArray:
        return shares_at(self._weights, np.asarray(slots, dtype=np.float64) + self._start)

    def _shares_of(self, members: Int64Array) -> Shares:
        return lambda slots: self._shares(slots)[:, members]


class _BlockTimeline(_Timeline):
    """The stretches of a `block` scheme. Blocks are cut where points act at once; else they begin
    at multiples of their size, but where a source comes in or goes out between them.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        start: int,
        cuts: Sequence[int],
        key: int,
        *,
        change: str,
        block_size: int,
    ) -> None:
        self._by_first_slot = change == "block_start"
        self._cut_at_points = change == "sample"
        self._block_size = block_size
        starts = {self._next_block(cut) for cut in cuts}
        if self._by_first_slot:
            cuts = sorted(starts)
        elif not self._cut_at_points:
            cuts = sorted({*cuts, max(starts)})
        super().__init__(weights, start, cuts, key)

    def _next_block(self, slot: int) -> int:
        return -(-slot // self._block_size) * self._block_size

    def _stage(self, pieces: list[Piece], members: Int64Array, key: int) -> Scheme:
        start, end, size = pieces[0].start, pieces[-1].end, self._block_size
        shares, count = self._shares_of(members), len(members)
        dues: Dues
        if self._by_first_slot:
            _check_small((end - start) // size * count)
            dues = BlockStartSum(shares, start, end, size)
        else:
            dues = ShareIntegral(shares, pieces)
        head = min(self._next_block(start), end)
        stretches = [Stretch(start, head, size), Stretch(head, end, size)]
        if self._cut_at_points:
            stretches = [Stretch(each.start, each.end, size) for each in pieces]
        stretches = [each for each in stretches if each.end > each.begin]
        return BlockStage(dues, stretches, count, size, key, carried=start > 0)

    def _probes(self) -> FloatArray:
        return np.linspace(0, 0.75, 4) if self._by_first_slot else super()._probes()


class _DrawnTimeline(_Timeline):
    """The stretches of a `random` scheme."""

    def _stage(self, pieces: list[Piece], members: Int64Array, key: int) -> Scheme:
        shares = self._shares_of(members)
        starts = [
            start
            for piece in pieces
            for start in run_starts(
                piece.start, piece.end, len(members), glides=_glides(shares, piece)
            )
        ]
        return DrawnStage(ShareIntegral(shares, pieces), starts, pieces[-1].end, key)


def _glides(shares: Shares, piece: Piece) -> bool:
    """Whether shares change within a piece."""
    there = shares(_along(piece, np.array([0.01, 0.25, 0.5, 0.75, 0.99])))
    return bool(np.ptp(there, axis=0).max() > _SAME)


_TIMELINES: Mapping[str, type[_Timeline]] = MappingProxyType(
    {"exact": _Timeline, "random": _DrawnTimeline}
)


def _along(piece: Piece, ways: FloatArray) -> FloatArray:
    """The slots that are so far along a piece: 0 at its start, 1 at its end."""
    slots: FloatArray = piece.start + ways * (piece.end - piece.start)
    return slots


def _joined_steps(
    name: str,
    weights: Sequence[Weight],
    begins: Sequence[int],
    *,
    tail: Scheme,
    key: int,
    options: dict[str, Any],
) -> Scheme:
    """The plain scheme anew in every stretch between points."""
    everyone = np.arange(len(weights))
    before = np.zeros(len(weights), dtype=np.int64)
    segments = []
    for at, behind in pairwise(begins):
        now = shares_at(weights, [at])[0].tolist()
        scheme = plain_scheme(name, now, key=derive(key, "stage", at), **options)
        segments.append(Segment(at - begins[0], scheme, everyone, before))
        before = segments[-1].counts(behind - begins[0])
    segments.append(Segment(begins[-1] - begins[0], tail, everyone, before))
    return SegmentedScheme(segments, tail.describe())


def _tail_weights(weights: Sequence[Weight], last: float) -> list[float]:
    """The weights behind the last point; equal where a schedule leaves the sources none."""
    if last > _LAST_POINT:
        raise ConfigError(
            f"a schedule has a point at slot {int(last)}; points may lie up to slot {_LAST_POINT}"
        )
    final: list[float] = weights_at(weights, [last])[0].tolist()
    return final if any(final) else [1.0] * len(final)


def _points(weights: Sequence[Weight], start: int) -> list[int]:
    """The slots behind `start` at which schedules have points."""
    schedules = (schedule for weight in weights for schedule in schedules_in(weight))
    return sorted({slot for each in schedules for slot in each.slots if slot > start})


def _check_never_all_zero(weights: Sequence[Weight], start: int) -> None:
    """Weights have to be above 0 somewhere, at points and between them, in a run from slot 0 on."""
    if start:
        return
    points = [0, *_points(weights, 0)]
    probes = [*points, *(f * a + (1 - f) * b for a, b in pairwise(points) for f in (0.25, 0.75))]
    drawn = weights_at(weights, sorted(probes)).any(axis=1)
    if not drawn.all():
        raise WeightError(
            f"all {len(weights)} weights are 0 at slot {int(sorted(probes)[int(drawn.argmin())])}: "
            "nothing could be drawn there"
        )


def _check_small(table: int) -> None:
    if table > _LARGEST_TABLE:
        raise ConfigError(
            f"change='block_start' keeps a table of blocks times sources, {_LARGEST_TABLE} cells "
            f"at most; this schedule needs {table}. Use change='block', or a larger block_size"
        )


def _check_steps_only(name: str, interpolations: Iterable[str]) -> None:
    if name in WEIGHTLESS:
        raise ConfigError(
            f"the scheme {name!r} takes no notice of weights, so a schedule would do nothing; use "
            "'block', 'exact' or 'random'"
        )
    gliding = sorted(set(interpolations) - {"step"})
    if gliding:
        raise ConfigError(
            f"the scheme {name!r} can follow schedules that change in steps, not {gliding[0]!r} "
            "ones; use 'block', 'exact' or 'random', or interpolation='step'"
        )


def _common(changes: set[str]) -> str:
    if len(changes) > 1:
        raise ConfigError(
            f"the schedules of a mix have different values of change: {sorted(changes)}; use one"
        )
    return next(iter(changes))

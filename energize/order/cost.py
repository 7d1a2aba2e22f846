"""What the items of one source cost, one after the other in the order in which they are read."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from energize.core.arrays import FloatArray, Int32Array, Int64Array, rows_by_value
from energize.core.rng import derive, hash_positions
from energize.core.stream import INFINITE
from energize.order.apportionment import Remembered
from energize.order.timeline import GivenWeights, WeightedScheme, checked_weights
from energize.order.weights import Weighing, WeightScheduler, listed_weights, names_of

_BLOCK = 4096
"""Items whose costs are looked at together; of all others only the sum of each block is kept."""

_LEAST = 1024
_AMONG = 2**15
"""Items in the blocks of all lines of a mix together, so that those of many are small."""

_KEPT = 2**15
"""Items of a line whose stretches are kept at most, in blocks."""

_PASSES = 2

_UNIT = 2.0**-64


class Cycle(NamedTuple):
    """So many items of a source, from any multiple of `items` on, cost `cost` together."""

    items: int
    cost: float


class Line(Protocol):
    """What a `CostLine` answers."""

    @property
    def mean(self) -> float: ...

    def before(self, items: int) -> float: ...

    def due(self, reached: float) -> int: ...

    def points(self, start: int, stop: int) -> FloatArray: ...


class CostLine:
    """The items of a source as stretches on a line: each is as long as it costs, and begins where
    the one before it ends. Somewhere in its stretch each item has its *point*, drawn by
    (key, position).

    `costs` says what the items at some positions cost, numbers above 0. With a `cycle`, the items
    of a pass cost the same together in every pass, so none needs to be looked at for a later one.
    Without one, all items before the one asked for are looked at, once: costs of blocks are summed
    from the first one on, which takes as long as `costs` takes.

    Of blocks that have been looked at, one number is kept: 8 bytes for 4,096 items, or fewer in a
    mix of more than 8 lines, of which this is one of `among`.

    >>> line = CostLine(lambda positions: positions % 2 + 1.0, Cycle(2, 3.0), key=1)
    >>> line.before(2 * 10**9 + 1)
    3000000001.0
    """

    def __init__(
        self,
        costs: Callable[[Int64Array], FloatArray],
        cycle: Cycle | None,
        key: int,
        *,
        among: int = 1,
    ) -> None:
        self._costs, self._key = costs, derive(key, "point")
        self._size = min(max(_AMONG // among, _LEAST), _BLOCK)
        self._cycle = None if cycle is None else _long_enough(cycle, self._size)
        self._sums: Remembered[array[float]] = Remembered(_begun, _PASSES)
        self._blocks: Remembered[tuple[FloatArray, FloatArray]] = Remembered(
            self._block, max(_KEPT // among // self._size, 3)
        )
        self._mean = 0.0

    @property
    def mean(self) -> float:
        """What an item costs about: exactly where passes cost the same."""
        if not self._mean:
            cycle = self._cycle
            first = self._within(0, 0)[0]
            self._mean = float(first[-1]) / (len(first) - 1)
            if cycle is not None:
                self._mean = cycle.cost / cycle.items
        return self._mean

    def before(self, items: int) -> float:
        """What the first `items` items cost."""
        number, at = (0, items) if self._cycle is None else divmod(items, self._cycle.items)
        block, rest = divmod(at, self._size)
        if not rest:
            return self._start(number) + self._sum(number, block)
        return self._start(number) + float(self._within(number, block)[0][rest])

    def due(self, reached: float) -> int:
        """How many items have their points at or before `reached`."""
        number = 0 if self._cycle is None else max(int(reached // self._cycle.cost), 0)
        within = reached - self._start(number)
        block = self._block_at(number, within)
        first = block * self._size + (0 if self._cycle is None else number * self._cycle.items)
        points = self._within(number, block)[1]
        return first + int(np.searchsorted(points, within, side="right"))

    def points(self, start: int, stop: int) -> FloatArray:
        """Where items `start` to before `stop` have their points: float64, ascending."""
        found = [np.zeros(0)]
        at = start
        while at < stop:
            number, place = (0, at) if self._cycle is None else divmod(at, self._cycle.items)
            block, rest = divmod(place, self._size)
            points = self._within(number, block)[1][rest : rest + stop - at]
            found.append(points + self._start(number))
            at += len(points)
        return np.concatenate(found)

    def _start(self, number: int) -> float:
        """Where a pass begins."""
        return 0.0 if self._cycle is None else number * self._cycle.cost

    def _sum(self, number: int, block: int) -> float:
        """What the blocks of a pass before one of them cost."""
        sums = self._sums(number)
        while len(sums) <= block:
            self._extend(number, sums)
        return sums[block]

    def _block_at(self, number: int, within: float) -> int:
        """The block of a pass in which the line is so far from its start."""
        sums = self._sums(number)
        most = None if self._cycle is None else -(-self._cycle.items // self._size)
        while sums[-1] <= within and (most is None or len(sums) <= most):
            self._extend(number, sums)
        return max(min(bisect_right(sums, within), len(sums) - 1) - 1, 0)

    def _extend(self, number: int, sums: array[float]) -> None:
        block = len(sums) - 1
        end = float(self._within(number, block)[0][-1])
        if len(sums) == block + 1:  # another thread may have come farther
            sums.append(end)

    def _within(self, number: int, block: int) -> tuple[FloatArray, FloatArray]:
        """Where the stretches of a block lie, counted from the start of the pass: where each begins
        and the last one ends; and the points in them.
        """
        return self._blocks(number, block)

    def _block(self, number: int, block: int) -> tuple[FloatArray, FloatArray]:
        items = None if self._cycle is None else self._cycle.items
        start, stop = block * self._size, (block + 1) * self._size
        positions = np.arange(start, stop if items is None else min(stop, items), dtype=np.int64)
        positions += 0 if items is None else number * items
        costs = self._costs(positions)
        edges = np.concatenate([[0.0], np.cumsum(costs)]) + self._sum(number, block)
        drawn = hash_positions(self._key, positions) * _UNIT
        return edges, edges[:-1] + costs * drawn


def _long_enough(cycle: Cycle, block: int) -> Cycle:
    """Of a cycle of few items several together, so that blocks are not small."""
    times = -(-block // cycle.items)
    return Cycle(times * cycle.items, times * cycle.cost)


class LaterLine:
    """A line from item `first` on, which is the first one here.

    >>> line = CostLine(lambda positions: positions % 2 + 1.0, Cycle(2, 3.0), key=1)
    >>> LaterLine(line, 3).before(3)
    5.0
    """

    def __init__(self, line: CostLine, first: int) -> None:
        self._line, self._first = line, first
        self._start = 0.0 if first == 0 else line.before(first)

    @property
    def mean(self) -> float:
        """What an item costs about."""
        return self._line.mean

    def before(self, items: int) -> float:
        """What the first `items` items cost."""
        return self._line.before(self._first + items) - self._start

    def due(self, reached: float) -> int:
        """How many items have their points at or before `reached`."""
        return max(self._line.due(reached + self._start) - self._first, 0)

    def points(self, start: int, stop: int) -> FloatArray:
        """Where items `start` to before `stop` have their points: float64, ascending."""
        return self._line.points(self._first + start, self._first + stop) - self._start


def _begun(number: int) -> array[float]:
    return array("d", [0.0])


# What the items of a source cost that was moved on: other ones from some item on.


class MovedLine:
    """A line whose item `since` is item `read` of another one, and so on; the items before are the
    same.

    >>> from energize.order.cost import CostLine, Cycle
    >>> line = CostLine(lambda positions: positions % 2 + 1.0, Cycle(2, 3.0), key=1)
    >>> MovedLine(line, since=2, read=5).before(3)
    5.0
    """

    def __init__(self, line: Line, since: int, read: int) -> None:
        self._line, self._since, self._read = line, since, read
        self._gap = line.before(read) - line.before(since)

    @property
    def mean(self) -> float:
        """What an item costs about."""
        return self._line.mean

    def before(self, items: int) -> float:
        """What the first `items` items cost."""
        if items <= self._since:
            return self._line.before(items)
        return self._line.before(items - self._since + self._read) - self._gap

    def due(self, reached: float) -> int:
        """How many items have their points at or before `reached`."""
        early = min(self._line.due(reached), self._since)
        return early + max(self._line.due(reached + self._gap) - self._read, 0)

    def points(self, start: int, stop: int) -> FloatArray:
        """Where items `start` to before `stop` have their points: float64, ascending."""
        cut, shift = min(max(self._since, start), stop), self._read - self._since
        early = self._line.points(start, cut) if start < cut else np.zeros(0)
        if cut == stop:
            return early
        later = self._line.points(cut + shift, stop + shift) - self._gap
        return np.concatenate([early, later])


# Shares in what items cost, known before they are read.

_WINDOW = 2**14
"""Slots that are put in order together."""

_WINDOWS = 16
_BOUNDS = 4096


class _Piece(NamedTuple):
    """Shares that hold from slot `start` to before `end`."""

    start: int
    end: int
    shares: FloatArray


class _Bound(NamedTuple):
    """`counts` items of the sources, `start` in all, have their turns by `time`."""

    start: int
    time: float
    counts: Int64Array


_Window: TypeAlias = tuple[Int64Array, Int32Array, Int64Array]
"""The counts before a window, the sources of its slots, and which item of its source each is."""


class _Era(NamedTuple):
    """Slots from `start` to before `end`, in which time goes on from `time`.

    Time is the cost that all sources are due together, and each is due its share of it; by `time`
    that is `due`, for which it has had `counts` items.
    """

    start: int
    end: int
    time: float
    shares: FloatArray
    due: FloatArray
    counts: Int64Array

    def due_at(self, time: float) -> FloatArray:
        """The cost that each source is due by a time."""
        due: FloatArray = self.due + self.shares * (time - self.time)
        return due

    def turns(self, source: int, points: FloatArray) -> FloatArray:
        """The times at which points of a source are due."""
        turns: FloatArray = self.time + (points - self.due[source]) / self.shares[source]
        return turns


class CostScheme(WeightedScheme):
    """Slots shared out so that the sources' shares hold in what their items cost.

    The items of each source lie on a `line`, each a stretch as long as it costs with a point drawn
    in it. Time is the cost that all sources are due together: of the first t, a source with the
    share s is due s * t of its line. An item's turn comes when its source is due its point; items
    with the same turn come in the order of the sources. So at any time a source has had what it is
    due, but for less than one item, and at every slot its cost differs from its share of the cost
    of all by less than

        (1 - share) * (its costliest item) + share * (the costliest items of all others together)

    Of two sources that is no more than the costliest item. Of many it is far more than what
    comes: as points are drawn apart, it grows with the square root of their number.

    Nothing is replayed: which items had their turn by some time is looked up in each line, and the
    time at which there were n is found by bisection. Slots are looked at in windows of 16,384.
    Weights may be schedules, and change from a slot on, as in other schemes.

    >>> import numpy as np
    >>> from energize.order.cost import CostLine
    >>> short = CostLine(lambda positions: np.full(len(positions), 1.0), None, key=1)
    >>> long = CostLine(lambda positions: np.full(len(positions), 4.0), None, key=2)
    >>> scheme = CostScheme([1, 1], [short, long])
    >>> scheme.counts(1000).tolist(), scheme.costs(1000)
    ([800, 200], [800.0, 800.0])
    """

    _computed = ("_weighings", "_pieces", "_found", "_last", "_bounds", "_windows")

    def __init__(self, weights: GivenWeights, lines: Sequence[Line]) -> None:
        given = weights.schedules() if isinstance(weights, WeightScheduler) else weights
        self.names = names_of(given)
        self._weights = tuple(checked_weights(listed_weights(given)))
        self._lines = tuple(lines)
        self._begin()

    def costs(self, n: int) -> list[float]:
        """What the first `n` slots of all sources cost each source."""
        counts = self.counts(n).tolist()
        return [line.before(items) for line, items in zip(self._lines, counts, strict=True)]

    def describe(self) -> dict[str, Any]:
        return {
            "scheme": "cost",
            "weights": self._described(self._weights),
            **self._changes_described(),
        }

    def first_difference(self, other: Self, end: int) -> int | None:
        """See `WeightedScheme`."""
        number = 0
        while True:
            mine, others = self._piece(number), other._piece(number)
            if mine.start >= end:
                return None
            if not np.array_equal(mine.shares, others.shares):
                return mine.start
            if mine.end != others.end or mine.end == INFINITE:
                at = min(mine.end, others.end)
                return at if at < end else None
            number += 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._weighings = [Weighing(weights, start) for start, weights in self._eras]
        self._pieces: tuple[_Piece, ...] = ()
        none = np.zeros(len(self._lines))
        first = self._piece(0)
        self._found: tuple[_Era, ...] = (
            _Era(0, first.end, 0.0, first.shares, none, none.astype(np.int64)),
        )
        self._last = _Bound(0, 0.0, none.astype(np.int64))
        self._bounds: Remembered[_Bound] = Remembered(self._bound, _BOUNDS)
        self._windows: Remembered[_Window] = Remembered(self._window, _WINDOWS)

    def _counts(self, n: int) -> Int64Array:
        number = self._number(n)
        window, rest = divmod(n - self._found[number].start, _WINDOW)
        if not rest:
            return self._bounds(number, window).counts.copy()
        before, source, _ = self._windows(number, window)
        return before + np.bincount(source[:rest], minlength=len(before))

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        source, nth = np.empty((2, len(ks)), dtype=np.int64)
        if not len(ks):
            return source, nth
        last = self._number(int(ks.max()))
        starts = np.array([era.start for era in self._found[: last + 1]])
        numbers = np.searchsorted(starts, ks, side="right") - 1
        for number, rows in rows_by_value(numbers):
            windows, at = np.divmod(ks[rows] - starts[number], _WINDOW)
            for window, inner in rows_by_value(windows):
                _, sources, nths = self._windows(number, window)
                source[rows[inner]] = sources[at[inner]]
                nth[rows[inner]] = nths[at[inner]]
        return source, nth

    def _window(self, number: int, window: int) -> _Window:
        era = self._found[number]
        end = min(era.start + (window + 1) * _WINDOW, era.end)
        before = self._bounds(number, window)
        whole = end == era.start + (window + 1) * _WINDOW
        after = self._bounds(number, window + 1) if whole else self._reached(era, end, before)
        turns, sources, nths = [], [], []
        for each in np.flatnonzero(after.counts > before.counts).tolist():
            first, stop = int(before.counts[each]), int(after.counts[each])
            turns.append(era.turns(each, self._lines[each].points(first, stop)))
            sources.append(np.full(stop - first, each, dtype=np.int32))
            nths.append(np.arange(first, stop, dtype=np.int64))
        order = np.argsort(np.concatenate(turns), kind="stable")
        return before.counts, np.concatenate(sources)[order], np.concatenate(nths)[order]

    def _bound(self, number: int, window: int) -> _Bound:
        """Where a window of an era begins."""
        era = self._found[number]
        near, last = _Bound(era.start, era.time, era.counts), self._last
        if not window:
            return near
        slot = era.start + window * _WINDOW
        if window > 1 and last.start == slot - _WINDOW:  # as windows mostly come in a row
            near = last
        found = self._last = self._reached(era, slot, near)
        return found

    def _reached(self, era: _Era, slot: int, near: _Bound) -> _Bound:
        """What all sources have had when `slot` slots of an era are over, `near` one before it.

        A time is tried where as many items are expected, first far enough around it, then between
        the nearest that are known. Where no time has just so many, as turns fall together, the
        first sources are served first.
        """
        drawn = np.flatnonzero(era.shares).tolist()
        pace = float(sum(era.shares[each] / self._lines[each].mean for each in drawn))
        low, high = near, None
        ahead = (slot - near.start) / pace
        step = max(ahead / 64, 1 / pace)
        time = near.time + ahead
        while True:
            counts = self._counts_at(era, time)
            had = int(counts.sum())
            if had == slot:
                return _Bound(slot, time, counts)
            if had < slot:
                low = _Bound(had, time, counts)
            else:
                high = _Bound(had, time, counts)
            if high is None:
                time, step = time + step, 2 * step
                continue
            time = _between(low, high, slot)
            if not low.time < time < high.time:
                return _Bound(slot, low.time, _filled(low.counts, high.counts, slot))

    def _counts_at(self, era: _Era, time: float) -> Int64Array:
        """The items whose turn has come by a time."""
        due = era.due_at(time)
        counts = era.counts.copy()
        for each in np.flatnonzero(era.shares).tolist():
            counts[each] = max(int(counts[each]), self._lines[each].due(float(due[each])))
        return counts

    def _number(self, slot: int) -> int:
        """The era that a slot lies in."""
        found = self._found
        while (last := found[-1]).end <= slot:
            found = (*found, self._after(last, len(found)))
        if len(found) > len(self._found):  # another thread may have come farther
            self._found = found
        return bisect_right(found, slot, key=lambda era: era.start) - 1

    def _after(self, era: _Era, number: int) -> _Era:
        """The era that follows one, from the turn of its last item on."""
        begun = _Bound(era.start, era.time, era.counts)
        counts = self._reached(era, era.end, begun).counts
        time = era.time
        for each in np.flatnonzero(counts > era.counts).tolist():
            had = int(counts[each])
            time = max(time, float(era.turns(each, self._lines[each].points(had - 1, had))[0]))
        piece = self._piece(number)
        due = era.due_at(time)
        return _Era(piece.start, piece.end, time, piece.shares, due, counts)

    def _piece(self, number: int) -> _Piece:
        pieces = self._pieces
        while number >= len(pieces):
            pieces = (*pieces, *self._pieces_from(pieces[-1].end if pieces else 0))
        self._pieces = pieces
        return pieces[number]

    def _pieces_from(self, slot: int) -> list[_Piece]:
        """The pieces up to the next point or change of weights."""
        weighing = next(each for each in reversed(self._weighings) if each.start <= slot)
        point = weighing.next_point(slot)
        cut = min([point, *(each.start for each in self._weighings if each.start > slot)])
        if not weighing.glides(slot):
            weights = weighing.fixed(slot).astype(np.float64)
            return [_Piece(slot, cut, weights / weights.sum())]
        edges, shares = weighing.gliding(slot, point, np.arange(len(self._lines)))
        return [
            _Piece(slot + start, min(slot + end, cut), row)
            for (start, end), row in zip(pairwise(edges.tolist()), shares, strict=True)
            if slot + start < cut
        ]


def _between(low: _Bound, high: _Bound, slot: int) -> float:
    """A time between two: where `slot` slots are expected, but not near the ends."""
    part = (slot - low.start) / (high.start - low.start)
    return low.time + (high.time - low.time) * min(max(part, 0.05), 0.95)


def _filled(least: Int64Array, most: Int64Array, slot: int) -> Int64Array:
    """`slot` items in all, at least and at most so many of each source, of the first ones more."""
    missing = slot - int(least.sum())
    more = np.diff(np.minimum(np.cumsum(most - least), missing), prepend=0)
    return least + more

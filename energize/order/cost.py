"""Shares in what items cost, known before they are read."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heapreplace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from energize.core.arrays import (
    FloatArray,
    Int32Array,
    Int64Array,
    Rows,
    pairs_by_value,
)
from energize.core.node import INFINITE
from energize.core.rng import derive, hash_positions
from energize.order.timeline import Changes, Names, Segment, Settings, WeightedScheme
from energize.order.weights import Era, GivenWeights, Weight, era_at, named_weights

_BLOCK = 4096
"""Items whose costs are looked at together; of all others only the sum of each block is
kept."""

_LEAST = 1024
_AMONG = 2**15
"""Items in the blocks of all lines of a mix together, so that those of many are
small."""

_KEPT = 2**15
"""Items of a line whose stretches are kept at most, in blocks."""

_PASSES = 2

_UNIT = 2.0**-64

_WINDOW = 2**14
"""Slots that are put in order together."""

_WINDOWS = 16


class Cycle(NamedTuple):
    """So many items of a source, from any multiple of `items` on, cost `cost`
    together.
    """

    items: int
    cost: float


_ENDLESS = Cycle(INFINITE, math.inf)


class CostLine:
    """The items of a source as stretches on a line: each is as long as it costs, and
    begins where the one before it ends. Somewhere in its stretch each item has its
    *point*, drawn by (key, position).

    `costs` says what the items at some positions cost, numbers above 0. With a `cycle`,
    the items of a pass cost the same together in every pass, so none needs to be looked
    at for a later one. Without one, all items before the one asked for are looked at,
    once: costs of blocks are summed from the first one on, which takes as long as
    `costs` takes.

    Of blocks that have been looked at, one number is kept: 8 bytes for 4,096 items, or
    fewer in a mix of more than 8 lines, of which this is one of `among`.

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
        self._key = derive(key, "point")
        self._costs = costs
        self._size = min(max(_AMONG // among, _LEAST), _BLOCK)
        items, cost = cycle or _ENDLESS
        together = -(
            -self._size // items
        )  # of a cycle of few items several, as blocks are long
        self._items = together * items
        self._cost = together * cost
        self._sums = lru_cache(_PASSES)(lambda number: array("d", [0.0]))
        self._block = lru_cache(max(_KEPT // among // self._size, 3))(self._looked_at)

    @cached_property
    def mean(self) -> float:
        """What an item costs about."""
        if self._items < INFINITE:
            return self._cost / self._items
        edges, points = self._block(0, 0)
        return float(edges[-1]) / len(points)

    def before(self, items: int) -> float:
        """Return what the first `items` items cost."""
        number, at = divmod(items, self._items)
        block, rest = divmod(at, self._size)
        within = (
            float(self._block(number, block)[0][rest])
            if rest
            else self._sum(number, block)
        )
        return self._start(number) + within

    def due(self, reached: float) -> int:
        """Return how many items have their points at or before `reached`."""
        number = max(int(reached // self._cost), 0)
        within = reached - self._start(number)
        sums = self._sums(number)
        while sums[-1] <= within and (len(sums) - 1) * self._size < self._items:
            self._sum(number, len(sums))
        block = max(min(bisect_right(sums, within), len(sums) - 1) - 1, 0)
        points = self._block(number, block)[1]
        first = block * self._size + number * self._items
        return first + int(np.searchsorted(points, within, side="right"))

    def points(self, start: int, stop: int) -> FloatArray:
        """Return where items `start` to before `stop` have their points: float64,
        ascending.
        """
        blocks = [np.zeros(0)]
        at = start
        while at < stop:
            number, place = divmod(at, self._items)
            block, rest = divmod(place, self._size)
            points = self._block(number, block)[1][rest : rest + stop - at]
            blocks.append(points + self._start(number))
            at += len(points)
        return np.concatenate(blocks)

    def _start(self, number: int) -> float:
        """Return where a pass begins."""
        return number * self._cost if number else 0.0

    def _sum(self, number: int, block: int) -> float:
        """Return what the blocks of a pass before one of them cost."""
        sums = self._sums(number)
        while (last := len(sums) - 1) < block:
            end = float(self._block(number, last)[0][-1])
            if len(sums) == last + 1:  # another thread may have come farther
                sums.append(end)
        return sums[block]

    def _looked_at(self, number: int, block: int) -> tuple[FloatArray, FloatArray]:
        """Return where the stretches of a block begin and the last one ends, counted
        from the start of the pass; and the points in them.
        """
        start = block * self._size
        stop = min((block + 1) * self._size, self._items)
        positions = np.arange(start, stop, dtype=np.int64) + number * self._items
        costs = self._costs(positions)
        edges = np.concatenate([[0.0], np.cumsum(costs)]) + self._sum(number, block)
        drawn = hash_positions(self._key, positions) * _UNIT
        return edges, edges[:-1] + costs * drawn


class OffsetLine:
    """A line whose item `since` is item `read` of another one, and so on; the items
    before are the same.

    Item `since` has its point where it had it: whatever it costs, it is due when it
    was. `afresh` the line begins with it, as if nothing had been due before.

    >>> line = CostLine(lambda positions: positions % 2 + 1.0, Cycle(2, 3.0), key=1)
    >>> OffsetLine(line, since=2, read=5).before(3)
    5.0
    """

    def __init__(
        self, line: CostLine, since: int, read: int, *, afresh: bool = False
    ) -> None:
        self._line = line
        self._since = since
        self._read = read
        self._gap = self._shift = line.before(read) - line.before(since)
        if not afresh:
            (was,), (now,) = (
                line.points(each, each + 1).tolist() for each in (since, read)
            )
            self._shift = now - was

    @property
    def mean(self) -> float:
        return self._line.mean

    def before(self, items: int) -> float:
        if items <= self._since:
            return self._line.before(items)
        return self._line.before(items - self._since + self._read) - self._gap

    def due(self, reached: float) -> int:
        early = min(self._line.due(reached), self._since) if self._since else 0
        return early + max(self._line.due(reached + self._shift) - self._read, 0)

    def points(self, start: int, stop: int) -> FloatArray:
        cut = min(max(self._since, start), stop)
        shift = self._read - self._since
        later = self._line.points(cut + shift, stop + shift) - self._shift
        return np.concatenate([self._line.points(start, cut), later])


Line: TypeAlias = CostLine | OffsetLine

# Slots in the order in which the points of items are due.
_Piece: TypeAlias = tuple[int, int, FloatArray]
"""Shares that hold from a slot to before another one."""

_Reached: TypeAlias = tuple[float, Int64Array]
"""A time, and how many items of each source have their turns by then."""

_Window: TypeAlias = tuple[Int64Array, Int32Array, Int64Array]
"""The counts before a window, the sources of its slots, and which item of its source
each is."""


@dataclass(frozen=True, eq=False)
class CostSegment(Segment):
    """Slots with fixed `shares`, in which time goes on from `time`.

    Time is the cost that all sources are due together, and each is due its share of it;
    by `time` that is `due`, for which it has had `before` items. `ahead` are the pieces
    of a gradual change that follow. `windows` lays slots out.
    """

    shares: FloatArray
    time: float
    due: FloatArray
    ahead: Sequence[_Piece]
    windows: Callable[[CostSegment, int], _Window]

    def counts(self, slot: int) -> Int64Array:
        window, last = divmod(max(slot - self.start - 1, 0), _WINDOW)
        before, source, _ = self.windows(self, window)
        within = source[: last + (slot > self.start)]
        return before + np.bincount(within, minlength=len(before))

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        windows, at = np.divmod(slots - self.start, _WINDOW)

        def in_window(window: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
            _, source, nth = self.windows(self, window)
            return source[at[rows]].astype(np.int64), nth[at[rows]]

        return pairs_by_value(windows, in_window)

    def due_at(self, time: float) -> FloatArray:
        """Return the cost that each source is due by a time."""
        return self.due + self.shares * (time - self.time)

    def turns(self, source: int, points: FloatArray) -> FloatArray:
        """Return the times at which points of a source are due."""
        return np.asarray(self.time + (points - self.due[source]) / self.shares[source])


class CostScheme(WeightedScheme):
    """Slots shared out so that the sources' shares hold in what their items cost.

    The items of each source lie on a line, each a stretch as long as it costs with a
    point drawn in it. Time is the cost that all sources are due together: of the first
    t, a source with the share s is due s * t of its line. An item's turn comes when its
    source is due its point; items with the same turn come in the order of the sources.
    So at any time a source has had what it is due, but for less than one item, and at
    every slot its cost differs from its share of the cost of all by less than

        (1 - share) * (its costliest item)
            + share * (the costliest items of all other sources together)

    Of two sources that is no more than the costliest item. Of many, mixes were seen
    with up to 0.98 of it: 4.4 costliest items, where one source of 24 had three
    quarters.

    Nothing is replayed: which items had their turn by some time is looked up in each
    line, and the time at which there were n is found by bisection. Slots are looked at
    in windows of 16,384. Weights may be schedules, and change from a slot on, as in
    other schemes.

    >>> short = CostLine(lambda positions: np.full(len(positions), 1.0), None, key=1)
    >>> long = CostLine(lambda positions: np.full(len(positions), 4.0), None, key=2)
    >>> scheme = cost_scheme([1, 1], [short, long])
    >>> scheme.counts(1000).tolist(), scheme.costs(1000)
    ([800, 200], [800.0, 800.0])
    """

    def __init__(self, names: Names, changes: Changes, settings: Settings) -> None:
        self._lines: Sequence[Line] = settings["lines"]
        self._windows = lru_cache(_WINDOWS)(self._laid_out)
        super().__init__(names, changes, settings)

    def costs(self, n: int) -> list[float]:
        """Return what the first `n` slots of all sources cost each source."""
        counts = self.counts(n).tolist()
        return [
            line.before(items) for line, items in zip(self._lines, counts, strict=True)
        ]

    def _era(self, slot: int, weights: Sequence[Weight]) -> Era:
        return Era(slot, weights)

    def _after(self, last: CostSegment | None) -> CostSegment:
        """Return the next segment, which begins with the turn of the item before it."""
        time = 0.0
        due = np.zeros(len(self._lines))
        counts = due.astype(np.int64)
        pieces = self._pieces(0 if last is None else last.end)
        if last is not None:
            _, counts = self._reached(last, last.end, (last.time, last.before))
            time = last.time
            for source in np.flatnonzero(counts > last.before).tolist():
                had = int(counts[source])
                time = max(
                    time,
                    float(
                        last.turns(source, self._lines[source].points(had - 1, had))[0]
                    ),
                )
            due = last.due_at(time)
            pieces = last.ahead or pieces
        (start, end, shares), *ahead = pieces
        return CostSegment(start, end, counts, shares, time, due, ahead, self._windows)

    def _pieces(self, slot: int) -> Sequence[_Piece]:
        """Return the pieces from a slot up to the next point or change of weights."""
        era, cut = era_at(self.eras, slot)
        if not era.glides(slot):
            weights = era.fixed(slot).astype(np.float64)
            return [(slot, cut, weights / weights.sum())]
        edges, shares = era.gliding(slot, np.arange(len(self._lines)))
        ends = pairwise((slot + edges).tolist())
        pieces = zip(ends, shares, strict=True)
        return [
            (start, min(end, cut), row) for (start, end), row in pieces if start < cut
        ]

    def _laid_out(self, segment: CostSegment, window: int) -> _Window:
        slot = segment.start + window * _WINDOW
        begun = self._reached(segment, slot, (segment.time, segment.before))
        ended = self._reached(segment, min(slot + _WINDOW, segment.end), begun)
        before = begun[1]
        after = ended[1]
        turns = []
        sources = []
        nths = []
        for source in np.flatnonzero(after > before).tolist():
            first = int(before[source])
            stop = int(after[source])
            turns.append(segment.turns(source, self._lines[source].points(first, stop)))
            sources.append(np.full(stop - first, source, dtype=np.int32))
            nths.append(np.arange(first, stop, dtype=np.int64))
        order = np.argsort(np.concatenate(turns), kind="stable")
        return before, np.concatenate(sources)[order], np.concatenate(nths)[order]

    def _reached(self, segment: CostSegment, slot: int, low: _Reached) -> _Reached:
        """Return when `slot` slots are over, in a segment or at its end, and what all
        sources have had by then; `low` is the same of an earlier slot of the segment.

        A time is tried where as many items are expected, first far enough around it,
        then between the nearest that are known. Where no time has just so many, as
        turns fall together, the first sources are served first.
        """
        drawn = np.flatnonzero(segment.shares).tolist()
        pace = float(
            sum(segment.shares[source] / self._lines[source].mean for source in drawn)
        )
        high: _Reached | None = None
        ahead = (slot - int(low[1].sum())) / pace
        step = max(ahead / 64, 1 / pace)
        time = low[0] + ahead
        while int(low[1].sum()) < slot:
            counts = segment.before.copy()
            due = segment.due_at(time)
            for source in drawn:
                counts[source] = max(
                    int(counts[source]), self._lines[source].due(float(due[source]))
                )
            if counts.sum() <= slot:
                low = time, counts
            else:
                high = time, counts
            if high is None:
                time = time + step
                step = 2 * step
                continue
            part = (slot - low[1].sum()) / (high[1].sum() - low[1].sum())
            time = low[0] + (high[0] - low[0]) * min(max(part, 0.05), 0.95)
            if not low[0] < time < high[0]:
                more = np.minimum(np.cumsum(high[1] - low[1]), slot - low[1].sum())
                return low[0], low[1] + np.diff(more, prepend=0)
        return low


def cost_scheme(weights: GivenWeights, lines: Sequence[Line]) -> CostScheme:
    """Return the scheme by which shares hold in what the items on `lines` cost."""
    names, listed = named_weights(weights)
    return CostScheme(names, ((0, listed),), {"scheme": "cost", "lines": tuple(lines)})


_DEAREST = 2**32
"""The dearest item is counted as so much, and others in proportion."""

_LEVEL = 1.01
"""A group that costs no more than this part of the mean is level."""

_ROUNDS = 8
"""How often items of dear and cheap groups are swapped; more were not seen to help."""

_COMPARED = 2**20
"""Pairs of items that are compared at a time."""


def levelled(costs: FloatArray, group: int) -> Int64Array:
    """Return the order of items in which each `group` of them in a row costs about the
    same.

    The dearest items come first, each into the cheapest group that has room; then the
    dearest groups swap an item each with the cheapest ones, as long as that brings two
    closer. Groups come in the order of their first items, the items of a group in their
    own order, so that nobody can say where the dearest group is. What fills no group
    stays where it is, at the end.

    No group can cost less than the dearest item with the `group` - 1 cheapest ones. n
    items take n log n steps, all on whole numbers, so equal costs give one order on
    every machine.

    >>> levelled(np.array([9.0, 8.0, 1.0, 2.0, 5.0]), 2).tolist()
    [0, 2, 1, 3, 4]
    """
    groups = len(costs) // group
    full = groups * group
    if groups < 2:
        return np.arange(len(costs), dtype=np.int64)
    prices = np.rint(costs[:full] * (_DEAREST / costs[:full].max())).astype(np.int64)
    members = _dealt(prices, groups)
    _swap(members, prices)
    members.sort(axis=1)
    order = members[np.argsort(members[:, 0])]
    return np.concatenate([order.ravel(), np.arange(full, len(costs), dtype=np.int64)])


def _dealt(prices: Int64Array, groups: int) -> Int64Array:
    """Return a row of items for each group: the dearest go first to the cheapest; of
    equal groups in the first one.
    """
    order = np.argsort(-prices, kind="stable")
    room = [len(prices) // groups] * groups
    cheapest = list(
        range(groups)
    )  # of each group its total, and the group: in one number
    chosen = []
    for price in (prices[order] * groups).tolist():
        cheap = cheapest[0]
        group = cheap % groups
        chosen.append(group)
        room[group] -= 1
        if room[group]:
            heapreplace(cheapest, cheap + price)
        else:
            heappop(cheapest)
    return order[np.argsort(chosen, kind="stable")].reshape(groups, -1)


def _swap(members: Int64Array, prices: Int64Array) -> None:
    """Bring groups that cost more than the others closer to these, in place.

    Of a dear and a cheap group those two items change places after which the groups
    differ least.
    """
    groups, group = members.shape
    held = prices[members]
    level = int(_LEVEL * prices.sum() / groups)
    for _ in range(_ROUNDS):
        totals = held.sum(axis=1)
        order = np.argsort(totals, kind="stable")
        dear = min(int((totals > level).sum()), groups // 2, _COMPARED // group**2)
        low = order[:dear]
        high = order[::-1][:dear]
        gap = totals[high] - totals[low]
        moved = held[high][:, :, None] - held[low][:, None, :]
        left = np.abs(2 * moved - gap[:, None, None]).reshape(dear, group**2)
        best = left.argmin(axis=1)
        rows = np.flatnonzero(left[np.arange(dear), best] < gap)
        if not len(rows):
            return
        one = high[rows], best[rows] // group
        other = low[rows], best[rows] % group
        for items in (members, held):
            items[one], items[other] = items[other], items[one]

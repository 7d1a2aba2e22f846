"""What the items of one source cost, one after the other in the order in which they are read."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from energize.arrays import FloatArray, Int64Array
from energize.order.remembered import Remembered
from energize.rng import derive, hash_positions

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

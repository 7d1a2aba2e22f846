"""What sources weigh from a slot on: shares that are fixed or interpolated between the slots at
which schedules have points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from energize.arrays import FloatArray, Int64Array
from energize.cursor import INFINITE
from energize.errors import ConfigError, WeightError
from energize.order.glide import glide_edges, mean_shares
from energize.order.schedule import Schedule
from energize.order.varying import Weight, ever_positive, normalised, schedules_in, weights_at
from energize.order.weights import bounded_weights, integer_weights

_LAST_POINT = 2**40
_MOST_BLOCKS = 2**24


class Weighing:
    """The `weights` of all sources, numbers or schedules, in force from slot `start` of a mix on.

    Points of schedules that change in steps act at the next multiple of `block_size`, those of
    others too where `by_first_slot`; then the weights of a block are those of its first slot.

    Raises `WeightError` where all weights are 0 at some slot.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        start: int = 0,
        *,
        block_size: int = 1,
        by_first_slot: bool = False,
    ) -> None:
        self.start = start
        self.drawn = np.array([ever_positive(each) for each in weights], dtype=np.bool_)
        self._weights, self._block, self._by_first_slot = weights, block_size, by_first_slot
        self._schedules = [each for weight in weights for each in schedules_in(weight)]
        self._numbers = None if self._schedules else _integers(weights)
        acting = [self._acting(each) for each in self._schedules]
        points = {slot for each in acting for slot in each if slot > start}
        gliding = {
            (slots[0], slots[-1])
            for slots, each in zip(acting, self._schedules, strict=True)
            if each.interpolation != "step"
        }
        self._gliding = sorted(gliding)
        self._points = np.array(sorted(points), dtype=np.int64)
        last = max((each.slots[-1] for each in self._schedules), default=0)
        if last > _LAST_POINT:
            raise ConfigError(
                f"a schedule has a point at slot {last}; points may lie up to slot {_LAST_POINT}"
            )
        self._check_never_all_zero()

    def _acting(self, schedule: Schedule) -> list[int]:
        """The slots at which a schedule's points act."""
        if schedule.interpolation != "step" and not self._by_first_slot:
            return schedule.slots
        return [-(-slot // self._block) * self._block for slot in schedule.slots]

    def next_point(self, slot: int) -> int:
        """The first slot after `slot` at which a point acts, or `INFINITE`."""
        number = int(np.searchsorted(self._points, slot, side="right"))
        return int(self._points[number]) if number < len(self._points) else INFINITE

    def glides(self, slot: int) -> bool:
        """Whether shares change from slot to slot, from this one to the next point."""
        return any(first <= slot < last for first, last in self._gliding)

    def fixed(self, slot: int) -> Int64Array:
        """Weights in whole numbers, in their exact ratio up to 60 bits, from `slot` to the next
        point.
        """
        if self._numbers is not None:
            return self._numbers
        there = weights_at(self._weights, [slot], self._held(slot))[0].tolist()
        return _integers(there) if any(there) else self.drawn.astype(np.int64)

    def gliding(self, start: int, end: int, sources: Int64Array) -> tuple[Int64Array, FloatArray]:
        """The edges of pieces from `start` to `end`, counted from `start`, and the mean shares of
        some sources (columns) in each (rows).
        """
        weights = [self._weights[each] for each in sources.tolist()]

        def shares(slots: FloatArray) -> FloatArray:
            return normalised(weights_at(weights, slots + start, self._held(start)))

        if not self._by_first_slot:
            edges = glide_edges(end - start, len(sources))
            return edges, mean_shares(shares, edges.astype(np.float64))
        cells = -(-(end - start) // self._block) * len(sources)
        if cells > _MOST_BLOCKS:
            raise ConfigError(
                f"change='block_start' keeps a table of blocks times sources, {_MOST_BLOCKS} cells "
                f"at most; this schedule needs {cells}. Use change='block', or a larger block_size"
            )
        edges = np.append(np.arange(0, end - start, self._block), end - start)
        return edges, shares(edges[:-1].astype(np.float64))

    def _held(self, slot: int) -> int:
        """A slot up to which all points of steps act by `slot`."""
        return slot // self._block * self._block

    def _check_never_all_zero(self) -> None:
        """At points, as they are written and where they act, and on the way between them."""
        if self._numbers is not None:
            return
        written = sorted({self.start, *(s for each in self._schedules for s in each.slots)})
        self._check_drawn(_between([slot for slot in written if slot >= self.start]))
        for slot in [self.start, *self._points.tolist()] if self._block > 1 else []:
            self._check_drawn([slot], self._held(slot))

    def _check_drawn(self, slots: Sequence[float], held: int | None = None) -> None:
        drawn = weights_at(self._weights, slots, held).any(axis=1)
        if not drawn.all():
            slot = int(slots[int(drawn.argmin())])
            raise WeightError(
                f"all {len(self._weights)} weights are 0 at slot {slot}: nothing could be drawn "
                "there"
            )


def _between(points: Sequence[int]) -> list[float]:
    """The points, and ways between them."""
    return [
        a + way * (b - a) for a, b in pairwise([*points, points[-1]]) for way in (0, 0.25, 0.75)
    ]


def _integers(weights: Sequence[Weight]) -> Int64Array:
    numbers = integer_weights(weights)  # type: ignore[arg-type]  # none of them is a schedule
    drawn = np.flatnonzero(numbers > 0)
    bounded = np.zeros(len(numbers), dtype=np.int64)
    bounded[drawn] = bounded_weights(numbers[drawn])
    return bounded

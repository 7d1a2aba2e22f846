"""When groups of sources are due a number of slots."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array
from energize.order.schedules.integral import Dues
from energize.order.schedules.marks import Marks
from energize.order.schedules.tree import Nodes

__all__ = ["Clocks"]


_LARGEST_TABLE = 2**22
_LEAST_MARGIN = 4


class Moment(NamedTuple):
    """What nodes and their left children are due at a mark, and by how much that grows until the
    next; at the last mark, as much again.
    """

    due: Int64Array
    left: Int64Array
    grown: Int64Array
    grown_left: Int64Array


class Clocks:
    """Look up at which mark a node is due something: quickly near the slots `first` to `last`,
    counted from the first mark, which have a table. The leaves are the sources in an `order`.
    """

    def __init__(self, dues: Dues, marks: Marks, order: Int64Array, first: int, last: int) -> None:
        self._dues, self._marks, self._order = dues, marks, order
        self._begin, self._end = _range(marks, len(order), first, last)
        table = dues.units(marks.slots(np.arange(self._begin, self._end + 1)))
        self._before = np.zeros((len(order) + 1, len(table)), dtype=np.int64)
        """What the leaves before each are due (rows) at each mark of the table (columns)."""
        np.cumsum(table.T[order], axis=0, out=self._before[1:])

    def when(self, nodes: Nodes, node: Int64Array, wanted: Int64Array) -> Moment:
        """The last mark at which a node is due `wanted` at most, for pairs in order of nodes and
        dues; a node is given by its number among `nodes`.
        """
        due = self._before[nodes.high] - self._before[nodes.low]
        left = self._before[nodes.middle] - self._before[nodes.low]
        width = due.shape[1]
        # One sorted list for all nodes, each in a range of its own.
        spans = due[:, -1] - due[:, 0] + 2
        shift = np.cumsum(spans) - spans - due[:, 0]
        sought = np.clip(wanted, due[node, 0] - 1, due[node, -1]) + shift[node]
        listed = (due + shift[:, np.newaxis]).ravel()
        place = np.searchsorted(listed, sought, side="right") - 1
        at = place - node * width
        ended = self._end == self._marks.last
        known = (at >= 0) & (at < width - (not ended))
        place[~known] = 0
        found = Moment(*(each.ravel()[place] for each in (due, left, _grown(due), _grown(left))))
        if not known.all():
            far = np.flatnonzero(~known)
            moment = self._sought(nodes.among(node[far]), wanted[far], at[far] < 0)
            for values, sought_values in zip(found, moment, strict=True):
                values[far] = sought_values
        return found

    def _sought(self, nodes: Nodes, wanted: Int64Array, before: npt.NDArray[np.bool_]) -> Moment:
        """As `when`, for one node each, before the table or behind it."""
        first = np.where(before, 0, self._end)
        behind = np.where(before, self._begin, self._marks.last + 1)
        while (behind - first > 1).any():
            middle = (first + behind) // 2
            reached = self._due(nodes.low, nodes.high, middle) <= wanted
            first, behind = np.where(reached, middle, first), np.where(reached, behind, middle)
        then = np.minimum(first + 1, self._marks.last)
        due, left = (
            np.stack([self._due(nodes.low, high, marks) for marks in (first, then)], axis=1)
            for high in (nodes.high, nodes.middle)
        )
        ended = first == self._marks.last
        grown, grown_left = (
            np.where(ended, each[:, 0], each[:, 1] - each[:, 0]) for each in (due, left)
        )
        return Moment(due[:, 0], left[:, 0], grown, grown_left)

    def _due(self, low: Int64Array, high: Int64Array, marks: Int64Array) -> Int64Array:
        """What the leaves `low` to `high` are due together at a mark."""
        sizes = high - low
        begins = np.cumsum(sizes) - sizes
        sources = self._order[np.arange(sizes.sum()) + np.repeat(low - begins, sizes)]
        units = self._dues.units_of(np.repeat(self._marks.slots(marks), sizes), sources)
        due: Int64Array = np.add.reduceat(units, begins)
        return due


def _range(marks: Marks, sources: int, first: int, last: int) -> tuple[int, int]:
    """The first and last mark of a table for the slots `first` to `last`."""
    # A source with a usual share is rarely more than two of its slots from its due.
    margin = 2 * sources
    ends = np.array([first - margin, first, last, last + margin]) + marks.start
    lowest, low, high, highest = marks.before(np.clip(ends, marks.start, marks.end)).tolist()
    room = max(_LARGEST_TABLE // sources - (high - low), 0) // 2
    begin = min(low - _LEAST_MARGIN, max(lowest, low - room))
    end = max(high + _LEAST_MARGIN, min(highest, high + room))
    return max(begin, 0), min(end, marks.last)


def _grown(due: Int64Array) -> Int64Array:
    """By how much dues grow from each mark (columns) to the next; from the last, as much again."""
    return np.diff(due, axis=1, append=2 * due[:, -1:])

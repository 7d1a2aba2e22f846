"""What the items of a source cost that was moved on: other ones from some item on."""

from __future__ import annotations

import numpy as np

from energize.arrays import FloatArray
from energize.order.costs.line import Line


class MovedLine:
    """A line whose item `since` is item `read` of another one, and so on; the items before are the
    same.

    >>> from energize.order.costs.line import CostLine, Cycle
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

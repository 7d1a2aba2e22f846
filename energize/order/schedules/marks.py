"""Marks along a run: the slots between which dues are taken to grow evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from energize.arrays import Int64Array

__all__ = ["Marks", "Stretch"]


class Stretch(NamedTuple):
    """The slots `begin` to `end`, with a mark every `step` slots from `begin`."""

    begin: int
    end: int
    step: int


class Marks:
    """Marks, numbered from 0, in stretches that follow one another; the last one is at the end of
    the last stretch.

    >>> marks = Marks([Stretch(0, 10, 4), Stretch(10, 12, 1)])
    >>> marks.slots(np.arange(marks.last + 1)).tolist()
    [0, 4, 8, 10, 11, 12]
    >>> marks.before(np.array([0, 3, 9, 10, 12])).tolist()
    [0, 0, 2, 3, 5]
    """

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        begins, ends, steps = np.array(stretches, dtype=np.int64).T
        # The end is a stretch of its own, so that it is found like any other mark.
        self._begins = np.append(begins, ends[-1])
        self._steps = np.append(steps, 1)
        self._first = np.append(0, np.cumsum(-(-(ends - begins) // steps)))
        self.start, self.end = int(begins[0]), int(ends[-1])
        self.last = int(self._first[-1])

    def slots(self, marks: Int64Array) -> Int64Array:
        """The slot of each mark."""
        stretch = np.searchsorted(self._first, marks, side="right") - 1
        slots: Int64Array = (
            self._begins[stretch] + (marks - self._first[stretch]) * self._steps[stretch]
        )
        return slots

    def before(self, slots: Int64Array) -> Int64Array:
        """The last mark that is not behind each slot; slots are from the first mark to the last."""
        stretch = np.searchsorted(self._begins, slots, side="right") - 1
        marks: Int64Array = (
            self._first[stretch] + (slots - self._begins[stretch]) // self._steps[stretch]
        )
        return marks

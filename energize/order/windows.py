"""Slots in windows: laid out at once, in order or shuffled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from energize.arrays import Int32Array, Int64Array, rows_by_value
from energize.order.remembered import Remembered
from energize.rng import shuffled

_AHEAD = 8192
"""Slots that are laid out at once: enough that calls of numpy cost little beside their work."""

_AHEAD_AT_FIRST = 1024
"""The same of the first slots of a run, of which no more may ever be asked for."""

_DENSE = 8
"""Where one slot of so many is asked for, laying out all costs less than finding it alone."""


class Run(Protocol):
    """Slots 0, 1, 2, ... given to some sources."""

    def counts(self, slots: Int64Array) -> Int64Array:
        """The slots of each source (columns) among the first of all, for numbers of them (rows)."""

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""


class _Layout(NamedTuple):
    source: Int32Array
    nth: Int64Array


class WindowsAhead:
    """A run as it is, up to its `end`, laid out ahead where it is read on, so that each slot costs
    little.
    """

    def __init__(self, run: Run, end: int | None = None) -> None:
        self._run, self._end = run, end
        self._layout = Remembered(self._laid_out, 4)
        self._last = (0, 0)
        """Where the last call's slots began, and how many they were."""

    def counts(self, slots: Int64Array) -> Int64Array:
        return self._run.counts(slots)

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        if not len(slots):
            return self._run.locate(slots)
        start, stop = int(slots.min()), int(slots.max()) + 1
        if not self._reads_on(start, stop, len(slots)):
            return self._run.locate(slots)
        many = stop > _AHEAD or len(slots) * _DENSE >= _AHEAD
        size = _AHEAD if many else _AHEAD_AT_FIRST
        windows = slots // size
        return _placed(partial(self._layout, size), windows, slots - windows * size)

    def _reads_on(self, start: int, stop: int, number: int) -> bool:
        """Whether slots are asked for that lie close together: at once, or by one call after
        another. A rank of many has slots that lie far apart.
        """
        before, last = self._last
        self._last = (start, number)
        if abs(start - before) <= last * _DENSE:
            return True
        return stop - start <= number * _DENSE and number * _DENSE >= _AHEAD

    def _laid_out(self, size: int, window: int) -> _Layout:
        end = (window + 1) * size
        slots = np.arange(window * size, end if self._end is None else min(end, self._end))
        source, nth = self._run.locate(slots)
        return _Layout(source.astype(np.int32), nth)


class ShuffledWindows:
    """A run's slots in windows of `size`, each shuffled by itself: at window ends sources have what
    the run gives them. A window that the run's `end` cuts off is shorter.
    """

    def __init__(self, run: Run, size: int, key: int, sources: int, end: int | None = None) -> None:
        self._run, self._size, self._key, self._end = run, size, key, end
        self._sources = sources
        self._layout = Remembered(self._laid_out, 4)

    def counts(self, slots: Int64Array) -> Int64Array:
        windows, within = np.divmod(slots, self._size)
        counts = self._run.counts(slots - within)
        for row in np.flatnonzero(within).tolist():
            source = self._layout(int(windows[row])).source[: within[row]]
            counts[row] += np.bincount(source, minlength=self._sources)
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        windows, within = np.divmod(slots, self._size)
        return _placed(self._layout, windows, within)

    def _laid_out(self, window: int) -> _Layout:
        start = window * self._size
        end = start + self._size if self._end is None else min(start + self._size, self._end)
        source, nth = self._ordered(start, end)
        placed = source[shuffled(self._key, window, end - start)]
        placed_nth = np.empty_like(nth)
        placed_nth[by_source(placed, self._sources)] = nth
        return _Layout(placed, placed_nth)

    def _ordered(self, start: int, end: int) -> tuple[Int32Array, Int64Array]:
        """The source of each slot, sources in order, and that source's slots before it."""
        if self._sources > end - start:
            source, nth = self._run.locate(np.arange(start, end))
            order = by_source(source.astype(np.int32), self._sources)
            return source[order].astype(np.int32), nth[order]
        first, last = self._run.counts(np.array([start, end]))
        ordered: Int32Array = np.repeat(np.arange(self._sources, dtype=np.int32), last - first)
        before: Int64Array = (last - np.cumsum(last - first))[ordered]
        return ordered, before + np.arange(end - start)


def _placed(
    layout: Callable[[int], _Layout], windows: Int64Array, within: Int64Array
) -> tuple[Int64Array, Int64Array]:
    if len(windows) and (windows == windows[0]).all():  # mostly
        found = layout(int(windows[0]))
        return found.source[within].astype(np.int64), found.nth[within]
    source, nth = np.empty((2, len(windows)), dtype=np.int64)
    for window, rows in rows_by_value(windows):
        found = layout(window)
        source[rows], nth[rows] = found.source[within[rows]], found.nth[within[rows]]
    return source, nth


def by_source(source: Int32Array, count: int) -> Int64Array:
    """The slots of the first of `count` sources, then those of the second, ..., each in order."""
    # Numpy sorts 16-bit integers by radix, several times as fast as longer ones.
    order = np.argsort(source.astype(np.uint16), kind="stable")
    if count > 2**16:
        order = order[np.argsort((source >> 16).astype(np.uint16)[order], kind="stable")]
    return order

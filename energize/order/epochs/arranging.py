"""Orders in which the units of several streams, given by their counts, follow one another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Protocol

import numpy as np

from energize.arrays import Int64Array, rows_by_value
from energize.order.making import make_scheme
from energize.rng import derive, hash_positions, shuffled


class EpochOrder(Protocol):
    """An epoch of sum(counts) units, of which stream s has counts[s]; every epoch has its own."""

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each unit of an epoch its stream, and its number among those of the stream."""

    def counts(self, epoch: int, n: int) -> Int64Array:
        """Units of each stream among the first `n`, 0 <= n <= sum(counts), of an epoch."""


class InTurn:
    """All units of the first stream, then all of the second, ..."""

    def __init__(self, counts: Int64Array) -> None:
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        stream = np.searchsorted(self._ends, at, side="right")
        return stream, at - self._starts[stream]

    def counts(self, epoch: int, n: int) -> Int64Array:
        counts: Int64Array = np.clip(n, self._starts, self._ends) - self._starts
        return counts


class _Windowed(ABC):
    """The order of the scheme `exact`, in which shares are exact, arranged anew in every window of
    `window` units.
    """

    def __init__(self, counts: Int64Array, window: int, key: int) -> None:
        self._total = int(counts.sum())
        self._window = min(window, self._total)
        self._windows = -(-self._total // self._window)
        self._key = derive(key, type(self).__name__.lower())
        self._scheme = make_scheme("exact", counts.tolist())

    @abstractmethod
    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]: ...

    def counts(self, epoch: int, n: int) -> Int64Array:
        start = n // self._window * self._window
        before = self._scheme.counts(start)
        at = np.arange(start, n, dtype=np.int64)
        streams, _ = self.locate(np.full_like(at, epoch), at)
        return before + np.bincount(streams, minlength=len(before))


class Interleaved(_Windowed):
    """Streams in random order, each in its own: windows hold the exact shares (within 2 units), and
    are shuffled inside.
    """

    def __init__(self, counts: Int64Array, window: int, key: int) -> None:
        super().__init__(counts, window, key)
        self._layout = lru_cache(maxsize=4)(self._shuffled)

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        number, offset = np.divmod(at, self._window)
        number = number + epoch * self._windows
        stream, nth = np.empty_like(at), np.empty_like(at)
        for each, rows in rows_by_value(number):
            streams, nths = self._layout(each)
            stream[rows], nth[rows] = streams[offset[rows]], nths[offset[rows]]
        return stream, nth

    def _shuffled(self, number: int) -> tuple[Int64Array, Int64Array]:
        first = number % self._windows * self._window
        slots = np.arange(first, min(first + self._window, self._total), dtype=np.int64)
        stream, nth = self._scheme.locate(slots)
        placed = stream[shuffled(self._key, number, len(slots))]
        ordered = np.empty_like(placed)
        ordered[np.argsort(placed, kind="stable")] = nth[np.argsort(stream, kind="stable")]
        return placed, ordered


class Rotated(_Windowed):
    """Streams in even order: each window is turned by a random number of places, so that no place
    of it is always a certain stream's.
    """

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        number, offset = np.divmod(at, self._window)
        first = number * self._window
        length = np.minimum(self._total - first, self._window)
        words = hash_positions(self._key, number + epoch * self._windows)
        turned = (words % length.astype(np.uint64)).astype(np.int64)
        return self._scheme.locate(first + (offset + turned) % length)

"""Orders in which the units of several streams, given by their counts, follow one another."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np

from energize.arrays import Int64Array
from energize.order.schemes.exact import ExactScheme
from energize.rng import derive, hash_positions, shuffled

__all__ = ["Arrangement", "InTurn", "Interleaved", "Rotated"]


class Arrangement(Protocol):
    """An epoch of sum(counts) units, of which stream s has counts[s]; every epoch has its own.

    `in_order`: whether each stream's units come in the order of their numbers.
    """

    @property
    def in_order(self) -> bool: ...

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each unit of an epoch its stream, and its number among those of the stream."""

    def counts(self, epoch: int, n: int) -> Int64Array:
        """Units of each stream among the first `n`, 0 <= n <= sum(counts), of an epoch."""


class InTurn:
    """All units of the first stream, then all of the second, ..."""

    in_order = True

    def __init__(self, counts: Int64Array) -> None:
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        stream = np.searchsorted(self._ends, at, side="right")
        return stream, at - self._starts[stream]

    def counts(self, epoch: int, n: int) -> Int64Array:
        counts: Int64Array = np.clip(n, self._starts, self._ends) - self._starts
        return counts


class Interleaved:
    """Streams in random order, each in its own: windows of `window` units hold the exact shares
    (within 2 units), and are shuffled inside.
    """

    in_order = True

    def __init__(self, counts: Int64Array, window: int, key: int) -> None:
        self._total = int(counts.sum())
        self._window = min(window, self._total)
        self._windows = -(-self._total // self._window)
        self._key = derive(key, "interleaved")
        self._scheme = ExactScheme(counts.tolist())
        self._layout = lru_cache(maxsize=4)(self._shuffled)

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        number, offset = np.divmod(at, self._window)
        number = number + epoch * self._windows
        stream, nth = np.empty_like(at), np.empty_like(at)
        for each in np.unique(number).tolist():
            rows = np.flatnonzero(number == each)
            streams, nths = self._layout(each)
            stream[rows], nth[rows] = streams[offset[rows]], nths[offset[rows]]
        return stream, nth

    def counts(self, epoch: int, n: int) -> Int64Array:
        number, rest = divmod(n, self._window)
        before = self._scheme.counts(number * self._window)
        if not rest:
            return before
        streams, _ = self._layout(epoch * self._windows + number)
        return before + np.bincount(streams[:rest], minlength=len(before))

    def _shuffled(self, number: int) -> tuple[Int64Array, Int64Array]:
        first = number % self._windows * self._window
        slots = np.arange(first, min(first + self._window, self._total), dtype=np.int64)
        stream, nth = self._scheme.locate(slots)
        placed = np.asarray(stream, dtype=np.int64)[shuffled(self._key, number, len(slots))]
        ordered = np.empty_like(placed)
        ordered[np.argsort(placed, kind="stable")] = nth[np.argsort(stream, kind="stable")]
        return placed, ordered


class Rotated:
    """The order of the scheme `exact`, in which every prefix holds the exact shares; each window
    of `window` units is turned by a random number of places, so that no place of a window is
    always a certain stream's.
    """

    in_order = False

    def __init__(self, counts: Int64Array, window: int, key: int) -> None:
        self._total = int(counts.sum())
        self._window = window
        self._windows = -(-self._total // window)
        self._key = derive(key, "rotated")
        self._scheme = ExactScheme(counts.tolist())

    def locate(self, epoch: Int64Array, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        number, offset = np.divmod(at, self._window)
        first = number * self._window
        length = np.minimum(self._total - first, self._window)
        words = hash_positions(self._key, number + epoch * self._windows)
        turned = (words % length.astype(np.uint64)).astype(np.int64)
        stream, nth = self._scheme.locate(first + (offset + turned) % length)
        return np.asarray(stream, dtype=np.int64), nth

    def counts(self, epoch: int, n: int) -> Int64Array:
        start = n // self._window * self._window
        before = self._scheme.counts(start)
        at = np.arange(start, n, dtype=np.int64)
        streams, _ = self.locate(np.full_like(at, epoch), at)
        return before + np.bincount(streams, minlength=len(before))

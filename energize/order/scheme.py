"""The protocol of schemes, and the search for a slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.node import INFINITE

FARTHEST = 2**62
"""Slots below this number can be located."""


class Scheme(Protocol):
    """Slots 0, 1, 2, ... given to sources 0 .. n-1; positions only, nothing is read."""

    def counts(self, n: int, /) -> Int64Array:
        """Return the slots given to each source among the first `n`: int64, sums to
        `n`, monotone in `n`.
        """

    def locate(self, ks: Int64Array, /) -> tuple[Int64Array, Int64Array]:
        """Return for each slot its source, and which item of the source has the slot:
        for most schemes the number of earlier slots of the source.
        """


class SuccessionScheme:
    """One source after another: source i has the slots from `starts[i]` on, up to those
    of the next source. The last source has no end.

    Example:
        >>> scheme = SuccessionScheme(np.array([0, 3]))
        >>> scheme.counts(5).tolist()
        [3, 2]
        >>> source, nth = scheme.locate(np.array([2, 3, 4]))
        >>> source.tolist(), nth.tolist()
        ([0, 1, 1], [2, 0, 1])
    """

    def __init__(
        self, starts: Int64Array, first_items: Int64Array | None = None
    ) -> None:
        self._starts = starts
        self._offsets = -starts if first_items is None else first_items - starts
        self._lengths = np.diff(starts, append=INFINITE)

    def counts(self, n: int) -> Int64Array:
        """Return the slots of each source among the first `n`."""
        return np.clip(n - self._starts, 0, self._lengths)

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source of each slot, and which of its items has the slot."""
        source = np.searchsorted(self._starts, slots, side="right") - 1
        return source, slots + self._offsets[source]


class RepeatedScheme:
    """The first slots of a scheme over and over. Sources continue from epoch to epoch.

    Example:
        >>> epochs = RepeatedScheme(
        ...     SuccessionScheme(np.array([0, 2])), np.array([2, 1])
        ... )
        >>> source, nth = epochs.locate(np.arange(6))
        >>> source.tolist(), nth.tolist()
        ([0, 0, 1, 0, 0, 1], [0, 1, 0, 2, 3, 1])
    """

    def __init__(self, scheme: Scheme, epoch_counts: Int64Array) -> None:
        self._size = max(int(epoch_counts.sum()), 1)
        self._scheme = scheme
        self._epoch_counts = epoch_counts

    def counts(self, n: int) -> Int64Array:
        """Return the slots of each source among the first `n`."""
        epochs, rest = divmod(n, self._size)
        return self._scheme.counts(rest) + self._epoch_counts * epochs

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source of each slot, and which of its items has the slot."""
        epochs, within = np.divmod(slots, self._size)
        source, nth = self._scheme.locate(within)
        earlier: Int64Array = epochs * self._epoch_counts[source]
        return source, nth + earlier


def first_where(holds: Callable[[int], bool], upto: int, guess: float) -> int:
    """Return the least number above 0 for which `holds`, which is true of `upto` and of
    all numbers after the first. It takes few questions if `guess` is near.

    >>> first_where(lambda number: number * number >= 90, 1000, guess=9)
    10
    """
    low = 0
    high = upto
    step = 1
    at = int(min(guess, upto))
    while high - low > 1:
        at = min(max(at, low + 1), high - 1)
        if holds(at):
            high = at
            at = at - step
        else:
            low = at
            at = at + step
        step *= 2
        if low > 0 and high < upto:
            at = (low + high) // 2
    return high

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
    """Protocol of an assignment of slots 0, 1, 2, ... to sources 0 .. n-1.

    A pure function of positions; no data are read.
    """

    def counts(self, n: int, /) -> Int64Array:
        """Return the number of slots of each source among the first `n`.

        Args:
            n: Number of slots.

        Returns:
            Counts that sum to `n` and never decrease with `n`, int64, shape
            (num_sources,).
        """

    def locate(self, ks: Int64Array, /) -> tuple[Int64Array, Int64Array]:
        """Return the source of each slot, and which of its items has the slot.

        In most schemes, the item is the number of earlier slots of the source.

        Args:
            ks: Slots, int64, shape (n,).

        Returns:
            Sources and items, int64, shape (n,) each.
        """


class SuccessionScheme:
    """One source after another, in consecutive ranges of slots.

    Source i has the slots from `starts[i]` to before `starts[i + 1]`. The last source
    has no end.

    Args:
        starts: The first slot of each source, int64, shape (num_sources,).
        first_items: The first item of each source. None for item 0.

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
    """Repeat the first slots of a scheme. Sources continue from epoch to epoch.

    Args:
        scheme: The scheme of one epoch.
        epoch_counts: Items of each source in an epoch, int64, shape (num_sources,).

    Example:
        >>> one = SuccessionScheme(np.array([0, 2]))
        >>> source, nth = RepeatedScheme(one, np.array([2, 1])).locate(np.arange(6))
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


def first_true(holds: Callable[[int], bool], upto: int, guess: float) -> int:
    """Return the smallest number above 0 for which `holds` is true.

    Args:
        holds: A condition that stays true once it is true.
        upto: A number for which it is true.
        guess: A start for the search; a good guess needs few calls.

    Example:
        >>> first_true(lambda number: number * number >= 90, 1000, guess=9)
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

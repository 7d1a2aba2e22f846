"""The protocol of schemes, and the search for a slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from energize.core.arrays import Int64Array

FARTHEST = 2**62
"""Slots below this number can be located."""


class Scheme(Protocol):
    """Slots 0, 1, 2, ... given to sources 0 .. n-1; positions only, nothing is read."""

    def counts(self, n: int, /) -> Int64Array:
        """Return the slots given to each source among the first `n`: int64, sums to
        `n`, monotone in `n`.
        """

    def locate(self, ks: Int64Array, /) -> tuple[Int64Array, Int64Array]:
        """Return for each slot its source, and how many slots before it went to that
        source.
        """


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

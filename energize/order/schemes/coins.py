"""How many of many fair coins show heads, exactly, as pure functions of a key.

The tosses are cut into powers of two. For each power a table says how often each number of heads
comes, in parts of 2**64, and one random word chooses by the alias method; what is left below 64
tosses are the bits of one word. Only integers decide.

Source: Walker, "An efficient method for generating discrete random variables with general
distributions", ACM TOMS 3, 1977; Vose, "A linear algorithm for generating random numbers with a
given distribution", IEEE Trans. Software Eng. 17, 1991.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from energize.arrays import Int64Array, UInt64Array
from energize.order.schemes.variates import binomial
from energize.rng import derive, words

__all__ = ["heads"]


_SMALLEST, _LARGEST = 6, 13
"""The powers of two that have tables."""

_FEW = 1 << (_LARGEST + 1)


def heads(key: int, tosses: Int64Array) -> Int64Array:
    """For each entry of `tosses`, up to 2**40, the heads among so many fair coins.

    >>> heads(5, np.array([0, 1, 100, 10**6])).tolist()
    [0, 0, 47, 499202]
    """
    few = tosses < _FEW
    if few.all():
        return _by_tables(key, tosses)
    counts = np.empty_like(tosses)
    counts[few] = _by_tables(key, tosses[few])
    rows = np.flatnonzero(~few)
    one = np.ones(len(rows), dtype=np.int64)
    counts[rows] = binomial(derive(key, "many"), rows, tosses[rows], one, one)
    return counts


def _by_tables(key: int, tosses: Int64Array) -> Int64Array:
    random = words(key, 0, len(tosses))
    whole = np.uint64((1 << _SMALLEST) - 1)
    random &= (np.uint64(1) << (tosses.astype(np.uint64) & whole)) - np.uint64(1)
    counts = np.bitwise_count(random).astype(np.int64)
    for power in range(_SMALLEST, int(tosses.max(initial=0)).bit_length()):
        rows = np.flatnonzero((tosses & (1 << power)) != 0)
        if rows.size:
            counts[rows] += _table(power).drawn(words(key, power, len(rows)))
    return counts


@dataclass(frozen=True, slots=True)
class _Table:
    """Columns of equal width: the number of a column comes below its threshold, its alias above."""

    shift: int
    number: Int64Array
    """Of each column, and behind them the alias of each."""
    threshold: UInt64Array

    def drawn(self, random: UInt64Array) -> Int64Array:
        column = (random >> np.uint64(self.shift)).astype(np.int64)
        within = random & np.uint64((1 << self.shift) - 1)
        column += (within >= self.threshold[column]) * len(self.threshold)
        return self.number[column]


@cache
def _table(power: int) -> _Table:
    """The table of 2**power tosses, numbers of a probability below 2**-64 left out."""
    lowest, parts = _parts(1 << power)
    bits = (len(parts) - 1).bit_length()
    columns, width = 1 << bits, 1 << (64 - bits)
    left = parts + [0] * (columns - len(parts))
    alias, threshold = list(range(columns)), [width - 1] * columns
    low = [each for each in range(columns) if left[each] < width]
    high = [each for each in range(columns) if left[each] >= width]
    while low and high:
        small, large = low.pop(), high[-1]
        alias[small], threshold[small] = large, left[small]
        left[large] -= width - left[small]
        if left[large] < width:
            low.append(high.pop())
    for full in high:  # exactly one column each
        alias[full] = full
    return _Table(
        64 - bits,
        lowest + np.array(list(range(columns)) + alias, dtype=np.int64),
        np.array(threshold, dtype=np.uint64),
    )


def _parts(tosses: int) -> tuple[int, list[int]]:
    """The first number of heads that can come, and how often it and the next ones do, in parts of
    2**64: the distribution function, rounded down.
    """
    ways, below, before = 1, 0, 0
    parts = []
    for number in range(tosses + 1):
        below += ways
        ways = ways * (tosses - number) // (number + 1)
        reached = below << 64 >> tosses
        parts.append(reached - before)
        before = reached
    first = next(number for number, part in enumerate(parts) if part)
    while not parts[-1]:
        parts.pop()
    return first, parts[first:]

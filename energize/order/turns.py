"""Orders that no apportionment of slots makes: sources in turn, and Megatron's greedy one."""

from __future__ import annotations

import reprlib

import numpy as np

from energize.arrays import Int32Array, Int64Array
from energize.errors import ConfigError

_LONGEST_PERIOD = 2**20


class Turns:
    """The sources in turn, from source `first` on, over and over."""

    def __init__(self, sources: int, first: int) -> None:
        self._sources, self._first = sources, first

    def counts(self, slots: Int64Array) -> Int64Array:
        turns = np.arange(self._sources) - self._first
        return (slots[:, np.newaxis] - turns % self._sources - 1) // self._sources + 1

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        return (slots + self._first) % self._sources, slots // self._sources


class Greedy:
    """The order of Megatron's blending index: slot t goes to the source with the largest
    `w * max(t, 1) - count`, ties to the first.

    Integers take the place of Megatron's floats, which break ties by rounding errors. The order
    repeats after as many slots as the weights sum to (only the first round begins differently), and
    a table of two rounds is made, at about 1 us per slot. `ConfigError` when the sum is above
    2**20.

    >>> Greedy(np.array([1, 5, 3, 1])).locate(np.arange(10))[0].tolist()
    [1, 2, 0, 1, 3, 1, 2, 1, 2, 1]
    """

    def __init__(self, weights: Int64Array) -> None:
        self._weights = weights
        self._period = int(weights.sum())
        if self._period > _LONGEST_PERIOD:
            raise ConfigError(
                "the scheme 'greedy' makes a table of one period, and these weights repeat only "
                f"after {reprlib.repr(self._period)} slots, more than {_LONGEST_PERIOD}: round "
                "them to fewer digits, or use the scheme 'exact', which needs no table"
            )
        self._sources = _greedy_order(weights, 2 * self._period)
        self._nth = np.empty(len(self._sources), dtype=np.int64)
        starts = np.repeat(2 * (np.cumsum(weights) - weights), 2 * weights)
        self._nth[np.argsort(self._sources, kind="stable")] = np.arange(len(starts)) - starts

    def counts(self, slots: Int64Array) -> Int64Array:
        rounds, places = self._placed(slots)
        tables = [np.bincount(self._sources[:p], minlength=len(self._weights)) for p in places]
        return np.stack(tables) + rounds[:, np.newaxis] * self._weights

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        rounds, places = self._placed(slots)
        source = self._sources[places].astype(np.int64)
        return source, self._nth[places] + self._weights[source] * rounds

    def _placed(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """How many rounds before a slot are not in the table, and its place in the table: in the
        first round for its own slots, in the second for all later ones.
        """
        rounds = np.maximum(slots // self._period - 1, 0)
        return rounds, slots - rounds * self._period


def _greedy_order(weights: Int64Array, slots: int) -> Int32Array:
    """The source of each of the first slots. What a source is owed is kept times the sum of the
    weights, so that it is an integer.
    """
    total, owed = int(weights.sum()), weights.copy()
    chosen = np.empty(slots, dtype=np.int32)
    for slot in range(slots):
        if slot > 1:
            owed += weights
        first = int(owed.argmax())
        chosen[slot] = first
        owed[first] -= total
    return chosen

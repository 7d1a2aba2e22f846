"""Keyed randomness: every random choice is a function of a key and a position.

There is no generator that is shared, advanced or saved. A key is a 128-bit integer
derived from what a stream of choices is for (a source, an operation on it, an epoch); a
position is the index of the choice. The same key and position give the same choice in
every process and on every platform.

Only streams that numpy promises never to change are used: raw Philox words and integer
arithmetic.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.arrays import Int64Array, UInt64Array

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive(*parts: str | int) -> int:
    """Return a 128-bit key made of `parts`; keys of different parts are independent.

    >>> derive("shuffle", 1) == derive("shuffle", 1)
    True
    >>> derive("ab", "c") == derive("a", "bc")
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = f"{type(part).__name__}:{part}".encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")


def mix64(values: UInt64Array, *keys: np.uint64) -> UInt64Array:
    """The splitmix64 finaliser: a bijection of 64-bit words in which every bit depends
    on every bit. With `keys`, once more for each, of the words with that key on top.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
    2014.
    """
    for key in (None, *keys):
        if key is not None:
            values = values ^ key
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        values = values ^ (values >> np.uint64(31))
    return values


def hash_positions(key: int, positions: npt.NDArray[Any], salt: int = 0) -> UInt64Array:
    """Return one uniform 64-bit word per position, a function of (key, salt, position)
    alone.
    """
    low = np.uint64((key ^ (salt * _GOLDEN)) & _MASK)
    high = np.uint64((key >> 64) & _MASK)
    return mix64(positions.astype(np.uint64) * np.uint64(_GOLDEN) + low, high)


def words(key: int, counter: int, count: int) -> UInt64Array:
    """`count` uniform 64-bit words: the Philox stream of `key` that starts at block
    `counter`.
    """
    generator = np.random.Philox(
        key=np.array([key & _MASK, (key >> 64) & _MASK], dtype=np.uint64),
        counter=np.array([0, 0, counter & _MASK, 0], dtype=np.uint64),
    )
    return generator.random_raw(count)


def shuffled(key: int, counter: int, count: int) -> Int64Array:
    """Return a permutation of `range(count)`, a function of (key, counter, count)
    alone.
    """
    keys = words(key, counter, count)
    # Numpy's fastest sort may leave equal keys in any order, and there are hardly ever
    # any.
    order = np.argsort(keys)
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(keys, kind="stable")
    return order


def generator(word: int) -> np.random.Generator:
    """Return a random generator of its own for each 64-bit word."""
    return np.random.Generator(np.random.Philox(key=word))


# Permutations of `range(n)` that are evaluated at single points, without a table.

_TABLE_LIMIT = 512
"""Up to this size a permutation is sorted outright: small Feistel networks are visibly
uneven."""

_ROUNDS = 6

_MANY = 2
"""Indexes for each value of a half, above which tables of the rounds are faster."""


class Permutation:
    """A family of random permutations of `range(size)`, one per tweak (an epoch, a
    window).

    `permutation(index, tweak)` is elementwise, for arrays of equal shape; memory does
    not grow with `size`. Small domains sort keyed hashes; large ones use a Feistel
    network on the mixed-radix digits (left, right) with left < a, right < b and a * b
    only just above `size`, walking the few values outside back in.

    Source: Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.

    >>> import numpy as np
    >>> p = Permutation(10**9, key=1)
    >>> at = np.arange(5)
    >>> len(set(p(at, np.zeros(5, dtype=np.int64)).tolist()))
    5
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        self.key = key
        self._a = math.isqrt(max(size - 1, 0)) + 1
        self._b = -(-size // self._a) if size else 1
        self._round_keys = [np.uint64(derive(key, r) & _MASK) for r in range(_ROUNDS)]

    def __call__(
        self, index: Int64Array, tweak: Int64Array, *, inverse: bool = False
    ) -> Int64Array:
        """Return the image of each index; with `inverse`, the index of each image."""
        if self.size <= _TABLE_LIMIT:
            tweaks, row = np.unique(tweak, return_inverse=True)
            cells = tweaks[:, None] * np.int64(self.size) + np.arange(
                self.size, dtype=np.int64
            )
            images = np.argsort(hash_positions(self.key, cells), axis=1, kind="stable")
            values: Int64Array = (np.argsort(images, axis=1) if inverse else images)[
                row, index
            ]
            return values
        same = len(index) > _MANY * self._a and bool((tweak == tweak[0]).all())
        tweaked = mix64(
            (tweak[:1] if same else tweak).astype(np.uint64)
            + np.uint64(self.key & _MASK)
        )
        tables = None
        if same:
            half = np.arange(self._a, dtype=np.int64)
            tables = [self._moves(r, half, tweaked) for r in range(_ROUNDS)]
        out = self._pass(index, tweaked, tables, inverse=inverse)
        while (outside := np.flatnonzero(out >= self.size)).size:
            rest = tweaked if same else tweaked[outside]
            out[outside] = self._pass(out[outside], rest, tables, inverse=inverse)
        return out

    def _pass(
        self,
        values: Int64Array,
        tweaked: UInt64Array,
        tables: list[Int64Array] | None,
        *,
        inverse: bool,
    ) -> Int64Array:
        """Run once through the network over the domain a * b; the halves change in
        turn. `tables` are the moves of each round, if all tweaks are equal.
        """
        halves: list[Int64Array] = list(np.divmod(values, self._b))
        sign = -1 if inverse else 1
        for r in range(_ROUNDS)[::sign]:
            changing = r % 2
            fixed = halves[1 - changing]
            moves = (
                self._moves(r, fixed, tweaked)
                if tables is None
                else tables[r].take(fixed)
            )
            moved = halves[changing] + sign * moves
            wrapped = moved - sign * (self._a, self._b)[changing]
            # The one in range is the smaller one as uint64.
            halves[changing] = np.minimum(
                moved.view(np.uint64), wrapped.view(np.uint64)
            ).view(np.int64)
        return halves[0] * self._b + halves[1]

    def _moves(self, r: int, fixed: Int64Array, tweaked: UInt64Array) -> Int64Array:
        """Return by how much round `r` moves the other half, modulo its size."""
        keyed = tweaked ^ self._round_keys[r]
        size = np.uint64((self._a, self._b)[r % 2])
        moves = mix64(fixed.astype(np.uint64) + keyed) % size
        return moves.astype(np.int64)


class WindowedPermutation:
    """A family of permutations of `range(size)` that move nothing out of its window:
    the first `window` places, the next ones, ...; one per tweak.
    """

    def __init__(self, size: int, window: int, key: int, tail_key: int) -> None:
        self._window = window
        self._whole = size // window
        self._within = Permutation(window, key)
        self._within_tail = Permutation(size % window, tail_key)

    def __call__(self, index: Int64Array, tweak: Int64Array | int = 0) -> Int64Array:
        number, offset = np.divmod(index, self._window)
        tweaks = tweak * (self._whole + 1) + number
        whole = number < self._whole
        out = np.empty_like(index)
        for rows, within in ((whole, self._within), (~whole, self._within_tail)):
            out[rows] = within(offset[rows], tweaks[rows])
        return number * self._window + out


class ShuffleOrder:
    """The shuffled order of samples, another permutation in each epoch.

    Computes any position in constant time, without buffers. Without `run_length` and
    `window` it is a full permutation. With them it trades randomness for locality, like
    a loader that opens shards at random and has a shuffle buffer.

    Args:
        size: Number of samples.
        key: The key of the random draws.
        over_epochs: Number of epochs that are shuffled together; each sample occurs as
            often in them. -1 draws every sample independently, with replacement.
        run_length: Length of runs of neighbouring samples that are shuffled as a whole.
        window: Number of positions within which samples are shuffled afterwards.

    Example:
        >>> import numpy as np
        >>> order = ShuffleOrder(6, key=7)
        >>> sorted(order.locate(np.arange(6)).tolist()) == list(range(6))
        True
    """

    def __init__(
        self,
        size: int,
        key: int,
        run_length: int | None = None,
        window: int | None = None,
        over_epochs: int = 1,
    ) -> None:
        self._samples = size
        self._key = key
        self._with_replacement = over_epochs == -1
        self.size = size = size * max(over_epochs, 1)
        self._run = size if run_length is None else min(run_length, size)
        self._window = 1 if window is None else min(max(window, 1), size)
        self._full = run_length is None and window is None
        runs = -(-size // self._run) if size else 0
        self._missing = runs * self._run - size
        """By how much the last run is shorter than the others."""
        keys = derive(key, "window"), derive(key, "tail window")
        self._in_windows = WindowedPermutation(size, self._window, *keys)
        self._runs = Permutation(runs, derive(key, "runs"))
        self._all = Permutation(size, derive(key, "all"))

    def locate(self, positions: Int64Array) -> Int64Array:
        """Return the sample, 0 <= sample < size, visited at each position; epochs
        follow one another.
        """
        if self._with_replacement:
            drawn = hash_positions(derive(self._key, "with replacement"), positions)
            return (drawn % np.uint64(self._samples)).astype(np.int64)
        epoch, at = np.divmod(positions, self.size)
        if self._full:
            return self._all(at, epoch) % self._samples
        if self._window > 1:
            at = self._in_windows(at, epoch)
        # Runs in random order. The last one may be short: after its place all slots
        # move up.
        last = np.full_like(at, self._runs.size - 1)
        short_end = (
            self._runs(last, epoch, inverse=True) + 1
        ) * self._run - self._missing
        run, offset = np.divmod(at + (at >= short_end) * self._missing, self._run)
        sample: Int64Array = (
            self._runs(run, epoch) * self._run + offset
        ) % self._samples
        return sample

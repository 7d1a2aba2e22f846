"""Keyed randomness: every random choice is a function of a key and a position.

There is no generator that is shared, advanced or saved. A key is a 128-bit integer derived from
what a stream of choices is for (a source, an operation on it, an epoch); a position is the index of
the choice. The same key and position give the same choice in every process and on every platform.

Only streams that numpy promises never to change are used: raw Philox words and integer arithmetic.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.arrays import Int64Array, UInt64Array

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive(*parts: str | int) -> int:
    """A 128-bit key made of `parts`; keys of different parts are independent.

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


def mix64(values: UInt64Array) -> UInt64Array:
    """The splitmix64 finaliser: a bijection of 64-bit words in which every bit depends on every
    bit.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_positions(key: int, positions: npt.NDArray[Any], salt: int = 0) -> UInt64Array:
    """One uniform 64-bit word per position, a function of (key, salt, position) alone."""
    low = np.uint64((key ^ (salt * _GOLDEN)) & _MASK)
    high = np.uint64((key >> 64) & _MASK)
    return mix64(mix64(positions.astype(np.uint64) * np.uint64(_GOLDEN) + low) ^ high)


def words(key: int, counter: int, count: int) -> UInt64Array:
    """`count` uniform 64-bit words: the Philox stream of `key` that starts at block `counter`."""
    generator = np.random.Philox(
        key=np.array([key & _MASK, (key >> 64) & _MASK], dtype=np.uint64),
        counter=np.array([0, 0, counter & _MASK, 0], dtype=np.uint64),
    )
    return generator.random_raw(count)


def shuffled(key: int, counter: int, count: int) -> Int64Array:
    """A permutation of `range(count)`, a function of (key, counter, count) alone."""
    keys = words(key, counter, count)
    # Numpy's fastest sort may leave equal keys in any order, and there are hardly ever any.
    order = np.argsort(keys)
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(keys, kind="stable")
    return order


def generator(word: int) -> np.random.Generator:
    """A random generator of its own for each 64-bit word."""
    return np.random.Generator(np.random.Philox(key=word))

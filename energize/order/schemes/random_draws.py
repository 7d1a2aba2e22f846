"""The random schemes: every slot is drawn on its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from energize.order.pieces import Piece, locate_in_pieces, ranks_within
from energize.order.protocol import WeightedScheme
from energize.order.remembered import Remembered
from energize.order.schemes.variates import binomial, hypergeometric
from energize.order.weights import Weights, bounded_weights
from energize.rng import derive, shuffled

__all__ = ["RandomScheme", "UniformScheme"]

Int64Array = npt.NDArray[np.int64]

_FIRST_BITS, _LARGEST_BITS = 30, 40
_WEIGHT_BITS = 50


class RandomScheme(WeightedScheme):
    """Each slot is drawn independently of all others, a source with the probability of its weight.

    Counts are known without drawing what lies before: a few large blocks draw how many slots each
    source has in them (multinomial), a half of a block how many of its block's (hypergeometric),
    and a smallest block, of 2**14 to 2**20 slots, puts its own in random order. Together these are
    independent draws. The first large block has 2**30 slots, each other as many as all before
    it, up to 2**40. So any position costs about the same, ten to twenty splits once, and less than
    one per thousand slots when read on.

    All draws are integer functions of `key` and the position, the same on every machine and with
    every version of numpy. Weights of more than 50 bits together are rounded to that; a weight of 0
    never receives a slot. Raises `WeightError`.

    >>> scheme = RandomScheme([3, 1], key=5)
    >>> scheme.counts(10**9).tolist()
    [750018750, 249981250]
    """

    scheme = "random"

    def __init__(self, weights: Weights, *, key: int = 0) -> None:
        super().__init__(weights, key)
        self._key = derive(self.scheme, self._given_key)
        integers = self._drawn_by()
        self._count = len(integers)
        self._drawn = np.flatnonzero(integers > 0)
        self._weights = bounded_weights(integers[self._drawn], _WEIGHT_BITS)
        self._bits = min(20, max(14, (64 * len(self._drawn) - 1).bit_length()))
        path = _LARGEST_BITS - self._bits + 4
        self._block = Remembered(self._counted, path)
        self._left_half = Remembered(self._split, path)
        self._layout = Remembered(self._laid_out, 2)

    def _drawn_by(self) -> Int64Array:
        """The weights that decide."""
        return self._integers

    def _counts(self, n: int) -> Int64Array:
        leaf, rest = divmod(n, 1 << self._bits)
        drawn, _ = self._block(self._bits, leaf)
        if rest:
            drawn = drawn + np.bincount(self._layout(leaf).source[:rest], minlength=len(drawn))
        counts = np.zeros(self._count, dtype=np.int64)
        counts[self._drawn] = drawn
        return counts

    def _locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        source, nth = locate_in_pieces(ks, 1 << self._bits, self._layout)
        return self._drawn[source], nth

    # A block has 2**bits slots and a number: it begins at slot number * 2**bits.

    def _counted(self, bits: int, number: int) -> tuple[Int64Array, Int64Array]:
        """The slots of each source before a block, and in it."""
        if _is_large(bits, number):
            before = sum(
                (self._drawn_at_once(*block) for block in _large_blocks_before(bits, number)),
                np.zeros_like(self._weights),
            )
            return before, self._drawn_at_once(bits, number)
        before, counts = self._block(bits + 1, number // 2)
        left = self._left_half(bits + 1, number // 2)
        return (before + left, counts - left) if number % 2 else (before, left)

    def _drawn_at_once(self, bits: int, number: int) -> Int64Array:
        """The slots of each source in a large block: binomial splits down a tree over sources."""
        key = derive(self._key, "large", bits, number)
        counts = np.array([1 << bits], dtype=np.int64)
        for weights in _tree(self._weights):
            left = binomial(key, _numbers(counts), counts, weights[0::2], weights[1::2])
            counts = _interleaved(left, counts - left)
        return counts[: len(self._weights)]

    def _split(self, bits: int, number: int) -> Int64Array:
        """The slots of each source in the left half of a block, down the same tree."""
        key = derive(self._key, "half", bits, number)
        _, counts = self._block(bits, number)
        taken = np.array([1 << (bits - 1)], dtype=np.int64)
        for there in _tree(counts):
            left = hypergeometric(key, _numbers(taken), there[0::2], there[1::2], taken)
            taken = _interleaved(left, taken - left)
        return taken[: len(counts)]

    def _laid_out(self, leaf: int) -> Piece:
        before, counts = self._block(self._bits, leaf)
        order = shuffled(derive(self._key, "order"), leaf, 1 << self._bits)
        source = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[order]
        return Piece(source, ranks_within(source, counts), before)


class UniformScheme(RandomScheme):
    """As `RandomScheme`, with the same probability for every source of a weight above 0.

    >>> UniformScheme([1, 0, 9], key=5).counts(10**6).tolist()
    [499655, 0, 500345]
    """

    scheme = "uniform"

    def _drawn_by(self) -> Int64Array:
        equal: Int64Array = (self._integers > 0).astype(np.int64)
        return equal


def _is_large(bits: int, number: int) -> bool:
    """Whether a block is drawn by itself: the first, each as long as all before it, and behind
    those each of the largest.
    """
    return bits == _LARGEST_BITS or (bits >= _FIRST_BITS and number < 2)


def _large_blocks_before(bits: int, number: int) -> Iterator[tuple[int, int]]:
    """The large blocks before a large one."""
    if (bits, number) == (_FIRST_BITS, 0):
        return
    yield _FIRST_BITS, 0
    yield from ((each, 1) for each in range(_FIRST_BITS, bits))
    yield from ((bits, each) for each in range(1, number))


def _tree(leaves: Int64Array) -> list[Int64Array]:
    """The levels below the root of a binary tree in which a node is the sum of its children."""
    depth = (len(leaves) - 1).bit_length()
    level = np.zeros(1 << depth, dtype=np.int64)
    level[: len(leaves)] = leaves
    levels = []
    for _ in range(depth):
        levels.append(level)
        level = level[0::2] + level[1::2]
    return levels[::-1]


def _numbers(level: Int64Array) -> Int64Array:
    """The nodes of a level, numbered so that no two of the tree have the same number."""
    return len(level) + np.arange(len(level))


def _interleaved(left: Int64Array, right: Int64Array) -> Int64Array:
    return np.stack([left, right], axis=1).reshape(-1)

"""Numbers found by bisection, from where they are expected."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Any, Generic, TypeVar

import numpy as np

from energize.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array, rows_by_value
from energize.core.rng import hash_positions, mix64


def first_where(
    holds: Callable[[int], bool], *, above: int, upto: int, guess: float | None = None
) -> int:
    """The least number above `above` for which `holds`, which is true of `upto` and of all numbers
    after the first. It takes few questions when `guess` is near it; without one, the middle is
    asked first.

    >>> first_where(lambda number: number * number >= 90, above=0, upto=1000, guess=9)
    10
    """
    low, high = above, upto
    if guess is not None and high - low > 1:
        low, high = _around(holds, int(min(max(guess, low + 1), high - 1)), low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _around(holds: Callable[[int], bool], at: int, low: int, high: int) -> tuple[int, int]:
    """Numbers nearer to `at`, from `low` to `high`: the first is false, the second true."""
    step = 1
    if holds(at):
        high = at
        while (at := high - step) > low and holds(at):
            high, step = at, 2 * step
        return max(low, at), high
    low = at
    while (at := low + step) < high and not holds(at):
        low, step = at, 2 * step
    return low, min(high, at)


# A function whose last results are kept, and which is pickled without them.

T = TypeVar("T")


class Remembered(Generic[T]):
    """`compute`, a pure function of hashable arguments, with its last `size` results at hand.

    Results are shared: they must not be changed.
    """

    def __init__(self, compute: Callable[..., T], size: int) -> None:
        self._compute = compute
        self._size = size
        self._cached = lru_cache(maxsize=size)(compute)

    def __call__(self, *arguments: Hashable) -> T:
        return self._cached(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._compute, self._size)


# Sources as the leaves of a Huffman tree: the light ones far from the root.


@dataclass(frozen=True, slots=True)
class HuffmanTree:
    """Nodes by number: the `leaves` sources first, then inner nodes, each after its children; the
    last is the root. `light` and `heavy` are the children of inner nodes, `part` and `whole` what
    the light child and the node itself weigh. `ends` cut the inner nodes into runs, none of which
    has a node and its child.
    """

    leaves: int
    light: Int64Array
    heavy: Int64Array
    part: Int64Array
    whole: Int64Array
    ends: tuple[int, ...]

    def sums(self, values: FloatArray) -> FloatArray:
        """For each node the sum of its leaves' values."""
        sums = np.concatenate([values, np.zeros(len(self.light))])
        begin = 0
        for end in self.ends:
            below = slice(begin, end)
            sums[self.leaves + begin : self.leaves + end] = (
                sums[self.light[below]] + sums[self.heavy[below]]
            )
            begin = end
        return sums


def huffman_tree(weights: Int64Array) -> HuffmanTree:
    """The tree over sources of positive `weights`, whose sum is below 2**61.

    The two lightest nodes are joined until one is left; all pairs that no new node can come between
    are joined at once. A node's sibling weighs at least as much as each of its own children, so
    weights on the way to the root grow at least like Fibonacci numbers.

    Source: Huffman, "A method for the construction of minimum-redundancy codes", Proc. IRE 40,
    1952; Buro, "On the maximum length of Huffman codes", Inf. Process. Lett. 45, 1993.

    >>> tree = huffman_tree(np.array([5, 1, 3]))
    >>> tree.light.tolist(), tree.heavy.tolist(), tree.whole.tolist()
    ([1, 3], [2, 0], [4, 9])
    """
    nodes = np.argsort(weights, kind="stable")
    weigh = weights[nodes]
    pairs: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
    ends = [0]
    while len(nodes) > 1:
        many = int(np.searchsorted(weigh, weigh[0] + weigh[1], side="right"))
        many -= many % 2
        parts, wholes = weigh[:many:2], weigh[:many:2] + weigh[1:many:2]
        pairs.append((nodes[:many:2], nodes[1:many:2], parts, wholes))
        ends.append(ends[-1] + many // 2)
        joined = len(weights) + np.arange(ends[-2], ends[-1])
        nodes, weigh = np.append(nodes[many:], joined), np.append(weigh[many:], wholes)
        order = np.argsort(weigh, kind="stable")
        nodes, weigh = nodes[order], weigh[order]
    empty = np.empty(0, dtype=np.int64)
    light, heavy, part, whole = (
        np.concatenate([empty, *(each[column] for each in pairs)]) for column in range(4)
    )
    return HuffmanTree(len(weights), light, heavy, part, whole, tuple(ends[1:]))


# Slots shared out to sources by weight, down a tree: counts and places at any position.

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Numbers times this are far apart in all bits."""

_DIGIT = 30
"""Bits of a number that are divided at once, where products would not fit."""


class Apportionment:
    """Which source each of the slots 0, 1, 2, ... belongs to, in the ratio of integer `weights`.

    Of the first m slots of a node, its light child has `m * part / whole`, rounded; the heavy child
    has the others. One slot more goes to just one child, so counts never fall, and sum to the
    slots. All of it in integers: no position is too far.

    Halves are rounded up. A source is then within 1.68 slots of its exact share at every slot: half
    of the sum of its weight over that of each node above it, whose weights grow at least like
    Fibonacci numbers along a Huffman tree, so half of 1 + 1 + 1/2 + 1/3 + 1/5 + 1/8 + ...

    With a `key`, rounding is drawn: a light child has one slot, any of them, in each stretch of
    slots in which one is due to it. A source is then within twice that, 3.36; where shares of the
    slots so far are whole numbers it still has just these; and the order never repeats.

    `owed` is what each source is to have more than its share, from slots before the first: as much
    of it as rounding can make good comes at once. Weights are positive, their sum is below 2**61.

    >>> Apportionment(np.array([1, 6, 2, 1])).counts(np.array([20, 10**12]))[0].tolist()
    [2, 12, 4, 2]
    """

    def __init__(
        self, weights: Int64Array, *, key: int | None = None, owed: FloatArray | None = None
    ) -> None:
        self._tree = huffman_tree(weights)
        self._key = key
        inner = len(self._tree.whole)
        self._phase = np.zeros(inner, dtype=np.int64) if key is not None else self._tree.whole // 2
        self._had = np.zeros(inner, dtype=np.int64)
        """Whether a light child has had the slot of the stretch in which slots begin."""
        self._keys = np.empty(0, dtype=np.uint64)
        if key is not None:
            self._keys = hash_positions(key, np.arange(inner))
        self._shortest, self._longer = np.divmod(self._tree.whole, self._tree.part)
        """The slots of a stretch, and how many of `part` begin so that it has one more."""
        self._fresh = owed is None or not owed.any()
        if owed is not None and not self._fresh:
            self._carry(owed)

    def _carry(self, owed: FloatArray) -> None:
        tree, sums = self._tree, self._tree.sums(owed)
        here = np.arange(len(tree.whole)) + tree.leaves
        late = sums[tree.light] - sums[here] * (tree.part / tree.whole)
        if self._key is None:
            late += 0.5
        else:
            self._had = (late < 0).astype(np.int64)
            late += self._had
        # Just below 1 the float product may reach the whole.
        phase = (np.clip(late, 0.0, 1.0) * tree.whole).astype(np.int64)
        self._phase = np.clip(phase, 0, tree.whole - 1)

    def counts(self, slots: Int64Array) -> Int64Array:
        """The slots of each source (columns) among the first of all, for numbers of them (rows)."""
        tree = self._tree
        counts = np.empty((len(slots), tree.leaves + len(tree.whole)), dtype=np.int64)
        counts[:, -1] = slots
        for begin, end in zip((0, *tree.ends)[-2::-1], tree.ends[::-1], strict=True):
            nodes = np.arange(begin, end)[np.newaxis]
            of_node = counts[:, tree.leaves + begin : tree.leaves + end]
            light, _ = self._light(nodes, of_node)
            counts[:, tree.light[begin:end]] = light
            counts[:, tree.heavy[begin:end]] = of_node - light
        return counts[:, : tree.leaves]

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""
        tree, left = self._tree, np.arange(len(slots))
        source, nth = np.empty((2, len(slots)), dtype=np.int64)
        node, count = np.full(len(slots), tree.leaves + len(tree.whole) - 1), slots
        while True:
            done = node < tree.leaves
            if done.any():
                source[left[done]], nth[left[done]] = node[done], count[done]
                node, count, left = node[~done], count[~done], left[~done]
            if not len(left):
                return source, nth
            inner = node - tree.leaves
            light, is_light = self._light(inner, count)
            node = np.where(is_light, tree.light[inner], tree.heavy[inner])
            count = np.where(is_light, light, count - light)

    def _light(self, inner: Int64Array, counts: Int64Array) -> tuple[Int64Array, BoolArray]:
        """For inner nodes, what the light child has of the first `counts` slots, and whether it has
        the next.
        """
        part, whole = self._tree.part[inner], self._tree.whole[inner]
        passes, within = np.divmod(counts, whole)
        whole_ones, left = divided(within, part, self._phase[inner], whole)
        light = passes * part + whole_ones
        if self._key is None:
            return light, left >= whole - part
        return self._drawn(inner, light, left, part)

    def _drawn(
        self, inner: Int64Array, number: Int64Array, left: Int64Array, part: Int64Array
    ) -> tuple[Int64Array, BoolArray]:
        """As `_light`: the next slot is in stretch `number`, into which `left` says how far it
        reaches, in units of one slot by `part`. Slots begin somewhere in stretch 0.
        """
        gone = left // part
        room = self._shortest[inner] + (self._longer[inner] > left - gone * part)
        random = mix64(self._keys[inner] ^ number.astype(np.uint64) * _ODD)
        if self._fresh:
            place = _below(random, room)
            return number + (place < gone), place == gone
        first = number == 0
        begun = np.where(first, self._phase[inner] // part, 0)
        place = begun + _below(random, room - begun)
        had = self._had[inner]
        place[first & (had > 0)] = -1
        light: Int64Array = number + (place < gone) - had
        return light, place == gone


def _below(random: UInt64Array, room: Int64Array) -> Int64Array:
    """A number from 0 up to below each of `room`, all as likely, by a random word."""
    wide = room.astype(np.uint64)
    numbers: UInt64Array = (random >> np.uint64(32)) * wide >> np.uint64(32)
    large = room >= _NARROW  # each by itself: what else is asked for decides nothing
    if large.any():
        numbers[large] = random[large] % wide[large]
    return numbers.astype(np.int64)


def divided(
    count: Int64Array, part: Int64Array, phase: Int64Array, whole: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Quotient and remainder of `count * part + phase` by `whole`, all of which are smaller, or
    equal for `part`.
    """
    if whole.max(initial=0) < _NARROW:
        return np.divmod(count * part + phase, whole)
    high, low = count >> _DIGIT, count & ((1 << _DIGIT) - 1)
    above, rest = _short_divided(high * part, _float(high) * _float(part), whole)
    about = _float(rest) * float(1 << _DIGIT) + _float(low) * _float(part) + _float(phase)
    below, rest = _short_divided((rest << _DIGIT) + low * part + phase, about, whole)
    return (above << _DIGIT) + below, rest


def _short_divided(
    value: Int64Array, about: FloatArray, whole: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Quotient, up to 2**32, and remainder of numbers that need not fit: `value` in arithmetic that
    may have wrapped around, `about` in floats. The float quotient is at most one off, so the
    remainder fits, and tells.
    """
    quotient = np.floor(about / whole).astype(np.int64)
    rest = value - quotient * whole
    less, more = rest < 0, rest >= whole
    return quotient - less + more, rest + less * whole - more * whole


def _float(values: Int64Array) -> FloatArray:
    return values.astype(np.float64)


# Slots while shares change evenly: short pieces, each with whole numbers of slots.

_MOST_PIECES = 2048
_LARGEST_TABLE = 2**20
_GAUSS = (0.1127016653792583, 0.5, 0.8872983346207417)
_GAUSS_WEIGHTS = (5 / 18, 8 / 18, 5 / 18)
"""Gauss-Legendre quadrature over 0 to 1."""


def glide_edges(length: int, sources: int) -> Int64Array:
    """Where the pieces of `length` slots begin, and the end of the last.

    There are so many that shares are nearly straight within a piece: with up to 512 sources and 8
    million slots no source strays by more than 0.4 slots for it. It is more in proportion to the
    length beyond that, and to the square of the number of sources.
    """
    pieces = min(isqrt(length // 2) + 1, _MOST_PIECES, max(_LARGEST_TABLE // sources, 16), length)
    return np.arange(pieces + 1) * length // pieces


class Glide:
    """Slots from `edges[0]` = 0 on, shared out piece by piece: what sources are due in a piece
    is rounded by largest remainder, and what rounding owes them is carried to the next.

    `shares` are those of each source (columns) in each piece (rows), and sum to 1. `owed` is what
    they are due from slots before the first.
    """

    def __init__(
        self, edges: Int64Array, shares: FloatArray, *, key: int | None, owed: FloatArray
    ) -> None:
        self._edges, self._key = edges, key
        self.length = int(edges[-1])
        self.first_shares: FloatArray = shares[0]
        totals = np.empty_like(shares, dtype=np.int64)
        due = shares * np.diff(edges)[:, np.newaxis]
        for piece, size in enumerate(np.diff(edges).tolist()):
            owed = owed + due[piece]
            totals[piece] = _rounded(owed, size, shares[piece] > 0)
            owed = owed - totals[piece]
        self._owed = owed
        self._before = np.zeros((len(totals) + 1, len(owed)), dtype=np.int64)
        np.cumsum(totals, axis=0, out=self._before[1:])
        self._run = Remembered(self._run_of, 4)

    def counts(self, slots: Int64Array) -> Int64Array:
        pieces = self._piece(slots)
        counts = self._before[pieces]
        for piece, rows in rows_by_value(pieces):
            members, run = self._run(piece)
            found = counts[rows]
            found[:, members] += run.counts(slots[rows] - self._edges[piece])
            counts[rows] = found
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        pieces = self._piece(slots)
        source, nth = np.empty((2, len(slots)), dtype=np.int64)
        for piece, rows in rows_by_value(pieces):
            members, run = self._run(piece)
            member, found = run.locate(slots[rows] - self._edges[piece])
            source[rows] = members[member]
            nth[rows] = found + self._before[piece, members[member]]
        return source, nth

    def due(self, slot: int) -> FloatArray:
        """What each source is due before a slot: what it has, and inside a piece its part of that;
        at the end also what rounding still owes it.
        """
        piece = int(self._piece(np.array([slot]))[0])
        before, after = self._before[piece : piece + 2]
        begin, end = self._edges[piece : piece + 2].tolist()
        due: FloatArray = before + (after - before) * ((slot - begin) / (end - begin))
        return due + self._owed if slot == self.length else due

    def _piece(self, slots: Int64Array) -> Int64Array:
        """The piece of each slot; of the end the last one."""
        found = np.searchsorted(self._edges, slots, side="right") - 1
        return np.minimum(found, len(self._edges) - 2)

    def _run_of(self, piece: int) -> tuple[Int64Array, Apportionment]:
        totals = self._before[piece + 1] - self._before[piece]
        members = np.flatnonzero(totals)
        key = None if self._key is None else self._key + piece
        return members, Apportionment(totals[members], key=key)


def mean_shares(shares_at: Callable[[FloatArray], FloatArray], edges: FloatArray) -> FloatArray:
    """The mean of shares (columns) between each two edges (rows)."""
    lengths = np.diff(edges)
    means = np.zeros(0)
    for way, weight in zip(_GAUSS, _GAUSS_WEIGHTS, strict=True):
        found = weight * shares_at(edges[:-1] + way * lengths)
        means = found if not means.size else means + found
    return means


def _rounded(due: FloatArray, size: int, drawn: BoolArray) -> Int64Array:
    """Whole numbers that sum to `size`, which is about the sum of `due`: floors, but 0 at least,
    then one each to the largest remainders. Those not `drawn` get nothing.
    """
    totals = np.where(drawn, np.floor(np.maximum(due, 0.0)), 0.0).astype(np.int64)
    missing = size - int(totals.sum())
    while missing:
        # Mostly once: what is owed below 0 and not drawn may leave more to give, or too much given.
        step = 1 if missing > 0 else -1
        able = np.flatnonzero(drawn if step > 0 else totals > 0)
        first = np.argsort(step * (totals - due)[able], kind="stable")[: abs(missing)]
        totals[able[first]] += step
        missing = size - int(totals.sum())
    return totals

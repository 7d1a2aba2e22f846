"""Slots shared out to sources by weight, down a tree: counts and places at any position."""

from __future__ import annotations

import numpy as np

from energize.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from energize.order.tree import huffman_tree
from energize.rng import hash_positions, mix64

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

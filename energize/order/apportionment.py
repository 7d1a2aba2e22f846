"""Slots shared among sources by integer weights, without drift at any position."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from energize.core.arrays import (
    BoolArray,
    FloatArray,
    Int64Array,
)
from energize.core.rng import hash_positions, mix64

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Numbers times this are far apart in all bits."""


class HuffmanTree:
    """The tree over sources of positive `weights`, whose sum is below 2**61.

    Nodes by number: the `leaves` sources first, then inner nodes, each after its
    children; the last is the root. `light` and `heavy` are the children of inner nodes,
    `part` and `whole` what the light child and the node itself weigh. `ends` cut the
    inner nodes into runs, none of which has a node and its child.

    The two lightest nodes are joined until one is left; all pairs that no new node can
    come between are joined at once. A node's sibling weighs at least as much as each of
    its own children, so weights on the way to the root grow at least like Fibonacci
    numbers.

    Source: Huffman, "A method for the construction of minimum-redundancy codes", Proc.
    IRE 40, 1952; Buro, "On the maximum length of Huffman codes", Inf. Process. Lett.
    45, 1993.

    >>> tree = HuffmanTree(np.array([5, 1, 3]))
    >>> tree.light.tolist(), tree.heavy.tolist(), tree.whole.tolist()
    ([1, 3], [2, 0], [4, 9])
    """

    def __init__(self, weights: Int64Array) -> None:
        self.leaves = len(weights)
        self.ends = [0]
        weigh = np.concatenate([weights, np.zeros(self.leaves - 1, dtype=np.int64)])
        children = np.empty((2, self.leaves - 1), dtype=np.int64)
        nodes = np.argsort(weights, kind="stable")
        while len(nodes) > 1:
            least = weigh[nodes[0]] + weigh[nodes[1]]
            many = int(np.searchsorted(weigh[nodes], least, side="right")) // 2
            joined = np.arange(self.ends[-1], self.ends[-1] + many)
            children[:, joined] = nodes[: 2 * many].reshape(many, 2).T
            weigh[self.leaves + joined] = weigh[children[:, joined]].sum(axis=0)
            nodes = np.append(nodes[2 * many :], self.leaves + joined)
            nodes = nodes[np.argsort(weigh[nodes], kind="stable")]
            self.ends.append(self.ends[-1] + many)
        self.light, self.heavy = children
        self.part = weigh[self.light]
        self.whole = weigh[self.leaves :]

    def sums(self, values: FloatArray) -> FloatArray:
        """Return for each node the sum of its leaves' values."""
        sums = np.concatenate([values, np.zeros(len(self.light))])
        for begin, end in pairwise(self.ends):
            below = sums[self.light[begin:end]] + sums[self.heavy[begin:end]]
            sums[self.leaves + begin : self.leaves + end] = below
        return sums


class Apportionment:
    """Which source each of the slots 0, 1, 2, ... belongs to, in the ratio of integer
    `weights`.

    Of the first m slots of a node, its light child has `m * part / whole`, rounded; the
    heavy child has the others. One slot more goes to just one child, so counts never
    fall, and sum to the slots. All of it in integers: no position is too far.

    Halves are rounded up. A source is then within 1.68 slots of its exact share at
    every slot: half of the sum of its weight over that of each node above it, whose
    weights grow at least like Fibonacci numbers along a Huffman tree, so half of 1 + 1
    + 1/2 + 1/3 + 1/5 + 1/8 + ...

    With a `key`, rounding is drawn: a light child has one slot, any of them, in each
    stretch of slots in which one is due to it. A source is then within twice that,
    3.36; where shares of the slots so far are whole numbers it still has just these;
    and the order never repeats.

    `owed` is what each source is to have more than its share, from slots before the
    first: as much of it as rounding can make good comes at once. Weights are positive,
    their sum is below 2**61.

    >>> Apportionment(np.array([1, 6, 2, 1])).counts(20).tolist()
    [2, 12, 4, 2]
    """

    def __init__(
        self,
        weights: Int64Array,
        *,
        key: int | None = None,
        owed: FloatArray | None = None,
    ) -> None:
        self._tree = tree = HuffmanTree(weights)
        inner = np.arange(len(tree.whole))
        self._narrow = bool(tree.whole.max(initial=0) < _NARROW)
        self._phase = tree.whole // 2 if key is None else np.zeros_like(inner)
        self._keys = None if key is None else hash_positions(key, inner)
        self._shortest, self._longer = np.divmod(tree.whole, tree.part)
        """The slots of a stretch, and how many of `part` begin so that it has one
        more."""
        self._had = np.zeros_like(inner)
        """Whether a light child has had the slot of the stretch in which slots
        begin."""
        if owed is not None and owed.any():
            self._carry(owed)

    def _carry(self, owed: FloatArray) -> None:
        tree = self._tree
        sums = self._tree.sums(owed)
        late = sums[tree.light] - sums[tree.leaves :] * (tree.part / tree.whole)
        if self._keys is None:
            late += 0.5
        else:
            self._had = (late < 0).astype(np.int64)
            late += self._had
        # Just below 1 the float product may reach the whole.
        phase = (np.clip(late, 0.0, 1.0) * tree.whole).astype(np.int64)
        self._phase = np.clip(phase, 0, tree.whole - 1)

    def counts(self, slots: int) -> Int64Array:
        tree = self._tree
        counts = np.full(tree.leaves + len(tree.whole), slots, dtype=np.int64)
        for end, begin in pairwise(tree.ends[::-1]):
            of_nodes = counts[tree.leaves + begin : tree.leaves + end]
            light, _ = self._light(np.arange(begin, end), of_nodes)
            counts[tree.light[begin:end]] = light
            counts[tree.heavy[begin:end]] = of_nodes - light
        return counts[: tree.leaves]

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        tree = self._tree
        left = np.arange(len(slots))
        source, nth = np.empty((2, len(slots)), dtype=np.int64)
        node = np.full(len(slots), tree.leaves + len(tree.whole) - 1)
        count = slots
        while True:
            done = node < tree.leaves
            if done.any():
                source[left[done]], nth[left[done]] = node[done], count[done]
                node = node[~done]
                count = count[~done]
                left = left[~done]
            if not len(left):
                return source, nth
            inner = node - tree.leaves
            light, is_light = self._light(inner, count)
            node = np.where(is_light, tree.light[inner], tree.heavy[inner])
            count = np.where(is_light, light, count - light)

    def _light(
        self, inner: Int64Array, counts: Int64Array
    ) -> tuple[Int64Array, BoolArray]:
        """Return for inner nodes what the light child has of the first `counts` slots,
        and whether it has the next.
        """
        part = self._tree.part[inner]
        whole = self._tree.whole[inner]
        phase = self._phase[inner]
        passes, within = np.divmod(counts, whole)
        if self._narrow:
            number, left = np.divmod(within * part + phase, whole)
        else:
            number, left = divided(within, part, phase, whole)
        number += passes * part
        if self._keys is None:
            return number, left >= whole - part
        # The next slot is in the stretch `number`, into which `left` says how far it
        # reaches, in units of one slot by `part`. Slots begin somewhere in stretch 0.
        gone = left // part
        first = number == 0
        had = self._had[inner]
        begun = np.where(first, phase // part, 0)
        room = (
            self._shortest[inner] + (self._longer[inner] > left - gone * part) - begun
        )
        random = mix64(self._keys[inner] ^ number.astype(np.uint64) * _ODD)
        wide = room.astype(np.uint64)
        place = begun + ((random >> np.uint64(32)) * wide >> np.uint64(32)).astype(
            np.int64
        )
        large = (
            room >= _NARROW
        )  # each by itself: what else is asked for decides nothing
        if large.any():
            place[large] = begun[large] + (random[large] % wide[large]).astype(np.int64)
        place[first & (had > 0)] = -1
        return number + (place < gone) - had, place == gone


def divided(
    count: Int64Array, part: Int64Array, phase: Int64Array, whole: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return quotient and remainder of `count * part + phase` by `whole`, where both
    fit in int64 and the product need not: Python's integers cannot overflow.
    """
    wide = count.astype(object) * part + phase
    number: Int64Array = (wide // whole).astype(np.int64)
    return number, (wide % whole).astype(np.int64)

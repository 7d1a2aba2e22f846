"""Runs of slots that sources share, in exact integer arithmetic at any position."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np

from energize.core.arrays import (
    BoolArray,
    FloatArray,
    Int32Array,
    Int64Array,
    Rows,
    pairs_by_value,
)
from energize.core.rng import hash_positions, mix64, shuffled
from energize.order.scheme import Scheme

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Odd constant with multiples that differ in all bits (golden ratio)."""


class HuffmanTree:
    """A Huffman tree over sources.

    Nodes are numbered: first the `leaves` sources, then inner nodes, each after its
    children; the last is the root. The two lightest nodes are joined until one is left.
    The sibling of a node weighs at least as much as each child of the node, so weights
    along a path to the root grow at least like Fibonacci numbers.

    Sources: Huffman, "A method for the construction of minimum-redundancy codes", Proc.
    IRE 40, 1952; Buro, "On the maximum length of Huffman codes", Inf. Process. Lett.
    45, 1993.

    Attributes:
        light: The lighter child of each inner node.
        heavy: The heavier child of each inner node.
        part: The weight of the lighter child of each inner node.
        whole: The weight of each inner node.
        ends: Ends of ranges of inner nodes that can be processed together: no range
            contains a node and its child.

    Args:
        weights: Positive weights with a sum below 2**61, int64, shape
            (num_sources,).

    Example:
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
        """Return the sum of the values of the leaves below each node."""
        sums = np.concatenate([values, np.zeros(len(self.light))])
        for begin, end in pairwise(self.ends):
            below = sums[self.light[begin:end]] + sums[self.heavy[begin:end]]
            sums[self.leaves + begin : self.leaves + end] = below
        return sums


class Apportionment:
    """Assign the slots 0, 1, 2, ... to sources in the ratio of integer weights.

    Of the first m slots of a node, its light child has `m * part / whole`, rounded, and
    the heavy child has the rest. Every slot goes to one child, so counts never
    decrease, and sum to the slots. All arithmetic is in integers, exact at any
    position.

    Without a key, halves are rounded up. A source is then within 1.68 slots of its
    exact share at every slot: half of the sum of its weight over the weight of each
    node above it, so at most half of 1 + 1 + 1/2 + 1/3 + 1/5 + 1/8 + ...

    With a key, rounding is random: a light child has one random slot in each range of
    slots in which one is due. A source is then within 3.36 slots, counts are exact
    where shares are whole numbers, and the order never repeats.

    Args:
        weights: Positive weights with a sum below 2**61, int64, shape
            (num_sources,).
        key: Key of random rounding. None rounds halves up.
        owed: Slots that each source is due from before the first slot, float64, shape
            (num_sources,). They are compensated at once, up to the rounding.

    Example:
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
            light, _ = self._light(slice(begin, end), of_nodes)
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
        self, inner: Int64Array | slice, counts: Int64Array
    ) -> tuple[Int64Array, BoolArray]:
        """Return the slots of light children among the first slots of inner nodes.

        Also returns whether the light child has the next slot.
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
        slot = begun + ((random >> np.uint64(32)) * wide >> np.uint64(32)).astype(
            np.int64
        )
        large = (
            room >= _NARROW
        )  # each by itself: what else is asked for decides nothing
        if large.any():
            slot[large] = begun[large] + (random[large] % wide[large]).astype(np.int64)
        slot[first & (had > 0)] = -1
        return number + (slot < gone) - had, slot == gone


def divided(
    count: Int64Array, part: Int64Array, phase: Int64Array, whole: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return quotient and remainder of `count * part + phase` by `whole`.

    The product may exceed int64, so Python integers are used.
    """
    wide = count.astype(object) * part + phase
    number: Int64Array = (wide // whole).astype(np.int64)
    return number, (wide % whole).astype(np.int64)


A = TypeVar("A", Int32Array, Int64Array)


class Glide:
    """Slots with changing shares, assigned in pieces with constant shares.

    The slots that are due in a piece are rounded by largest remainder, and the rounding
    error is carried to the next piece.

    Args:
        edges: The first slot of each piece, from 0, and the end, int64,
            shape (num_pieces + 1,).
        shares: The share of each source in each piece, float64,
            shape (num_pieces, num_sources). Rows sum to 1.
        key: Key of random rounding.
        owed: Slots that each source is due from before the first slot, float64, shape
            (num_sources,).
    """

    def __init__(
        self,
        edges: Int64Array,
        shares: FloatArray,
        *,
        key: int | None,
        owed: FloatArray,
    ) -> None:
        self._edges = edges
        self._key = key
        self._length = int(edges[-1])
        self.first_shares: FloatArray = shares[0]
        totals = np.empty_like(shares, dtype=np.int64)
        due = shares * np.diff(edges)[:, np.newaxis]
        for piece, size in enumerate(np.diff(edges).tolist()):
            owed = owed + due[piece]
            totals[piece] = rounded_shares(owed, size, shares[piece] > 0)
            owed = owed - totals[piece]
        self._owed = owed
        self._before = np.zeros((len(totals) + 1, len(owed)), dtype=np.int64)
        np.cumsum(totals, axis=0, out=self._before[1:])
        self._run = lru_cache(4)(self._run_of)

    def counts(self, slots: int) -> Int64Array:
        piece = int(self._piece(np.array([slots]))[0])
        members, run = self._run(piece)
        counts: Int64Array = self._before[piece].copy()
        counts[members] += run.counts(slots - int(self._edges[piece]))
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        def in_piece(piece: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
            members, run = self._run(piece)
            member, nth = run.locate(slots[rows] - self._edges[piece])
            source = members[member]
            return source, nth + self._before[piece, source]

        return pairs_by_value(self._piece(slots), in_piece)

    def due(self, slot: int) -> FloatArray:
        """Return the slots that are due to each source before a slot.

        Within a piece this is a linear interpolation; at the end, it includes the
        rounding error.

        Args:
            slot: A slot, or the end.
        """
        piece = int(self._piece(np.array([slot]))[0])
        first_counts, last_counts = self._before[piece : piece + 2]
        begin, end = self._edges[piece : piece + 2].tolist()
        due: FloatArray = first_counts + (last_counts - first_counts) * (
            (slot - begin) / (end - begin)
        )
        return due + self._owed if slot == self._length else due

    def _piece(self, slots: Int64Array) -> Int64Array:
        """Return the piece of each slot; of the end the last one."""
        piece = np.searchsorted(self._edges, slots, side="right") - 1
        return np.minimum(piece, len(self._edges) - 2)

    def _run_of(self, piece: int) -> tuple[Int64Array, Apportionment]:
        totals = self._before[piece + 1] - self._before[piece]
        members = np.flatnonzero(totals)
        key = None if self._key is None else self._key + piece
        return members, Apportionment(totals[members], key=key)


def rounded_shares(due: FloatArray, size: int, drawn: BoolArray) -> Int64Array:
    """Round to integers that sum to `size`.

    Values are rounded down, but to at least 0; then the largest remainders get one
    each.

    Args:
        due: Values with a sum of about `size`, float64, shape (n,).
        size: The sum of the result.
        drawn: Whether a value may get more than 0, bool, shape (n,).
    """
    totals = np.where(drawn, np.floor(np.maximum(due, 0.0)), 0.0).astype(np.int64)
    missing = size - int(totals.sum())
    while missing:
        # Mostly once: what is owed below 0 and not drawn may leave more to give, or too
        # much given.
        step = 1 if missing > 0 else -1
        able = np.flatnonzero(drawn if step > 0 else totals > 0)
        first = np.argsort(step * (totals - due)[able], kind="stable")[: abs(missing)]
        totals[able[first]] += step
        missing = size - int(totals.sum())
    return totals


_AHEAD = 8192
"""Slots of a window, enough to hide the overhead of numpy calls."""

LAYOUTS_KEPT = 8
"""Cached windows of a scheme."""

_Layout: TypeAlias = tuple[Int32Array, Int64Array]

_DENSE = 8
"""A window is laid out if at least one of this many of its slots is requested."""


class Turns:
    """The sources in turn, over and over.

    Args:
        sources: Number of sources.
        first: The source of slot 0.
    """

    def __init__(self, sources: int, first: int) -> None:
        self._sources = sources
        self._first = first

    def counts(self, slots: int) -> Int64Array:
        turns = (np.arange(self._sources) - self._first) % self._sources
        return (slots - turns - 1) // self._sources + 1

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        return (slots + self._first) % self._sources, slots // self._sources


class Windows:
    """Divide a run of slots into windows, and cache their order.

    With a key, the slots of each window are shuffled, so counts at ends of windows are
    those of the run. Without a key, slots stay as in the run, and windows are only used
    for dense requests, where they are faster.

    Args:
        run: The scheme of the slots.
        length: Number of slots. None for no end.
        sources: Number of sources.
        layouts: `laid_out`, with a cache.
        size: Slots of a window.
        key: Key of the shuffle. None for no shuffle.
    """

    def __init__(
        self,
        run: Scheme,
        length: int | None,
        sources: int,
        layouts: Callable[[Windows, int], _Layout],
        *,
        size: int = _AHEAD,
        key: int | None = None,
    ) -> None:
        self._run = run
        self._length = length
        self._size = size
        self._sources = sources
        self._key = key
        self._layout = partial(layouts, self)
        self._last = 0
        """The first slot of the last call."""

    def counts(self, slots: int) -> Int64Array:
        within = 0 if self._key is None else slots % self._size
        counts = self._run.counts(slots - within)
        if not within:
            return counts
        source, _ = self._layout(slots // self._size)
        return counts + np.bincount(source[:within], minlength=self._sources)

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self._key is None:
            first = self._last
            self._last = int(slots[0])
            near = abs(self._last - first) <= _DENSE * len(slots)
            if not near or int(np.ptp(slots)) > _DENSE * len(slots):
                return self._run.locate(slots)
        windows, within = np.divmod(slots, self._size)

        def in_window(window: int, rows: Rows) -> tuple[Int64Array, Int64Array]:
            source, nth = self._layout(window)
            return source[within[rows]].astype(np.int64), nth[within[rows]]

        return pairs_by_value(windows, in_window)

    def laid_out(self, window: int) -> _Layout:
        """Return the source of each slot of a window, and its item of the source."""
        start = window * self._size
        end = (window + 1) * self._size
        if self._length is not None:
            end = min(end, self._length)
        if self._key is None:
            source, nth = self._run.locate(np.arange(start, end))
            return source.astype(np.int32), nth
        first = self._run.counts(start)
        last = self._run.counts(end)
        ordered = np.repeat(np.arange(self._sources, dtype=np.int32), last - first)
        offsets = (last - np.cumsum(last - first))[ordered]
        order = shuffled(self._key, window, end - start)
        return rearranged(ordered, offsets + np.arange(end - start), order)


def rearranged(source: A, nth: Int64Array, order: Int64Array) -> tuple[A, Int64Array]:
    """Return the sources of slots in another order, with their items numbered again.

    Args:
        source: The source of each slot, shape (n,).
        nth: The item of its source in each slot, int64, shape (n,).
        order: Numbers of slots in their new order, int64, shape (n,).
    """
    placed = source[order]
    placed_nth = np.empty_like(nth)
    placed_nth[_by_source(placed)] = nth[_by_source(source)]
    return placed, placed_nth


def _by_source(source: Int32Array | Int64Array) -> Int64Array:
    """Return the slots of the first source, then of the second, and so on."""
    # Numpy sorts 16-bit integers by radix, several times as fast as longer ones.
    small = not len(source) or int(source.max()) < 2**16
    return np.argsort(source.astype(np.uint16) if small else source, kind="stable")

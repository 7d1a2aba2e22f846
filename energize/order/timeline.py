"""Schemes: which source each slot of a mix belongs to; made, asked, changed and ended.

A scheme is a timeline of segments: in each the same sources, by fixed or interpolated
weights. Each segment is made from the ones before it, so nothing that comes later
changes what came before.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from energize.core.arrays import (
    BoolArray,
    FloatArray,
    Int32Array,
    Int64Array,
    Rows,
    pairs_by_value,
)
from energize.core.checks import checked_choice, checked_whole, whole_number
from energize.core.description import described
from energize.core.rng import derive, hash_positions, mix64, shuffled
from energize.core.stream import INFINITE
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.order.weights import (
    Era,
    GivenWeights,
    Weight,
    era_at,
    ever_positive,
    named_weights,
    names_apart,
    schedules_in,
    shares_at,
    weight_as_described,
)

# Slots shared out to sources by weight, in integers: counts and places at any position.

A = TypeVar("A", Int32Array, Int64Array)

_NARROW = 2**31
"""Products of two numbers up to this one fit in int64."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Numbers times this are far apart in all bits."""


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


# Slots while shares change evenly: short pieces, each with whole numbers of slots.


class Glide:
    """Slots from `edges[0]` = 0 on, shared out piece by piece: what sources are due in
    a piece is rounded by largest remainder, and what rounding owes them is carried to
    the next.

    `shares` are those of each source (columns) in each piece (rows), and sum to 1.
    `owed` is what they are due from slots before the first.
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
            totals[piece] = _rounded(owed, size, shares[piece] > 0)
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
        """Return what each source is due before a slot: what it has, in a piece its
        part of that; at the end also what rounding still owes it.
        """
        piece = int(self._piece(np.array([slot]))[0])
        before, after = self._before[piece : piece + 2]
        begin, end = self._edges[piece : piece + 2].tolist()
        due: FloatArray = before + (after - before) * ((slot - begin) / (end - begin))
        return due + self._owed if slot == self._length else due

    def _piece(self, slots: Int64Array) -> Int64Array:
        """Return the piece of each slot; of the end the last one."""
        found = np.searchsorted(self._edges, slots, side="right") - 1
        return np.minimum(found, len(self._edges) - 2)

    def _run_of(self, piece: int) -> tuple[Int64Array, Apportionment]:
        totals = self._before[piece + 1] - self._before[piece]
        members = np.flatnonzero(totals)
        key = None if self._key is None else self._key + piece
        return members, Apportionment(totals[members], key=key)


def _rounded(due: FloatArray, size: int, drawn: BoolArray) -> Int64Array:
    """Return integers that sum to `size`, which is about the sum of `due`: floors, but
    0 at least, then one each to the largest remainders. Those not `drawn` get nothing.
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


# Runs in other orders: sources in turn, and slots shuffled in windows.

_AHEAD = 8192
_LAYOUTS = 8
"""Slots that are laid out at once: enough that calls of numpy cost little beside their
work; and of how many such windows of a scheme the layout is kept."""

_Layout: TypeAlias = tuple[Int32Array, Int64Array]

_DENSE = 8
"""Where one slot of so many is asked for, laying out all costs less than finding it
alone."""


class Turns:
    """The sources in turn, from source `first` on, over and over."""

    def __init__(self, sources: int, first: int) -> None:
        self._sources = sources
        self._first = first

    def counts(self, slots: int) -> Int64Array:
        turns = (np.arange(self._sources) - self._first) % self._sources
        return (slots - turns - 1) // self._sources + 1

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        return (slots + self._first) % self._sources, slots // self._sources


class Windows:
    """A run of `length` slots, or without end, in windows of `size` slots that are laid
    out at once.

    With a `key`, the slots of each window are shuffled: at its end sources have what
    the run gives them. Without, slots are where the run has them, and laid out only
    where they are read on. `layouts` is `laid_out`, some of whose answers are kept.
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
        """Return the sources of the slots of a window, and which of its source each
        is.
        """
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
        before = (last - np.cumsum(last - first))[ordered]
        order = shuffled(self._key, window, end - start)
        return rearranged(ordered, before + np.arange(end - start), order)


def rearranged(source: A, nth: Int64Array, order: Int64Array) -> tuple[A, Int64Array]:
    """Return the sources of slots in another order, and which of its source each slot
    now is.
    """
    placed = source[order]
    found = np.empty_like(nth)
    found[_by_source(placed)] = nth[_by_source(source)]
    return placed, found


def _by_source(source: Int32Array | Int64Array) -> Int64Array:
    """Return the slots of the first source, then those of the second, ..., each in
    order.
    """
    # Numpy sorts 16-bit integers by radix, several times as fast as longer ones.
    small = not len(source) or int(source.max()) < 2**16
    return np.argsort(source.astype(np.uint16) if small else source, kind="stable")


# Schemes: timelines of segments.

SCHEMES = ("even", "exact", "block", "random", "uniform", "round_robin")
"""The names of all schemes; `block` has the option `block_size`."""

WEIGHTLESS = frozenset({"uniform", "round_robin"})
"""Schemes that treat all sources alike, whatever their weights."""

STOP_RULES = ("restart", "first_exhausted", "all_exhausted")

_FARTHEST = 2**62
"""As far as schemes are asked."""

_CLOSING = 64
"""Sources that end within start / 64 slots of each other share one closing segment."""

_BLOCK_SIZE = 1000
_LARGEST_BLOCK = 2**24
_RANDOM_WINDOW = 2**16

Names: TypeAlias = tuple[str, ...] | None
Settings: TypeAlias = dict[str, Any]
Changes: TypeAlias = tuple[tuple[int, tuple[Weight, ...]], ...]
"""Slots, and the weights that are in force from there on; the first slot is 0."""


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


@dataclass(frozen=True, eq=False)
class Segment(ABC):
    """Slots from `start` to before `end`; `before` are the slots of every source before
    `start`.
    """

    start: int
    end: int
    before: Int64Array

    @abstractmethod
    def counts(self, slot: int) -> Int64Array:
        """Return the slots of every source before a slot of this segment, or its
        end.
        """

    @abstractmethod
    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return for slots of this segment their sources, and how many before went to
        each.
        """


class WeightedScheme(ABC):
    """A scheme by the weights of its `eras`, in segments that are found when they are
    needed. Two of equal descriptions are equal.

    Slots are whole numbers from 0, below 2**62, in an array of one dimension or a list.
    Raises `ConfigError` for others.
    """

    def __init__(self, names: Names, changes: Changes, settings: Settings) -> None:
        self.names = names
        self._settings = settings
        self.eras = [self._era(slot, weights) for slot, weights in changes]
        self._begin_with(())

    @abstractmethod
    def _era(self, slot: int, weights: Sequence[Weight]) -> Era:
        """Return the era of weights from a slot on."""

    @abstractmethod
    def _after(self, last: Any) -> Segment | None:
        """Return the segment that follows the last one, if any; None where the mix
        ends.
        """

    def counts(self, n: int) -> Int64Array:
        """Return the slots given to each source among the first `n`: int64, sums to
        `n`, monotone in `n`.
        """
        slots = n if type(n) is int else whole_number(n)
        if slots is None or not 0 <= slots <= _FARTHEST:
            raise ConfigError(
                f"counts(n): n is a number of slots, from 0 to 2**62; got {n!r}"
            )
        self.reach(slots)
        at = int(np.searchsorted(self._starts, max(slots - 1, 0), side="right"))
        return self._segments[at - 1].counts(slots)

    def locate(self, ks: npt.ArrayLike) -> tuple[Int64Array, Int64Array]:
        """Return for each slot its source, and how many slots before it went to that
        source.
        """
        slots = np.asarray(ks)
        if not slots.size:
            return slots.astype(np.int64), slots.astype(np.int64)
        first, last = (
            (int(slots.min()), int(slots.max()))
            if slots.dtype.kind in "iu"
            else (-1, 0)
        )
        if slots.ndim != 1 or first < 0 or last >= _FARTHEST:
            raise ConfigError(
                "locate(ks): slots are whole numbers from 0 to 2**62 - 1 in an array "
                "of one "
                f"dimension, for one slot [k]; got {reprlib.repr(ks)}"
            )
        slots = slots.astype(np.int64, copy=False)
        if last < self._segments[0].end:  # as in most mixes
            return self._segments[0].locate(slots)
        self.reach(last + 1)
        numbers = np.searchsorted(self._starts, slots, side="right") - 1
        return pairs_by_value(
            numbers, lambda at, rows: self._segments[at].locate(slots[rows])
        )

    def reach(self, n: int) -> int:
        """Find the segments of the first `n` slots; return `n`, or the size of a mix
        that ends before.
        """
        segments = self._segments
        while segments[-1].end < n:
            after = self._after(segments[-1])
            if after is None:
                n = segments[-1].end
                break
            segments = (*segments, after)
        if len(segments) > len(self._segments):  # another thread may have come farther
            self._begin_with(segments)
        return n

    def _begin_with(self, segments: tuple[Segment, ...]) -> None:
        if not segments:
            first = self._after(None)
            if first is None:
                raise EmptyDatasetError(
                    "no source with items has a weight at slot 0; give it one"
                )
            segments = (first,)
        self._segments = segments
        self._starts = np.array([segment.start for segment in self._segments])

    @property
    def changes(self) -> Changes:
        """The slots from which on weights are others, and these."""
        return tuple((era.start, era.given) for era in self.eras[1:])

    def with_weights_from(self, slot: int, weights: GivenWeights) -> Self:
        """Return the same scheme with other weights from a slot on; all slots before it
        stay as they are.

        Weights are given as those of the scheme are: of all sources, by name if they
        have names. Raises `ConfigError` for a slot before that of an earlier change.

        >>> scheme = make_scheme("exact", {"code": 1, "text": 1})
        >>> changed = scheme.with_weights_from(100, {"code": 3, "text": 1})
        >>> changed.counts(100).tolist(), changed.counts(200).tolist()
        ([50, 50], [125, 75])
        """
        at = checked_whole(slot, "the slot from which weights change", 0)
        if self.changes and at <= (before := self.eras[-1].start):
            raise ConfigError(
                f"weights change at slot {before} already; give a later one than {at}"
            )
        names, listed = named_weights(weights)
        if names and self.names:
            if difference := names_apart(self.names, names):
                raise WeightError(f"the weights do not name the sources: {difference}")
            listed = tuple(
                map(dict(zip(names, listed, strict=True)).__getitem__, self.names)
            )
        if len(listed) != (count := len(self.eras[0].given)):
            raise WeightError(f"{len(listed)} weights are given for {count} sources")
        return self._with(self._until(at), eras=[*self.eras, self._era(at, listed)])

    def as_described(
        self, weights: Sequence[Any], changes: Sequence[Sequence[Any]]
    ) -> Self:
        """Return the same scheme with weights as `described` tells them, and (slot,
        weights) of changes.

        Raises `KeyError`, `TypeError` or `ValueError` for what was not told so.
        """
        told = [(0, weights), *changes]
        given = tuple((at, tuple(map(weight_as_described, w))) for at, w in told)
        return type(self)(self.names, given, self._settings)

    def _until(self, slot: int) -> tuple[Any, ...]:
        """Return segments that are known, up to a slot, which nothing from there on
        decides.
        """
        return ()

    def _with(self, segments: tuple[Segment, ...], **changed: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__ | changed)
        other._begin_with(segments)
        return other

    def first_difference(self, other: Self, end: int) -> int | None:
        """Return the first slot before `end` from which on `other`, which differs in
        its weights alone, may give slots to other sources; None if all before it are
        the same.
        """
        slot = 0
        while slot < end:
            (mine, cut), (their, their_cut) = (
                era_at(self.eras, slot),
                era_at(other.eras, slot),
            )
            if mine.asks(slot) != their.asks(slot):
                return slot
            slot = min(cut, their_cut)
            if cut != their_cut:
                return slot if slot < end else None
        return None

    def shares(self, slot: int = 0) -> list[float]:
        """Return the asked share of each source at a slot: its weight divided by the
        sum.
        """
        era, _ = era_at(self.eras, slot)
        shares: list[float] = shares_at(era.given, [slot])[0].tolist()
        return shares

    @property
    def varies(self) -> bool:
        """Whether shares are not the same at all slots."""
        return len(self.eras) > 1 or bool(self.eras[0].points)

    def describe(self) -> dict[str, Any]:
        """Return name and parameters as JSON: what a saved state is checked against."""
        tree: dict[str, Any] = self._settings | {
            "names": self.names,
            "weights": self.eras,
        }
        return {name: described(value) for name, value in tree.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightedScheme) and self.describe() == other.describe()

    __hash__ = None  # type: ignore[assignment]  # its description is compared

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: not what was computed."""
        changes = (0, self.eras[0].given), *self.changes
        return type(self), (self.names, changes, self._settings)


# Schemes by their names.


@dataclass(frozen=True, eq=False)
class MixingSegment(Segment):
    """The slots belong to the sources `members`, by a `run` of their own.

    `owed` is what each source was due before the start and had not had. `dues` are the
    members' weights, or what a glide gives them; None in a segment in which sources
    reach their limits.
    """

    members: Int64Array
    run: Scheme
    dues: Int64Array | Glide | None
    owed: FloatArray

    def counts(self, slot: int) -> Int64Array:
        counts = self.before.copy()
        counts[self.members] += self.run.counts(slot - self.start)
        return counts

    def locate(self, slots: Int64Array) -> tuple[Int64Array, Int64Array]:
        if not self.start and len(self.members) == len(self.before):  # as in most mixes
            return self.run.locate(slots)
        member, nth = self.run.locate(slots - self.start)
        source = self.members[member]
        return source, nth + self.before[source]

    @property
    def shares(self) -> FloatArray:
        """Those of the members at the start, in any unit."""
        dues: Any = self.dues
        return dues.first_shares if isinstance(dues, Glide) else dues.astype(np.float64)

    def owed_after(self, after: Int64Array) -> FloatArray:
        """Return what every source was due by the end and has not had, with its slots
        `after`.
        """
        length = self.end - self.start
        owed = np.zeros(len(self.owed))
        had = (after - self.before)[self.members]
        if isinstance(self.dues, Glide):
            owed[self.members] = self.dues.due(length) - had
        elif self.dues is not None:
            total = int(self.dues.sum())
            passes, rest = divmod(length, total)
            same = np.ones_like(self.dues)
            due, part = divided(rest * same, self.dues, 0 * same, total * same)
            owed = self.owed.copy()
            owed[self.members] += (passes * self.dues + due - had) + part / total
        return owed

    def windows_within(self, limits: Int64Array, window: int) -> int | None:
        """Return how many windows of slots, counted from the start, give no source more
        than its limit; None if all do.
        """
        end = min(self.end, _FARTHEST)

        def beyond(windows: int) -> bool:
            return bool(
                (self.counts(min(self.start + windows * window, end)) > limits).any()
            )

        most = -(-(end - self.start) // window)
        if (limits == INFINITE).all() or not beyond(most):
            return None
        left = (limits - self.before)[self.members]
        shares = self.shares
        guess = float((left / np.maximum(shares, 1e-18)).min() * shares.sum()) / window
        return first_where(beyond, most, guess) - 1


class MixingScheme(WeightedScheme):
    """A scheme by name; see `make_scheme`.

    With `limited`, sources have their first slots up to a limit and no others. Where
    sources end, the others take over their slots by weight. When none with a weight is
    left, the mix ends.

    Sources that reach their limits soon after one another do so in one closing segment,
    with whole numbers of slots for all: within a slot per source, or a 64th of what
    lies before.
    """

    def __init__(self, names: Names, changes: Changes, settings: Settings) -> None:
        self._name: str = settings["scheme"]
        self._key = derive(self._name, settings["key"])
        self._window: int = settings.get("block_size", _RANDOM_WINDOW)
        self._limits = np.full(len(changes[0][1]), INFINITE, dtype=np.int64)
        self._gone: tuple[tuple[int, int], ...] = ()
        """Slots from which on a source is left out."""
        self._layouts = lru_cache(_LAYOUTS)(
            Windows.laid_out
        )  # of all segments: there may be many
        super().__init__(names, changes, settings)

    def limited(self, limits: Int64Array) -> MixingScheme:
        """Return the same scheme with at most so many slots for each source."""
        return self._with((), _limits=limits)

    def without(self, source: int, slot: int) -> MixingScheme:
        """Return the same scheme with no more slots for a source from `slot` on; all
        slots before it stay as they are.
        """
        self.reach(slot)
        return self._with(self._until(slot), _gone=(*self._gone, (slot, source)))

    def _until(self, slot: int) -> tuple[Segment, ...]:
        kept = [each for each in self._segments if each.start < slot]
        if kept:
            kept[-1] = replace(kept[-1], end=min(kept[-1].end, slot))
        return tuple(kept)

    def _era(self, slot: int, weights: Sequence[Weight]) -> Era:
        if self._name in WEIGHTLESS:
            if any(schedules_in(weights)):
                raise ConfigError(
                    f"the scheme {self._name!r} takes no notice of weights; use 'even'"
                )
            era = Era(slot, [float(ever_positive(each)) for each in weights])
            era.given = tuple(weights)
            return era
        return Era(slot, weights, self._window if self._name == "block" else 1)

    def _after(self, last: MixingSegment | None) -> MixingSegment | None:
        start = 0
        before = np.zeros_like(self._limits)
        owed = before.astype(np.float64)
        if last is not None:
            start = last.end
            before = last.counts(last.end)
            owed = last.owed_after(before)
        left = np.where(self._limits < INFINITE, self._limits - before, INFINITE)
        left[[source for slot, source in self._gone if slot <= start]] = 0
        era, cut = era_at(self.eras, start)
        if not left[era.has_weight(start)].any():
            return None
        cut = min([cut, *(slot for slot, _ in self._gone if slot > start)])
        glides = era.glides(start)
        weights = era.drawn.astype(np.int64) if glides else era.fixed(start)
        members = np.flatnonzero((left > 0) & (weights > 0))
        key = self._rounding(start)
        mine = owed[members]
        end = INFINITE
        dues: Int64Array | Glide = weights[members]
        if glides:
            end = era.next_point(start)
            dues = Glide(*era.gliding(start, members), key=key, owed=mine)
            run = self._arranged(dues, start, len(members), end - start)
        elif self._name == "round_robin":
            run = Turns(len(members), _next_turn(members, last))
        else:
            whole = Apportionment(weights[members], key=key, owed=mine)
            run = self._arranged(whole, start, len(members), None)
        # Cut last: nothing before the cut may depend on it.
        found = self._closed(
            MixingSegment(start, end, before, members, run, dues, owed), left
        )
        return replace(found, end=min(found.end, cut))

    def _rounding(self, start: int) -> int | None:
        """Return the key by which `even` draws where others round."""
        return derive(self._key, start) if self._name == "even" else None

    def _arranged(
        self, run: Scheme, start: int, sources: int, length: int | None
    ) -> Scheme:
        """Return a run in the windows of the scheme."""
        if self._name in {"even", "exact"}:
            return Windows(run, length, sources, self._layouts)
        key = derive(self._key, start)
        return Windows(run, length, sources, self._layouts, size=self._window, key=key)

    def _closed(self, segment: MixingSegment, left: Int64Array) -> MixingSegment:
        """Return a segment up to where sources begin to reach their limits; or one in
        which they do.
        """
        start = segment.start
        members = segment.members
        turns = self._name == "round_robin"
        window = 1 if turns else max(len(members), start // _CLOSING, 1)
        limits = np.where(left < INFINITE, segment.before + left, INFINITE)
        windows = segment.windows_within(limits, window)
        if windows is None:
            return segment
        if windows:
            return replace(segment, end=start + windows * window)
        able = members[segment.shares > 0]
        size = min(window, segment.end - start, sum(left[able].tolist()))
        totals = _capped(segment.shares, left[members], size)
        drawn = np.flatnonzero(totals)
        whole = Apportionment(totals[drawn], key=self._rounding(start))
        run = self._arranged(whole, start, len(drawn), size)
        return replace(
            segment, end=start + size, members=members[drawn], run=run, dues=None
        )


def _next_turn(members: Int64Array, last: MixingSegment | None) -> int:
    """Return which of the members has the next turn."""
    if last is None:
        return 0
    member, _ = last.run.locate(np.array([last.end - last.start - 1]))
    return int(np.searchsorted(members, last.members[member[0]], side="right")) % len(
        members
    )


def _capped(weights: FloatArray, left: Int64Array, size: int) -> Int64Array:
    """Share out `size` slots by weight, but to each source no more than are `left`,
    rounded by largest remainder.
    """
    totals = np.zeros_like(left)
    able = (left > 0) & (weights > 0)
    while able.any():
        due = np.where(able, weights, 0.0)
        due *= (size - int(totals.sum())) / due.sum()
        full = able & (due >= left)
        if not full.any():
            return totals + _rounded(due, size - int(totals.sum()), able)
        totals[full] = left[full]
        able &= ~full
    return totals


def make_scheme(
    name: str, weights: GivenWeights, *, key: int = 0, **options: Any
) -> MixingScheme:
    """Return the scheme called `name` over sources with these `weights`, which need not
    sum to 1.

    Weights are given by position, or by name in a mapping; sources are numbered in its
    order, and one of weight 0 keeps its number. A weight is a number or a `Schedule`; a
    `WeightScheduler` has those of all sources. `key` is what random choices depend on.
    `options` are the scheme's own: `block_size` of `block`.

    | name | promise |
    |---|---|
    | `even` | exact shares in every prefix, within 3.36 slots; the order is drawn |
    | `exact` | exact shares in every prefix, within 1.68 slots; no draws |
    | `block` | the counts of `exact` at ends of blocks of `block_size`, random inside |
    | `random` | random in windows of 65,536 slots, with the counts of `exact` at ends |
    | `uniform` | as `random`, all sources alike |
    | `round_robin` | all sources in turn |

    Under schedules, sources are due the integral of their shares. What a source is owed
    at a point is carried on, so roundings do not add up; where shares are interpolated,
    up to 8 million slots from point to point, each of up to 512 sources is within
    another 0.4 slots of the integral. Any slot before a point of a schedule that
    changes in steps, or before a change of weights (`with_weights_from`), is where it
    is without it.

    Raises `WeightError` for weights that cannot be used, also where all are 0 at some
    slot, and `ConfigError` for an unknown name or option, and for schedules that the
    scheme cannot follow.

    >>> scheme = make_scheme("block", {"code": 3, "text": 1}, block_size=4)
    >>> scheme.names, scheme.counts(8).tolist()
    (('code', 'text'), [6, 2])
    """
    for option in options:
        checked_choice(option, "option", option_names(name), f"the scheme {name!r}")
    settings = {"scheme": name, "key": checked_whole(key, "the key of a scheme")}
    if option_names(name):
        size = checked_whole(options.get("block_size", _BLOCK_SIZE), "block_size", 1)
        if size > _LARGEST_BLOCK:
            raise ConfigError(
                f"block_size is {size}, more than {_LARGEST_BLOCK}; use 'random'"
            )
        settings["block_size"] = size
    names, listed = named_weights(weights)
    return MixingScheme(names, ((0, listed),), settings)


def option_names(name: str) -> tuple[str, ...]:
    """Return the options of the scheme called `name`; raise `ConfigError` if there is
    none.

    >>> option_names("block")
    ('block_size',)
    """
    return ("block_size",) if checked_choice(name, "scheme", SCHEMES) == "block" else ()


# Where a mix of finite sources ends.


def slot_limits(
    sizes: Sequence[int], stop: str, max_epochs: Sequence[int | None]
) -> Int64Array:
    """Return how many slots each source may take: `max_epochs` times its size, or
    `INFINITE`.

    Where `max_epochs` is None, it is without limit under `restart`, and one epoch
    otherwise. Raises `ConfigError` for an unknown rule or an epoch count below 1.

    >>> slot_limits([10, 30], "all_exhausted", [None, 2]).tolist()
    [10, 60]
    """
    checked_choice(stop, "stop", STOP_RULES)
    limits = []
    for number, (size, epochs) in enumerate(zip(sizes, max_epochs, strict=True)):
        default = INFINITE if stop == "restart" else size
        where = f"max_epochs, dataset {number}: a number of epochs"
        limits.append(
            default if epochs is None else size * checked_whole(epochs, where, 1)
        )
    return np.array([min(limit, INFINITE) for limit in limits], dtype=np.int64)


def stopped_scheme(scheme: Scheme, limits: Int64Array, stop: str) -> tuple[Scheme, int]:
    """Return `scheme` ended by a stop rule where sources have had their `limits`, and
    its size.

    `first_exhausted` ends before the first slot that asks a source for more than its
    limit. Under the other rules a source that has reached its limit drops out and its
    slots go to those that are left, by weight; it ends when no source with a weight is
    left, so every source takes its limit exactly, unless its weight reaches 0. The size
    is `INFINITE` if that never comes. After the end the same slots come again, and
    every source goes on where it was.

    Sources that can never be drawn, of weight 0, count for nothing. Only schemes that
    `make_scheme` made can leave out sources.

    >>> halves = make_scheme("exact", [0.5, 0.5])
    >>> scheme, size = stopped_scheme(halves, np.array([10, 30]), "all_exhausted")
    >>> size, scheme.counts(20).tolist(), scheme.counts(30).tolist()
    (40, [10, 10], [10, 20])
    """
    guess = 1.0
    if isinstance(scheme, MixingScheme):
        drawn = np.any([era.drawn for era in scheme.eras], axis=0)
        wanted = np.where(drawn, limits, 0)
        size = min(sum(wanted.tolist()), INFINITE)
        if stop != "first_exhausted":
            if not size or (wanted[drawn] == INFINITE).all():
                return scheme, size
            ended = scheme.limited(wanted)
            if scheme.varies:  # a weight may reach 0 before its source is exhausted
                size = ended.reach(min(size, _FARTHEST))
            if size >= _FARTHEST:
                return ended, INFINITE
            return _Epochs(ended, ended.counts(size)), size
        limits = np.where(drawn, limits, INFINITE)
        guess = float((limits / np.maximum(scheme.shares(), 1e-18)).min())

    def beyond(slots: int) -> bool:
        return bool((scheme.counts(slots) > limits).any())

    end = _FARTHEST
    if not (limits == INFINITE).all():
        end = first_where(beyond, _FARTHEST, guess)
    if end == _FARTHEST:
        return scheme, INFINITE
    return _Epochs(scheme, scheme.counts(end - 1)), end - 1


class _Epochs:
    """The first slots of a scheme over and over, `each` of every source."""

    def __init__(self, slots: Scheme, each: Int64Array) -> None:
        self._size = int(each.sum())
        self._slots = slots
        self._each = each

    def counts(self, n: int) -> Int64Array:
        epochs, rest = divmod(n, self._size)
        return self._slots.counts(rest) + self._each * epochs

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        epochs, at = np.divmod(ks, self._size)
        source, nth = self._slots.locate(at)
        before: Int64Array = epochs * self._each[source]
        return source, nth + before

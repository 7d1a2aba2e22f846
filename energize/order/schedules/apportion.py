"""Whole slots out of fractional dues: exact in their sum, never taken back, never far off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energize.arrays import Int64Array
from energize.order.quotients import ceil_quotient
from energize.order.schedules.clocks import Clocks
from energize.order.schedules.integral import UNIT, UNIT_BITS, Dues
from energize.order.schedules.marks import Marks
from energize.order.schedules.tree import Nodes, SourceTree
from energize.rng import hash_positions

__all__ = ["Apportionment"]


class Apportionment:
    """Which source each slot of a run goes to, and how many of the first slots each source gets.

    The counts sum to the slots, never fall, and are computed for any slot alone. At every slot, a
    source is within log2(n) / 2 slots of its due (within log2(n), with a `key`), rounded up to
    whole levels; one that is due nothing gets nothing. Dues are those of `dues` at the `marks`, and
    grow evenly between them. Slots are counted from the first mark.

    How: the sources are the leaves of a binary tree. A node that has m slots looks up when it is
    due m, and its left child gets what is due to it by then, rounded; the rest is the right
    child's. Since a child's due never grows faster than its parent's, one slot more for the parent
    is one slot more for just one of its children. A child is as far from its due as its part of
    what the parent is, and half a slot. So each level adds half a slot at most; and where children
    are about equal, which the tree is made for, all levels together about one. All of it in
    integers, a level of the tree at a time.

    A `key` rounds each node at a random threshold instead of one half: over many runs joined end to
    end, tiny dues are then met on average.
    """

    def __init__(self, dues: Dues, marks: Marks, key: int | None = None) -> None:
        self._dues, self._marks = dues, marks
        [weights] = dues.units(np.array([marks.end]))
        self._tree = SourceTree(weights)
        sources = len(weights)
        self._thresholds = np.full(sources, UNIT // 2, dtype=np.int64)
        """The threshold of the node whose children meet at each leaf."""
        if key is not None:
            words = hash_positions(key, np.arange(sources))
            self._thresholds = (words >> np.uint64(64 - UNIT_BITS)).astype(np.int64)

    def counts(self, slots: Int64Array) -> Int64Array:
        """The slots of each source (columns) among the first of all, for numbers of them (rows)
        that do not fall.
        """
        order, nodes = self._tree.order, self._tree.root()
        found = np.empty((len(order), len(slots)), dtype=np.int64)
        counts = slots[np.newaxis]
        clocks = self._clocks(int(slots[0]), int(slots[-1]))
        while len(nodes.low):
            leaf = nodes.leaf
            found[order[nodes.low[leaf]]] = counts[leaf]
            nodes, counts = nodes.among(~leaf), counts[~leaf]
            told = np.empty(counts.shape, dtype=np.bool_)  # once for each count of a node
            told[:, :1] = True
            np.not_equal(counts[:, 1:], counts[:, :-1], out=told[:, 1:])
            node = np.nonzero(told)[0]
            left = self._left(clocks, nodes, node, counts[told])
            left = left[np.cumsum(told) - 1].reshape(counts.shape)
            counts = np.stack([left, counts - left], axis=1).reshape(-1, len(slots))
            nodes = self._tree.children(nodes)
        return found.T

    def located(self, first: int, behind: int) -> tuple[Int64Array, Int64Array]:
        """The source of each slot from `first` up to `behind`, and its slots before that."""
        source, nth = np.empty((2, behind - first), dtype=np.int64)
        clocks = self._clocks(first, behind)
        level = _Level(
            self._tree.root(),
            np.array([first]),
            np.array([behind - first]),
            np.arange(behind - first),
        )
        while len(level.places):
            leaf = level.nodes.leaf
            done = level.among(leaf)
            source[done.places] = np.repeat(self._tree.order[done.nodes.low], done.sizes)
            nth[done.places] = np.repeat(done.before, done.sizes) + _ranks(done.sizes)
            level = level.among(~leaf)
            # One question more than slots: a slot goes to the left if the left child's count grows.
            asked = np.repeat(level.before, level.sizes + 1) + _ranks(level.sizes + 1)
            node = np.repeat(np.arange(len(level.sizes)), level.sizes + 1)
            left = self._left(clocks, level.nodes, node, asked)
            level = level.split(left, self._tree.children(level.nodes))
        return source, nth

    def _clocks(self, first: int, last: int) -> Clocks:
        return Clocks(self._dues, self._marks, self._tree.order, first, last)

    def _left(
        self, clocks: Clocks, nodes: Nodes, node: Int64Array, counts: Int64Array
    ) -> Int64Array:
        """What the left child of a node gets of the node's slots, for pairs of `node` (its number
        among `nodes`) and its count, in order.
        """
        if not len(counts):
            return counts
        wanted = counts << UNIT_BITS
        at = clocks.when(nodes, node, wanted)
        missing = wanted - at.due
        # The clock goes on evenly to the next mark; behind the last one, at the average pace:
        # rounding may give a node a little more than it is ever due.
        about = at.grown_left.astype(np.float64) * missing
        part = ceil_quotient(at.grown_left * missing + 1, about, np.maximum(at.grown, 1)) - 1
        left: Int64Array = at.left + part + self._thresholds[nodes.middle[node]] >> UNIT_BITS
        return left


class _Level(NamedTuple):
    """Nodes of one level, and the slots each has in a piece of the run: node after node."""

    nodes: Nodes
    before: Int64Array
    """For each node, its slots before the piece."""
    sizes: Int64Array
    """For each node, its slots in the piece."""
    places: Int64Array
    """For each slot, where in the piece it is."""

    def among(self, chosen: npt.NDArray[np.bool_]) -> _Level:
        if chosen.all():
            return self
        places = self.places[np.repeat(chosen, self.sizes)]
        return _Level(self.nodes.among(chosen), self.before[chosen], self.sizes[chosen], places)

    def split(self, left: Int64Array, children: Nodes) -> _Level:
        """The next level; `left` is what left children have before each slot and behind the last
        of each node.
        """
        first = np.cumsum(self.sizes + 1) - (self.sizes + 1)
        left_before, left_sizes = left[first], left[first + self.sizes] - left[first]
        node = np.repeat(np.arange(len(self.sizes)), self.sizes)
        rank = _ranks(self.sizes)
        at = first[node] + rank
        to_left = left[at] - left_before[node]
        begin = np.cumsum(self.sizes) - self.sizes
        moved = np.where(left[at + 1] > left[at], to_left, left_sizes[node] + rank - to_left)
        places = np.empty_like(self.places)
        places[begin[node] + moved] = self.places
        before = np.stack([left_before, self.before - left_before], axis=1).ravel()
        sizes = np.stack([left_sizes, self.sizes - left_sizes], axis=1).ravel()
        below = _Level(children, before, sizes, places)
        return below.among(sizes > 0)


def _ranks(sizes: Int64Array) -> Int64Array:
    """0, 1, ... within each of several groups that follow one another."""
    ranks: Int64Array = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks

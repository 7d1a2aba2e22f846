"""Dues made whole slots: the tree of sources a level at a time, and the marks it goes by."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.order.schedules.apportion import Apportionment
from energize.order.schedules.integral import UNIT, UNIT_BITS, ShareIntegral
from energize.order.schedules.marks import Marks, Stretch
from energize.order.schedules.panels import Piece
from energize.order.schedules.tree import SourceTree
from tests.support.schemes import check_counts


class Table:
    """Dues from a table: for each slot (rows) and source (columns)."""

    def __init__(self, table):
        self.table = table

    def units(self, slots):
        return self.table[slots]

    def units_of(self, slots, sources):
        return self.table[slots, sources]


class Apportioned:
    """An apportionment with the words of a scheme."""

    def __init__(self, apportionment):
        self.apportionment = apportionment

    def counts(self, n):
        return self.apportionment.counts(np.array([n]))[0]

    def locate(self, ks):
        return self.apportionment.located(int(ks[0]), int(ks[-1]) + 1)


def walked(dues, marks, slots):
    """The counts of all sources when they have so many slots: the rule, node by node."""
    due = dues.units(marks.slots(np.arange(marks.last + 1)))
    tree = SourceTree(due[-1])
    due = due[:, tree.order].tolist()
    counts = [0] * len(tree.order)
    waiting = [(tree.root(), slots)]
    while waiting:
        node, mine = waiting.pop()
        low, middle, high = node.low.item(), node.middle.item(), node.high.item()
        if high - low == 1:
            counts[tree.order[low]] = mine
            continue
        wanted = mine << UNIT_BITS
        both = [sum(each[low:high]) for each in due]
        left = [sum(each[low:middle]) for each in due]
        at = max(mark for mark, each in enumerate(both) if each <= wanted)
        if at < marks.last:
            grown, grown_left = both[at + 1] - both[at], left[at + 1] - left[at]
        else:
            grown, grown_left = max(both[at], 1), left[at]
        due_left = left[at] + grown_left * (wanted - both[at]) // grown
        rounded = (due_left + UNIT // 2) >> UNIT_BITS
        children = tree.children(node)
        waiting.append((children.among(np.array([0])), rounded))
        waiting.append((children.among(np.array([1])), mine - rounded))
    return counts


@given(weights=st.lists(st.integers(0, 2**60), min_size=1, max_size=200))
def test_the_tree_has_every_source_once_and_is_not_deep(weights):
    tree = SourceTree(np.array(weights))
    assert sorted(tree.order.tolist()) == list(range(len(weights)))
    nodes, leaves = tree.root(), []
    while len(nodes.low):
        assert nodes.level <= (len(weights) - 1).bit_length()
        leaves += nodes.low[nodes.leaf].tolist()
        nodes = nodes.among(~nodes.leaf)
        assert ((nodes.low < nodes.middle) & (nodes.middle < nodes.high)).all()
        nodes = tree.children(nodes)
    assert sorted(leaves) == list(range(len(weights)))


@st.composite
def tables(draw):
    """Dues that grow at any pace: often not at all, mostly by very little, or by much."""
    rows = draw(st.integers(1, 60))
    pace = st.sampled_from([0, 0, 1, 30, 1000, UNIT])
    paces = st.lists(pace, min_size=draw(st.integers(1, 12)), max_size=12)
    grown = np.zeros((rows, len(first := draw(paces))), dtype=np.int64)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    for row in grown:
        row[:] = rng.permutation(first) if rng.random() < 0.2 else first
    grown[:, 0] += 1
    # What all are due together before a slot is that slot.
    shares = np.cumsum(grown, axis=1) * UNIT // grown.sum(axis=1, keepdims=True)
    table = np.cumsum(np.diff(shares, axis=1, prepend=0), axis=0)
    return Table(np.insert(table, 0, 0, axis=0))


@settings(deadline=None)
@given(dues=tables(), step=st.integers(1, 9))
def test_it_is_the_rule_for_each_node(dues, step):
    end = len(dues.table) - 1
    marks = Marks([Stretch(0, end, step)])
    found = Apportionment(dues, marks).counts(np.arange(end + 1))
    assert found.tolist() == [walked(dues, marks, slots) for slots in range(end + 1)]


@settings(deadline=None)
@given(dues=tables(), step=st.integers(1, 9), key=st.one_of(st.none(), st.integers()))
def test_law_4(dues, step, key):
    end = len(dues.table) - 1
    marks = Marks([Stretch(0, end, step)])
    check_counts(Apportioned(Apportionment(dues, marks, key)), end)


@settings(deadline=None)
@given(dues=tables(), key=st.one_of(st.none(), st.integers()))
def test_it_stays_near_what_is_due(dues, key):
    end, sources = len(dues.table) - 1, dues.table.shape[1]
    marks = Marks([Stretch(0, end, 1)])
    counts = Apportionment(dues, marks, key).counts(np.arange(end + 1))
    levels = (sources - 1).bit_length()
    off = np.abs(counts - dues.table / UNIT).max()
    assert off <= (levels / 2 if key is None else levels) + 1e-4
    assert not counts[:, dues.table[-1] == 0].any()


def test_sources_that_are_due_a_slot_far_away():
    """The clocks of tiny shares are far from the slots that are asked for."""

    def shares(slots):
        tiny = np.array([1e-7, 3e-6, 1e-6]) * (1 + slots[:, np.newaxis] / 10**7)
        return np.concatenate([tiny, 1 - tiny.sum(axis=1, keepdims=True)], axis=1)

    due = ShareIntegral(shares, [Piece(0, 10**7)])
    marks = Marks([Stretch(0, 10**7, 1000)])
    scheme = Apportioned(Apportionment(due, marks))
    for first in (0, 5 * 10**6, 10**7 - 700):
        check_counts(scheme, 700, start=first)
    counts = scheme.apportionment.counts(np.arange(0, 10**7 + 1, 5000))
    dues = due.units(np.arange(0, 10**7 + 1, 5000)) / UNIT
    assert np.abs(counts - dues).max() <= 1.001
    assert counts[-1, 0] in (1, 2)


@given(
    begin=st.integers(0, 10**12),
    stretches=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), min_size=1, max_size=8),
)
def test_marks(begin, stretches):
    listed, expected = [], []
    for length, step in stretches:
        listed.append(Stretch(begin, begin + length, step))
        expected += range(begin, begin + length, step)
        begin += length
    marks = Marks(listed)
    expected.append(begin)
    assert (marks.start, marks.end, marks.last) == (expected[0], begin, len(expected) - 1)
    assert marks.slots(np.arange(marks.last + 1)).tolist() == expected
    slots = np.arange(marks.start, marks.end + 1)
    before = marks.before(slots)
    assert before.tolist() == (np.searchsorted(expected, slots, side="right") - 1).tolist()

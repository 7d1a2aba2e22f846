"""Shares in what items cost, known before they are read."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from energize import BlendDataset, ListSource, ShuffleDataset
from energize.core.rng import Permutation, ShuffleOrder
from energize.order import Schedule
from energize.order.cost import CostLine, Cycle, OffsetLine, cost_scheme
from tests.support.schemes import check_counts


class Column:
    """Costs in a new order in every pass, and how many were asked for."""

    def __init__(self, costs, key=1):
        self.costs, self.key = np.asarray(costs, dtype=np.float64), key
        self.order, self.asked = ShuffleOrder(len(costs), key), 0

    def __call__(self, positions):
        self.asked += len(positions)
        return self.costs[self.order.locate(positions)]

    def line(self, *, cyclic=True):
        cycle = Cycle(len(self.costs), float(self.costs.sum())) if cyclic else None
        return CostLine(self, cycle, self.key)


def made(weights, *columns, cyclic=True):
    return cost_scheme(
        weights,
        [Column(each, key).line(cyclic=cyclic) for key, each in enumerate(columns)],
    )


def lognormal(count, mean, seed=0):
    drawn = np.random.default_rng(seed).lognormal(0, 0.8, count)
    return np.maximum(np.rint(drawn * mean), 1)


some = st.lists(st.integers(1, 1000), min_size=1, max_size=40).map(Column)


@given(some, st.booleans(), st.integers(0, 60), st.integers(0, 200), st.integers(0, 90))
def test_an_offset_line_goes_on_with_later_items(column, cyclic, since, read, more):
    line = column.line(cyclic=cyclic)
    moved = OffsetLine(line, since, read)
    costs = np.diff([moved.before(n) for n in range(since + more + 1)])
    items = [*range(since), *range(read, read + more)]
    assert costs.tolist() == column(np.array(items, dtype=np.int64)).tolist()
    points = moved.points(0, since + more + 1)
    later = line.points(read, read + more + 1)
    was = float(line.points(since, since + 1)[0])
    expected = np.concatenate([line.points(0, since), later - later[0] + was])
    assert points == pytest.approx(expected)
    assert moved.due(np.nextafter(was, 0) * (1 - 1e-12)) == since  # whatever it costs
    anew = OffsetLine(line, 0, read, afresh=True)
    assert anew.points(0, more) == pytest.approx(later[:more] - line.before(read))
    assert (
        moved.points(since + more // 2, since + more).tolist()
        == points[since + more // 2 : -1].tolist()
    )


def test_costs_of_all_sizes_far_out_come_once_each():
    scheme = made(
        [3, 1, 2], *(np.random.default_rng(s).lognormal(0, 5, 777) for s in range(3))
    )
    for start in (0, 10**9, 10**13):
        before = scheme.counts(start)
        source, nth = scheme.locate(np.arange(start, start + 20_000))
        for number in range(3):
            mine = nth[source == number]
            assert mine.tolist() == list(
                range(before[number], before[number] + len(mine))
            )


@settings(max_examples=10)
@given(
    st.lists(st.floats(0.05, 9), min_size=2, max_size=9),
    st.integers(0, 10**9),
    st.booleans(),
)
@example([71, *[1] * 23], 10**9, True)
def test_shares_hold_in_costs(weights, far, extreme):
    """A source strays by its dearest item, and its share of that of all others."""
    drawn = np.random.default_rng(len(weights)).integers(1, 101, (len(weights), 50))
    columns = np.where(drawn < 51, 1, 100) if extreme else drawn
    scheme = made(weights, *columns)
    shares, dearest = np.array(scheme.shares()), columns.max(axis=1)
    bound = (1 - shares) * dearest + shares * (dearest.sum() - dearest)
    for n in (*range(1, 400, 7), far):
        spent = np.array(scheme.costs(n))
        off = np.abs(spent - shares * spent.sum())
        assert (off <= bound + spent.sum() * 1e-12).all(), n
        assert len(weights) > 2 or off.max() <= dearest.max() + spent.sum() * 1e-12
    check_counts(scheme, 200, every=20)


# Weights over time

COLUMNS = [lognormal(90, 300), lognormal(70, 30, 1), lognormal(50, 100, 2)]


def shares_between(scheme, start, stop):
    spent = np.array(scheme.costs(stop)) - scheme.costs(start)
    return pytest.approx(spent / spent.sum(), abs=0.003)


def test_changes_leave_what_came_before_and_have_their_shares_from_there_on():
    scheme = made({"a": 2, "b": 1, "c": 1}, *COLUMNS)
    changed = scheme.with_weights_from(7000, {"a": 1, "b": 0, "c": 4})
    again = changed.with_weights_from(30_000, [1, 8, 1])
    assert (
        changed.locate(range(7000))[0].tolist()
        == scheme.locate(range(7000))[0].tolist()
    )
    assert (
        again.locate(range(30_000))[1].tolist()
        == changed.locate(range(30_000))[1].tolist()
    )
    assert shares_between(again, 0, 7000) == np.array([0.5, 0.25, 0.25])
    assert shares_between(again, 7000, 30_000) == np.array([0.2, 0, 0.8])
    assert shares_between(again, 30_000, 60_000) == np.array([0.1, 0.8, 0.1])
    assert (again.shares(0), again.shares(29_999)) == (
        [0.5, 0.25, 0.25],
        [0.2, 0.0, 0.8],
    )
    assert again.first_difference(changed, 10**6) == 30_000
    assert again.first_difference(changed, 30_000) is None
    assert scheme.first_difference(again, 10**6) == 7000
    assert copy.copy(again) == again
    told = again.as_described([2, 1, 1], [(7000, [1, 0, 4]), (30_000, [1, 8, 1])])
    assert told.locate(range(500))[0].tolist() == scheme.locate(range(500))[0].tolist()
    steps = made([Schedule([(0, 3), (5000, 0)]), 1, 1], *COLUMNS)
    assert shares_between(steps, 0, 5000) == np.array([0.6, 0.2, 0.2])
    assert shares_between(steps, 5000, 20_000) == np.array([0, 0.5, 0.5])
    ways = [Schedule([(0, w), (40_000, 1 - w)], "linear") for w in (0, 1)]
    glide = made(ways, [10, 20, 30], [15, 25])
    assert shares_between(glide, 19_000, 21_000) == np.array([0.5, 0.5])
    assert shares_between(glide, 0, 40_000) == np.array([0.5, 0.5])
    assert glide.counts(50_000)[1] == glide.counts(40_000)[1]


@pytest.mark.parametrize("size", [600, 10**4, 10**6 + 3])
def test_tables_of_a_permutation_equal_its_hashes(size):
    permutation = Permutation(size, key=size)
    count = min(size, 5000)
    index = np.arange(size - count, size)
    same = np.full(count, 7)
    mixed = np.append(same[:-1], 8)  # several tweaks are hashed one by one
    images = permutation(index, same)
    assert images[:-1].tolist() == permutation(index, mixed)[:-1].tolist()
    assert permutation(images, same, inverse=True).tolist() == index.tolist()


@pytest.mark.parametrize("over_epochs", [1, 3])
def test_passes_shuffled_together_are_not_summed_one_by_one(over_epochs):
    """Whole passes cost the same, so a far item needs the costs of one pass only."""
    asked = []

    def cost(tokens):
        asked.append(len(tokens))
        return tokens

    def source(name, count):
        tokens = np.random.default_rng(count).integers(1, 90, count)
        return ListSource(range(count), name=name, columns={"tokens": tokens})

    blend = BlendDataset(
        *((ShuffleDataset(each, over_epochs=over_epochs), 1)
          for each in (source("a", 3000), source("b", 700))),
        unit=cost,
    )  # fmt: skip
    whole = 3700 * over_epochs
    blend.at([10**9])
    assert sum(asked) < 8 * whole + 10**5
    near, far = blend.spent(10**9)
    assert near == pytest.approx(far, abs=180)
    counts = blend.taken(10**9)
    for number, count in enumerate(counts):
        size = blend.inputs[number].size * over_epochs
        start = count // size * size
        members = ShuffleOrder(
            blend.inputs[number].size, blend.inputs[number].key, None, None, over_epochs
        ).locate(np.arange(start, start + size))
        times = np.bincount(members, minlength=blend.inputs[number].size)
        assert set(times.tolist()) == {over_epochs}


def test_a_distant_slot_sums_many_blocks_of_a_pass_at_once(monkeypatch):
    asked = []

    def costs(positions):
        asked.append(len(positions))
        return positions % 7 + 1.0

    line = CostLine(costs, Cycle(10**6, float((np.arange(10**6) % 7 + 1).sum())), key=1)
    assert line.due(10**12 + 0.5) > 10**11
    assert 100_000 < sum(asked) < 10**6
    assert len(asked) <= sum(asked) // (8 * 4096) + 2

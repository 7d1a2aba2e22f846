"""Shares in what items cost, known before they are read."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.core.rng import ShuffleOrder
from energize.errors import ConfigError, WeightError
from energize.order import Schedule
from energize.order.cost import CostLine, Cycle, OffsetLine, cost_scheme
from tests.support.tables import check_faults, row


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
        weights, [Column(each, key).line(cyclic=cyclic) for key, each in enumerate(columns)]
    )


def lognormal(count, mean, seed=0):
    drawn = np.random.default_rng(seed).lognormal(0, 0.8, count)
    return np.maximum(np.rint(drawn * mean), 1)


def cost_of_slots(columns, source, nth):
    """What each slot costs, looked up sample by sample."""
    found = np.empty(len(source))
    for number, costs in enumerate(columns):
        found[source == number] = Column(costs, number)(nth[source == number])
    return found


def strays(columns, weights, slots):
    """How far each source is from its share of all costs, at the worst of the first slots."""
    scheme = made(weights, *columns)
    source, nth = scheme.locate(range(slots))
    costs = cost_of_slots(columns, source, nth)
    had = np.cumsum([np.where(source == each, costs, 0) for each in range(len(columns))], axis=1)
    return np.abs(had - np.outer(scheme.shares(), np.cumsum(costs))).max(axis=1)


some = st.lists(st.integers(1, 1000), min_size=1, max_size=40).map(Column)
positive = st.one_of(st.integers(1, 5000), st.floats(0.001, 5000, allow_nan=False))
mixes = st.lists(
    st.tuples(st.lists(positive, min_size=1, max_size=30), st.floats(0.01, 50, allow_nan=False)),
    min_size=1,
    max_size=6,
)


@given(some, st.booleans(), st.integers(0, 400), st.integers(0, 60))
def test_points_lie_in_the_stretches_of_their_items_and_are_found_again(
    column, cyclic, start, more
):
    line, costs = column.line(cyclic=cyclic), column(np.arange(500))
    points = line.points(start, start + more)
    ends = [line.before(n) for n in range(start, start + more + 1)]
    assert ends == [costs[:n].sum() for n in range(start, start + more + 1)]
    assert ((ends[:-1] <= points) & (points < ends[1:])).all()
    for nth, point in enumerate(points.tolist()):
        assert line.due(point) == start + nth + 1
        assert line.due(np.nextafter(point, 0)) == start + nth


def test_blocks_and_passes_meet():
    for count in (4095, 4096, 4097, 12_289):
        column = Column(np.random.default_rng(1).integers(1, 50, count))
        ends = np.cumsum(column(np.arange(3 * count + 2)))
        for cyclic in (True, False):
            with row((count, cyclic)):
                line = column.line(cyclic=cyclic)
                for n in (1, 4095, 4096, 4097, count, count + 1, 2 * count + 4096):
                    assert line.before(n) == ends[n - 1]
                    assert line.due(line.before(n)) in (n, n + 1)
                points = line.points(0, 3 * count)
                assert (np.diff(points) > 0).all()
                assert line.points(4000, 4200).tolist() == points[4000:4200].tolist()
    column = Column(np.random.default_rng(1).integers(1, 50, 5000))
    line, total = column.line(), column.costs.sum()
    assert line.before(5000 * 10**9) == 10**9 * total
    assert line.due(10**9 * total + 1) >= 5000 * 10**9
    assert column.asked < 20_000, "passes before it were looked at"
    line = CostLine(lambda positions: np.full(len(positions), 3.0), Cycle(1, 3.0), key=1)
    assert (line.before(7 * 10**9), line.mean) == (21.0 * 10**9, 3.0)
    assert len(np.unique(line.points(0, 100) % 3)) == 100, "each has a point of its own"


@given(some, st.booleans(), st.integers(0, 60), st.integers(0, 200), st.integers(0, 90))
def test_an_offset_line_goes_on_with_later_items(column, cyclic, since, read, more):
    line = column.line(cyclic=cyclic)
    moved = OffsetLine(line, since, read)
    costs = np.diff([moved.before(n) for n in range(since + more + 1)])
    items = [*range(since), *range(read, read + more)]
    assert costs.tolist() == column(np.array(items, dtype=np.int64)).tolist()
    points = moved.points(0, since + more)
    shifted = line.points(read, read + more) - line.before(read) + line.before(since)
    assert points == pytest.approx(np.concatenate([line.points(0, since), shifted]))
    for n in range(since + more):  # points lie in the stretches of their items
        assert moved.due(moved.before(n)) in (n, n + 1)
    assert (
        moved.points(since + more // 2, since + more).tolist()
        == points[since + more // 2 :].tolist()
    )


@given(mixes, st.booleans())
def test_shares_hold_at_every_slot_and_each_item_comes_once(mix, cyclic):
    columns, weights = [each for each, _ in mix], [weight for _, weight in mix]
    longest, shares = np.array([max(each) for each in columns]), np.array(weights) / sum(weights)
    bound = (1 - shares) * longest + shares * (longest.sum() - longest)
    assert (strays(columns, weights, 400) <= bound * (1 + 1e-9)).all()
    scheme = made(weights, *columns, cyclic=cyclic)
    source, nth = scheme.locate(range(300))
    for number in range(len(columns)):
        assert nth[source == number].tolist() == list(range((source == number).sum()))
    for n in (0, 1, 2, 150, 300):
        expected = np.bincount(source[:n], minlength=len(columns))
        assert scheme.counts(n).tolist() == expected.tolist()
    spent = cost_of_slots(columns, source, nth)
    assert scheme.costs(300) == pytest.approx(np.bincount(source, spent, len(columns)))


def test_many_sources_of_skewed_costs_keep_their_shares():
    for sources in (2, 7, 30):
        rng = np.random.default_rng(sources)
        means = np.geomspace(40, 400, sources)
        columns = [lognormal(int(rng.integers(50, 2000)), mean, i) for i, mean in enumerate(means)]
        weights = [*rng.uniform(0.1, 1, sources - 1).tolist(), 2.0]
        scheme = made(weights, *columns)
        spent = np.array(scheme.costs(10**6))
        assert np.abs(spent / spent.sum() - scheme.shares()).max() < 1e-3, sources
        assert strays(columns, weights, 20_000).max() < 2 * max(map(max, columns)), sources
    columns = [lognormal(100, 100, seed) for seed in range(200)]
    assert strays(columns, [1000.0, *[1.0] * 199], 20_000).max() < 6 * max(map(max, columns))
    source, _ = made([1, 1], [5], [5]).locate(range(8000))
    assert 0.45 < source[::2].mean() < 0.55, "the order has a rhythm"


def test_any_slot_is_found_without_those_before():
    columns = [lognormal(900, 300), lognormal(70, 30, 1), lognormal(5000, 60, 2)]
    asked = np.arange(2**14 - 5, 2**14 + 5)
    far = np.concatenate([asked, asked * 3, 10**12 + asked, [5, 2**60]])
    forth, back = made([3, 1, 2], *columns), made([3, 1, 2], *columns)
    expected = [found.tolist() for found in forth.locate(far)]
    found = np.array([np.ravel(back.locate([slot])) for slot in far[::-1].tolist()])[::-1].T
    assert found.tolist() == expected
    for slot, source, nth in zip(far.tolist(), *expected, strict=True):
        before, after = forth.counts(slot), forth.counts(slot + 1)
        assert (before.sum(), before[source]) == (slot, nth)
        assert (after - before).tolist() == [int(each == source) for each in range(3)]
    column = Column(lognormal(50_000, 300))
    cost_scheme([1, 1], [column.line(), Column(lognormal(900, 30)).line()]).locate([10**12, 5])
    assert column.asked < 3 * 2 * 50_000

    def not_read(positions):
        raise AssertionError("a source of weight 0 was looked at")

    scheme = cost_scheme([1, 0], [Column([5]).line(), CostLine(not_read, None, 1)])
    assert scheme.counts(100).tolist() == [100, 0]
    assert scheme.costs(100) == [500, 0]


def test_costs_of_all_sizes_far_out_come_once_each():
    scheme = made([3, 1, 2], *(np.random.default_rng(s).lognormal(0, 5, 777) for s in range(3)))
    for start in (0, 10**9, 10**13):
        before = scheme.counts(start)
        source, nth = scheme.locate(np.arange(start, start + 20_000))
        for number in range(3):
            mine = nth[source == number]
            assert mine.tolist() == list(range(before[number], before[number] + len(mine)))


# Weights over time

COLUMNS = [lognormal(90, 300), lognormal(70, 30, 1), lognormal(50, 100, 2)]


def shares_between(scheme, start, stop):
    spent = np.array(scheme.costs(stop)) - scheme.costs(start)
    return pytest.approx(spent / spent.sum(), abs=0.003)


def test_changes_leave_what_came_before_and_have_their_shares_from_there_on():
    scheme = made({"a": 2, "b": 1, "c": 1}, *COLUMNS)
    changed = scheme.with_weights_from(7000, {"a": 1, "b": 0, "c": 4})
    again = changed.with_weights_from(30_000, [1, 8, 1])
    assert changed.locate(range(7000))[0].tolist() == scheme.locate(range(7000))[0].tolist()
    assert again.locate(range(30_000))[1].tolist() == changed.locate(range(30_000))[1].tolist()
    assert shares_between(again, 0, 7000) == np.array([0.5, 0.25, 0.25])
    assert shares_between(again, 7000, 30_000) == np.array([0.2, 0, 0.8])
    assert shares_between(again, 30_000, 60_000) == np.array([0.1, 0.8, 0.1])
    assert (again.shares(0), again.shares(29_999)) == ([0.5, 0.25, 0.25], [0.2, 0.0, 0.8])
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


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=3, unique=True).map(sorted),
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any), min_size=3),
)
def test_each_item_comes_once_whatever_changes(slots, shares):
    scheme = made(shares[0], [3, 9, 1], [1], [400, 20])
    for slot, later in zip(slots, shares[1:], strict=False):
        before, scheme = scheme, scheme.with_weights_from(slot, later)
        assert scheme.counts(slot).tolist() == before.counts(slot).tolist()
    source, nth = scheme.locate(range(500))
    for number in range(3):
        assert nth[source == number].tolist() == list(range((source == number).sum()))
    assert scheme.counts(450).tolist() == np.bincount(source[:450], minlength=3).tolist()


def test_weights_and_slots_are_checked_as_of_all_schemes():
    ending = [Schedule([(0, 1), (5, 0)]), 0, 0]
    faults = {
        "negative": (lambda: made([-1, 1, 1], *COLUMNS), "finite and not negative"),
        "0": (lambda: made([0, 0, 0], *COLUMNS), "all 3 weights are 0"),
        "ending": (lambda: made(ending, *COLUMNS), "at slot 5"),
    }
    check_faults(WeightError, faults)
    scheme = made([1, 1, 1], *COLUMNS)
    slots = {f"{ks}": (partial(scheme.locate, ks), "slots are whole") for ks in ([-1], [2**62])}
    check_faults(ConfigError, slots | {"n": (partial(scheme.counts, -1), "n is a number")})

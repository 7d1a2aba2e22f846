"""What the items of one source cost, one after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.order.cost import CostLine, Cycle, LaterLine
from energize.order.shuffle import ShuffleOrder


class Column:
    """Costs in a new order in every pass, and how often they were asked for."""

    def __init__(self, costs, seed=3):
        self.costs = np.asarray(costs, dtype=np.float64)
        self.order = ShuffleOrder(len(self.costs), seed)
        self.asked = 0

    def __call__(self, positions):
        self.asked += len(positions)
        return self.costs[self.order.locate(positions)]

    def line(self, *, cyclic=True):
        cycle = Cycle(len(self.costs), float(self.costs.sum())) if cyclic else None
        return CostLine(self, cycle, key=5)


columns = st.lists(st.integers(1, 1000), min_size=1, max_size=40).map(Column)


@given(columns, st.booleans(), st.lists(st.integers(0, 500), max_size=6))
def test_what_the_first_items_cost_is_their_sum(column, cyclic, items):
    line, costs = column.line(cyclic=cyclic), column(np.arange(500))
    for n in items:
        assert line.before(n) == costs[:n].sum()


@given(columns, st.booleans(), st.integers(0, 400), st.integers(0, 90))
def test_points_lie_in_the_stretches_of_their_items_and_are_found_again(
    column, cyclic, start, more
):
    line = column.line(cyclic=cyclic)
    points = line.points(start, start + more)
    begin = np.array([line.before(n) for n in range(start, start + more)])
    end = np.array([line.before(n + 1) for n in range(start, start + more)])
    assert len(points) == more
    assert ((begin <= points) & (points < end)).all()
    for nth, point in enumerate(points.tolist()):
        assert line.due(point) == start + nth + 1
        assert line.due(np.nextafter(point, 0)) == start + nth


@pytest.mark.parametrize("count", [4095, 4096, 4097, 12_289])
def test_blocks_meet(count):
    column = Column(np.random.default_rng(1).integers(1, 50, count))
    for cyclic in (True, False):
        line = column.line(cyclic=cyclic)
        ends = np.cumsum(column(np.arange(3 * count + 2)))
        for n in (1, 4095, 4096, 4097, count, count + 1, 2 * count + 4096):
            assert line.before(n) == ends[n - 1]
            assert line.due(line.before(n)) in (n, n + 1)
        points = line.points(0, 3 * count)
        assert (np.diff(points) > 0).all()
        assert line.points(4000, 4200).tolist() == points[4000:4200].tolist()


def test_a_late_pass_looks_at_no_earlier_one():
    column = Column(np.random.default_rng(1).integers(1, 50, 5000))
    line = column.line()
    assert line.before(5000 * 10**9) == 10**9 * column.costs.sum()
    assert line.due(10**9 * column.costs.sum() + 1) >= 5000 * 10**9
    assert column.asked < 20_000


def test_fractions_of_all_sizes_stay_in_order():
    column = Column(np.random.default_rng(1).lognormal(0, 5, 777))
    line = column.line()
    for start in (0, 777 * 10**6 - 3, 777 * 10**9 - 3):
        points = line.points(start, start + 10)
        assert (np.diff(points) >= 0).all()
        found = [line.due(point) for point in np.linspace(points[0], points[-1], 50)]
        assert found == sorted(found)
    assert [line.due(point) for point in line.points(0, 800).tolist()] == list(range(1, 801))


def test_a_source_of_one_item():
    line = CostLine(lambda positions: np.full(len(positions), 3.0), Cycle(1, 3.0), key=1)
    assert (line.before(7 * 10**9), line.mean) == (21.0 * 10**9, 3.0)
    assert len(np.unique(line.points(0, 100) % 3)) == 100, "each has a point of its own"


@given(columns, st.integers(0, 200), st.integers(0, 60))
def test_a_line_from_a_later_item_on(column, first, more):
    line = column.line()
    later = LaterLine(line, first)
    assert [later.before(n) for n in (0, more)] == [
        0,
        line.before(first + more) - line.before(first),
    ]
    points = later.points(0, more)
    assert points.tolist() == (line.points(first, first + more) - line.before(first)).tolist()
    assert later.due(0) == 0
    for n in (0, 1, more):
        assert later.due(later.before(n)) in (n, n + 1)

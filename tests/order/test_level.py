"""Groups of items that cost about the same, by one cost and by several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.order.level import levelled, levelled_by_several

sizes = st.tuples(
    st.integers(1, 3), st.integers(0, 60), st.integers(1, 14), st.integers(0, 10**6)
)


def drawn(costs, count, seed):
    """Costs with many zeros and a few that are much larger than the others."""
    generator = np.random.default_rng(seed)
    values = np.rint(generator.lognormal(3, 1.5, (costs, count)))
    return np.where(generator.random((costs, count)) < 0.3, 0, values)


def samples(ranks, seed=0):
    """Tokens and patches of 8 samples for each rank; two of five have no image."""
    generator = np.random.default_rng(seed)
    count = 8 * ranks
    tokens = np.clip(np.rint(generator.lognormal(7, 1, count)), 8, 8192)
    patches = generator.integers(256, 4097, count)
    images = generator.random(count) < 0.6
    return np.array([tokens, np.where(images, patches, 0)], dtype=np.float64)


def dearest(costs, order, group):
    """The cost of the dearest group over the mean, by each cost."""
    totals = costs[:, order].reshape(len(costs), -1, group).sum(axis=2)
    return totals.max(axis=1) / totals.mean(axis=1)


@given(sizes)
def test_every_item_has_a_place_and_groups_begin_in_order(size):
    costs, count, group, seed = size
    values = drawn(costs, count, seed)
    order = levelled_by_several(values, group, np.ones(costs))
    assert sorted(order.tolist()) == list(range(count))
    full = count // group * group
    assert order[full:].tolist() == list(range(full, count))
    groups = order[:full].reshape(-1, group)
    assert (np.diff(groups, axis=1) > 0).all()
    assert (np.diff(groups[:, 0]) > 0).all()


@given(sizes)
def test_a_cost_that_all_items_lack_does_not_matter(size):
    costs, count, group, seed = size
    values = drawn(costs, count, seed)
    extended = np.concatenate([values, np.zeros((1, count))])
    order = levelled_by_several(values, group, np.ones(costs))
    importance = np.append(np.ones(costs), 3.0)
    assert levelled_by_several(extended, group, importance).tolist() == order.tolist()


@given(sizes)
def test_a_single_cost_has_the_order_of_one(size):
    _, count, group, seed = size
    values = drawn(1, count, seed) + 1
    one = levelled_by_several(values, group, np.array([0.3])).tolist()
    assert one == levelled(values[0], group).tolist()


@given(sizes, st.floats(1e-3, 1e9))
def test_units_of_costs_do_not_matter(size, factor):
    _, count, group, seed = size
    values = drawn(2, count, seed)
    scaled = values * np.array([[2.0**20], [2.0**-20]])
    order = levelled_by_several(values, group, np.array([1, 0.5]))
    importance = np.array([factor, factor / 2])
    assert levelled_by_several(scaled, group, importance).tolist() == order.tolist()


@pytest.mark.parametrize(("ranks", "limit"), [(8, 1.02), (64, 1.01), (512, 1.01)])
def test_both_costs_are_level(ranks, limit):
    for seed in range(3):
        costs = samples(ranks, seed)
        plain = dearest(costs, np.arange(8 * ranks), 8)
        level = dearest(costs, levelled_by_several(costs, 8, np.ones(2)), 8)
        assert (plain > 1.2).all()
        assert (level < limit).all()


def test_the_more_important_cost_is_more_level():
    costs = samples(64)
    orders = [
        levelled_by_several(costs, 8, np.array(importance))
        for importance in ([1, 0.01], [1, 1], [0.01, 1])
    ]
    tokens, patches = np.array([dearest(costs, order, 8) for order in orders]).T
    assert tokens[1] < 1.01 < 1.2 < tokens[2]
    assert patches[1] < 1.01 < 1.2 < patches[0]


@pytest.mark.parametrize("group", [2, 5, 16, 100, 2000])
def test_groups_of_any_size(group):
    costs = samples(1000)
    order = levelled_by_several(costs, group, np.ones(2))
    plain = dearest(costs, np.arange(8000), group)
    assert (dearest(costs, order, group) < plain).all()


def test_an_item_that_dominates_its_group_gets_the_cheapest_items():
    costs = np.ones((2, 40))
    costs[0, 17] = 30
    costs[0, :10] = 0
    order = levelled_by_several(costs, 4, np.ones(2)).reshape(-1, 4)
    (row,) = order[(order == 17).any(axis=1)]
    assert costs[0, row].tolist() == [0, 0, 0, 30]

"""The order in which every few items cost about the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.order.quota import levelled

GOLDEN = [0, 1, 8, 19, 2, 12, 13, 14, 3, 4, 22, 23, 5, 7, 10, 15, 6, 16, 17, 21, 9, 11, 18, 20]

costs_of = st.lists(st.integers(1, 10**6).map(float), max_size=60)


def sums(costs, group):
    full = len(costs) // group * group
    return np.asarray(costs)[levelled(np.asarray(costs), group)][:full].reshape(-1, group).sum(1)


@given(costs_of, st.integers(1, 9))
def test_every_item_comes_once_and_what_fills_no_group_stays_last(costs, group):
    order = levelled(np.array(costs, dtype=np.float64), group).tolist()
    full = len(costs) // group * group
    assert sorted(order[:full]) == list(range(full))
    assert order[full:] == list(range(full, len(costs)))


@given(costs_of, st.integers(1, 9))
def test_groups_come_in_the_order_of_their_first_items_and_keep_the_order_inside(costs, group):
    order = levelled(np.array(costs, dtype=np.float64), group)
    rows = order[: len(costs) // group * group].reshape(-1, group)
    assert (np.diff(rows, axis=1) > 0).all()
    assert (np.diff(rows[:, 0]) > 0).all()


@given(costs_of.filter(bool), st.integers(1, 9))
def test_two_groups_differ_by_no_more_than_the_dearest_item(costs, group):
    """Of two groups only, so that neither has had no room before the other was full."""
    costs = (costs * 2 * group)[: 2 * group]
    one, other = sums(costs, group)
    assert abs(one - other) <= max(costs)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("groups", [8, 64, 512])
def test_skewed_costs_are_level(groups, seed):
    random = np.random.default_rng(seed)
    costs = np.clip(random.lognormal(5, 0.8, 8 * groups), 10, 1000)
    plain, level = costs.reshape(-1, 8).sum(axis=1), sums(costs, 8)
    assert level.max() / level.mean() <= 1.02
    assert plain.max() / plain.mean() > 1.15


def test_equal_costs_are_dealt_in_turn_so_they_keep_their_order_by_group():
    assert levelled(np.ones(6), 2).tolist() == [0, 3, 1, 4, 2, 5]


def test_a_dear_item_is_with_the_cheapest():
    costs = np.array([100.0, 5.0, 6.0, 7.0, 1.0, 2.0])
    assert levelled(costs, 3).tolist()[:3] == [0, 4, 5]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_fewer_items_than_a_group_stay_as_they_are(count):
    assert levelled(np.arange(count, dtype=np.float64), 4).tolist() == list(range(count))


def test_swaps_make_up_for_groups_that_were_full_too_early():
    """Dealt alone, the group of the dearest item is left with more items than it needs."""
    costs = np.clip(np.random.default_rng(1).lognormal(5, 0.8, 512), 10, 1200)
    level = sums(costs, 8)
    assert level.max() / level.mean() < 1.01


def test_one_machine_says_what_another_does():
    costs = np.random.default_rng(7).integers(1, 1000, 24).astype(np.float64)
    assert levelled(costs, 4).tolist() == GOLDEN

"""Permutations and shuffles: bijections, random enough to train on; and the order that levels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from energize.core.rng import Permutation, ShuffleOrder, derive, hash_positions, shuffled, words
from energize.order.cost import levelled


@given(size=st.integers(1, 3000), key=st.integers(0, 2**128 - 1), tweak=st.integers(0, 2**40))
def test_a_permutation_is_a_bijection_with_an_inverse(size, key, tweak):
    permutation = Permutation(size, key)
    index, tweaks = np.arange(size), np.full(size, tweak)
    image = permutation(index, tweaks)
    assert sorted(image.tolist()) == list(range(size))
    assert (permutation(image, tweaks, inverse=True) == index).all()


@given(
    size=st.integers(1, 2000),
    run=st.none() | st.integers(1, 2500),
    window=st.none() | st.integers(1, 2500),
    epoch=st.integers(0, 10**6),
    times=st.integers(1, 3),
)
def test_every_epoch_of_a_shuffle_visits_each_sample_once(size, run, window, epoch, times):
    order = ShuffleOrder(size, 9, run, window, times)
    visited = order.locate(np.arange(epoch * size * times, (epoch + 1) * size * times))
    assert np.bincount(visited, minlength=size).tolist() == [times] * size


@given(size=st.integers(50, 2000), run=st.integers(1, 20), window=st.integers(2, 40))
def test_windows_and_runs_bound_how_far_samples_move(size, run, window):
    only_runs = ShuffleOrder(size, 9, run).locate(np.arange(size))
    assert (np.diff(only_runs) != 1).sum() < -(-size // run), "runs stay together"
    moved = np.argsort(only_runs)[ShuffleOrder(size, 9, run, window).locate(np.arange(size))]
    assert np.abs(np.arange(size) - moved).max() < window


def test_places_are_uniform_and_neighbours_part():
    for size in (5, 100, 513, 2000):  # where the first sample goes, in at most 20 cells
        epochs, cells = np.arange(4000), min(size, 20)
        places = Permutation(size, derive("uniform", size))(np.zeros_like(epochs), epochs)
        low = -(-np.arange(cells) * size // cells)
        expected = np.diff(np.append(low, size)) / size * len(epochs)
        found = np.bincount(places * cells // size, minlength=cells)
        statistic = ((found - expected) ** 2 / expected).sum()
        assert statistic < cells - 1 + 6 * np.sqrt(2 * (cells - 1)), size
    visited = Permutation(100_000, 4)(np.arange(100_000), np.zeros(100_000, dtype=np.int64))
    assert (np.abs(np.diff(visited)) == 1).sum() < 15
    assert abs(np.corrcoef(visited[:-1], visited[1:])[0, 1]) < 0.02
    drawn = ShuffleOrder(10, 3, over_epochs=-1).locate(np.arange(10_000))
    assert np.abs(np.bincount(drawn) - 1000).max() < 150
    far = ShuffleOrder(10**9, 3).locate(np.arange(10**9 - 5, 10**9 + 5))
    assert ((far >= 0) & (far < 10**9)).all()


def test_keyed_streams_never_change():
    """These values are part of every saved run: a change here breaks resuming old ones."""
    at = np.arange(4)
    assert derive("a", 1) == 0x65D3AB2763EF5A9A6A3FCD7C5C57C125
    assert shuffled(7, 1, 8).tolist() == [0, 5, 3, 1, 6, 4, 7, 2]
    assert words(7, 1, 2).tolist() == [1896640632077118220, 10841221676662754707]
    assert hash_positions(7, at[:2]).tolist() == [13225839796362995591, 8409816773569330625]
    assert Permutation(10**6, 5)(at, at).tolist() == [874312, 503081, 991824, 530135]
    assert Permutation(10, 5)(at, at).tolist() == [4, 2, 1, 6]
    golden = [0, 1, 8, 19, 2, 12, 13, 14, 3, 4, 22, 23, 5, 7, 10, 15, 6, 16, 17, 21, 9, 11, 18, 20]
    costs = np.random.default_rng(7).integers(1, 1000, 24).astype(np.float64)
    assert levelled(costs, 4).tolist() == golden


costs_of = st.lists(st.integers(1, 10**6).map(float), max_size=60)


def sums(costs, group):
    full = len(costs) // group * group
    return np.asarray(costs)[levelled(np.asarray(costs), group)][:full].reshape(-1, group).sum(1)


@given(costs_of, st.integers(1, 9))
def test_levelling_keeps_every_item_and_the_order_in_groups(costs, group):
    order = levelled(np.array(costs, dtype=np.float64), group)
    full = len(costs) // group * group
    assert sorted(order[:full].tolist()) == list(range(full))
    assert order[full:].tolist() == list(range(full, len(costs)))
    rows = order[:full].reshape(-1, group)
    assert (np.diff(rows, axis=1) > 0).all()
    assert (np.diff(rows[:, 0]) > 0).all()
    if costs:  # of two groups only, so that neither has had no room before the other was full
        one, other = sums((costs * 2 * group)[: 2 * group], group)
        assert abs(one - other) <= max(costs)


def test_skewed_costs_are_level():
    for groups, seed in [(8, 1), (64, 2), (512, 3)]:
        costs = np.clip(np.random.default_rng(seed).lognormal(5, 0.8, 8 * groups), 10, 1000)
        plain, level = costs.reshape(-1, 8).sum(axis=1), sums(costs, 8)
        assert level.max() / level.mean() <= 1.02, groups
        assert plain.max() / plain.mean() > 1.15
    assert levelled(np.ones(6), 2).tolist() == [0, 3, 1, 4, 2, 5]
    assert levelled(np.array([100.0, 5, 6, 7, 1, 2]), 3).tolist()[:3] == [0, 4, 5]

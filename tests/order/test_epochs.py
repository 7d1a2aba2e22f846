"""Permutations and shuffles: bijections, and random enough to train on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.core.rng import derive, hash_positions, shuffled, words
from energize.order.shuffle import Permutation, ShuffleOrder


@given(size=st.integers(1, 3000), key=st.integers(0, 2**128 - 1), tweak=st.integers(0, 2**40))
def test_a_permutation_is_a_bijection_with_an_inverse(size, key, tweak):
    permutation = Permutation(size, key)
    index, tweaks = np.arange(size), np.full(size, tweak)
    image = permutation(index, tweaks)
    assert sorted(image.tolist()) == list(range(size))
    assert (permutation.inverse(image, tweaks) == index).all()


@given(
    size=st.integers(1, 2000),
    run=st.none() | st.integers(1, 2500),
    window=st.none() | st.integers(1, 2500),
    epoch=st.integers(0, 10**6),
)
def test_every_epoch_of_a_shuffle_visits_each_sample_once(size, run, window, epoch):
    order = ShuffleOrder(size, key=9, run_length=run, window=window)
    visited = order.locate(np.arange(epoch * size, (epoch + 1) * size))
    assert sorted(visited.tolist()) == list(range(size))


@given(size=st.integers(50, 2000), run=st.integers(1, 20), window=st.integers(2, 40))
def test_windows_and_runs_bound_how_far_samples_move(size, run, window):
    order = ShuffleOrder(size, key=9, run_length=run, window=window)
    only_runs = ShuffleOrder(size, key=9, run_length=run)
    place = np.argsort(only_runs.locate(np.arange(size)))
    moved = np.abs(np.arange(size) - place[order.locate(np.arange(size))])
    assert moved.max() < window


@pytest.mark.parametrize("size", [5, 100, 513, 2000])
def test_places_are_uniform(size):
    """Chi-square of where the first sample goes, over 4000 epochs, in at most 20 cells."""
    permutation = Permutation(size, key=derive("uniform", size))
    epochs = np.arange(4000)
    cells = min(size, 20)
    places = permutation(np.zeros_like(epochs), epochs) * cells // size
    low = np.arange(cells) * size
    share = np.diff(np.append(-(-low // cells), size)) / size
    expected = share * len(epochs)
    statistic = ((np.bincount(places, minlength=cells) - expected) ** 2 / expected).sum()
    assert statistic < cells - 1 + 6 * np.sqrt(2 * (cells - 1))


def test_neighbours_do_not_stay_neighbours():
    visited = Permutation(100_000, key=4)(np.arange(100_000), np.zeros(100_000, dtype=np.int64))
    assert (np.abs(np.diff(visited)) == 1).sum() < 15
    correlation = np.corrcoef(visited[:-1], visited[1:])[0, 1]
    assert abs(correlation) < 0.02


def test_a_billion_samples_need_no_table():
    order = ShuffleOrder(10**9, key=3)
    visited = order.locate(np.arange(10**9 - 5, 10**9 + 5))
    assert ((visited >= 0) & (visited < 10**9)).all()


def test_keyed_streams_never_change():
    """These values are part of every saved run: a change here breaks resuming old ones."""
    at = np.arange(4)
    assert derive("a", 1) == 0x65D3AB2763EF5A9A6A3FCD7C5C57C125
    assert shuffled(7, 1, 8).tolist() == [0, 5, 3, 1, 6, 4, 7, 2]
    assert words(7, 1, 2).tolist() == [1896640632077118220, 10841221676662754707]
    assert hash_positions(7, at[:2]).tolist() == [13225839796362995591, 8409816773569330625]
    assert Permutation(10**6, 5)(at, at).tolist() == [874312, 503081, 991824, 530135]
    assert Permutation(10, 5)(at, at).tolist() == [4, 2, 1, 6]

"""Plans of windows: the samples of each pack, and the order of packs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.packing.plan import interleaved, planned_packs

CAPACITIES = np.array([24, 9, 100])


def draws_of(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 24), st.integers(0, 9), st.integers(0, 100)),
        max_size=60,
    ),
    num_capacities=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_every_sample_is_in_one_pack_that_holds_it(rows, num_capacities, seed):
    lengths = np.array(rows, dtype=np.int64).reshape(-1, 3)[:, :num_capacities]
    capacities = CAPACITIES[:num_capacities]
    draws = draws_of(len(rows), seed)
    plan = planned_packs(lengths, capacities, draws)
    assert sorted(plan.order.tolist()) == list(range(len(rows)))
    assert (np.diff(plan.bounds) > 0).all()
    assert (plan.sums(lengths) <= capacities).all()
    again = planned_packs(lengths, capacities, draws)
    assert again.order.tolist() == plan.order.tolist()


@given(st.lists(st.integers(1, 24), max_size=60))
def test_packs_of_one_capacity_are_first_fit_decreasing(lengths):
    packs = []
    for length in sorted(lengths, reverse=True):
        pack = next((pack for pack in packs if sum(pack) + length <= 24), None)
        if pack is None:
            packs.append([length])
        else:
            pack.append(length)
    values = np.array(lengths, dtype=np.int64)[:, None]
    plan = planned_packs(values, np.array([24]), draws_of(len(lengths)))
    planned = [values[plan.members(pack), 0].tolist() for pack in range(plan.count)]
    assert planned == packs


def test_draws_decide_which_of_equally_long_samples_share_a_pack():
    lengths = np.full((1000, 1), 5)
    plans = [
        planned_packs(lengths, np.array([24]), draws_of(1000, seed)) for seed in (0, 1)
    ]
    packs = [set(map(tuple, groups(plan))) for plan in plans]
    assert len(packs[0]) == len(packs[1]) == 250
    assert not packs[0] & packs[1]


def conversations(count):
    """Tokens and tiles of images of conversations with 0 to 8 images."""
    rng = np.random.default_rng(0)
    images = rng.choice([0, 1, 2, 3, 4, 8], count, p=[0.25, 0.5, 0.1, 0.06, 0.05, 0.04])
    tiles = np.minimum(images * rng.integers(1, 4, count), 24)
    text = np.clip(rng.lognormal(5.2, 0.9, count), 8, 2000).astype(np.int64)
    return np.stack([text + 256 * tiles, tiles], axis=1)


@pytest.mark.parametrize("num_capacities", [1, 2])
def test_packs_of_a_large_window_are_nearly_full(num_capacities):
    lengths = conversations(16_384)[:, :num_capacities]
    capacities = np.array([8192, 24])[:num_capacities]
    fewest = np.ceil(lengths.sum(axis=0) / capacities).max()
    plan = planned_packs(lengths, capacities, draws_of(len(lengths)))
    assert plan.count <= 1.005 * fewest


@pytest.mark.parametrize("num_sources", [1, 2, 5, 50])
def test_runs_of_packs_have_the_shares_of_their_window(num_sources):
    lengths = conversations(8192)[:, 0]
    source = np.arange(len(lengths)) ** 2 // 7 % num_sources
    lengths[source == 1] *= 3
    lengths = np.minimum(lengths, 8192)
    plan = planned_packs(lengths[:, None], np.array([8192]), draws_of(len(lengths)))
    ordered = interleaved(plan, source, lengths, draws_of(plan.count, 1))
    assert groups(ordered) == groups(plan)
    if num_sources > 1:
        shuffled = plan.rearranged(np.argsort(draws_of(plan.count, 1)))
        assert worst_prefix(ordered, source, lengths) < (
            1.3 if num_sources < 9 else 2.5
        )
        assert worst_prefix(shuffled, source, lengths) > 3


def groups(plan):
    return sorted(sorted(plan.members(group)) for group in range(plan.count))


def worst_prefix(plan, source, lengths):
    """Largest difference of a prefix from its shares, in packs."""
    amounts = np.zeros((plan.count, source.max() + 1))
    for pack in range(plan.count):
        members = plan.members(pack)
        np.add.at(amounts[pack], source[members], lengths[members])
    excess = amounts - amounts.mean(axis=0)
    return np.abs(excess.cumsum(axis=0)).max() / 8192

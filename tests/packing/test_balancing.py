"""Packs that cost the same."""

from __future__ import annotations

import time
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.packing import attention_cost, balanced, best_fit


def costs_of(packs, costs):
    return [sum(costs[sample] for sample in pack) for pack in packs]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=7),
    st.integers(1, 3),
)
@settings(max_examples=60)
def test_the_dearest_pack_costs_at_most_a_third_more_than_in_the_best_division(costs, packs):
    """The bound of the largest first: 4/3 - 1 / (3 packs)."""
    found = balanced([1] * len(costs), 100, packs=packs, costs=costs)
    best = min(
        max(np.bincount(places, weights=costs, minlength=packs))
        for places in product(range(packs), repeat=len(costs))
    )
    assert len(found) == packs
    assert max(costs_of(found, costs)) <= best * (4 / 3 - 1 / (3 * packs)) + 1e-9


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=40),
    st.integers(0, 3),
)
def test_never_more_packs_than_best_fit(rows, more):
    capacity = [20 + more, 5]
    assert len(balanced(rows, capacity)) <= len(best_fit(rows, capacity))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 8))
def test_so_many_packs_as_asked(lengths, more):
    fewest = len(best_fit(lengths, 50))
    packs = balanced(lengths, 50, packs=fewest + more)
    assert len(packs) == fewest + more
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    empty = max(0, fewest + more - len(lengths))
    assert [bool(pack) for pack in packs] == [True] * (len(packs) - empty) + [False] * empty


@pytest.mark.parametrize(("mean", "sigma"), [(4.0, 0.6), (5.0, 0.7), (5.5, 0.8)])
def test_captions_cost_the_same_in_all_packs(mean, sigma):
    """Of 10,000, the packs of best fit differ most in the last one, which is what is left."""
    captions = np.random.default_rng(0).lognormal(mean, sigma, 10_000).astype(int) + 1
    lengths = np.minimum(captions, 2048)
    costs = [attention_cost(int(length)) for length in lengths]
    for count in (100, 1_000, 10_000):
        level = costs_of(balanced(lengths[:count], 2048), costs)
        fitted = costs_of(best_fit(lengths[:count], 2048), costs)
        assert len(level) == len(fitted)
        assert max(level) <= max(fitted)
        assert min(level) >= 0.95 * np.mean(level)
        assert min(level) > min(fitted)


def test_a_full_buffer_is_evened_out():
    """The packs of best fit leave no room but in the last, so samples are moved there."""
    lengths = [10, 10, 10, 10, 60, 40, 60, 40, 60, 40, 50, 10]
    packs = balanced(lengths, 100)
    assert len(packs) == 4
    level = costs_of(packs, lengths)
    assert max(level) - min(level) <= 10


def test_images_and_tokens_hold_together():
    """Image tiles cost 256 tokens each in the language model, and 12 of them fit on the device."""
    rng = np.random.default_rng(1)
    tiles = rng.choice([0, 0, 1, 3, 5, 7], 2_000)
    tokens = rng.integers(20, 400, 2_000) + 256 * tiles
    rows = np.stack([tokens, tiles], axis=1)
    packs = balanced(rows, [4096, 12])
    held = np.array([rows[pack].sum(axis=0) for pack in packs])
    assert (held <= [4096, 12]).all()
    assert len(packs) <= 1.05 * max(tokens.sum() / 4096, tiles.sum() / 12)
    assert held[:, 0].min() > 0.8 * held[:, 0].mean()


def test_packs_that_are_full_while_cheap_do_not_take_long():
    """Most packs hold no more tiles, long before they hold many tokens."""
    rng = np.random.default_rng(0)
    some = np.stack([rng.integers(100, 300, 6_000), rng.integers(1, 4, 6_000)], axis=1)
    rows = np.concatenate([[[300, 12]] * 2_000, some, [[10, 0]] * 2_000])
    start = time.process_time()
    packs = balanced(rows, [4096, 12])
    assert time.process_time() - start < 8
    assert len(packs) <= len(best_fit(rows, [4096, 12]))


def test_costs_decide_what_is_level():
    level = costs_of(balanced([5, 5, 1, 1], 10, packs=2, costs=[1, 1, 9, 9]), [1, 1, 9, 9])
    assert level == [10, 10]


FAULTS = {
    "too few packs": ({"packs": 1}, "do not fit into 1 packs of [10]; the fewest found are 2"),
    "no packs": ({"packs": 0}, "packs is a whole number, 1 or more; got 0"),
    "a cost too few": ({"costs": [1]}, "one number for each of 2 samples; got int64 of shape (1,)"),
    "a negative cost": ({"costs": [1, -1]}, "sample 1 costs -1.0"),
    "no number": ({"costs": [1, float("nan")]}, "sample 1 costs nan"),
    "texts": ({"costs": ["a", "b"]}, "one number for each of 2 samples"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_balanced_is_named(fault):
    arguments, message = FAULTS[fault]
    with pytest.raises(ConfigError, match="balanced: ") as caught:
        balanced([6, 7], 10, **arguments)
    assert message in str(caught.value)


def test_nothing_is_no_pack():
    assert balanced([], 10) == []
    assert balanced([], 10, packs=2) == [[], []]
    assert balanced([0, 0], 10, costs=[0, 0]) == [[0, 1]]

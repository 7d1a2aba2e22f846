"""Which samples share a pack: the laws of all methods, and what each promises."""

from __future__ import annotations

import time
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.packing import attention_cost, balanced, best_fit, first_fit
from tests.support.refusals import check_refusals

METHODS = [first_fit, best_fit, balanced]
CAPACITY = 24


@st.composite
def lengths_and_capacity(draw):
    """Of one capacity or of up to three."""
    capacities = draw(st.lists(st.integers(1, CAPACITY), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(st.integers(0, each) for each in capacities)), max_size=40))
    if len(capacities) == 1 and draw(st.booleans()):
        return [row[0] for row in rows], capacities[0]
    return rows, capacities


def rows_of(lengths, capacity):
    capacities = np.atleast_1d(capacity)
    return np.array(lengths, dtype=int).reshape(len(lengths), len(capacities)), capacities


def costs_of(packs, costs):
    return [sum(costs[sample] for sample in pack) for pack in packs]


@given(lengths_and_capacity())
def test_every_sample_is_in_one_pack_that_can_hold_it_in_order(case):
    lengths, capacity = case
    rows, capacities = rows_of(lengths, capacity)
    for method in METHODS:
        packs = method(lengths, capacity)
        assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
        assert all(packs)
        assert all((rows[pack].sum(axis=0) <= capacities).all() for pack in packs)
        assert packs == sorted(map(sorted, packs))
        assert packs == method(np.array(lengths, np.int32).reshape(np.shape(lengths)), capacity)
        assert all(type(sample) is int for pack in packs for sample in pack)


@given(lengths_and_capacity())
def test_first_fit_is_the_first_pack_with_room(case):
    rows, capacities = rows_of(*case)
    packs, rooms = [], []
    for sample, row in enumerate(rows):
        pack = next((i for i, room in enumerate(rooms) if (row <= room).all()), len(packs))
        if pack == len(packs):
            packs.append([])
            rooms.append(capacities.copy())
        packs[pack].append(sample)
        rooms[pack] -= row
    assert first_fit(*case) == packs


@given(st.lists(st.integers(0, CAPACITY), max_size=60))
def test_best_fit_is_the_fullest_pack_with_room_longest_first(lengths):
    packs, rooms = [], []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [pack for pack, room in enumerate(rooms) if room >= lengths[sample]]
        if not fitting:
            fitting = [len(packs)]
            packs.append([])
            rooms.append(CAPACITY)
        pack = min(fitting, key=rooms.__getitem__)
        packs[pack].append(sample)
        rooms[pack] -= lengths[sample]
    assert best_fit(lengths, CAPACITY) == sorted(map(sorted, packs))


@st.composite
def cut_up_packs(draw):
    """Lengths that fill so many packs exactly, and how many: no division has fewer."""
    packs = draw(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=9)
    )
    capacity = 2520
    pieces = []
    for parts in packs:
        cuts = np.cumsum([0, *parts]) * capacity // sum(parts)
        pieces += np.diff(cuts).tolist()
    return draw(st.permutations(pieces)), capacity, len(packs)


@given(cut_up_packs())
def test_packs_are_no_more_than_the_known_worst_cases(case):
    lengths, capacity, fewest = case
    assert fewest <= len(best_fit(lengths, capacity)) <= fewest * 11 / 9 + 6 / 9
    assert fewest <= len(first_fit(lengths, capacity)) <= fewest * 1.7
    assert fewest <= len(balanced(lengths, capacity)) <= len(best_fit(lengths, capacity))


def test_the_worst_case_of_first_fit_is_met():
    """10 packs where 6 would do: sevenths, thirds and halves, all a little more."""
    lengths = [61] * 6 + [135] * 6 + [201] * 6
    assert (len(first_fit(lengths, 400)), len(best_fit(lengths, 400))) == (10, 6)


# Packs that cost the same.


@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(1, 3))
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
def test_as_many_packs_as_asked_or_never_more_than_best_fit(rows, more):
    capacity = [20 + more, 5]
    fewest = len(best_fit(rows, capacity))
    assert len(balanced(rows, capacity)) <= fewest
    packs = balanced(rows, capacity, packs=fewest + more)
    assert sorted(chain.from_iterable(packs)) == list(range(len(rows)))
    filled = min(fewest + more, len(rows))
    empty = fewest + more - len([pack for pack in packs if pack])
    assert [bool(pack) for pack in packs] == [True] * (len(packs) - empty) + [False] * empty
    assert len(packs) - empty <= filled
    assert packs[: len(packs) - empty] == sorted(map(sorted, packs[: len(packs) - empty]))


def test_captions_fill_their_packs_and_cost_the_same():
    """Of 10,000, the packs of best fit differ most in the last one, which is what is left."""
    for mean, sigma in ((4.0, 0.6), (4.6, 0.7), (5.5, 0.8)):
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
        for method in METHODS:
            assert lengths.sum() / (2048 * len(method(lengths, 2048))) >= 0.985


def test_a_full_buffer_is_evened_out():
    """The packs of best fit leave no room but in the last, so samples are moved there."""
    lengths = [10, 10, 10, 10, 60, 40, 60, 40, 60, 40, 50, 10]
    packs = balanced(lengths, 100)
    level = costs_of(packs, lengths)
    assert len(packs) == 4
    assert max(level) - min(level) <= 10
    assert balanced(lengths, 100, packs=4) == packs


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
    some = np.stack([rng.integers(100, 300, 3_000), rng.integers(1, 4, 3_000)], axis=1)
    rows = np.concatenate([[[300, 12]] * 1_000, some, [[10, 0]] * 1_000])
    start = time.process_time()
    packs = balanced(rows, [4096, 12])
    assert time.process_time() - start < 8
    assert len(packs) <= len(best_fit(rows, [4096, 12]))


def test_costs_decide_what_is_level():
    level = costs_of(balanced([5, 5, 1, 1], 10, packs=2, costs=[1, 1, 9, 9]), [1, 1, 9, 9])
    assert level == [10, 10]
    assert balanced([], 10) == []
    assert balanced([], 10, packs=2) == [[], []]
    assert balanced([0, 0], 10, costs=[0, 0]) == [[0, 1]]
    assert attention_cost(2048) > 2 * attention_cost(1024) > 4 * attention_cost(512)
    assert attention_cost(1, hidden_size=1) == 7


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_be_packed_is_named(method):
    ranges = "sample 1 has length -1; a pack holds 0 to 10"
    rows = {
        "negative": ([3, -1], 10, ranges),
        "too long": ([3, 11], 10, "sample 1 has length 11; a pack holds 0 to 10"),
        "in one": ([[3, 1], [1, 4]], [10, 3], "sample 1 has length 4; a pack holds 0 to 3"),
        "fractions": ([1.5], 10, "lengths are whole numbers; got float64"),
        "truths": ([True], 10, "lengths are whole numbers; got bool"),
        "texts": (["a"], 10, "lengths are whole numbers"),
        "too large a number": ([2**70], 10, "lengths are whole numbers"),
        "ragged": ([[1], [1, 2]], [10, 10], "different numbers of lengths"),
        "a column is missing": ([1, 2], [10, 10], "shape (2,) do not go with 2 capacities"),
        "a capacity is missing": ([[1, 2]], 10, "shape (1, 2) do not go with 1 capacities"),
        "no room at all": ([1], 0, "capacity", "got 0"),
        "half a token": ([1], 1.5, "capacity"),
        "huge": ([1], 2**40, "capacity is below 2**40"),
        "no capacity": ([1], [], "capacity is empty"),
    }
    check_refusals(
        {
            name: (
                lambda lengths=lengths, capacity=capacity: method(lengths, capacity),
                *(ConfigError, f"{method.__name__}: ", *words),
            )
            for name, (lengths, capacity, *words) in rows.items()
        }
    )


def test_what_cannot_be_balanced_is_named():
    rows = {
        "too few packs": ({"packs": 1}, "do not fit into 1 packs of [10]; ask for 2"),
        "no packs": ({"packs": 0}, "packs", "got 0"),
        "a cost too few": ({"costs": [1]}, "one number for each of 2 samples; got int64"),
        "a negative cost": ({"costs": [1, -1]}, "sample 1 costs -1.0"),
        "no number": ({"costs": [1, float("nan")]}, "sample 1 costs nan"),
        "texts": ({"costs": ["a", "b"]}, "one number for each of 2 samples"),
    }
    check_refusals(
        {
            name: (lambda given=given: balanced([6, 7], 10, **given), ConfigError, *words)
            for name, (given, *words) in rows.items()
        }
    )

"""Which samples share a pack: the laws of all methods, and the bounds of first and best fit."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.packing import balanced, best_fit, first_fit

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


def loads(packs, lengths, capacity):
    capacities = np.atleast_1d(capacity)
    rows = np.array(lengths).reshape(len(lengths), len(capacities))
    return [rows[pack].sum(axis=0) for pack in packs], capacities


@pytest.mark.parametrize("method", METHODS)
@given(lengths_and_capacity())
def test_every_sample_is_in_one_pack_that_can_hold_it(method, case):
    lengths, capacity = case
    packs = method(lengths, capacity)
    assert sorted(chain.from_iterable(packs)) == list(range(len(lengths)))
    assert all(packs)
    held, capacities = loads(packs, lengths, capacity)
    assert all((each <= capacities).all() for each in held)


@pytest.mark.parametrize("method", METHODS)
@given(lengths_and_capacity())
def test_samples_keep_their_order_and_the_same_lengths_give_the_same_packs(method, case):
    lengths, capacity = case
    packs = method(lengths, capacity)
    assert packs == sorted(map(sorted, packs))
    assert packs == method(np.array(lengths, dtype=np.int32).reshape(np.shape(lengths)), capacity)
    assert all(type(sample) is int for pack in packs for sample in pack)


def naive_first_fit(rows, capacities):
    packs, rooms = [], []
    for sample, row in enumerate(rows):
        pack = next((i for i, room in enumerate(rooms) if (row <= room).all()), len(packs))
        if pack == len(packs):
            packs.append([])
            rooms.append(capacities.copy())
        packs[pack].append(sample)
        rooms[pack] -= row
    return packs


@given(lengths_and_capacity())
def test_first_fit_is_the_first_pack_with_room(case):
    lengths, capacity = case
    capacities = np.atleast_1d(capacity)
    rows = np.array(lengths, dtype=int).reshape(len(lengths), len(capacities))
    assert first_fit(lengths, capacity) == naive_first_fit(rows, capacities)


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
    assert len(first_fit(lengths, 400)) == 10
    assert len(best_fit(lengths, 400)) == 6


@pytest.mark.parametrize("method", METHODS)
def test_captions_fill_their_packs(method):
    """What is asked of 10,000 captions and 2,048 tokens."""
    captions = np.random.default_rng(0).lognormal(4.6, 0.7, 10_000).astype(int) + 1
    lengths = np.minimum(captions, 2048)
    packs = method(lengths, 2048)
    assert lengths.sum() / (2048 * len(packs)) >= 0.99


FAULTS = {
    "negative": ([3, -1], 10, "sample 1 has length -1; a pack holds 0 to 10"),
    "too long": ([3, 11], 10, "sample 1 has length 11; a pack holds 0 to 10"),
    "too long in one": ([[3, 1], [1, 4]], [10, 3], "sample 1 has length 4; a pack holds 0 to 3"),
    "fractions": ([1.5], 10, "lengths are whole numbers; got float64"),
    "truths": ([True], 10, "lengths are whole numbers; got bool"),
    "texts": (["a"], 10, "lengths are whole numbers"),
    "too large a number": ([2**70], 10, "lengths are whole numbers"),
    "ragged": ([[1], [1, 2]], [10, 10], "different numbers of lengths"),
    "a column is missing": ([1, 2], [10, 10], "shape (2,) do not go with 2 capacities"),
    "a capacity is missing": ([[1, 2]], 10, "shape (1, 2) do not go with 1 capacities"),
    "no room at all": ([1], 0, "capacity is a whole number, 1 or more; got 0"),
    "half a token": ([1], 1.5, "capacity is a whole number"),
    "huge": ([1], 2**40, "capacity is below 2**40"),
    "no capacity": ([1], [], "capacity is empty"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_packed_is_named(method, fault):
    lengths, capacity, message = FAULTS[fault]
    with pytest.raises(ConfigError) as caught:
        method(lengths, capacity)
    assert str(caught.value).startswith(f"{method.__name__}: ")
    assert message in str(caught.value)


@given(st.lists(st.integers(0, CAPACITY), max_size=30))
def test_several_equal_capacities_are_as_one(lengths):
    assume(lengths)
    doubled = [(each, each) for each in lengths]
    assert first_fit(doubled, [CAPACITY] * 2) == first_fit(lengths, CAPACITY)

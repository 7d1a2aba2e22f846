"""Which samples share a pack: the laws of all methods, and what each promises."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.packing import attention_cost, balanced, best_fit, first_fit
from tests.support.refusals import check_refusals

METHODS = [first_fit, best_fit, balanced]
CAPACITY = 24


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=40))
def test_every_sample_is_in_one_pack_that_holds_it(rows):
    for method in METHODS:
        packs = method(rows, [22, 5])
        assert sorted(chain.from_iterable(packs)) == list(range(len(rows)))
        assert packs == sorted(map(sorted, packs))
        assert all(packs)
        held = [np.sum([rows[sample] for sample in pack], axis=0) for pack in packs]
        assert (np.array(held).reshape(-1, 2) <= [22, 5]).all()
    assert len(balanced(rows, [22, 5])) <= len(best_fit(rows, [22, 5]))


def into(packs, rooms, sample, need, pack):
    if pack == len(packs):
        packs.append([])
        rooms.append(CAPACITY)
    packs[pack].append(sample)
    rooms[pack] -= need


@given(st.lists(st.integers(0, CAPACITY), max_size=60))
def test_first_fit_and_best_fit_as_they_are_defined(lengths):
    packs, rooms = [], []
    for sample, need in enumerate(lengths):
        fitting = [pack for pack, room in enumerate(rooms) if room >= need]
        into(packs, rooms, sample, need, fitting[0] if fitting else len(packs))
    assert first_fit(lengths, CAPACITY) == packs
    packs, rooms = [], []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [pack for pack, room in enumerate(rooms) if room >= lengths[sample]]
        pack = min(fitting, key=rooms.__getitem__) if fitting else len(packs)
        into(packs, rooms, sample, lengths[sample], pack)
    assert best_fit(lengths, CAPACITY) == sorted(map(sorted, packs))


def test_captions_fill_their_packs_and_cost_the_same():
    for mean, sigma in ((4.0, 0.6), (4.6, 0.7), (5.5, 0.8)):
        drawn = np.random.default_rng(0).lognormal(mean, sigma, 1000).astype(int) + 1
        lengths = np.minimum(drawn, 2048)
        fewest = len(best_fit(lengths, 2048))
        packs = balanced(lengths, 2048)
        costs = [sum(attention_cost(int(lengths[i])) for i in pack) for pack in packs]
        assert -(-lengths.sum() // 2048) <= len(packs) <= fewest
        assert len(first_fit(lengths, 2048)) <= 1.7 * fewest
        assert max(costs) <= 1.2 * np.mean(costs)


def test_packs_cost_the_same_where_images_are_what_limits_them():
    drawn = np.random.default_rng(0)
    for tokens, images, capacity in (
        (drawn.integers(50, 2000, 300), drawn.integers(1, 9, 300), [8192, 12]),
        (drawn.integers(10, 1000, 300), drawn.integers(0, 7, 300), [2048, 12]),
    ):
        sizes = np.stack([tokens, images], axis=1)
        packs = balanced(sizes, capacity)
        assert all((sizes[pack].sum(axis=0) <= capacity).all() for pack in packs)
        assert sorted(chain(*packs)) == list(range(300))
        assert len(packs) <= len(best_fit(sizes, capacity))
        costs = [sum(map(attention_cost, tokens[pack].tolist())) for pack in packs]
        assert max(costs) <= 1.07 * np.mean(costs)


@pytest.mark.parametrize("method", METHODS)
def test_what_cannot_be_packed_is_named(method):
    ranges = "sample 1 has length -1; a pack holds 0 to 10"
    rows = {
        "negative": ([3, -1], 10, ranges),
        "too long": ([3, 11], 10, "sample 1 has length 11; a pack holds 0 to 10"),
        "in one": (
            [[3, 1], [1, 4]],
            [10, 3],
            "sample 1 has length 4; a pack holds 0 to 3",
        ),
        "fractions": ([1.5], 10, "lengths must be whole numbers, got float64"),
        "truths": ([True], 10, "lengths must be whole numbers, got bool"),
        "texts": (["a"], 10, "lengths must be whole numbers"),
        "too large a number": ([2**70], 10, "lengths must be whole numbers"),
        "ragged": ([[1], [1, 2]], [10, 10], "different numbers of lengths"),
        "a column is missing": (
            [1, 2],
            [10, 10],
            "shape (2,) do not match 2 capacities",
        ),
        "a capacity is missing": (
            [[1, 2]],
            10,
            "shape (1, 2) do not match 1 capacities",
        ),
        "no room at all": ([1], 0, "capacity", "got 0"),
        "half a token": ([1], 1.5, "capacity"),
        "huge": ([1], 2**40, "capacity must be < 2**40"),
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
        "a cost too few": ([1], "a number >= 0 for each of 2 samples, got [1]"),
        "a negative cost": ([1, -1], "got [1, -1]"),
        "no number": ([1, float("nan")], "got [1, nan]"),
        "texts": (["a", "b"], "got ['a', 'b']"),
    }
    check_refusals(
        {
            name: (
                lambda costs=costs: balanced([6, 7], 10, costs=costs),
                ConfigError,
                *words,
            )
            for name, (costs, *words) in rows.items()
        }
    )

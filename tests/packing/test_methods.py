"""Which samples share a pack: the laws of all methods, and what each promises."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.packing import balanced, best_fit, first_fit
from tests.support.refusals import check_refusals

METHODS = [first_fit, best_fit, balanced]
CAPACITY = 24


def costs_of(packs, costs):
    return [sum(costs[sample] for sample in pack) for pack in packs]


# Packs that cost the same.


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

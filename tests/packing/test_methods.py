"""Which samples share a pack: the laws of all methods, and what each promises."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.errors import ConfigError
from energize.packing import balanced, best_fit, first_fit
from tests.support.refusals import check_refusals

METHODS = [first_fit, best_fit, balanced]


# Packs that cost the same.


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
        "a cost too few": ([1], "a number, 0 or more, for each of 2 samples; got [1]"),
        "a negative cost": ([1, -1], "got [1, -1]"),
        "no number": ([1, float("nan")], "got [1, nan]"),
        "texts": (["a", "b"], "got ['a', 'b']"),
    }
    check_refusals(
        {
            name: (lambda costs=costs: balanced([6, 7], 10, costs=costs), ConfigError, *words)
            for name, (costs, *words) in rows.items()
        }
    )

"""Blends whose shares count what samples cost, by the index or when they have been
read."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from energize import (
    BlendDataset,
    ItemCost,
    SkipSample,
)
from energize.errors import (
    ColumnError,
    ConfigError,
    EncoderError,
    StateError,
    SubstitutionError,
)
from tests.support.texts import (
    SHARES,
    by_item,
    shares_of,
    shuffled_texts,
)


def near(shares, apart=0.001):
    return pytest.approx(shares, abs=apart)


def test_states_of_other_shapes_are_refused():
    cursor = by_item().open()
    next(cursor)
    state = cursor.state()
    for name, wrong in (
        ("owed", [1.0]), ("owed", [1.0, 2.0, float("inf")]), ("owed", [1.0, 2.0, "3"]),
        ("costs", [-1.0, 0.0, 0.0]), ("items", -1),
    ):  # fmt: skip
        slots = {**state["input"]["slots"], name: wrong}
        with pytest.raises(StateError, match=name):
            by_item().open(state={**state, "input": {**state["input"], "slots": slots}})


# Errors


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"unit": "tokns"}, ColumnError, "no column 'tokns'; did you mean 'tokens'"),
        ({"unit": 3}, ConfigError, "unit must be 'samples', the name of a column"),
        (
            {"unit": ItemCost},
            ConfigError,
            "unit must be 'samples', the name of a column",
        ),
        ({"unit": lambda: 1}, ConfigError, "a function whose parameters have"),
        ({"unit": lambda tokens: tokens - 9}, ColumnError, "must be a number > 0"),
        (
            {"unit": lambda tokens: tokens * np.nan},
            ColumnError,
            "its cost must be a number > 0, got nan",
        ),
        ({"unit": "tokens", "scheme": "exact"}, ConfigError, "Remove one of them"),
        (
            {"unit": "tokens", "block_size": 5},
            ConfigError,
            "block_size cannot be combined with unit",
        ),
        (
            {"unit": ItemCost("tokens"), "scheme": "exact"},
            ConfigError,
            "ItemCost\\('tokens'\\)",
        ),
        ({"unit": "tokens", "stop": "all_exhausted"}, ConfigError, "never ends"),
        ({"unit": "tokens", "max_epochs": 2}, ConfigError, "max_epochs=2 ends a blend"),
    ],
)
def test_units_that_cannot_be_used(options, error, says):
    parts = list(zip(shuffled_texts().values(), SHARES.values(), strict=True))
    with pytest.raises(error, match=f"BlendDataset: .*{says}"):
        BlendDataset(parts, **options)


def test_a_function_of_items_may_leave_them_out_and_its_errors_name_the_sample():
    def cost(sample):
        if sample["tokens"] > 300:
            raise SkipSample
        return sample["tokens"]

    parts = list(zip(shuffled_texts().values(), SHARES.values(), strict=True))
    items = list(islice(BlendDataset(parts, unit=ItemCost(cost)).open(), 2000))
    assert max(item["tokens"] for item in items) <= 300
    assert shares_of(items) == near(SHARES, 0.01)
    with pytest.raises(EncoderError, match=r"(?s)KeyError: 'toks'.*at sample '"):
        next(BlendDataset(parts, unit=ItemCost(lambda sample: sample["toks"])).open())

    def none(sample):
        raise SkipSample

    with pytest.raises(SubstitutionError, match="256 consecutive items were left out"):
        next(BlendDataset(parts, unit=ItemCost(none)).open())

"""Weights: limits and temperature, schedules, weights of inner mixes, and what they ask
for."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from energize import BlendDataset, ListSource
from energize.core.description import described
from energize.errors import ConfigError, WeightError
from energize.order import Schedule, WeightSchedulePoint, WeightScheduler
from energize.order.weights import (
    Compound,
    Era,
    ever_positive,
    limited,
    raised,
    shares_at,
    weight_as_described,
)
from tests.support.tables import check_faults

CODE = ((0, 0.2), (10_000, 0.5), (50_000, 0.8))


def code_and_text(interpolation="linear", **options):
    points = [
        WeightSchedulePoint(s, {"code": w, "text": round(1 - w, 9)}) for s, w in CODE
    ]
    return WeightScheduler(points, interpolation, **options)


def test_limits_hold_some_shares_and_leave_the_others_in_ratio():
    assert limited([3, 0, 1], least=0.4) == [0.6, 0, 0.4]
    assert limited([90, 9, 1], 0.05, 0.5) == pytest.approx([0.5, 0.45, 0.05])
    assert limited([9, 1], most=[0.6, None]) == pytest.approx([0.6, 0.4])
    for count in range(2, 60):
        for limits in ({"most": 1 / count}, {"least": 1 / count}):
            found = limited(list(range(1, count + 1)), **limits)
            assert found == pytest.approx([1 / count] * count)


def test_weights_by_size_flattened_by_a_temperature():
    """T = 5 gives p_i = n_i ** (1 / 5) over the sum, as in multilingual training."""
    sizes = {"en": 100_000, "de": 3125, "sw": 32}
    texts = {name: ListSource(range(n), name=name) for name, n in sizes.items()}
    assert BlendDataset(texts, weights="size").taken(103_157) == [*sizes.values()]
    mix = BlendDataset(texts, weights="size", temperature=5)
    assert mix.shares() == pytest.approx([10 / 17, 5 / 17, 2 / 17])
    assert mix == BlendDataset(texts, weights="size", exponent=0.2)
    root = BlendDataset(*texts.values(), weights="sqrt_size")
    halved = BlendDataset(texts, weights="size", temperature=2)
    assert root.shares() == pytest.approx(halved.shares())
    inner = BlendDataset((texts["en"], 1), (texts["de"], 1))
    nested = BlendDataset([inner, texts["sw"]], weights="size")
    assert nested.shares()[2] == 32 / 103_157


def test_weights_between_and_after_points():
    rows = {
        "linear": {0: 0.2, 5_000: 0.35, 10_000: 0.5, 30_000: 0.65, 10**9: 0.8},
        "cosine": {2_500: 0.243934, 5_000: 0.35, 20_000: 0.543934, 40_000: 0.756066},
        "step": {9_999: 0.2, 10_000: 0.5, 49_999: 0.5, 50_000: 0.8},
    }
    for interpolation, steps in rows.items():
        scheduler = code_and_text(interpolation)
        for step, code in steps.items():
            found = scheduler.get_weights(step)
            assert found == pytest.approx({"code": code, "text": 1 - code}, abs=5e-7), (
                step
            )
    late = WeightScheduler([WeightSchedulePoint(100, {"a": 0.3, "b": 0.7})])
    assert late.get_weights(3) == {"a": 0.3, "b": 0.7}
    late.get_weights(3)["a"] = 9.0
    assert late.get_weights(3)["a"] == 0.3
    assert late.dataset_names == ["a", "b"]
    WeightSchedulePoint(0, {"a": 0.5, "b": 0.5000005})


def test_numbers_of_any_kind():
    scheduler = code_and_text()
    weights = scheduler.get_weights(5000)
    for step in (np.int64(5000), np.float32(5000), torch.tensor(5000), Fraction(5000)):
        assert scheduler.get_weights(step) == weights
    assert scheduler.get_weights(10**400) == scheduler.get_weights(50_000)
    plain = Schedule([(0, 1), (8, 0.5)], "linear", 4)
    for kind in (np.int64, torch.tensor):
        given = [(kind(0), torch.tensor(1)), (kind(8), np.float32(0.5))]
        assert Schedule(given, "linear", kind(4)) == plain
        assert WeightSchedulePoint(kind(3), {"a": 1}) == WeightSchedulePoint(
            3, {"a": 1}
        )
    assert hash(plain) == hash(Schedule([(0, 1), (8, 0.5)], "linear", 4))


def schedule(*points, **options):
    return lambda: Schedule(list(points), **options)


def point(weights, step=3):
    return lambda: WeightSchedulePoint(step, weights)


def test_points_that_are_none():
    order = "Schedule: points must be a non-empty list"
    faults = {
        "none": (schedule(), order),
        "twice": (schedule((0, 1), (0, 2)), f"{order}...got [0, 0]"),
        "back": (schedule((5, 1), (3, 2)), f"{order}...got [5, 3]"),
        "below 0": (
            schedule((-1, 1)),
            "the step of a point must be a whole number >= 0, got -1",
        ),
        "half": (
            schedule((0.5, 1)),
            "the step of a point must be a whole number...got 0.5",
        ),
        "bool": (
            schedule((True, 1)),
            "the step of a point must be a whole number...got True",
        ),
        "no pair": (schedule((0, 1, 2)), "pairs (step, value), got (0, 1, 2)"),
        "no list": (lambda: Schedule(5), "Schedule: points must be pairs"),
        "weight": (schedule((0, -1)), "Schedule: the point at step 0: ...not negative"),
        "NaN": (schedule((0, 1), (7, math.nan)), "the point at step 7: ...finite"),
        "text": (schedule((0, "1")), "a weight is a number"),
        "way": (
            schedule((0, 1), interpolation="linaer"),
            "Schedule: ...did you mean 'linear'",
        ),
        "slots 0": (
            schedule((0, 1), slots_per_step=0),
            "slots_per_step must be a whole number >= 1",
        ),
        "slots 2.0": (
            schedule((0, 1), slots_per_step=2.0),
            "slots_per_step must be a whole number",
        ),
        "far": (
            lambda: Era(0, [Schedule([(0, 1), (2**50, 2)]), 1.0]),
            "the last point of a schedule must be at most",
        ),
        "no scheduler": (
            lambda: WeightScheduler([]),
            "WeightScheduler: schedule must be a non-empty list",
        ),
        "no points": (
            lambda: WeightScheduler([(0, {"a": 1})]),
            "WeightScheduler: schedule must be a non-empty",
        ),
        "one point": (
            lambda: WeightScheduler(point({"a": 1})()),
            "WeightScheduler: schedule must be",
        ),
        "options": (
            lambda: code_and_text("lin"),
            "WeightScheduler: interpolation='lin' is",
        ),
    }
    for step in (-1, math.nan, "3", None, True, [3]):
        said = f"a step must be a number >= 0, got {step!r}"
        faults[f"{step} of all"] = (
            lambda s=step: code_and_text().get_weights(s),
            f"WeightScheduler: {said}",
        )
        faults[f"{step} of one"] = (
            lambda s=step: schedule((0, 1))().value(s),
            f"Schedule: {said}",
        )
    check_faults(ConfigError, faults)


def test_weights_that_cannot_be_used():
    faults = {
        f"{weights}": (point(weights), "WeightSchedulePoint: the point at step 3")
        for weights in ({}, {"a": 0.0}, {"a": -0.5, "b": 1.5}, [1.0], None)
    }
    two = [point({"a": 0.5, "b": 0.5}, 0)(), point({"a": 0.5, "c": 0.5}, 9)()]
    ends = Schedule([(0, 1), (10, 0), (20, 1)])
    faults |= {
        "sum": (point({"a": 0.5, "b": 0.4}), "sum to 0.9, but must sum to 1"),
        "names": (lambda: WeightScheduler(two), "step 9 ...missing 'b'; unknown 'c'"),
        "0 at a point": (lambda: Era(0, [ends, 0.0]), "all 2 weights are 0 at slot 10"),
        "0 on a way": (
            lambda: Era(0, [Schedule([(5, 1), (9, 0)], "linear")]),
            "all 1 weights are 0 at slot 9",
        ),
        "0 as it acts": (
            lambda: Era(0, [ends, 0.0], 15),
            "all 2 weights are 0 at slot 15",
        ),
        "raised": (lambda: raised([0, 0], 1), "all 2 weights are 0"),
    }
    check_faults(WeightError, faults)
    Era(
        0, [Schedule([(0, 1), (10, 0), (11, 1)]), 0.0], 15
    )  # the second point acts at once


def test_limits_that_cannot_be_kept():
    faults = {
        "floors": (lambda: limited([1, 2], 0.6), "floors of the 2 datasets sum to 1.2"),
        "caps": (
            lambda: limited([1, 2], None, 0.4),
            "2 datasets sum to 0, their caps (max_share) to 0.8",
        ),
        "apart": (
            lambda: limited([1, 2], [0.5, None], 0.4),
            "min_share of dataset 0 is above its max_share, 0.4",
        ),
        "above 1": (
            lambda: limited([1, 2], 1.5),
            "min_share: a share must be a number from 0 to 1",
        ),
        "of none": (
            lambda: limited([1, 0], [None, 0.1]),
            "dataset 1: the floor is 0.1, but",
        ),
        "too few": (
            lambda: limited([1, 2], [0.1]),
            "1 limits were passed for 2 datasets",
        ),
        "text": (
            lambda: limited([1, 2], "0.1"),
            "a share must be a number from 0 to 1, got '0.1'",
        ),
    }
    check_faults(ConfigError, faults)


def test_weights_of_inner_mixes():
    rising, falling = (
        Schedule([(0, 1), (100, 3)], "linear"),
        Schedule([(0, 2), (100, 0)]),
    )
    inner = (rising, 1.0, 0.0)
    shares = [Compound("share", inner, number) for number in range(3)]
    found = shares_at(
        [Compound("product", (2.0, each)) for each in shares] + [falling], [50, 150]
    )
    assert found.tolist() == pytest.approx(
        np.array([[1 / 3, 1 / 6, 0, 0.5], [0.75, 0.25, 0, 0]])
    )
    even = [Compound("share", inner, number, 0.5) for number in range(3)]
    at = 3**0.5 / (1 + 3**0.5)
    assert shares_at(even, [100])[0].tolist() == pytest.approx([at, 1 - at, 0])
    assert shares_at([Compound("sum", (rising, 2.0)), 1], [100])[
        0
    ].tolist() == pytest.approx([5 / 6, 1 / 6])
    assert [ever_positive(each) for each in shares] == [True, True, False]
    assert not ever_positive(Compound("product", (rising, 0.0)))
    assert ever_positive(Compound("sum", (0.0, falling)))
    for weight in [*even, Fraction(1, 3), 0.1, falling, Compound("sum", (rising, 2.0))]:
        assert weight_as_described(described(weight)) == weight
    for wrong in ({"parts": 3}, {"points": [], "x": 1}, [1], None, {}):
        with pytest.raises((TypeError, KeyError, ValueError)):
            weight_as_described(wrong)

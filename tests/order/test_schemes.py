"""Schemes of fixed weights: what each promises, at any position."""

from __future__ import annotations

import json
import pickle
from functools import partial

import numpy as np
import pytest
import torch

from energize.errors import ConfigError, WeightError
from energize.order import Schedule, WeightSchedulePoint, WeightScheduler, make_scheme
from energize.order.timeline import SCHEMES
from tests.support.schemes import check_counts
from tests.support.tables import check_faults, row


def asking(**question):
    [(method, value)] = question.items()
    return lambda: [
        getattr(make_scheme(name, [5, 3]), method)(value) for name in SCHEMES
    ]


def making(name, weights, **options):
    return lambda: make_scheme(name, weights, **options)


def test_what_cannot_be_asked_is_named():
    said = "counts(n): n must be a whole number from 0 to 2**62, got"
    numbers = [-1, 1.5, "3", None, True, 2**62 + 1, [3]]
    faults = {f"n = {n!r}": (asking(counts=n), f"{said} {n!r}") for n in numbers}
    for ks in ([3, -1], [2**62], [0.5], ["a"], [True], 5, [[1, 2]]):
        faults[f"ks = {ks!r}"] = (
            asking(locate=ks),
            "locate(ks): ks must be a one-dimensional array...got ",
        )
    check_faults(ConfigError, faults)


def test_what_cannot_be_made_is_named():
    lists = [None, 5, "12", {1, 2}, np.array(3), frozenset({1})]
    faults = {
        f"{each!r}": (making("even", each), "weights must be a list of num")
        for each in lists
    }
    for name in SCHEMES:
        faults[f"{name}, none"] = (
            making(name, []),
            "all 0 weights are 0. Set at least one",
        )
        faults[f"{name}, 0"] = making(name, [0, 0.0]), "all 2 weights are 0"
    faults |= {
        "below 0": (making("even", [1, -0.5]), "weight 1: ...not negative, got -0.5"),
        "NaN": (
            making("even", {"code": 1, "math": float("nan")}),
            "weight 'math': ...got nan",
        ),
        "infinite": (making("even", [float("inf"), 1]), "weight 0: ...got inf"),
        "too large": (making("even", [1, 10**400]), "weight 1: a weight is finite"),
        "text": (making("even", [1, "2"]), "weight 1: a weight is a number, got '2'"),
        "bool": (making("even", [True, 1]), "weight 0: a weight is a number"),
        "None": (making("even", [1, None]), "weight 1: a weight is a number"),
        "tensor": (
            making("even", [torch.ones(2), 1]),
            "weight 0: a weight is a number",
        ),
    }
    check_faults(WeightError, faults)
    known = "is not one of even, exact, block"
    faults = {
        "name": (making("blok", [1]), f"scheme='blok' {known}...did you mean 'block'"),
        "no name": (making(["block"], [1]), f"scheme=['block'] {known}"),
        "option": (
            making("exact", [1], block_size=3),
            "the scheme 'exact': option='block_size'",
        ),
        "other option": (
            making("block", [1], blocksize=3),
            "did you mean 'block_size'",
        ),
        "key": (
            making("block", [1], key="x"),
            "the key of a scheme must be a whole number",
        ),
        "a large block": (
            making("block", [1], block_size=10**9),
            "block_size must be at most 16777216, got 1000000000",
        ),
    }
    for size in (0, -1, 2.5, True):
        faults[f"size {size!r}"] = (
            making("block", [1], block_size=size),
            "block_size must be a whole",
        )
    check_faults(ConfigError, faults)


SCHEDULER = WeightScheduler(
    [
        WeightSchedulePoint(0, {"code": 0.2, "text": 0.8}),
        WeightSchedulePoint(400, {"code": 0.8, "text": 0.2}),
    ],
    "linear",
)


def test_schemes_are_equal_when_all_that_decides_is():
    rising = Schedule([(0, 0.2), (400, 0.8)], "linear")
    blocks = partial(make_scheme, "block", block_size=10)
    different = [
        make_scheme("exact", [3, 1]),
        make_scheme("exact", [1, 3]),
        make_scheme("round_robin", [3, 1]),
        make_scheme("exact", {"a": 3, "b": 1}),
        make_scheme("exact", {"b": 3, "a": 1}),
        make_scheme("exact", [3, 1]).with_weights_from(5, [1, 1]),
        *(
            blocks([3, 1]),
            blocks([3, 1], key=1),
            make_scheme("block", [3, 1], block_size=20),
        ),
        *(blocks([rising, 1]), blocks(SCHEDULER)),
    ]
    for number, scheme in enumerate(different):
        with row(scheme):
            again = pickle.loads(pickle.dumps(scheme))
            assert [n for n, other in enumerate(different) if other == again] == [
                number
            ]
            assert json.loads(json.dumps(scheme.describe())) == scheme.describe()
    assert blocks(SCHEDULER) == blocks(SCHEDULER.schedules())
    small = make_scheme("random", {"a": 0.5, "b": 0.25}, key=5)
    before = len(pickle.dumps(small))
    small.locate(np.arange(10**6, 10**6 + 500))
    assert len(pickle.dumps(small)) == before < 3000, "what was computed is pickled"


@pytest.mark.jobs
def test_a_hundred_thousand_sources():
    for name in ("block", "even"):
        scheme = make_scheme(name, (1 + np.arange(100_000) % 7).tolist(), key=1)
        check_counts(scheme, 2000, start=10**6, every=500)

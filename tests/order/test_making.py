"""Making schemes, asking them, and telling two of them apart."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from energize.errors import ConfigError, WeightError
from energize.order import Schedule, WeightSchedulePoint, WeightScheduler, make_scheme
from energize.order.windows import SCHEMES
from tests.support.schemes import check_counts

RISING = Schedule([(0, 0.2), (400, 0.8)], "linear")
SCHEDULER = WeightScheduler(
    [
        WeightSchedulePoint(0, {"code": 0.2, "text": 0.8}),
        WeightSchedulePoint(400, {"code": 0.8, "text": 0.2}),
    ],
    "linear",
)
DIFFERENT = {
    "weights": make_scheme("exact", [3, 1]),
    "other weights": make_scheme("exact", [1, 3]),
    "another scheme": make_scheme("round_robin", [3, 1]),
    "names": make_scheme("exact", {"a": 3, "b": 1}),
    "other names": make_scheme("exact", {"b": 3, "a": 1}),
    "blocks": make_scheme("block", [3, 1], block_size=10),
    "other blocks": make_scheme("block", [3, 1], block_size=20),
    "a key": make_scheme("block", [3, 1], block_size=10, key=1),
    "a schedule": make_scheme("block", [RISING, 1], block_size=10),
    "a scheduler": make_scheme("block", SCHEDULER, block_size=10),
}


@pytest.fixture(params=[*SCHEMES, "schedule"])
def scheme(request):
    if request.param == "schedule":
        return make_scheme("block", SCHEDULER, block_size=100, key=3)
    return make_scheme(request.param, [5, 3, 2], key=3)


@pytest.mark.parametrize(
    "kind", [np.int64, np.int32, np.uint64, list, torch.tensor, lambda slots: range(90, 190)]
)
def test_slots_may_be_any_whole_numbers(scheme, kind):
    slots = np.arange(90, 190)
    for one, other in zip(scheme.locate(slots), scheme.locate(kind(slots)), strict=True):
        assert one.dtype == other.dtype == np.int64
        assert (one == other).all()


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, torch.tensor, np.array])
def test_numbers_of_slots_may_be_any_whole_numbers(scheme, kind):
    assert scheme.counts(kind(123)).tolist() == scheme.counts(123).tolist()


@pytest.mark.parametrize("n", [-1, 1.5, "3", None, True, 2**62 + 1, np.float64(3), [3]])
def test_numbers_of_slots_that_are_none(scheme, n):
    with pytest.raises(ConfigError, match=r"n is a number of slots, from 0 to 2\*\*62; got"):
        scheme.counts(n)


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        ([3, -1], "slots are from 0 to .*; got -1"),
        ([2**62], f"got {2**62}"),
        (np.array([2**63], dtype=np.uint64), "slots are from 0"),
        ([0.5], "an array of whole numbers; got float64"),
        (["a"], "an array of whole numbers"),
        ([True], "an array of whole numbers; got bool"),
        (5, r"for one slot \[k\]; got 5"),
        ([[1, 2]], "an array of one dimension"),
    ],
)
def test_slots_that_are_none(scheme, slots, said):
    with pytest.raises(ConfigError, match=said):
        scheme.locate(slots)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("weights", [None, 5, "12", {1, 2}, np.array(3), frozenset({1})])
def test_what_is_no_list_of_weights(name, weights):
    with pytest.raises(WeightError, match="weights are a list of numbers, or numbers by name"):
        make_scheme(name, weights)


@pytest.mark.parametrize("name", [None, 5, ["block"], ""])
def test_names_that_are_none(name):
    with pytest.raises(ConfigError, match=r"unknown scheme .* Known: even, exact, block"):
        make_scheme(name, [1, 2])


def test_numbers_of_any_kind():
    counts = make_scheme("exact", [1, 3]).counts(8).tolist()
    for weights in (
        [Decimal("0.1"), Decimal("0.3")],
        np.array([1, 3]),
        torch.tensor([1, 3]),
        torch.tensor([0.5, 1.5]),
        [torch.tensor(1), np.float16(3)],
        (weight for weight in (Fraction(1, 3), 1)),
    ):
        assert make_scheme("exact", weights).counts(8).tolist() == counts
    with pytest.raises(WeightError, match=r"weight 1: .* not negative, got Decimal"):
        make_scheme("exact", [1, Decimal("NaN")])
    with pytest.raises(WeightError, match="weight 0: a weight is a number"):
        make_scheme("exact", [torch.ones(2), 1])
    sized = make_scheme("block", [1, 1], block_size=np.int64(8), key=np.int64(3))
    assert sized == make_scheme("block", [1, 1], block_size=8, key=3)
    with pytest.raises(ConfigError, match="the key of a scheme is a whole number, got 'x'"):
        make_scheme("block", [1, 1], key="x")


def test_a_block_that_memory_could_not_hold():
    with pytest.raises(ConfigError, match=r"block_size is 1000000000, .*16777216 slots at most"):
        make_scheme("block", [1, 1], block_size=10**9)


def test_weights_that_change():
    scheme = make_scheme("block", SCHEDULER, block_size=100, key=3)
    assert scheme.names == ("code", "text")
    assert scheme.counts(400).tolist() == [200, 200]
    check_counts(scheme, 800)
    by_name = make_scheme("block", SCHEDULER.schedules(), block_size=100, key=3)
    assert by_name == scheme
    by_position = make_scheme("block", [*SCHEDULER.schedules().values()], block_size=100, key=3)
    assert by_position.names is None
    assert (by_position.locate(range(800))[0] == scheme.locate(range(800))[0]).all()
    beside = make_scheme("block", {"a": RISING, "b": Fraction(1, 2)}, block_size=100)
    assert beside.counts(400).tolist() == pytest.approx([194, 206], abs=2)
    with pytest.raises(WeightError, match="weight 'b': a weight is a number, got '1'"):
        make_scheme("block", {"a": RISING, "b": "1"})
    with pytest.raises(ConfigError, match="no option 'blocksize'; did you mean 'block_size'"):
        make_scheme("block", SCHEDULER, blocksize=3)
    with pytest.raises(ConfigError, match="unknown scheme 'blok'"):
        make_scheme("blok", SCHEDULER)


@pytest.mark.parametrize("one", DIFFERENT)
def test_schemes_are_equal_when_all_that_decides_is(one):
    scheme = DIFFERENT[one]
    assert [name for name in DIFFERENT if DIFFERENT[name] == scheme] == [one]
    again = pickle.loads(pickle.dumps(scheme))
    assert again == scheme
    assert hash(again) == hash(scheme)
    assert json.loads(json.dumps(scheme.describe())) == scheme.describe()
    assert f"(scheme={scheme.describe()['scheme']!r}, weights=" in repr(scheme)
    assert scheme != "exact"


def test_many_weights_are_shown_in_short():
    assert len(repr(make_scheme("exact", range(1, 10_000)))) < 200

"""The packer that selects samples, and what it says of those it cannot pack."""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import Sample
from energize.core.description import described
from energize.errors import ConfigError, SampleError
from energize.packing import Packer, attention_cost, balanced, best_fit, first_fit


@dataclass(kw_only=True, slots=True)
class Tokens(Sample):
    ids: list[int]
    tiles: int = 0
    images: list[str] = field(default_factory=list)


def tokens(*lengths, tiles=0):
    return [Tokens(__key__=f"{i}", ids=[i] * each, tiles=tiles) for i, each in enumerate(lengths)]


def length(sample):
    return len(sample.ids)


def cost(sample):
    return len(sample.ids) ** 2


@pytest.mark.parametrize("method", [first_fit, best_fit, balanced])
@given(st.lists(st.integers(0, 30), max_size=40))
def test_samples_are_packed_as_their_lengths_are(method, lengths):
    samples = tokens(*lengths)
    packs = Packer(length, 30, method=method.__name__)(samples)
    expected = [[samples[i] for i in pack] for pack in method(lengths, 30)]
    assert [list(map(id, pack)) for pack in packs] == [list(map(id, pack)) for pack in expected]


@pytest.mark.parametrize(
    ("length", "sample"),
    [
        (length, Tokens(__key__="0", ids=[1, 2, 3])),
        ("ids", Tokens(__key__="0", ids=[1, 2, 3])),
        ("ids", {"ids": torch.zeros(3, 2)}),
        ("ids", {"ids": np.zeros(3)}),
        ("count", {"count": 3}),
        ("count", {"count": torch.tensor(3)}),
        ("count", {"count": np.int16(3)}),
        (len, "abc"),
        ("ids", {"ids": "abc"}),
    ],
)
def test_a_length_is_a_function_or_a_field(length, sample):
    assert Packer(length, 6)([sample, sample, sample]) == [[sample, sample], [sample]]


def test_one_token_is_one_token_whatever_its_number():
    samples = [{"ids": torch.tensor([each])} for each in (0, 9, 3)]
    assert [len(pack) for pack in Packer("ids", 2)(samples)] == [2, 1]


def test_tokens_and_tiles_hold_together():
    samples = [Tokens(__key__=f"{i}", ids=[0] * (5 + i), tiles=i % 4) for i in range(40)]
    for method in ("first_fit", "best_fit", "balanced"):
        packs = Packer(("ids", "tiles"), (64, 5), method=method)(samples)
        assert sum(map(len, packs)) == 40
        assert all(sum(len(each.ids) for each in pack) <= 64 for pack in packs)
        assert all(sum(each.tiles for each in pack) <= 5 for pack in packs)


def test_balanced_by_a_cost_of_ones_own():
    samples = tokens(8, 8, 4, 4, 4, 4, 4, 4, 4, 4)
    packs = Packer(length, 64, "balanced", cost=cost)(samples)
    assert len(packs) == 1
    packs = Packer(length, 32, "balanced", cost=cost)(samples)
    assert sorted(sum(map(cost, pack)) for pack in packs) == [128, 128]


def test_a_sample_that_is_too_long_is_named():
    samples = tokens(3, 30, 40)
    with pytest.raises(SampleError, match=r"sample '1' has length 30, and a pack holds 20; cut it"):
        Packer(length, 20)(samples)
    with pytest.raises(
        SampleError, match=r"sample '0' has length \(3, 9\), and a pack .*\(20, 5\)"
    ):
        Packer(("ids", "tiles"), (20, 5))(tokens(3, tiles=9))


def test_or_left_out_with_one_warning(caplog):
    packer = Packer(length, 20, too_long="skip")
    with caplog.at_level(logging.WARNING, "energize"):
        packs = packer(tokens(3, 30, 17, 40, 21))
        assert [[each.__key__ for each in pack] for pack in packs] == [["0", "2"]]
        assert packer(tokens(50)) == []
    [record] = caplog.records
    assert "3 of 5 samples are too long and left out" in record.getMessage()
    assert "sample '1' has length 30, and a pack holds 20" in record.getMessage()


FAULTS = {
    "no capacity": ((length, 0), {}, "capacity is a whole number, 1 or more; got 0"),
    "a method": ((length, 5), {"method": "bestfit"}, "method='bestfit' is not one of first_fit"),
    "what to do": ((length, 5), {"too_long": "cut"}, "too_long='cut' is not one of error, skip"),
    "lengths": ((length, (5, 5)), {}, "1 lengths and 2 capacities"),
    "no length": ((3, 5), {}, "length is a function of a sample or the name of a field; got 3"),
    "cost of best_fit": ((length, 5), {"cost": cost}, "for method='balanced' only"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_arguments_that_cannot_be_used(fault):
    arguments, options, message = FAULTS[fault]
    with pytest.raises(ConfigError) as caught:
        Packer(*arguments, **options)
    assert message in str(caught.value)


SAMPLES = {
    "no field": (
        "tokens",
        {"__key__": "a", "token": [1]},
        "sample 'a' has no field 'tokens'; it has",
    ),
    "no record": ("tokens", "text", "sample 0 of the list has no field 'tokens'; it has none"),
    "a fraction": (lambda _: 1.5, {}, "sample 0 of the list is a whole number, 0 or more; got 1.5"),
    "negative": (lambda _: -1, {}, "got -1"),
    "none": ("ids", {"ids": None}, "got None (NoneType)"),
}


@pytest.mark.parametrize("row", SAMPLES)
def test_lengths_that_cannot_be_used(row):
    length, sample, message = SAMPLES[row]
    with pytest.raises(ConfigError) as caught:
        Packer(length, 5)([sample])
    assert message in str(caught.value)


def test_a_cost_that_is_no_number():
    with pytest.raises(ConfigError, match="cost of sample '0' is a number; got 'dear'"):
        Packer(length, 5, "balanced", cost=lambda _: "dear")(tokens(3))


def test_it_goes_to_workers_and_into_descriptions():
    packer = Packer(length, 20, "balanced", cost=cost)
    assert pickle.loads(pickle.dumps(packer)) == packer
    listed = Packer(["ids", "tiles"], [20, 5])
    assert hash(listed) == hash(Packer(("ids", "tiles"), (20, 5)))
    assert described(packer) == {
        "length": f"{__name__}.length",
        "capacity": 20,
        "method": "balanced",
        "too_long": "error",
        "cost": f"{__name__}.cost",
    }


def test_attention_costs_more_for_one_long_sample():
    assert attention_cost(2048) > 2 * attention_cost(1024) > 4 * attention_cost(512)
    assert attention_cost(1, hidden_size=1) == 7

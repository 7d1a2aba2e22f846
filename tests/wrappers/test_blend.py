"""Blends: how datasets and weights are given, what is merged, and whose order repeats.

Shares, schedules and stop rules are tested with the schemes.
"""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np
import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    MapDataset,
    MixBatchDataset,
    ShuffleDataset,
    get_loader,
)
from energize.errors import ConfigError, EmptyDatasetError, StateMismatchError, WeightError
from energize.order.timeline import make_scheme
from tests.support.datasets import noisy, numbers, shuffled


def test_pairs_or_one_iterable_of_pairs():
    pairs = [(shuffled(5), 2), (shuffled(7, 100), 1)]
    assert BlendDataset(*pairs) == BlendDataset(pairs) == BlendDataset(iter(pairs))
    assert BlendDataset(pairs[0]).shares() == [1.0]


def test_one_pair_alone():
    assert BlendDataset([(numbers(2), 1)]).at(range(4)) == [0, 1, 0, 1]


def test_missing_weights():
    with pytest.raises(WeightError, match="dataset 1 has no weight"):
        BlendDataset((numbers(2), 1), numbers(2, 5))
    with pytest.raises(WeightError, match="no weight"):
        BlendDataset(numbers(2))
    with pytest.raises(WeightError, match="dataset 0 has no weight"):
        BlendDataset(numbers(2), numbers(3))


def test_an_empty_dataset_with_a_weight():
    with pytest.raises(EmptyDatasetError, match="dataset 1 has weight 1"):
        BlendDataset((numbers(2), 1), (numbers(0), 1))


def test_weights_far_apart_still_draw_the_small_one():
    scheme = make_scheme("block", [1e9, 10])
    assert scheme.counts(10**10).tolist() == [9_999_999_900, 100]


def test_a_tiny_dataset_keeps_its_share():
    blend = BlendDataset((shuffled(1000), 1), (shuffled(2, 5000), 1))
    assert Counter(blend.refs(range(4000)).source.tolist()) == {0: 2000, 1: 2000}


def test_equal_datasets_are_merged_and_said_so(caplog):
    with caplog.at_level(logging.INFO, logger="energize"):
        blend = BlendDataset(
            (numbers(4), 1), (BlendDataset((numbers(4), 1), (numbers(5, 9), 1)), 2)
        )
    source = numbers(4)
    same = BlendDataset((source, 1), (BlendDataset((source, 1), (numbers(5, 9), 1)), 2))
    assert len(same.inputs) == 2
    assert same.shares() == pytest.approx([2 / 3, 1 / 3])
    assert len(blend.inputs) == 3  # lists made apart are not one source


def test_the_same_source_twice_does_not_repeat_its_order():
    source = numbers(60)
    twice = BlendDataset(
        (MapDataset(ShuffleDataset(source), noisy), 1),
        (MapDataset(ShuffleDataset(source), str), 1),
        scheme="exact",
    )
    refs = twice.refs(range(120))
    first, second = (refs.index[refs.source == number].tolist() for number in (0, 1))
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second


def test_the_same_source_at_other_depths_does_not_repeat_its_order():
    source = shuffled(60)
    inner = MixBatchDataset((source, 1), (shuffled(60, 100), 1), batch_size=1)
    outer = BlendDataset((BatchDataset(source, 1, list), 1), (inner, 2))
    refs = outer.refs(range(1800))
    orders = [refs.index[refs.source == number][:60].tolist() for number in (0, 1)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("scheme", ["uniform", "round_robin"])
def test_blends_that_treat_all_alike_are_not_opened_up(scheme):
    inner = BlendDataset((numbers(3), 1), (numbers(3, 10), 1), scheme=scheme)
    outer = BlendDataset((inner, 1), (numbers(3, 20), 1), scheme=scheme)
    drawn = outer.consumed(40_000) / 40_000
    assert drawn == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


def test_a_scheme_object_decides():
    scheme = make_scheme("block", [3, 1], block_size=4, key=5)
    blend = BlendDataset((numbers(2), 1), (numbers(2, 5), 1), scheme=scheme)
    assert np.bincount(blend.refs(range(40)).source).tolist() == [30, 10]


def test_a_scheme_object_is_part_of_the_state():
    one, other = numbers(2), numbers(2, 5)

    def blend(*weights):
        return BlendDataset((one, 1), (other, 1), scheme=make_scheme("exact", weights))

    assert blend(3, 1) == blend(6, 2) != blend(1, 3)
    with get_loader(blend(3, 1)) as loader:
        state = loader.state_dict()
    with get_loader(blend(6, 2)) as loader:
        loader.load_state_dict(state)
    with get_loader(blend(1, 3)) as loader, pytest.raises(StateMismatchError, match="weights"):
        loader.load_state_dict(state)


def test_a_scheme_object_over_other_names():
    named = {"code": numbers(2), "text": numbers(2, 5)}
    weights = {"code": 3, "text": 1}
    scheme = make_scheme("exact", weights)
    assert BlendDataset(named, weights=weights, scheme=scheme).consumed(8).tolist() == [6, 2]
    turned = make_scheme("exact", {"text": 1, "code": 3})
    with pytest.raises(WeightError, match="over the sources text, code, and the datasets are"):
        BlendDataset(named, weights=weights, scheme=turned)


def test_a_scheme_of_another_size():
    with pytest.raises(ConfigError, match="3 sources, but there are 2 datasets"):
        BlendDataset((numbers(2), 1), (numbers(2, 5), 1), scheme=make_scheme("block", [1, 1, 1]))


def test_its_length_is_a_pass_over_the_datasets_with_a_weight():
    assert len(BlendDataset((numbers(2), 1), (numbers(5, 10), 9), (numbers(7, 100), 0))) == 7


def test_position_10_to_the_9_costs_what_position_0_costs():
    blend = BlendDataset((shuffled(5), 0.6), (shuffled(3, 100), 0.4))
    assert len(blend.at([10**9, 10**12, 2**60])) == 3

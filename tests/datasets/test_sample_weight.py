"""Weights in Python trees: what they leave as it is; drawn by one mix, weighed by
another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize import (
    BatchDataset,
    BlendDataset,
    ComposedDataset,
    ConcatDataset,
    ConfigError,
    Dataset,
    EncoderError,
    FilterDataset,
    IterMapDataset,
    ListSource,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
    QuotaDataset,
    SampleWeightDataset,
    ShuffleDataset,
    WeightError,
    get_loader,
)
from energize.core.config import config_of
from energize.core.loss_weights import weighed, weight_of
from energize.core.means import total_weight
from energize.experimental import Stage, StagedDataset, StagePlan
from energize.packing import concat_pack
from energize.task.hooks import generic_batch, generic_concat


def rows(name: str, count: int = 20) -> Dataset[Any]:
    samples = [{"__key__": f"{name}{i}"} for i in range(count)]
    return ShuffleDataset(ListSource(samples, name=name))


def noisy(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "noise": random.random()}


def unweighed(items: Any) -> list[Any]:
    return [
        {name: x for name, x in item.items() if "weight" not in name} for item in items
    ]


def even(sample: dict[str, Any]) -> bool:
    return int(sample["__key__"][1:]) % 2 == 0


TREES = {
    "a source": lambda w: MapDataset(w(rows("a"), 0.5), noisy),
    "between maps": lambda w: MapDataset(w(MapDataset(rows("a"), noisy), 2), noisy),
    "a blend": lambda w: BlendDataset((w(rows("a"), 2), 2), (rows("b"), 1)),
    "a blend in a blend": lambda w: BlendDataset(
        (w(BlendDataset((rows("a"), 1), (w(rows("b"), 3), 2)), 0.1), 3), (rows("c"), 1)
    ),
    "a stream": lambda w: MapDataset(w(FilterDataset(rows("a"), even), 0.5), noisy),
    "a map of a stream": lambda w: MapDataset(
        w(MapDataset(FilterDataset(rows("a"), even), noisy), 0.5), noisy
    ),
    "parts": lambda w: ConcatDataset(w(rows("a"), 0.5), rows("b")),
}


@pytest.mark.parametrize("name", TREES)
def test_weights_change_no_order_and_no_draw(name):
    weighed = TREES[name](SampleWeightDataset)
    plain = TREES[name](lambda dataset, _: dataset)
    assert any(weight_of(each) is not None for each in islice(weighed, 20))
    assert unweighed(islice(weighed, 50)) == unweighed(islice(plain, 50))
    assert weighed.key == plain.key
    assert config_of(weighed).fingerprint == config_of(plain).fingerprint


def test_weights_are_on_the_host_whatever_the_default_device_is():
    samples = [{"__key__": "a", "sample_weight": 0.5}, {"__key__": "b"}]
    loader = get_loader(BatchDataset(ListSource(samples), 2, generic_batch))
    batches = [{"__key__": ["a"], "weight": 0.5}, {"__key__": ["b"], "weight": 1.0}]
    pieces = [{"ids": [1, 2], **sample} for sample in samples]
    with torch.device("meta"):
        (batch,) = loader
        assert batch["sample_weights"].tolist() == [0.5, 1.0]
        assert weighed({"__key__": ["a"]}, 0.5)["sample_weights"].tolist() == [0.5]
        assert generic_concat(batches)["weight"].tolist() == [0.5, 1.0]
        assert total_weight([batch]) == 1.5
        assert concat_pack(pieces, ["ids"])["position_ids"].tolist() == [0, 1, 0, 1]


# A mix of which one part has weights: its items, and batches of them, have the same
# keys.


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The collate function that users write, by the keys of the first sample."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def in_stages(first: Dataset[Any], second: Dataset[Any]) -> Dataset[Any]:
    stages = [
        Stage("first", 0, 6, dataset=first),
        Stage("second", 6, 40, dataset=second),
    ]
    return StagedDataset(StagePlan(stages), carry_over=False)


def pairs(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        made = collate([item, next(items, item)])
        weights = torch.tensor(made.pop("__sample_weight__"))
        yield {**made, "sample_weights": weights}


MIXES = {
    "a blend": lambda a, b: BlendDataset((a, 3), (b, 1)),
    "a blend around a weighted blend": lambda a, b: BlendDataset(
        (BlendDataset((a, 1), (rows("c"), 1), scheme="block"), 1), (b, 1)
    ),
    "a blend around target weights": lambda a, b: BlendDataset(
        (
            BlendDataset((a, 1), (rows("c"), 1), scheme="block", target_weights=[1, 3]),
            1,
        ),
        (b, 1),
    ),
    "a blend of streams": lambda a, b: BlendDataset(
        (FilterDataset(a, even), 1), (b, 1), stop="all_exhausted"
    ),
    "parts in a row": ConcatDataset,
    "quotas": QuotaDataset,
    "a composition": lambda a, b: ComposedDataset(a, b, batch_size=1).samples,
    "stages": in_stages,
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("first", [True, False])
def test_items_of_a_mix_have_the_same_keys_whichever_part_is_weighted(name, first):
    weighted = SampleWeightDataset(rows("a"), 0.5)
    mix = (
        MIXES[name](weighted, rows("b")) if first else MIXES[name](rows("b"), weighted)
    )
    items = list(islice(mix, 30))
    assert {tuple(item) for item in items} == {("__key__", "__sample_weight__")}
    assert {item["__key__"][0] for item in items} >= {"a", "b"}
    for dataset in (BatchDataset(mix, 4, collate), IterMapDataset(mix, pairs)):
        batches = list(islice(get_loader(dataset), 4))
        assert {tuple(batch) for batch in batches} == {("__key__", "sample_weights")}
    weights = {0.5} if "target" not in name else {0.5, 1.5, 0.25, 0.75}
    assert {weight_of(item) for item in items} <= weights | {1.0}


def test_mixes_of_batches_and_of_packs_have_weights_in_all_or_none():
    def of_two(samples):
        return {"n": torch.tensor([len(sample["__key__"]) for sample in samples])}

    def packs(dataset):
        with_ids = MapDataset(dataset, lambda sample: {**sample, "ids": [1, 2]})
        pack = lambda samples: concat_pack(samples, ["ids"])  # noqa: E731
        return PackingDataset(
            with_ids, 4, lambda samples: [samples[:3], samples[3:]], pack
        )

    weighted = SampleWeightDataset(rows("a"), 0.5)
    for make, size in (
        (lambda dataset: BatchDataset(dataset, 2, of_two), 2),
        (packs, 3),
    ):
        mix = BlendDataset((make(rows("b")), 1), (make(weighted), 1))
        found = [item["sample_weights"].tolist() for item in islice(mix, 4)]
        assert [1.0] * size in found
        assert [0.5] * size in found
        joined = next(iter(BatchDataset(mix, 4, collate)))
        shape = (8,) if size == 2 else (4, 3)
        if size == 2:
            joined = MixBatchDataset(
                (make(rows("b")), 1),
                (make(weighted), 1),
                batch_size=4,
                batch_mix_fn=collate,
            )[0]
        assert joined["sample_weights"].shape == shape
        assert "__sample_weight__" not in joined
    # Items without a place for a weight stay as they are.
    numbers = BlendDataset((weighted, 1), (ListSource(range(9)), 1))
    assert [each for each in numbers.at(range(8)) if isinstance(each, int)] == [
        0,
        1,
        2,
        3,
    ]


def test_a_mix_leaves_the_objects_of_users_as_they_are():
    given = [{"__key__": "a"}, {"__key__": "b"}]
    weighted = SampleWeightDataset(rows("c"), 2)
    mix = BlendDataset((ListSource(given, name="given"), 1), (weighted, 1))
    assert len(BatchDataset(mix, 8, collate)[0]["sample_weights"]) == 8
    assert given == [{"__key__": "a"}, {"__key__": "b"}]
    without = BatchDataset(BlendDataset((rows("a"), 1), (rows("b"), 1)), 4, collate)[0]
    assert list(without) == ["__key__"]


def test_one_source_with_two_weights_is_read_for_both():
    one = rows("a")
    both = BlendDataset(
        (SampleWeightDataset(one, 0.5), 1), (SampleWeightDataset(one, 2), 1)
    )
    assert len(both.inputs) == 2
    assert Counter(weight_of(each) for each in both.at(range(100))) == {
        0.5: 50,
        2.0: 50,
    }
    same = SampleWeightDataset(one, 0.5)
    assert len(BlendDataset((same, 1), (same, 1)).inputs) == 1


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "2", None, True])
def test_what_is_no_weight(weight):
    with pytest.raises(WeightError, match="SampleWeightDataset: weight must be"):
        SampleWeightDataset(rows("a"), weight)
    by_function = SampleWeightDataset(rows("a"), lambda sample: weight)
    with pytest.raises(EncoderError, match=r"of sample 'a.*' by SampleWeightDataset"):
        by_function[0]


class TestTargets:
    """Draw by `weight`, weigh by `target_weights`."""

    def blend(self, *weights, inner=None, **options):
        datasets = [rows(name) for name in "abcdef"[: len(weights)]]
        return BlendDataset(list(zip(datasets, weights, strict=True)), **options)

    @given(
        st.lists(st.integers(1, 9), min_size=2, max_size=5),
        st.lists(st.integers(0, 9), min_size=5, max_size=5),
        st.lists(st.integers(1, 9), min_size=5, max_size=5),
    )
    def test_what_counts_is_the_target_mix_in_every_nesting(
        self, weights, targets, inner
    ):
        targets = [*targets[1 : len(weights)], targets[0] + 1]

        def nested(**given):
            part = BlendDataset(
                (rows("x"), inner[0]), (rows("y"), inner[1]),
                **({"target_weights": inner[2:4]} if given else {}),
            )  # fmt: skip
            pairs = [(rows(n), w) for n, w in zip("abcd", weights[1:], strict=False)]
            return BlendDataset((part, weights[0]), *pairs, **given)

        blend, plain = nested(target_weights=targets), nested()
        counts = Counter()
        for item in blend.at(range(60)):
            counts[item["__key__"][0]] += 1
        assert unweighed(blend.at(range(60))) == plain.at(range(60))
        shares = np.array(blend.shares()) * blend.corrections()
        asked = np.array(
            [
                *(targets[0] * each / sum(inner[2:4]) for each in inner[2:4]),
                *targets[1:],
            ]
        )
        assert np.allclose(shares, asked / asked.sum())

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"target_weights": [1]}, "1 values were passed for 2 datasets"),
            ({"target_weights": [1, None]}, "the target weight of dataset 1.*got None"),
            ({"target_weights": [1, -2]}, "target weight of dataset 1.*got -2"),
            ({"target_weights": [1, float("nan")]}, "got nan"),
            ({"target_weights": [0, 0]}, "all target weights are 0"),
            ({"target_weights": {"a": 1}}, "not one of none"),
            (
                {"target_weights": [1, 1], "stop": "all_exhausted"},
                "if a dataset can be exhausted",
            ),
            (
                {"target_weights": [1, 1], "max_epochs": 2},
                "if a dataset can be exhausted",
            ),
            (
                {"target_weights": [1, 1], "max_correction": 0.5},
                "must be a number >= 1, got 0.5",
            ),
            ({"max_correction": 2}, "max_correction needs target_weights"),
        ],
    )
    def test_what_cannot_be(self, options, told):
        with pytest.raises(ConfigError, match=told):
            self.blend(3, 1, **options)
        with pytest.raises(
            WeightError, match="'b' has a target weight, but its weight is 0"
        ):
            BlendDataset(
                {"a": rows("a"), "b": rows("b")},
                weights={"a": 1, "b": 0}, target_weights={"a": 1, "b": 1},
            )  # fmt: skip

"""Weights in the loss that metadatasets say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from energize import (
    Batch,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    MetadatasetError,
    TaskEncoder,
    TextSample,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.metadataset import leaves_with_weights, resolve
from tests.support.loading import loader_of, take
from tests.support.metadatasets import written

MIX = {
    "sample_weight": 0.5,
    "blend": [
        {"path": "a", "weight": 3, "sample_weight": 4},
        {"weight": 1, "blend": [{"path": "b", "sample_weight": 3}, {"path": "c"}]},
    ],
}
JOINER = {"__module__": "energize", "__class__": "TextSample"}
WEIGHTS = {"a": 2.0, "b": 1.5, "c": 0.5}


@dataclass(kw_only=True, slots=True)
class Texts(Batch):
    text: list[str]


class ByText(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Batches of texts, each of which begins with the name of its folder."""

    def __init__(self) -> None:
        super().__init__(batch_type=Texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("weighed")
    for name in "abc":
        samples = ({"__key__": f"{n:03d}", "txt": f"{name}{n}"} for n in range(12))
        write_shards(samples, place / name, samples_per_shard=6)
        prepare(place / name, sample_type="TextSample", split_ratios={"train": 1}, sqlite=True)
    return place


@pytest.fixture
def mix(folder, tmp_path):
    for name in "abc":
        (tmp_path / name).symlink_to(folder / name)

    def write(node, name="mix.yaml"):
        return written(tmp_path / name, node)

    return write


def batches(file, **options):
    given = {"batch_size": 4, "task_encoder": ByText()} | options
    return get_train_dataset(file, **given)


def seen(dataset, count: int = 24) -> dict[str, set[float]]:
    """The weights of the samples of each folder."""
    found: dict[str, set[float]] = {}
    with get_loader(dataset) as loader:
        for batch in take(loader, count):
            assert batch.sample_weights.dtype == torch.float32
            for text, weight in zip(batch.text, batch.sample_weights.tolist(), strict=True):
                found.setdefault(text[0], set()).add(round(weight, 4))
    return found


def texts(dataset, count: int = 24) -> list[list[str]]:
    with get_loader(dataset) as loader:
        return [batch.text for batch in take(loader, count)]


def stripped(node: Any) -> Any:
    """The same without any weights in the loss."""
    if isinstance(node, list):
        return [stripped(each) for each in node]
    if not isinstance(node, dict):
        return node
    left_out = ("sample_weight", "target_weight", "max_correction")
    return {name: stripped(each) for name, each in node.items() if name not in left_out}


def test_nested_weights_multiply_and_change_no_order(mix):
    assert seen(batches(mix(MIX))) == {name: {weight} for name, weight in WEIGHTS.items()}
    plain = batches(mix(stripped(MIX), "plain.yaml"))
    assert texts(batches(mix(MIX))) == texts(plain)
    with get_loader(plain) as loader:
        assert all(batch.sample_weights is None for batch in take(loader, 9))


def test_where_any_folder_has_a_weight_all_batches_have(mix):
    node = {
        "blend": [{"path": "a", "weight": 1, "sample_weight": 0.25}, {"path": "b", "weight": 1}]
    }
    assert seen(batches(mix(node))) == {"a": {0.25}, "b": {1.0}}


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({"path": "a", "sample_weight": 0.5}, {"a": {0.5}}),
        ({"path": "a", "sample_weight": 0}, {"a": {0.0}}),
        (
            {"blend_epochized": [{"path": "a", "sample_weight": 2}, {"path": "b"}]},
            {"a": {2.0}, "b": {1.0}},
        ),
        (
            {"concat": [{"path": "a", "sample_weight": 2}, {"path": "b"}], "sample_weight": 3},
            {"a": {6.0}, "b": {3.0}},
        ),
        (
            {"blend": [{"path": "a", "proportion": 1, "sample_weight": 2}], "sample_weight": 2},
            {"a": {4.0}},
        ),
    ],
)
def test_any_node(mix, node, found):
    assert seen(batches(mix(node))) == found


def test_files_in_files_and_programs(mix, tmp_path):
    mix(MIX, "inner.yaml")
    outer = mix({"path": "inner.yaml", "sample_weight": 2, "split_part": "train"})
    assert seen(batches(outer)) == {name: {2 * weight} for name, weight in WEIGHTS.items()}
    told = batches(outer, sample_weight=0.5)
    assert seen(told) == {name: {weight} for name, weight in WEIGHTS.items()}
    assert seen(batches(tmp_path / "a", sample_weight=0)) == {"a": {0.0}}
    with pytest.raises(ValueError, match="sample_weight: expected a finite number"):
        batches(tmp_path / "a", sample_weight=-1)


def test_stages(mix):
    node = {
        "sample_weight": 2,
        "steps": 9,
        "stages": [
            {"name": "one", "start_step": 0, "path": "a", "sample_weight": 0.25},
            {"name": "two", "start_step": 3, "blend": [{"path": "b"}, {"path": "c"}]},
        ],
    }
    assert seen(batches(mix(node)), 9) == {"a": {0.5}, "b": {2.0}, "c": {2.0}}


def test_validation_and_joins(mix):
    node = {"join": [{"path": "a"}, {"path": "b"}], "joiner": JOINER, "sample_weight": 0.5}
    joined = mix({"blend": [{**node, "weight": 1}, {"path": "c", "weight": 1}]})
    assert seen(batches(joined)) == {"b": {0.5}, "c": {1.0}}
    stored = get_val_dataset(mix(MIX), split_part="train", batch_size=5, task_encoder=ByText())
    assert seen(stored, 8) == {name: {weight} for name, weight in WEIGHTS.items()}


def test_the_same_folder_twice_keeps_both_weights(mix):
    node = {
        "blend": [
            {"path": "a", "weight": 1, "sample_weight": 0.5},
            {"path": "a", "weight": 1, "sample_weight": 2},
        ]
    }
    assert seen(batches(mix(node))) == {"a": {0.5, 2.0}}
    assert len(leaves_with_weights(resolve(mix(node), "train"))) == 2
    equal = {"blend": [{"path": "a", "weight": 1, "sample_weight": 0.5}] * 2}
    assert len(leaves_with_weights(resolve(mix(equal), "train"))) == 1


def test_encoders_multiply_and_packs_have_one_for_each_piece(mix):
    class Packed(TaskEncoder):
        def encode_sample(self, sample):
            ids = torch.full((len(sample.text),), ord(sample.text[0]))
            return {"__key__": sample.__key__, "ids": ids, "sample_weight": len(sample.text) / 2}

        def batch(self, samples):
            return samples[0]

    node = MIX | {"packing": {"length": "ids", "capacity": 9, "buffer_size": 8}}
    with get_loader(batches(mix(node), task_encoder=Packed(), batch_size=1)) as loader:
        packs = take(loader, 20)
    for pack in packs:
        firsts = pack["ids"][pack["cu_seqlens"][:-1].long()].tolist()
        lengths = pack["cu_seqlens"].diff().tolist()
        asked = [WEIGHTS[chr(c)] * n / 2 for c, n in zip(firsts, lengths, strict=True)]
        assert pack["sample_weights"].tolist() == asked
    assert max(len(pack["sample_weights"]) for pack in packs) > 2


def test_an_encoder_for_each_type_and_crude_samples(mix, tmp_path):
    prepare_as_crude = tmp_path / "crude"
    samples = ({"__key__": f"{n}", "json": {"words": f"d{n}"}} for n in range(8))
    write_shards(samples, prepare_as_crude)
    prepare(prepare_as_crude, sample_type="CrudeWebdataset", split_ratios={"train": 1})

    class Crude(ByText):
        cookers = (Cooker(lambda s: TextSample(__key__=s["__key__"], text=s["json"]["words"])),)

    node = {
        "blend": [
            {"path": "a", "weight": 1, "target_weight": 3},
            {"path": "crude", "weight": 1, "target_weight": 1, "sample_weight": 2},
        ]
    }
    encoders = {TextSample: ByText(), CrudeSample: Crude()}
    found = seen(batches(mix(node), task_encoder=encoders))
    assert found == {"a": {1.5}, "d": {1.0}}
    assert seen(batches(mix(node), task_encoder=Crude())) == found


def test_an_encoder_that_builds_its_dataset_itself(mix):
    class Builds(ByText):
        def build_train_datasets(self, *, datasets, batch_size, **options):
            return super().build_train_datasets(datasets=datasets, batch_size=batch_size, **options)

    assert seen(batches(mix(MIX), task_encoder=Builds())) == {k: {v} for k, v in WEIGHTS.items()}


def test_an_edited_file_and_another_topology_in_the_middle(mix, caplog):
    """The rest has the weights of the edited file, and the samples that it would have had."""

    def pairs(items):
        return [
            (text, weight)
            for batch in items
            for text, weight in zip(batch.text, batch.sample_weights.tolist(), strict=True)
        ]

    with loader_of(batches(mix(MIX))) as loader:
        take(loader, 6)
        state, rest = loader.state_dict(), take(loader, 12)
    edited = mix(MIX | {"sample_weight": 5}, "edited.yaml")
    found = []
    loaders = [loader_of(batches(edited), workers=2, rank=r, ranks=2) for r in range(2)]
    for loader in loaders:
        loader.load_state_dict(state)
        found.append(take(loader, 6))
        loader.close()
    resumed = [batch for step in zip(*found, strict=True) for batch in step]
    assert pairs(resumed) == [(text, 10 * weight) for text, weight in pairs(rest)]
    assert "functions that are new: sample_weight=20.0" in caplog.text


class TestTargets:
    NODE: ClassVar[Any] = {
        "blend": [
            {"path": "a", "weight": 3, "target_weight": 1},
            {
                "weight": 1,
                "target_weight": 1,
                "blend": [
                    {"path": "b", "weight": 1, "target_weight": 3},
                    {"path": "c", "weight": 1, "target_weight": 1},
                ],
            },
        ]
    }

    def test_drawn_by_one_mix_and_weighed_by_another(self, mix):
        dataset = batches(mix(self.NODE))
        assert seen(dataset, 60) == {
            "a": {0.6667}, "b": {3.0}, "c": {1.0},
        }  # fmt: skip
        assert texts(dataset) == texts(batches(mix(stripped(self.NODE), "plain.yaml")))

    def test_one_folder_in_two_entries_has_the_sum(self, mix):
        twice = {
            "blend": [
                {"path": "a", "weight": 2, "target_weight": 1},
                {"path": "a", "weight": 1, "target_weight": 2},
                {"path": "b", "weight": 1, "target_weight": 3},
            ]
        }
        dataset = batches(mix(twice))
        assert seen(dataset) == {"a": {0.6667}, "b": {2.0}}
        assert texts(dataset) == texts(batches(mix(stripped(twice), "plain.yaml")))

    def test_schedules_caps_and_schemes(self, mix):
        rising = {"points": {0: 1, 8: 3}, "slots_per_step": 1}
        node = {
            "scheme": "exact",
            "max_correction": 1.5,
            "blend": [
                {"path": "a", "weight": rising, "target_weight": 1},
                {"path": "b", "weight": 1, "target_weight": 1},
            ],
        }
        found = seen(batches(mix(node), batch_size=1), 30)
        assert found == {"a": {1.0, 0.6667}, "b": {1.0, 1.5}}

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"target_weight": None}, r"blend\): some entries have a target_weight.*\[1\]"),
            ({"target_weight": -1}, r"blend\[1\].target_weight\): expected a finite number"),
            ({"weight": 0}, r"entries \[1\] have a target_weight and the weight 0"),
            ({"target_weights": 2}, "unknown key 'target_weights': it is called 'target_weight'"),
            ({"max_correction": 2}, "has no place here; it is for the outermost 'blend'"),
        ],
    )
    def test_what_cannot_be(self, mix, change, told):
        second = {"target_weight": 2, **self.NODE["blend"][1], **change}
        second = {name: value for name, value in second.items() if value is not None}
        with pytest.raises(MetadatasetError, match=told):
            resolve(mix({"blend": [self.NODE["blend"][0], second]}), "train")

    def test_what_cannot_be_together(self, mix):
        quotas = {"blend": [{"path": "a", "proportion": 1, "target_weight": 1}]}
        with pytest.raises(MetadatasetError, match="mixed by weights or by quotas"):
            resolve(mix(quotas), "train")
        with pytest.raises(MetadatasetError, match="limits what target_weight does"):
            resolve(mix({"blend": [{"path": "a"}], "max_correction": 2}), "train")
        ends = self.NODE | {"stop": "all_exhausted"}
        with pytest.raises(ValueError, match=r"(?s)when a dataset is exhausted.*mix.yaml:"):
            batches(mix(ends))


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("loss_weight", "unknown key 'loss_weight': it is called 'sample_weight'"),
        ("sample_weights", "unknown key 'sample_weights': it is called 'sample_weight'"),
        ("sample_wieght", "unknown key 'sample_wieght'; did you mean 'sample_weight'?"),
    ],
)
def test_other_names_for_it(mix, key, told):
    with pytest.raises(MetadatasetError, match=told.replace("?", r"\?")):
        resolve(mix({"blend": [{"path": "a", key: 2}]}), "train")


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, [1]])
def test_values_that_are_no_weights(mix, value):
    with pytest.raises(MetadatasetError, match=r"mix.yaml:\d+ .*weight\): expected a finite"):
        resolve(mix({"path": "a", "sample_weight": value}), "train")


def test_energons_own_files_do_not_have_it(mix, tmp_path):
    file = written(tmp_path / "theirs.yaml", {"path": "a", "sample_weight": 2}, "megatron.energon")
    with pytest.raises(MetadatasetError, match="it needs `__module__: energize`"):
        resolve(file, "train")
    joined = {"join": [{"path": "a", "sample_weight": 2}, {"path": "b"}], "joiner": JOINER}
    with pytest.raises(MetadatasetError, match="it is for a dataset, a blend, a concat or a join"):
        resolve(mix(joined), "train")


def test_a_batch_type_without_a_place_names_the_field(mix):
    @dataclass
    class Plain:
        text: list[str] = field(default_factory=list)

    encoder = DefaultTaskEncoder(batch_type=Plain)
    with (
        get_loader(batches(mix(MIX), task_encoder=encoder)) as loader,
        pytest.raises(Exception, match=r"`sample_weights: torch.Tensor . None = None` to Plain"),
    ):
        take(loader, 1)
    with get_loader(batches(mix(stripped(MIX)), task_encoder=encoder)) as loader:
        assert Counter(type(each) for each in take(loader, 3)) == {Plain: 3}

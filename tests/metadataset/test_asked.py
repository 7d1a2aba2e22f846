"""Settings of datasets that a program gives beside the path."""

from __future__ import annotations

import json

import pytest

from energize import (
    ConfigError,
    MetadatasetError,
    TaskEncoder,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energize.data.source import Subset
from tests.support.prepared import captions

HERE = WorkerConfig(rank=0, world_size=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = captions(tmp_path_factory.mktemp("asked") / "captions", 12, shards=3)
    meta = folder / ".nv-meta"
    kind = {"__module__": "megatron.energon", "__class__": "TextSample"}
    (meta / "texts.yaml").write_text(
        json.dumps({"sample_type": kind, "field_map": {"text": "txt"}})
    )
    first = {"split_parts": {"train": ["shard-000.tar"], "val": ["shard-001.tar"]}}
    (meta / "first.yaml").write_text(json.dumps(first))
    return folder


SETTINGS = {
    "dataset_config": "texts.yaml",
    "split_config": "first.yaml",
    "subflavors": {"of": "texts"},
}


def test_files_and_labels_of_a_folder(folder):
    dataset = get_train_dataset(
        folder, batch_size=None, worker_config=HERE, repeat=False, **SETTINGS
    )
    samples = list(dataset)
    assert sorted(each.text for each in samples) == [f"caption {i}" for i in range(4)]
    assert samples[0].__subflavors__ == {"of": "texts"}
    dataset = get_val_dataset(folder, batch_size=2, worker_config=HERE, **SETTINGS)
    assert [batch.text for batch in dataset] == [
        ["caption 4", "caption 5"],
        ["caption 6", "caption 7"],
    ]
    ((dataset, leaf),) = get_val_datasets(folder, batch_size=4, worker_config=HERE, **SETTINGS)
    assert len(dataset) == 1
    assert leaf.subflavors == {"of": "texts"}


def test_a_subset_and_labels_of_a_metadataset(folder, tmp_path):
    mix = tmp_path / "mix.yaml"
    entries = [{"path": str(folder), "subflavors": {"of": "entry", "more": 1}}]
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    mix.write_text(json.dumps({**head, "splits": {"val": {"blend": entries}}}))
    for half in (Subset(ratios=(0.5, 1.0)), {"range": ["50%", "end"]}):
        options = {"subset": half, "subflavors": {"of": "program"}}
        dataset = get_val_dataset(mix, batch_size=None, worker_config=HERE, **options)
        assert [each.caption for each in dataset] == ["caption 10", "caption 11"]
        assert dataset[0].__subflavors__ == {"of": "program", "more": 1}


def test_wrong_settings(folder, tmp_path):
    mix = tmp_path / "mix.yaml"
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    mix.write_text(json.dumps({**head, "splits": {"train": {"path": str(folder)}}}))
    with pytest.raises(MetadatasetError, match="dataset_config"):
        get_train_dataset(mix, batch_size=1, worker_config=HERE, dataset_config="texts.yaml")
    with pytest.raises(TypeError, match="unexpected keyword argument 'subflavor'"):
        get_train_dataset(folder, batch_size=1, worker_config=HERE, subflavor="a")

    for name, value in (("subset", "50%"), ("subflavors", "a"), ("split_config", 3)):
        with pytest.raises(ConfigError, match=f"^{name}: expected .*; got {value!r}"):
            get_train_dataset(folder, batch_size=1, worker_config=HERE, **{name: value})

    class Own(TaskEncoder):
        def build_train_datasets(self, *, datasets, batch_size, **options):
            raise AssertionError("not reached")

    with pytest.raises(ConfigError, match="Own builds its dataset itself"):
        get_train_dataset(folder, batch_size=1, worker_config=HERE, task_encoder=Own(), **SETTINGS)

"""Datasets asked for in Megatron-Energon's way: loaded, traversed, prepared."""

from __future__ import annotations

import pytest
import yaml

from energize import (
    ConfigError,
    DatasetNotFoundError,
    NotPreparedError,
    WorkerConfig,
    get_train_dataset,
    get_val_dataset,
)
from energize.data.source import Subset
from energize.energon import (
    DatasetLoader,
    MetadatasetV2,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from energize.energon.factories import EnergonDatasetType, get_dataset_type
from energize.extras.paths import EPath
from energize.preparation.index import prepare_jsonl
from tests.support.joining import keys, pair, texts
from tests.support.metadatasets import written
from tests.support.tables import row

CONFIG = WorkerConfig(rank=0, world_size=1, num_workers=0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        shards = [keys(*range(100 * number, 100 * number + 6)), keys(100 * number + 50)]
        texts(tmp_path / name, shards, splits={"train": [0], "val": [1]})
    texts(tmp_path / "notes", [keys(*range(6)), keys(50)], prefix="note ")
    texts(tmp_path / "crude", [keys(*range(3))], sample_type="CrudeWebdataset")
    (tmp_path / "lines.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    prepare_jsonl(tmp_path / "lines.jsonl")
    return tmp_path


def loaded(source, split="train", training=False, **more):
    found = load_dataset(source).get_datasets(
        training=training, split_part=split, worker_config=CONFIG, **more
    )
    return found.blend_mode, found.datasets


@pytest.mark.parametrize("asked_by", ["the call", "the file"])
def test_a_buffer_shuffles_what_is_read_in_stored_order(folder, asked_by):
    """As in Energon, where None leaves shards in their order, and the buffer shuffles
    samples."""
    (folder / "many.jsonl").write_text("".join(f'{{"x": {n}}}\n' for n in range(100)))
    prepare_jsonl(folder / "many.jsonl")
    mix, options = "many.jsonl", {"shuffle_over_epochs_multiplier": None}
    if asked_by == "the file":
        entry = {"path": "many.jsonl", "shuffle_over_epochs_multiplier": None}
        mix, options = written(folder / "mix.yaml", {"blend": [entry]}), {}

    def epochs(**more):
        dataset = get_train_dataset(mix, batch_size=None, **options, **more)
        found = [sample["json"]["x"] for sample in dataset.at(range(200))]
        return found[:100], found[100:]

    stored = list(range(100))
    for more in ({}, {"max_samples_per_sequence": 5}, {"shuffle_buffer_size": 1}):
        assert epochs(**more) == (stored, stored)
    first, second = epochs(shuffle_buffer_size=10)
    assert sorted(first) == sorted(second) == stored
    assert stored not in (first, second)
    assert first != second
    assert max(abs(sample - place) for place, sample in enumerate(first)) < 10


def test_settings_of_the_call_win(folder):
    entry = {
        "path": "a",
        "subflavors": {"x": 1, "y": 1},
        "shuffle_over_epochs_multiplier": 2,
    }
    file = written(folder / "mix.yaml", {"blend": [entry, {"path": "b"}]})
    half = Subset(ratios=(0.0, 0.5))
    _, datasets = loaded(
        file,
        subflavors={"y": 2},
        shuffle_over_epochs_multiplier=3,
        subset=half,
        training=True,
    )
    first = datasets[0].dataset
    assert first.subflavors == {"x": 1, "y": 2}
    assert first.shuffle_over_epochs == 6
    assert len(first) == 3
    seen = sorted(sample.__key__ for sample in first.build().at(range(18)))
    assert seen == sorted(keys(*range(3)) * 6)


def test_settings_of_a_single_dataset(folder):
    single = load_dataset("a", split_part="val", subflavors={"x": 1})
    assert isinstance(single, DatasetLoader)
    made = single.get_dataset(training=False, split_part="train", worker_config=CONFIG)
    assert [(s.__key__, s.__subflavors__) for s in made.build()] == [("0050", {"x": 1})]


def test_training_reads_a_mapping(folder):
    entries = [{"path": folder / "a"}, {"path": "notes", "nonmatch": "none"}]
    splits = {"train": {"join": entries, "joiner": pair}, "val": {"path": "a"}}
    mix = {"__module__": "energize", "__class__": "MetadatasetV2", "splits": splits}
    dataset = get_train_dataset(mix, batch_size=None, repeat=False)
    assert sorted(sample.note for sample in dataset) == [
        f"note {key}" for key in keys(*range(6))
    ]
    assert [sample.text for sample in get_val_dataset(mix, batch_size=None)] == keys(50)


def test_objects_may_be_made_by_a_program(folder):
    blend = {"blend": ({"path": "a", "weight": 3}, {"path": "b"})}
    mix = MetadatasetV2(folder / "mix.yaml", {"train": blend})
    found = mix.get_datasets(training=False, split_part="train", worker_config=CONFIG)
    assert [each.weight for each in found.datasets] == [0.75, 0.25]


UNTOLD = {
    "{blend: [{path: a, repeat: 2}]}": "the quotas of blend",
    "{concat: [{path: a}]}": "the quotas of concat",
    "{blend: [{blend_epochized: [{path: a}]}]}": "the quotas of blend_epochized",
    "{blend_epochized: [{blend: [{path: a}]}]}": "a blend in blend_epochized",
    "{blend: [{path: a, weight: {points: {0: 1, 9: 2}}}]}": "schedules",
    "{blend: [{path: a}], stop: first_exhausted}": "stop",
    "{blend: [{path: a, max_epochs: 2}, {path: b}]}": "max_epochs",
    "{path: a, packing: {length: text, capacity: 9}}": "packing",
}


def test_mixes_that_numbers_cannot_tell(folder):
    for node, told in UNTOLD.items():
        with (
            row(node),
            pytest.raises(ConfigError, match=f"(?s)mix also has {told}.*requested at"),
        ):
            loaded(written(folder / "mix.yaml", yaml.safe_load(node)))


def test_traversing_lists_all_datasets_those_of_joins_too(folder):
    join = {
        "subflavors": {"j": 1},
        "join": [{"path": "a"}, {"path": "notes", "split_part": "train"}],
        "joiner": {"__module__": "not_imported", "__class__": "X"},
    }
    written(
        folder / "inner.yaml", {"blend": [join, {"path": "b", "split_part": "val"}]}
    )
    node = {
        "blend": [
            {"path": "inner.yaml", "subflavors": {"o": 2}},
            {"path": "b"},
            {"path": "b"},
        ]
    }
    found = traverse_metadataset(written(folder / "mix.yaml", node), split_part="train")
    assert [(each.path.name, each.split_part, each.subflavors) for each in found] == [
        ("a", "train", {"j": 1, "o": 2}),
        ("notes", "train", {"j": 1, "o": 2}),
        ("b", "val", {"o": 2}),
        ("b", "train", {}),
        ("b", "train", {}),
    ]


def test_traversing_needs_no_datasets(folder):
    node = {
        "path": "missing",
        "aux": {"labels": "../gone", "media": "filesystem://media"},
        "shuffle_over_epochs_multiplier": 2,
    }
    file = written(folder / "mix.yaml", {"blend": [node, {"path": "missing.jsonl"}]})
    first, second = traverse_metadataset(file, split_part="train")
    assert first.path == EPath(folder / "missing")
    assert second.path == EPath(folder / "missing.jsonl")
    aux = {"labels": EPath(folder.parent / "gone"), "media": EPath(folder / "media")}
    assert first.aux == aux
    assert first.shuffle_over_epochs_multiplier == 2
    written(file, {"path": "missing.yaml"})
    with pytest.raises(DatasetNotFoundError):
        traverse_metadataset(file, split_part="train")


def test_what_cannot_be_loaded(folder):
    (folder / "plain").mkdir()
    with pytest.raises(DatasetNotFoundError, match="nowhere does not exist"):
        load_dataset("nowhere")
    with pytest.raises(NotPreparedError, match="energize prepare plain"):
        load_dataset("plain")
    with pytest.raises(ConfigError, match="a single dataset needs a split_part"):
        prepare_metadataset("a")
    with pytest.raises(DatasetNotFoundError):
        prepare_metadataset("nowhere.yaml")
    with pytest.raises(ConfigError, match="split_part are settings of single datasets"):
        load_dataset(written(folder / "mix.yaml", {"path": "a"}), split_part="val")


def test_kinds_of_paths(folder):
    (folder / "media" / ".nv-meta").mkdir(parents=True)
    (folder / "media" / ".nv-meta" / "index.sqlite").touch()
    written(folder / "mix.yaml", {"path": "a"})
    kinds = {
        "a": EnergonDatasetType.WEBDATASET,
        "lines.jsonl": EnergonDatasetType.JSONL,
        "mix.yaml": EnergonDatasetType.METADATASET,
        "media": EnergonDatasetType.FILESYSTEM,
        "nowhere": EnergonDatasetType.INVALID,
    }
    assert {path: get_dataset_type(path) for path in kinds} == kinds

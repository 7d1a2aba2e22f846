"""From metadataset files to the tree of what is read, and to the shares of its
leaves."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from energize import (
    BatchDataset,
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    ListSource,
    MetadatasetError,
    TaskEncoder,
    WeightError,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energize.core import limits
from energize.data.source import Subset
from energize.metadataset import Blend, leaves_with_weights, resolve
from tests.metadataset.conftest import folder_of
from tests.support.tables import row


def fault(file, kind=MetadatasetError, split="train"):
    with pytest.raises(kind) as caught:
        resolve(file, split)
    return str(caught.value)


def test_circles_and_splits(mix, tmp_path):
    for name, other in (("x", "y"), ("y", "z"), ("z", "y")):
        mix(f"path: {other}.yaml", f"{name}.yaml")
    y, z = tmp_path / "y.yaml", tmp_path / "z.yaml"
    told = f"metadatasets include each other: {y} [train] -> {z} [train] -> {y} [train]"
    assert fault(tmp_path / "x.yaml") == f"{z}:5 (splits.train.path): {told}"
    file = mix("path: a", splits="val: {path: mix.yaml, split_part: train}")
    assert resolve(file, "val").path.name == "a"
    told = "no split 'vla'; did you mean 'val'? Splits here: 'train', 'val'"
    assert fault(file, split="vla") == f"{file}:3 (splits): {told}"


def test_what_metadatasets_include_has_an_end(mix, tmp_path, monkeypatch):
    for number in range(300):
        mix(f"path: {number + 1}.yaml", f"{number}.yaml")
    told = fault(tmp_path / "0.yaml")
    assert "99.yaml:5 (splits.train.path): metadatasets include one another" in told
    mix("path: a", "300.yaml")
    assert resolve(tmp_path / "201.yaml", "train").path.name == "a"
    monkeypatch.setattr(limits, "YAML_VALUES", 1000)
    for number in range(292, 300):
        mix({"blend": [{"path": f"{number + 1}.yaml"}] * 10}, f"{number}.yaml")
    assert "energize.core.limits.YAML_VALUES" in fault(tmp_path / "292.yaml")


PATHS = {
    "nots": "did you mean 'notes'?",
    "nowhere/at/all": "in a folder that does not exist or cannot be read",
    "$DATA/a": "Write a variable as ${NAME}",
    "~/a": "looked for /home/of/mine/a, in a folder that does not exist",
    "a\0b": "does not exist",
    "notes/s-{000..003}.tar": "`energize prepare notes`, then pass notes",
    "x" * 5000: "does not exist",
}


def test_a_path_that_does_not_exist(mix, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/of/mine")
    for path, words in PATHS.items():
        file = mix({"path": path})
        told = fault(file, DatasetNotFoundError)
        assert told.startswith(f"{file}:5 (splits.train.path): '")
        assert words in told
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'notes'?" in fault("nots", DatasetNotFoundError)
    (tmp_path / "x.txt").write_text("x")
    assert (
        "expected a folder, .parquet, .pq, .arrow, .arrows, .ipc, .feather, .jsonl"
        in fault("x.txt")
    )
    assert "`energize prepare .`, then pass ." in fault("x.tar", DatasetNotFoundError)
    for given in (ListSource("ab"), [7], None):
        with pytest.raises(ConfigError, match=r"got a \w+\. .*build_encode_sample\("):
            get_val_dataset(given, batch_size=None)


# Shares


def in_a_file(node, root):
    head = {
        "__module__": "energize",
        "__class__": "MetadatasetV2",
        "splits": {"train": node},
    }
    file = root / f"n{len(list(root.glob('*.yaml')))}.yaml"
    file.write_text(yaml.safe_dump(head))
    return {"path": str(file)}


def test_weights_made_by_hand_are_checked(folders):
    leaf = resolve(folders / "a", "train")
    for weights in [(0, 0), (-1, 2), (float("nan"), 1)]:
        with pytest.raises(WeightError, match="here"):
            leaves_with_weights(
                Blend.model_construct(
                    children=[
                        leaf.model_copy(update={"weight": weight}) for weight in weights
                    ],
                    location="here",
                )
            )


# Short forms


def test_lists_and_dicts_of_paths_are_blends(folders):
    a, b = folders / "a", folders / "b"
    for path, shares in [
        ([a, str(b)], {"a": 0.5, "b": 0.5}),
        ([{"path": str(a), "weight": 3}, b], {"a": 0.75, "b": 0.25}),
        ({str(a): 0.2, b: 0.8}, {"a": 0.2, "b": 0.8}),
        ({"train": [a, b], "val": a}, {"a": 0.5, "b": 0.5}),
    ]:
        leaves = leaves_with_weights(resolve(path, "train"))
        assert {leaf.path.name: float(share) for leaf, share in leaves} == shares
    assert resolve({"train": a, "val": b}, "val").path.name == "b"


def test_other_arguments_are_not_paths(folders):
    with pytest.raises(ConfigError, match="expected the path of a folder"):
        resolve(ListSource([1], name="one"), "train")
    with pytest.raises(ConfigError, match="got a list"):
        resolve([(folders / "a", 0.5), (folders / "b", 0.5)], "train")


# Subsets


def test_subsets_that_cannot_be(mix):
    mix("{blend: [{path: a}]}", "inner.yaml")
    counts = r"\[1, 5\] counts samples, which is only all"
    for kind, node, words in [
        (
            ConfigError,
            "{path: c, subset: {range: [3, 21]}}",
            r"(?s)the 9 samples.*yaml:5",
        ),
        (
            EmptyDatasetError,
            "{path: c, subset: {range: [50%, 52%]}}",
            r"(?s)no sample.*yaml:5",
        ),
        (MetadatasetError, "{subset: {range: [1, 5]}, blend: [{path: a}]}", counts),
        (
            MetadatasetError,
            "{subset: {range: [1, 5]}, blend_epochized: [{path: a}]}",
            counts,
        ),
        (MetadatasetError, "{path: inner.yaml, subset: {range: [1, 5]}}", counts),
        (
            MetadatasetError,
            "{path: lines.jsonl, split_config: x}",
            "split_config needs a prepared",
        ),
    ]:
        with row(node), pytest.raises(kind, match=words):
            get_val_dataset(mix(node), split_part="train", batch_size=None)


def test_a_random_subset_is_drawn_once(mix):
    def keys(node):
        samples = get_val_dataset(mix(node), split_part="train", batch_size=None)
        return [sample.__key__ for sample in samples]

    whole = keys("{path: a}")
    ten = keys("{path: a, subset: {random: 10}}")
    assert ten == [key for key in whole if key in ten]
    assert len(ten) == 10
    assert ten not in (whole[:10], whole[-10:])
    assert set(ten) < set(keys("{path: a, subset: {random: 20}}"))
    assert len(keys("{path: a, subset: {random: 12.5%}}")) == 7
    mix("{path: a, subset: {random: 10}}", "inner.yaml")
    halves = [
        keys(f"{{path: inner.yaml, subset: {{range: {bounds}}}}}")
        for bounds in ("[0%, 50%]", "[50%, end]")
    ]
    assert [*map(len, halves)] == [5, 5]
    assert sorted(halves[0] + halves[1]) == sorted(ten)
    for node, words in [
        ("{path: a, subset: {random: 61}}", "61 of 60 samples"),
        ("{path: a, subset: {random: 0}}", "expected a number of samples"),
        ("{path: a, subset: {random: 101%}}", "at most 100%"),
        ("{path: a, subset: {random: 5, range: [0, 9]}}", "'range' or 'random'"),
        ("{path: inner.yaml, subset: {random: 50%}}", "only allowed for a leaf"),
    ]:
        with row(node), pytest.raises(ConfigError, match=words):
            keys(node)


# What a program says beside the path


def test_settings_that_a_program_gives(mix, tmp_path):
    folder_of(tmp_path / "own", 3, 9)
    meta = tmp_path / "own" / ".nv-meta"
    head = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    (meta / "crude.yaml").write_text(json.dumps(head))
    first = {
        "split_parts": {"train": ["shard-000000.tar"], "val": ["shard-000003.tar"]}
    }
    (meta / "first.yaml").write_text(json.dumps(first))
    given = {
        "dataset_config": "crude.yaml",
        "split_config": "first.yaml",
        "subflavors": {"of": "us"},
    }
    dataset = get_train_dataset(
        tmp_path / "own", batch_size=None, repeat=False, **given
    )
    samples = list(dataset)
    assert sorted(sample["__key__"] for sample in samples) == ["3000", "3001", "3002"]
    assert samples[0]["__subflavors__"] == {"of": "us"}
    val = get_val_dataset(tmp_path / "own", batch_size=None, **given)
    assert [sample["__key__"] for sample in val] == ["3009", "3010", "3011"]
    ((dataset, leaf),) = get_val_datasets(tmp_path / "own", batch_size=4, **given)
    assert (len(dataset), leaf.subflavors) == (1, {"of": "us"})
    file = mix("blend: [{path: c, subflavors: {of: entry, more: 1}}]")
    for half in (Subset(ratios=(0.5, 1.0)), {"range": ["50%", "end"]}):
        options = {
            "subset": half,
            "subflavors": {"of": "program"},
            "split_part": "train",
        }
        dataset = get_val_dataset(file, batch_size=None, **options)
        assert [sample.__key__ for sample in dataset] == [
            f"2{i:03d}" for i in range(4, 9)
        ]
        assert dataset[0].__subflavors__ == {"of": "program", "more": 1}
    with pytest.raises(MetadatasetError, match="dataset_config"):
        get_train_dataset(file, batch_size=1, dataset_config="crude.yaml")
    with pytest.raises(TypeError, match="unexpected keyword argument 'subflavor'"):
        get_train_dataset(file, batch_size=1, subflavor="a")
    for name, value in (("subset", "50%"), ("subflavors", "a"), ("split_config", 3)):
        with pytest.raises(ConfigError, match=f"^{name}: expected .*, got {value!r}"):
            get_train_dataset(tmp_path / "own", batch_size=1, **{name: value})

    class Own(TaskEncoder):
        def build_train_datasets(self, *, datasets, batch_size, **options):
            return BatchDataset(datasets[0].dataset.build(), batch_size, list)

    options = {"batch_size": 1, "task_encoder": Own()}
    for path, given in (
        (file, {"subflavors": {"of": "us"}}),
        (resolve(file, "train"), {}),
    ):
        [sample] = get_train_dataset(path, **options, **given)[0]
        assert sample.__subflavors__ == {
            "of": "entry",
            "more": 1,
            **given.get("subflavors", {}),
        }


def test_folders_need_not_be_there_where_nothing_is_read(tmp_path):
    node = {"path": "gone", "by": "quality", "weights": {"high": 3, "low": 1}}
    file = Path(in_a_file(node, tmp_path)["path"])
    found = leaves_with_weights(resolve(file, "train", existing=False))
    assert [(leaf.chosen.name, share) for leaf, share in found] == [
        ("high", Fraction(3, 4)),
        ("low", Fraction(1, 4)),
    ]

"""From metadataset files to the tree of what is read, and to the shares of its leaves."""

from __future__ import annotations

import json
import logging
import pickle
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize import (
    ConfigError,
    DatasetNotFoundError,
    EmptyDatasetError,
    MetadatasetError,
    TaskEncoder,
    WeightError,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energize.data.source import Subset, nested
from energize.metadataset import Blend, Leaf, leaves_with_weights, read_metadataset, resolve
from energize.metadataset.models import RangeKeys
from tests.metadataset.conftest import folder_of
from tests.support.tables import row


def shares(file, split="train", **options):
    node = resolve(file, split, **options)
    return [(leaf.path.name, share) for leaf, share in leaves_with_weights(node)]


def fault(file, kind=MetadatasetError, split="train"):
    with pytest.raises(kind) as caught:
        resolve(file, split)
    return str(caught.value)


def test_a_folder_is_a_leaf_as_is_a_split_of_one_folder(folders, mix, tmp_path):
    leaf = resolve(folders / "a", "val")
    assert leaf == Leaf(folders / "a", "val")
    assert leaves_with_weights(leaf) == [(leaf, 1)]
    file = mix("{path: a, split_part: half}")
    leaf = resolve(file, "train")
    assert (leaf.path, leaf.split_part) == (tmp_path / "a", "half")
    assert leaf.place == f"{file}:5 (splits.train.path)"
    assert resolve(read_metadataset(file), "train") == leaf


def test_shares_multiply_inline_and_through_files(mix):
    mix("blend: [{path: b, weight: 3}, {path: c, weight: 1}]", "inner.yaml")
    entries = "[{path: inner.yaml, weight: 0.2}, {blend: [{path: a}], weight: 0.8}]"
    node = resolve(mix(f"blend: {entries}"), "train")
    assert isinstance(node, Blend)
    assert [weight for _, weight in node.children] == [0.2, 0.8]
    found = [share for _, share in leaves_with_weights(node)]
    assert found == [Fraction(3, 20), Fraction(1, 20), Fraction(4, 5)]


def test_outer_settings_win_and_the_asked_split_goes_down(mix):
    inner = "{path: a, subflavors: {x: inner, y: inner}, split_config: half.yaml, "
    inner += "shuffle_over_epochs_multiplier: 3}"
    mix(inner, "inner.yaml", splits="val: {path: b}")
    outer = "{path: inner.yaml, split_part: train, subflavors: {x: outer, z: outer}, "
    outer += "shuffle_over_epochs_multiplier: 2}"
    file = mix(outer, splits="test: {path: inner.yaml}")
    leaf = resolve(file, "train")
    assert leaf.subflavors == {"x": "outer", "y": "inner", "z": "outer"}
    assert (leaf.split_part, leaf.shuffle_over_epochs_multiplier) == ("train", 6)
    assert (leaf.split_config, leaf.dataset_config) == ("half.yaml", None)
    told = fault(file, split="test")
    assert "inner.yaml:3 (splits): no split 'test'" in told
    assert told.endswith(f"'train', 'val' (included from {file}:6 (splits.test.path))")
    for outer, inner, both in ((2, -1, -1), (-1, None, None), (None, 3, None), (2, 3, 6)):
        key = "shuffle_over_epochs_multiplier"
        mix({"path": "a", key: inner}, "inner.yaml")
        found = resolve(mix({"path": "inner.yaml", key: outer}), "train")
        assert found.shuffle_over_epochs_multiplier == both


def test_one_folder_reached_twice_is_merged_and_said_so(mix, tmp_path, caplog):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    paths = ["a", "b", "inner/../a", "link"]
    entries = [{"path": path} for path in paths] + [{"path": "a", "subflavors": {"x": 1}}]
    (tmp_path / "inner").mkdir()
    with caplog.at_level(logging.INFO, logger="energize"):
        leaves = leaves_with_weights(resolve(mix({"blend": entries}), "train"))
    assert [share for _, share in leaves] == [Fraction(3, 5), Fraction(1, 5), Fraction(1, 5)]
    assert leaves[0][0].place.count("mix.yaml") == 3
    assert "stands twice with equal settings" in caplog.text
    node = {"blend": [{"path": "a", "subflavors": {"x": value}} for value in (1, True, 1)]}
    assert [share for _, share in shares(mix(node))] == [Fraction(2, 3), Fraction(1, 3)]


def test_paths_begin_at_the_file_and_not_where_the_program_runs(mix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "mixes").mkdir(parents=True)
    (tmp_path / "mixes").symlink_to(tmp_path / "elsewhere" / "mixes")
    (tmp_path / "elsewhere" / "a").mkdir()
    mix("path: ../a", "mixes/mix.yaml")
    leaf = resolve("mixes/mix.yaml", "train")  # as the system follows links to folders above
    assert leaf.path.samefile(tmp_path / "elsewhere" / "a")
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(leaf))
    assert again.path.is_dir()
    assert hash(again) == hash(leaf)


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


def test_all_faults_of_all_files_are_told_together(mix, tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "captions").mkdir()
    broken = mix("pth: x", "broken.yaml")
    mix("path: a", "fine.yaml")
    file = mix("""
        blend:
          - path: capions
          - path: notes.txt
          - blend: [{path: broken.yaml}, {path: broken.yaml}]
          - path: fine.yaml
            dataset_config: x.yaml
          - {path: notes, aux: {x: fine.yaml, y: 'filesystem://gone'}}
    """)
    head, *lines = fault(file).splitlines()
    assert head == f"6 errors in {file}:"
    expected = [
        (f"{file}:6 (splits.train.blend[0].path): 'capions' does not ex", "mean 'captions'?"),
        (f"{file}:7 (splits.train.blend[1].path): expected a prepared", "got 'notes.txt'"),
        (f"{broken}:5 (splits.train.pth): unknown key 'pth'", "blend[2].blend[0].path))"),
        (f"{file}:9 (splits.train.blend[3].path): dataset_config is for prepared", ""),
        (f"{file}:11 (splits.train.blend[4].aux.x): ", ""),
        (f"{file}:11 (splits.train.blend[4].aux.y): ", ""),
    ]
    for number, (line, (start, end)) in enumerate(zip(lines, expected, strict=True), 1):
        assert line.startswith(f"  {number}. {start}"), line
        assert line.endswith(end), line


PATHS = {
    "nots": "did you mean 'notes'?",
    "nowhere/at/all": "in a folder that does not exist or cannot be read",
    "$DATA/a": "a variable is written ${NAME}",
    "~/a": "~ is not expanded, write ${HOME}/a",
    "s3://bucket/a": "'s3://bucket/a' is remote",
    "a\0b": "does not exist",
    "x" * 5000: "does not exist",
}


def test_a_path_that_does_not_exist(mix, tmp_path, monkeypatch):
    for path, words in PATHS.items():
        file = mix({"path": path})
        told = fault(file, DatasetNotFoundError)
        assert told.startswith(f"{file}:5 (splits.train.path): '")
        assert words in told
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'notes'?" in fault("nots", DatasetNotFoundError)
    (tmp_path / "x.txt").write_text("x")
    assert "expected a prepared folder, a .jsonl file or a metadataset" in fault("x.txt")


# Shares


WEIGHT = st.integers(0, 10) | st.floats(0, 1e6).map(lambda x: round(x, 3)) | st.floats(0, 1e-3)
NODE = st.recursive(
    st.sampled_from(["a", "b", "c"]),
    lambda inner: st.lists(st.tuples(inner, WEIGHT), min_size=1, max_size=4).filter(
        lambda entries: any(weight for _, weight in entries)
    ),
    max_leaves=8,
)


def as_yaml(node, root):
    """The node as a document holds it; every second blend is written to a file of its own."""
    if isinstance(node, str):
        return {"path": str(root / node)}
    entries = [as_yaml(child, root) | {"weight": weight} for child, weight in node]
    return {"blend": entries} if len(node) % 2 else in_a_file({"blend": entries}, root)


def in_a_file(node, root):
    head = {"__module__": "energize", "__class__": "MetadatasetV2", "splits": {"train": node}}
    file = root / f"n{len(list(root.glob('*.yaml')))}.yaml"
    file.write_text(yaml.safe_dump(head))
    return {"path": str(file)}


def expected(node, share=Fraction(1)):
    if isinstance(node, str):
        return {node: share}
    total = sum(Fraction(repr(float(weight))) for _, weight in node)
    found = {}
    for child, weight in node:
        for name, part in expected(child, share * Fraction(repr(float(weight))) / total).items():
            found[name] = found.get(name, 0) + part
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(node=NODE)
def test_shares_of_any_tree_are_exact_and_sum_to_1(tmp_path, node):
    for old in tmp_path.glob("*.yaml"):
        old.unlink()
    for name in "abc":
        (tmp_path / name).mkdir(exist_ok=True)
    found = shares(in_a_file(as_yaml(node, tmp_path), tmp_path)["path"])
    assert dict(found) == expected(node)
    assert sum(share for _, share in found) == 1


def test_weights_made_by_hand_are_checked(folders):
    leaf = resolve(folders / "a", "train")
    for weights in [(0, 0), (-1, 2), (float("nan"), 1)]:
        with pytest.raises(WeightError, match="here"):
            leaves_with_weights(Blend(tuple((leaf, weight) for weight in weights), "here"))


# Subsets


RANGES = [
    ("a", "[3, 12]", range(3, 12)),
    ("a", "[50, end]", range(50, 60)),
    ("a", "[0, 60]", range(60)),
    ("a", "[10%, 50%]", range(6, 30)),
    ("a", "[80%, end]", range(48, 60)),
    ("a", "[0%, 12.5%]", range(7)),
    ("lines.jsonl", "[20%, 50%]", range(2, 5)),
]


def numbers(file):
    dataset = get_val_dataset(file, split_part="train", batch_size=None)
    return [int(sample["__key__"]) for sample in map(vars_of, dataset)]


def vars_of(sample):
    return sample if isinstance(sample, dict) else {"__key__": sample.__key__}


def test_a_subset_has_the_samples_at_its_places(mix):
    for name, bounds, wanted in RANGES:
        with row((name, bounds)):
            assert numbers(mix(f"path: {name}\nsubset: {{range: {bounds}}}")) == list(wanted)
    inner = "{subset: {range: [0%, 50%]}, blend: [{path: a, subset: {range: [50%, end]}}, "
    inner += "{path: b, subset: {range: [4, 10]}}]}"
    mix(inner, "inner.yaml")
    first = [*range(30, 45), *range(1004, 1007)]
    assert numbers(mix("path: inner.yaml")) == first
    outer = mix("path: inner.yaml\nsubset: {range: [0%, 50%]}")
    found = [leaf.subset for leaf, _ in leaves_with_weights(resolve(outer, "train"))]
    assert found == [Subset(ratios=(0.5, 0.625)), Subset((4, 10), (0.0, 0.25))]
    two = "{path: a, subset: {range: [0%, 50%]}}, {path: a, subset: {range: [30, 60]}}"
    dataset = get_train_dataset(mix(f"blend: [{two}]"), batch_size=None)
    assert {sample.__key__ for sample in dataset.at(range(60))} == {f"0{i:03d}" for i in range(60)}
    assert len({source.identity for source in dataset.sources}) == 2


def test_subsets_that_cannot_be(mix):
    mix("{blend: [{path: a}]}", "inner.yaml")
    counts = r"\[1, 5\] counts samples, which is only all"
    for kind, node, words in [
        (ConfigError, "{path: c, subset: {range: [3, 21]}}", r"(?s)there are 9 samples.*yaml:5"),
        (EmptyDatasetError, "{path: c, subset: {range: [50%, 52%]}}", r"(?s)no sample.*yaml:5"),
        (MetadatasetError, "{subset: {range: [1, 5]}, blend: [{path: a}]}", counts),
        (MetadatasetError, "{subset: {range: [1, 5]}, blend_epochized: [{path: a}]}", counts),
        (MetadatasetError, "{path: inner.yaml, subset: {range: [1, 5]}}", counts),
        (MetadatasetError, "{path: lines.jsonl, split_config: x}", "split_config is for prepared"),
    ]:
        with row(node), pytest.raises(kind, match=words):
            get_val_dataset(mix(node), split_part="train", batch_size=None)


@given(total=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_neighbouring_ranges_share_nothing_and_leave_nothing_out(total, cuts):
    percent = [f"{each / 10}%" for each in sorted({0, 1000, *cuts})]
    pairs = pairwise(percent)
    found = [RangeKeys(range=list(pair)).subset().bounds(total) for pair in pairs]
    assert (found[0][0], found[-1][1]) == (0, total)
    assert all(one[1] == other[0] for one, other in pairwise(found))


def test_nested_subsets():
    half = Subset(ratios=(0.0, 0.5))
    assert nested(None, None) is None
    assert nested(Subset((1, 5)), None) == Subset((1, 5))
    assert nested(None, half) == half
    assert str(nested(Subset((10, None)), half)) == "[0%, 50%] of [10, end]"


# What a program says beside the path


def test_settings_that_a_program_gives(mix, tmp_path):
    folder_of(tmp_path / "own", 3, 9)
    meta = tmp_path / "own" / ".nv-meta"
    head = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    (meta / "crude.yaml").write_text(json.dumps(head))
    first = {"split_parts": {"train": ["shard-000000.tar"], "val": ["shard-000003.tar"]}}
    (meta / "first.yaml").write_text(json.dumps(first))
    given = {
        "dataset_config": "crude.yaml",
        "split_config": "first.yaml",
        "subflavors": {"of": "us"},
    }
    dataset = get_train_dataset(tmp_path / "own", batch_size=None, repeat=False, **given)
    samples = list(dataset)
    assert sorted(sample["__key__"] for sample in samples) == ["3000", "3001", "3002"]
    assert samples[0]["__subflavors__"] == {"of": "us"}
    val = get_val_dataset(tmp_path / "own", batch_size=None, **given)
    assert [sample["__key__"] for sample in val] == ["3009", "3010", "3011"]
    ((dataset, leaf),) = get_val_datasets(tmp_path / "own", batch_size=4, **given)
    assert (len(dataset), leaf.subflavors) == (1, {"of": "us"})
    file = mix("blend: [{path: c, subflavors: {of: entry, more: 1}}]")
    for half in (Subset(ratios=(0.5, 1.0)), {"range": ["50%", "end"]}):
        options = {"subset": half, "subflavors": {"of": "program"}, "split_part": "train"}
        dataset = get_val_dataset(file, batch_size=None, **options)
        assert [sample.__key__ for sample in dataset] == [f"2{i:03d}" for i in range(4, 9)]
        assert dataset[0].__subflavors__ == {"of": "program", "more": 1}
    with pytest.raises(MetadatasetError, match="dataset_config"):
        get_train_dataset(file, batch_size=1, dataset_config="crude.yaml")
    with pytest.raises(TypeError, match="unexpected keyword argument 'subflavor'"):
        get_train_dataset(file, batch_size=1, subflavor="a")
    for name, value in (("subset", "50%"), ("subflavors", "a"), ("split_config", 3)):
        with pytest.raises(ConfigError, match=f"^{name}: expected .*; got {value!r}"):
            get_train_dataset(tmp_path / "own", batch_size=1, **{name: value})

    class Own(TaskEncoder):
        def build_train_datasets(self, *, datasets, batch_size, **options):
            raise AssertionError("not reached")

    with pytest.raises(ConfigError, match="Own builds its dataset itself"):
        get_train_dataset(file, batch_size=1, task_encoder=Own(), subflavors={"of": "us"})


def test_folders_need_not_be_there_where_nothing_is_read(tmp_path):
    node = {"path": "gone", "by": "quality", "weights": {"high": 3, "low": 1}}
    file = Path(in_a_file(node, tmp_path)["path"])
    found = leaves_with_weights(resolve(file, "train", existing=False))
    assert [(leaf.chosen.name, share) for leaf, share in found] == [
        ("high", Fraction(3, 4)),
        ("low", Fraction(1, 4)),
    ]

"""From metadataset files to the tree of what is read, and to the shares of its leaves."""

import logging
import os
import pickle
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize.errors import DatasetNotFoundError, MetadatasetError, WeightError
from energize.metadataset import Blend, Leaf, leaves_with_weights, read_metadataset, resolve


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("captions", "photos", "charts"):
        (tmp_path / "data" / name).mkdir(parents=True)
    return tmp_path


def written(file, splits, module="energize"):
    file.parent.mkdir(exist_ok=True)
    document = {"__module__": module, "__class__": "MetadatasetV2", "splits": splits}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def shares(node):
    return [(leaf.path.name, share) for leaf, share in leaves_with_weights(node)]


def fault(file, kind=MetadatasetError, split="train"):
    with pytest.raises(kind) as caught:
        resolve(file, split)
    return str(caught.value)


def test_a_prepared_folder_is_a_single_leaf(folder):
    leaf = resolve("data/captions", "val")
    assert leaf == Leaf(folder / "data" / "captions", "val")
    assert leaves_with_weights(leaf) == [(leaf, 1)]


def test_a_split_may_be_one_folder(folder):
    file = written(folder / "mix.yaml", {"train": {"path": "data/photos", "split_part": "half"}})
    leaf = resolve(file, "train")
    assert (leaf.path, leaf.split_part) == (folder / "data" / "photos", "half")
    assert leaf.place == f"{file}:5 (splits.train.path)"


def test_a_document_that_was_read_resolves_as_its_file_does(folder):
    file = written(folder / "mix.yaml", {"train": {"path": "data/photos"}})
    assert resolve(read_metadataset(file), "train") == resolve(file, "train")


def test_nested_shares_multiply_inline_and_through_files(folder):
    inner = {"blend": [{"path": "../data/captions", "weight": 3}, {"path": "../data/charts",
                                                                  "weight": 1}]}  # fmt: skip
    written(folder / "mixes" / "inner.yaml", {"train": inner})
    outer = {
        "blend": [
            {"path": "mixes/inner.yaml", "weight": 0.2},
            {"blend": [{"path": "data/photos"}], "weight": 0.8},
        ]
    }
    node = resolve(written(folder / "outer.yaml", {"train": outer}), "train")
    assert isinstance(node, Blend)
    assert [weight for _, weight in node.children] == [0.2, 0.8]
    assert shares(node) == [
        ("captions", Fraction(3, 20)),
        ("charts", Fraction(1, 20)),
        ("photos", Fraction(4, 5)),
    ]


def test_outer_settings_win_and_the_asked_split_goes_down(folder):
    entry = {
        "path": "data/photos",
        "subflavors": {"a": "inner", "b": "inner"},
        "shuffle_over_epochs_multiplier": 3,
        "split_config": "half.yaml",
    }
    written(folder / "inner.yaml", {"val": {"path": "data/charts"}, "train": entry})
    reference = {
        "path": "inner.yaml",
        "split_part": "train",
        "subflavors": {"a": "outer", "c": "outer"},
        "shuffle_over_epochs_multiplier": 2,
    }
    file = written(folder / "outer.yaml", {"val": reference, "test": {"path": "inner.yaml"}})
    leaf = resolve(file, "val")
    assert leaf.subflavors == {"a": "outer", "b": "inner", "c": "outer"}
    assert leaf.split_part == "train"
    assert leaf.shuffle_over_epochs_multiplier == 6
    assert (leaf.split_config, leaf.dataset_config) == ("half.yaml", None)
    text = fault(file, split="test")
    assert "inner.yaml:3 (splits): no split 'test'" in text
    assert text.endswith("Splits here: val, train (included from "
                         f"{file}:12 (splits.test.path))")  # fmt: skip


@pytest.mark.parametrize(
    ("outer", "inner", "combined"), [(2, -1, -1), (-1, None, None), (None, 3, None), (2, 3, 6)]
)
def test_multipliers_combine(folder, outer, inner, combined):
    key = "shuffle_over_epochs_multiplier"
    written(folder / "inner.yaml", {"train": {"path": "data/photos", key: inner}})
    file = written(folder / "outer.yaml", {"train": {"path": "inner.yaml", key: outer}})
    assert resolve(file, "train").shuffle_over_epochs_multiplier == combined


def test_one_folder_reached_twice_is_merged_and_said_so(folder, caplog):
    os.symlink(folder / "data" / "photos", folder / "link")
    entries = [
        {"path": "data/photos", "weight": 1},
        {"path": "data/captions", "weight": 1},
        {"path": "data/../data/photos", "weight": 1},
        {"path": "link", "weight": 1},
        {"path": "data/photos", "weight": 1, "subflavors": {"a": 1}},
    ]
    file = written(folder / "mix.yaml", {"train": {"blend": entries}})
    with caplog.at_level(logging.INFO, logger="energize"):
        leaves = leaves_with_weights(resolve(file, "train"))
    assert [share for _, share in leaves] == [Fraction(3, 5), Fraction(1, 5), Fraction(1, 5)]
    assert [leaf.path.name for leaf, _ in leaves] == ["photos", "captions", "photos"]
    assert leaves[0][0].place.count("mix.yaml") == 3
    assert "stands twice with equal settings" in caplog.text


def test_true_and_1_are_different_subflavors(folder):
    entries = [{"path": "data/photos", "subflavors": {"a": a}} for a in (1, True, 1)]
    node = resolve(written(folder / "mix.yaml", {"train": {"blend": entries}}), "train")
    assert [share for _, share in leaves_with_weights(node)] == [Fraction(2, 3), Fraction(1, 3)]


def test_paths_do_not_depend_on_where_the_program_runs(folder, monkeypatch):
    written(folder / "mixes" / "mix.yaml", {"train": {"path": "../data/photos"}})
    leaf = resolve("mixes/mix.yaml", "train")
    assert leaf.path == folder / "data" / "photos"
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(leaf)).path.is_dir()
    assert hash(leaf) == hash(pickle.loads(pickle.dumps(leaf)))


def test_links_to_folders_above_are_followed_as_the_system_does(folder):
    (folder / "elsewhere" / "mixes").mkdir(parents=True)
    os.symlink(folder / "elsewhere" / "mixes", folder / "mixes")
    (folder / "elsewhere" / "data").mkdir()
    written(folder / "mixes" / "mix.yaml", {"train": {"path": "../data"}})
    assert resolve("mixes/mix.yaml", "train").path.samefile(folder / "elsewhere" / "data")


def test_a_circle_of_files_is_named(folder):
    for name, other in [("a", "b"), ("b", "c"), ("c", "b")]:
        written(folder / f"{name}.yaml", {"train": {"path": f"{other}.yaml"}})
    text = fault(Path("a.yaml"))
    b, c = folder / "b.yaml", folder / "c.yaml"
    assert text == (
        "c.yaml:5 (splits.train.path): metadatasets include each other: "
        f"{b} [train] -> {c} [train] -> {b} [train]"
    )


def test_another_split_of_the_same_file_is_no_circle(folder):
    splits = {"train": {"path": "data/photos"}, "val": {"path": "a.yaml", "split_part": "train"}}
    assert resolve(written(folder / "a.yaml", splits), "val").path.name == "photos"


def test_an_unknown_split_names_those_there_are(folder):
    splits = {"train": {"path": "data/photos"}, "val": {"path": "data/photos"}}
    file = written(folder / "a.yaml", splits)
    text = fault(file, split="vla")
    assert text == (
        f"{file}:3 (splits): no split 'vla'; did you mean 'val'? Splits here: train, val"
    )
    outer = written(folder / "b.yaml", {"vla": {"path": "a.yaml"}})
    assert f"(included from {outer}:5 (splits.vla.path))" in fault(outer, split="vla")


def test_all_faults_of_all_files_are_reported_together(folder):
    (folder / "notes.txt").write_text("x")
    broken = written(folder / "broken.yaml", {"train": {"pth": "x"}})
    entries = [
        {"path": "data/capions"},
        {"path": "notes.txt"},
        {"blend": [{"path": "broken.yaml"}, {"path": "broken.yaml"}]},
        {"path": "ok.yaml", "dataset_config": "x.yaml"},
    ]
    written(folder / "ok.yaml", {"train": {"path": "data/photos"}})
    lines = fault(written(folder / "mix.yaml", {"train": {"blend": entries}})).splitlines()
    mix, train = folder / "mix.yaml", "splits.train.blend"
    assert lines[0] == f"4 errors in {mix}:"
    assert lines[1].startswith(
        f"  1. {mix}:6 ({train}[0].path): 'data/capions' does not exist, looked for "
        f"{folder}/data/capions; did you mean 'captions'?"
    )
    assert lines[2].startswith(f"  2. {mix}:7 ({train}[1].path): expected a prepared folder, a")
    assert lines[2].endswith("; got 'notes.txt'")
    assert lines[3].startswith(f"  3. {broken}:5 (splits.train.pth): unknown key 'pth'")
    assert lines[3].endswith(f"(included from {mix}:9 ({train}[2].blend[0].path))")
    assert lines[4].startswith(f"  4. {mix}:11 ({train}[3].path): dataset_config is for prepared")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("data/photo", "did you mean 'photos'?"),
        ("nowhere/at/all", "in a folder that does not exist or cannot be read"),
        ("$DATA/photos", "a variable is written ${NAME}"),
        ("~/photos", "~ is not expanded, write ${HOME}/photos"),
        ("s3://bucket/photos", "'s3://bucket/photos' is remote"),
        ("a\0b", "does not exist"),
        ("x" * 5000, "does not exist"),
    ],
)
def test_a_path_that_does_not_exist(folder, path, told):
    file = written(folder / "mix.yaml", {"train": {"path": path}})
    text = fault(file, DatasetNotFoundError)
    assert text.startswith(f"{file}:5 (splits.train.path): '")
    assert told in text


def test_a_given_path_that_cannot_be_used(folder):
    text = fault("data/phots", DatasetNotFoundError)
    assert "looked for" in text
    assert "did you mean 'photos'?" in text
    (folder / "notes.txt").write_text("x")
    assert "expected a prepared folder, a .jsonl file or a metadataset" in fault("notes.txt")


def test_weights_made_by_hand_are_checked(folder):
    leaf = resolve("data/photos", "train")
    for weights in [(0, 0), (-1, 2), (float("nan"), 1)]:
        with pytest.raises(WeightError, match="here"):
            leaves_with_weights(Blend(tuple((leaf, weight) for weight in weights), "here"))


WEIGHT = st.one_of(
    st.integers(0, 10), st.floats(0, 1e6).map(lambda x: round(x, 3)), st.floats(0, 1e-3)
)
NODE = st.recursive(
    st.sampled_from(["captions", "photos", "charts"]),
    lambda inner: st.lists(st.tuples(inner, WEIGHT), min_size=1, max_size=4).filter(
        lambda entries: any(weight for _, weight in entries)
    ),
    max_leaves=8,
)


def as_yaml(node, folder):
    """The node as a document holds it; every second blend is written to a file of its own."""
    if isinstance(node, str):
        return {"path": f"data/{node}"}
    entries = [as_yaml(child, folder) | {"weight": weight} for child, weight in node]
    if len(node) % 2:
        return {"blend": entries}
    file = folder / f"n{len(list(folder.glob('*.yaml')))}.yaml"
    written(file, {"train": {"blend": entries}})
    return {"path": file.name}


def expected(node, share):
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
def test_shares_of_any_tree_are_exact_and_sum_to_1(folder, node):
    for old in folder.glob("*.yaml"):
        old.unlink()
    file = written(folder / "root.yaml", {"train": as_yaml(node, folder)})
    found = shares(resolve(file, "train"))
    assert dict(found) == expected(node, Fraction(1))
    assert sum(share for _, share in found) == 1

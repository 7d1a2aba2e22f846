"""Files that stand for more than there is room for: errors of ours, at once."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

import pytest

from energize import (
    ConfigError,
    DatasetError,
    MetadatasetError,
    get_staged_train_dataset,
    get_train_dataset,
    read_stages,
)
from energize.core import limits
from energize.data import nv_meta as nv_meta_files
from energize.data.files import read_file
from energize.metadataset import read_metadataset
from tests.support.metadatasets import written
from tests.support.prepared import captions

HEAD = "__module__: energize\n__class__: MetadatasetV2\nsplits:\n  train: "
LONG = "a" * 1_000_000
MANY = 9 * 10**400


@contextmanager
def at_once():
    start = time.process_time()
    yield
    assert time.process_time() - start < 1


def aliases(first, each):
    """Each line names ten of the line before."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i + 1}: &a{i + 1} {each % ', '.join([f'*a{i}'] * 10)}" for i in range(20)]
    return "\n".join(lines)


TOO_MUCH = {
    "deep lists": ("[" * 1000, "nested too deeply"),
    "very deep lists": ("[" * 100_000, "nested too deeply"),
    "deep mappings": ("{a: " * 1000, "nested too deeply"),
    "deep blocks": ("\n    " + "- " * 20_000, "nested too deeply"),
    "deep subflavors": (
        f"{{path: x, subflavors: {'{a: ' * 200}1{'}' * 200}}}",
        "nested too deeply",
    ),
    "aliases": ("{path: x}\n" + aliases("[1]", "[%s]"), "values when aliases are"),
    "merges": ("{path: x}\n" + aliases("{x: 1}", "{<<: [%s]}"), "values when aliases are"),
    "long key": (f"\n    path: x\n    ? {LONG}\n    : 1", "letters, 1000000, more"),
    "long value": (
        f"{{path: x, shuffle_over_epochs_multiplier: {LONG}}}",
        "letters, 1000000, more",
    ),
    "weight of many digits": (f"{{blend: [{{path: x, weight: {MANY}}}]}}", "expected a finite num"),
    "large weight": ("{blend: [{path: x, weight: 1e400}]}", "expected a finite number"),
    "large weight of a point": (
        "{blend: [{path: x, weight: {points: {0: 1e400}}}]}",
        "finite and not negative",
    ),
    "large step of a point": (
        f"{{blend: [{{path: x, weight: {{points: {{0: 1, {MANY}: 2}}}}}}]}}",
        "points): ",
    ),
    "large whole number": (f"{{blend: [{{path: x}}], block_size: {MANY}}}", "expected a whole num"),
    "large epoch": (f"{{blend: [{{path: x}}], epoch_size: {MANY}}}", "epoch_size counts samples"),
    "large power": ("{blend: [{path: x}], epoch_size: 1e999999999k}", "epoch_size counts samples"),
    "large choice": ("{blend: [{path: x, choose: 1e999999999k}]}", "choose counts samples"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_a_metadataset(tmp_path, name):
    text, told = TOO_MUCH[name]
    file = tmp_path / "mix.yaml"
    file.write_text(HEAD + text)
    with at_once(), pytest.raises(MetadatasetError) as caught:
        read_metadataset(file)
    assert told in str(caught.value)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 2000


STAGES = {
    "deep lists": ("x = " + "[" * 1000 + "]" * 1000, "nested too deeply"),
    "deep names": (f"{'.'.join(['a'] * 500)} = 1", "nested too deeply"),
    "long key": (f"dataset_{LONG[:200_000]} = 1", "there are no stages"),
    "longer key": (f"dataset_{LONG} = 1", "the file is too large"),
    "many digits": (f"steps = {MANY}", "there are no stages"),
    "very many digits": (f"steps = {'9' * 5000}", "digits"),
    "long list": ("x = [\n" + "1,\n" * 3000 + "]", "there are no stages"),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_file(tmp_path, name):
    text, told = STAGES[name]
    file = tmp_path / "run.toml"
    file.write_text(f"[training]\n{text}\n")
    with at_once(), pytest.raises(MetadatasetError) as caught:
        read_stages(file)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 2000


META = {
    "deep split.yaml": ("split.yaml", "split_parts: " + "[" * 100_000, "nested too deeply"),
    "deep split.json": ("split.json", '{"split_parts": ' + "[" * 100_000, "nested too deeply"),
    "deep .info.json": (
        ".info.json",
        '{"shard_counts": ' + "[" * 1000 + "]" * 1000 + "}",
        "nested",
    ),
    "deep dataset.yaml": ("dataset.yaml", "subflavors: " + "{a: " * 1000, "nested too deeply"),
    "aliases": ("dataset.yaml", aliases("[1]", "[%s]"), "values when aliases are"),
    "merges": ("dataset.yaml", aliases("{x: 1}", "{<<: [%s]}"), "values when aliases are"),
    "an alias inside itself": ("dataset.yaml", "subflavors: &a {b: *a}", "from inside it"),
    "long key": ("dataset.yaml", f"? {LONG}\n: 1", "letters, 1000000, more"),
    "braces": ("split.yaml", "split_parts: {train: ['{0..9999999999}.tar']}", "too many names"),
    "products": (
        "split.yaml",
        f"split_parts: {{train: ['{'{0..9}' * 30}.tar']}}",
        "too many names",
    ),
    "letters": ("split.yaml", f"split_parts: {{train: ['{'{a..z}' * 9}.tar']}}", "too many names"),
    "deep braces": ("split.yaml", f"split_parts: {{train: ['{'{' * 999}']}}", "nested too deeply"),
    "wide numbers": (
        "split.yaml",
        f"split_parts: {{train: ['{{{'0' * 4000}..999999}}']}}",
        "too many names",
    ),
    "many samples": (".info.json", f'{{"shard_counts": {{"a.tar": {MANY}}}}}', "a number of"),
    "very many digits": (".info.json", f'{{"shard_counts": {{"a.tar": {"9" * 9999}}}}}', "digits"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return captions(tmp_path_factory.mktemp("much") / "folder", 8)


@pytest.mark.parametrize("name", META)
def test_the_files_of_a_folder(folder, name):
    file, text, told = META[name]
    path = folder / ".nv-meta" / file
    kept = {each: each.read_bytes() for each in (folder / ".nv-meta").iterdir()}
    if file == "split.json":
        (folder / ".nv-meta" / "split.yaml").unlink()
    path.write_text(text)
    try:
        with at_once(), pytest.raises(DatasetError) as caught:
            get_train_dataset(folder, batch_size=2)
    finally:
        path.unlink()
        for each, content in kept.items():
            each.write_bytes(content)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_the_file_of_a_folder_is_read_once(folder, monkeypatch):
    opened = []

    def counted(path, *limits):
        opened.append(path.name)
        return read_file(path, *limits)

    monkeypatch.setattr(nv_meta_files, "read_file", counted)
    get_train_dataset(folder, batch_size=2)
    assert opened.count("dataset.yaml") == 1


def test_files_that_are_too_large(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "YAML_BYTES", 1000)
    file = tmp_path / "mix.yaml"
    file.write_text("a: " + "x" * 1000)
    with pytest.raises(MetadatasetError, match="too large, 1003, more than 1000; to allow more, s"):
        get_train_dataset(file, batch_size=2)
    monkeypatch.setattr(limits, "YAML_BYTES", 10)
    with pytest.raises(DatasetError, match="cannot be read: the file is too large"):
        get_train_dataset(folder, batch_size=2)


def test_what_is_no_file_is_not_waited_for(folder, tmp_path):
    os.mkfifo(tmp_path / "mix.yaml")
    with pytest.raises(MetadatasetError, match="it is a named pipe, not a regular file"):
        get_train_dataset(tmp_path / "mix.yaml", batch_size=2)
    (tmp_path / "other.yaml").symlink_to("/dev/zero")
    with pytest.raises(MetadatasetError, match="it is a device, not a regular file"):
        get_train_dataset(tmp_path / "other.yaml", batch_size=2)


def test_epochs_that_cannot_be_counted(folder, tmp_path):
    entry = {"path": str(folder), "shuffle_over_epochs_multiplier": 10**17}
    inner = written(tmp_path / "inner.yaml", entry)
    outer = written(tmp_path / "outer.yaml", entry | {"path": inner.name})
    with at_once(), pytest.raises(ConfigError, match="more than can be counted") as caught:
        get_train_dataset(outer, batch_size=2)
    assert f"{inner}:5 (splits.train.path)" in str(caught.value)


@pytest.mark.parametrize("key", ["seq_len", "dataset_random_seed"])
def test_numbers_of_stages_may_be_of_any_size(folder, tmp_path, key):
    assert staged(folder, tmp_path, key)[0]


def staged(folder, tmp_path, key):
    file = tmp_path / "run.toml"
    settings = {"seq_len": 8, "dataset_type": "energize", "dataset_path": str(folder)}
    lines = [f"{name} = {value!r}" for name, value in (settings | {"steps": 4, key: MANY}).items()]
    file.write_text("\n".join(["[training]", *lines]))
    return get_staged_train_dataset(file, batch_size=2)


def test_steps_of_stages_are_counted(folder, tmp_path):
    with at_once(), pytest.raises(ConfigError, match=r"2\*\*62 can be counted"):
        staged(folder, tmp_path, "items_per_step")


def test_a_blend_of_thousands_is_not_too_much(tmp_path):
    blend = [{"path": f"data/{i}", "weight": i + 1} for i in range(3000)]
    file = written(tmp_path / "mix.yaml", {"blend": blend})
    assert len(read_metadataset(file).splits["train"].entries) == 3000

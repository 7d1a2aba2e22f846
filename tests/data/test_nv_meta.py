"""The files of `.nv-meta`: round trips, older forms, and what is said of wrong ones."""

from __future__ import annotations

from functools import partial

import pytest

from energize.data.nv_meta import (
    Info,
    SampleConfig,
    Splits,
    dump_dataset_yaml,
    dump_info,
    dump_splits,
    read_dataset_yaml,
    read_info,
    read_splits,
)
from energize.errors import (
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    UntrustedCodeError,
)
from tests.support.refusals import check_refusals

TYPE = "sample_type: {__module__: m, __class__: C}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ds" / ".nv-meta").mkdir(parents=True)
    return tmp_path / "ds"


def write(folder, name, text):
    (folder / ".nv-meta" / name).write_text(text, encoding="utf-8")
    return folder


def test_older_and_other_files(folder):
    write(folder, ".info.yaml", "shard_counts:\n  a.tar: 5\n")
    assert read_info(folder) == Info(shard_counts={"a.tar": 5})
    write(folder, ".info.json", '{"shard_counts": {"a.tar": 6}}')  # is preferred
    assert read_info(folder) == Info(shard_counts={"a.tar": 6})
    write(folder, "split.json", '{"split_parts": {"train": ["a{0..2}.tar"]}}')
    assert read_splits(folder) == Splits(split_parts={"train": ["a{0..2}.tar"]})
    with pytest.raises(NotPreparedError, match=r"did you mean 'split\.json'"):
        read_splits(folder, "splitt.json")
    write(
        folder,
        "dataset.yaml",
        "__module__: megatron.energon\n__class__: VQAWebdataset\n",
    )
    assert read_dataset_yaml(folder).sample_class == "VQASample"


@pytest.mark.parametrize("name", ["split.yaml", "split.json", "mine.yaml", "mine.json"])
def test_splits_round_trip(folder, name):
    parts = {"train": ("a/0.tar", "a/1.tar", "b{x}.tar"), "val": ()}
    left_out = ("c.tar", "d.tar/k,1")
    write(folder, name, dump_splits(parts, name, left_out))
    found = read_splits(folder, name)
    assert (found.split_parts, found.exclude) == (parts, left_out)


def test_dataset_yaml_round_trip(folder):
    field_map = {"image": "jpg,png", "caption": "json[caption][en]"}
    options = {"max_samples_per_sequence": 100, "part_filter": ["jpg"]}
    config = SampleConfig("m", "CaptioningSample", field_map, {"lang": "en"}, options)
    write(folder, "dataset.yaml", dump_dataset_yaml(config))
    found = read_dataset_yaml(folder)
    assert (found.field_map, found.subflavors) == (field_map, {"lang": "en"})
    assert (found.options, found.code) == (options, {"part_filter": ["jpg"]})
    crude = SampleConfig("megatron.energon", "CrudeWebdataset")
    assert (
        dump_dataset_yaml(crude)
        == "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    )
    assert (
        read_dataset_yaml(write(folder, "dataset.yaml", dump_dataset_yaml(crude)))
        == crude
    )
    write(
        folder,
        "dataset.yaml",
        f"{TYPE}sample_loader: code.py:f\npart_filter: code.py:g",
    )
    assert read_dataset_yaml(folder, code=True).code == {
        "sample_loader": "code.py:f", "part_filter": "code.py:g",
    }  # fmt: skip


WRONG = {
    ("dataset.yaml", read_dataset_yaml): {
        "sample_typ: {}": ":1 (sample_typ): unknown key 'sample_typ'; did you mean 'sample_type'?",
        "field_map: {text: txt}": "sample_type: expected __module__ and __class__",
        "sample_type: {__class__: TextSample}": "(sample_type.__module__): the key '__module__' is",
        "__class__: Oddity": "__class__: expected CrudeWebdataset, or a sample_type",
        f"{TYPE}field_map: {{text: [txt]}}": ":2 (field_map.text): expected text, got ['txt']",
        "- a": ":1: expected a mapping, got ['a']",
        "{": "is not valid YAML",
        "a: !!timestamp x": "is not valid YAML: a value does not fit its tag",
    },
    ("split.yaml", read_splits): {
        "exclude: []": ":1 (split_parts): the key 'split_parts' is missing",
        "split_parts: {train: [001]}": ":1 (split_parts.train[0]): expected text, got 1",
        "split_parts: {train: ['a{0.tar']}": ":1 (split_parts.train): Unbalanced",
        "split_parts: {a: ['{0..10000000000000000000}']}": "braces stand for too many names",
        "split_parts: {a: ['{a,b}{0..99999}{x..z}']}": "braces stand for too many names",
        "split_parts: {a: ['}{" + "{a,b}," * 60 + "']}": "Unbalanced braces",
    },
    (".info.json", read_info): {
        "{}": ":1 (shard_counts): the key 'shard_counts' is missing",
        '{"shard_counts": {"../a.tar": 1}}': "names of files in this folder, got '../a.tar'",
        '{"shard_counts": {"a.tar": -1}}': "['a.tar']: expected a number of samples",
        '{"shard_counts": {"a.tar": true}}': "['a.tar']: expected a number of samples",
    },
}


@pytest.mark.parametrize(("name", "read"), WRONG)
def test_wrong_files_are_told_with_line_and_key(folder, name, read):
    check_refusals(None, {
        text: (lambda text=text: read(write(folder, name, text)), DatasetError, f"/{name}", told)
        for text, told in WRONG[name, read].items()
    })  # fmt: skip


def test_code_of_the_data_folder_is_refused_with_the_remedy(folder):
    for key in ("sample_loader", "part_filter"):
        write(folder, "dataset.yaml", f"{TYPE}{key}: code.py:f\n")
        with pytest.raises(
            UntrustedCodeError, match=f"{key}.*field_map.*CrudeWebdataset"
        ):
            read_dataset_yaml(folder)
    write(folder, "dataset.yaml", f"{TYPE}sample_loader: code.py:f\nfield_map: {{}}")
    with pytest.raises(DatasetError, match="set sample_loader or field_map"):
        read_dataset_yaml(folder, code=True)


def test_folders_that_are_not_there_or_not_prepared(tmp_path, folder):
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").touch()
    write(folder, ".info.json", dump_info(Info(shard_counts={}))).joinpath(
        "parts"
    ).mkdir()
    inside = f"its parent {folder}"
    check_refusals(None, {
        "missing": (partial(read_info, tmp_path / "dss"), DatasetNotFoundError,
                    str(tmp_path / "dss"), "did you mean 'ds'"),
        "plain": (partial(read_info, tmp_path / "plain"), NotPreparedError,
                  f"energize prepare {tmp_path / 'plain'}"),
        "file": (partial(read_info, tmp_path / "file"), NotPreparedError, "is a file"),
        "shards": (partial(read_info, folder / "parts"), NotPreparedError, inside),
        "meta": (partial(read_info, folder / ".nv-meta"), NotPreparedError, inside),
        "no dataset.yaml": (partial(read_dataset_yaml, folder), NotPreparedError,
                            "has no dataset file .nv-meta/dataset.yaml", "Found: none"),
        "outside": (partial(read_splits, folder, "../a.yaml"), DatasetError, "in this folder"),
        "kind": (partial(read_splits, folder, "a.txt"), DatasetError, "ends in .yaml or .json"),
    })  # fmt: skip

"""What can be no path, or leads nowhere, in every function that is given one."""

from __future__ import annotations

import os

import pytest
from energize.energon.epathlib import EPath

from energize import (
    BatchDataset,
    FailurePolicy,
    ListSource,
    WebdatasetSource,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    prepare,
    write_shards,
)
from energize.data.media_filter import MediaFilterConfig
from energize.data.stores import JsonlFileStore, SystemFileStore, WebdatasetFileStore
from energize.energon import (
    get_dataset_from_config,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from energize.errors import ConfigError, DataError, EnergizeError
from energize.experimental import get_staged_train_dataset, read_stages
from energize.extras.cache import FileStoreCachePool
from energize.preparation import prepare_columns
from energize.preparation.index import prepare_jsonl
from energize.preparation.media import prepare_media
from energize.sources import JsonlSource, JsonSource, MdsSource, ParquetSource

MIX = {"batch_size": 1, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


def numbers(**options):
    dataset = BatchDataset(ListSource(range(4), name="numbers"), 2, list)
    with get_loader(dataset, **options) as loader:
        return list(loader)


TAKING = {
    "get_train_dataset": lambda path: get_train_dataset(path, **MIX),
    "get_val_dataset": lambda path: get_val_dataset(path, batch_size=1),
    "get_dataset_from_config": get_dataset_from_config,
    "get_staged_train_dataset": get_staged_train_dataset,
    "load_dataset": load_dataset,
    "prepare_metadataset": prepare_metadataset,
    "traverse_metadataset": lambda path: traverse_metadataset(path, split_part="train"),
    "read_stages": read_stages,
    "prepare": lambda path: prepare(path, split_ratios={"train": 1}, workers=1),
    "prepare_columns": lambda path: prepare_columns(path, {"n": "size:txt"}, workers=1),
    "prepare_jsonl": prepare_jsonl,
    "prepare_media": lambda path: prepare_media(
        path, MediaFilterConfig.parse(extension=True)
    ),
    "write_shards": lambda path: write_shards([{"__key__": "a", "txt": "b"}], path),
    "WebdatasetSource": WebdatasetSource,
    "JsonlSource": JsonlSource,
    "JsonSource": JsonSource,
    "ParquetSource": ParquetSource,
    "MdsSource": MdsSource,
    "SystemFileStore": SystemFileStore,
    "JsonlFileStore": JsonlFileStore,
    "WebdatasetFileStore": WebdatasetFileStore,
    "FileStoreCachePool": lambda path: (
        FileStoreCachePool(parent_cache_dir=path).cache_dir
    ),
    "quarantine": lambda path: numbers(failures=FailurePolicy(quarantine=path)),
    "skip_listed": lambda path: numbers(failures=FailurePolicy(skip_listed=path)),
}


@pytest.mark.parametrize("name", TAKING)
def test_what_leads_nowhere_is_an_error_of_ours(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    for path in (
        "a\0b",
        "a\ud800b",
        "a" * 5000,
        str(tmp_path / ("b" * 300)),
        str(tmp_path / "loop" / "x"),
        str(tmp_path / "file" / "x"),
    ):
        with pytest.raises(EnergizeError) as found:
            TAKING[name](path)
        assert path[:20].partition("\0")[0].partition("\ud800")[0] in str(found.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "loop"]


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b"])
def test_remote_paths_and_names_of_files(tmp_path, path):
    with pytest.raises(ConfigError, match="this is not a path"):
        EPath(path)
    with pytest.raises(DataError, match="is not the name of a file"):
        SystemFileStore(tmp_path).get(path)


def test_folders_that_cannot_be_listed_are_not_empty(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.txt").write_text("a")
    assert [each.name for each in EPath(tmp_path).glob("**/*.txt")] == ["a.txt"]
    inside = os.scandir

    def refused(path):
        if str(path).endswith("inner"):
            raise PermissionError(13, "Permission denied", str(path))
        return inside(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError, match="inner"):
        list(EPath(tmp_path).glob("**/*.txt"))

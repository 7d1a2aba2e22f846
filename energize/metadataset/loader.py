"""From a path to what can be asked for its datasets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energize.data.files import own_errors
from energize.energon.factories import EnergonDatasetType, get_dataset_type
from energize.errors import ConfigError, DatasetNotFoundError, NotPreparedError
from energize.metadataset.dataset_loader import DatasetLoader
from energize.metadataset.loader_interface import (
    DatasetLoaderInterface,
    TraversedDatasetReference,
)
from energize.metadataset.metadataset import Metadataset, MetadatasetV2
from energize.metadataset.reading import MetadatasetFile, given, read_metadataset


@own_errors
def load_dataset(
    path: str | os.PathLike[str] | Mapping[str, Any], **kwargs: Any
) -> DatasetLoaderInterface:
    """A metadataset file, a prepared folder or a `.jsonl` file, to be asked for its datasets.

    A mapping is read as a file of the same content; relative paths in it begin in the current
    folder, and a joiner in it may be a function or a type. `kwargs` are settings of a single
    dataset, see `DatasetLoader`.

    Raises `MetadatasetError` for a wrong file, with all its faults; `DatasetNotFoundError`,
    `NotPreparedError`, and `ConfigError` for settings that a metadataset does not take.

    >>> import tempfile
    >>> from energize import WorkerConfig, prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> splits = {"train": {"blend": [{"path": folder, "weight": 2}, {"path": folder}]}}
    >>> mix = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}
    >>> loaded = load_dataset(mix).get_datasets(
    ...     training=False, split_part="train", worker_config=WorkerConfig()
    ... )
    >>> [round(each.weight, 3) for each in loaded.datasets]
    [0.667, 0.333]
    """
    if isinstance(path, Mapping):
        return _metadataset(given(path), kwargs)
    kind = get_dataset_type(path)
    if kind is EnergonDatasetType.METADATASET:
        return _metadataset(read_metadataset(path), kwargs)
    if kind in (EnergonDatasetType.WEBDATASET, EnergonDatasetType.JSONL):
        return DatasetLoader(path, **kwargs)
    if not Path(path).exists():
        raise DatasetNotFoundError(f"{os.fspath(path)} does not exist")
    if kind is EnergonDatasetType.FILESYSTEM:
        raise ConfigError(
            f"{os.fspath(path)} is a plain folder; it can be read by cookers, as `aux` of a "
            "dataset, and is none itself"
        )
    raise NotPreparedError(
        f"{os.fspath(path)} is no metadataset .yaml, no .jsonl file and no prepared folder; "
        f"prepare it with: energize prepare {os.fspath(path)}"
    )


@own_errors
def traverse_metadataset(
    path: str | os.PathLike[str], *, split_part: str
) -> list[TraversedDatasetReference]:
    """All datasets that a split of a metadataset leads to, in the order of the files.

    Nested files are followed, and the datasets of joins are listed one by one. No dataset is
    opened or has to exist. Raises what `resolve` raises, and `ConfigError` for a path that is no
    metadataset.
    """
    return _of_file(path).traverse(split_part=split_part)


@own_errors
def prepare_metadataset(path: str | os.PathLike[str]) -> None:
    """Write down which samples the joins of a metadataset put together, for all its splits.

    Nobody has to: without it that is looked up whenever a dataset is made, which takes some
    microseconds for each sample. The files are `join_*.npy` in a folder beside the metadataset,
    `mix.yaml.cache` for `mix.yaml`; they are used as long as the folders, splits, excluded samples
    and rules are those they were written for, and old ones are removed. Joins in nested files are
    written beside these.

    Raises what `resolve` and `JoinedSource` raise, `DatasetError` when files cannot be written, and
    `ConfigError` for a path that is no metadataset.
    """
    _of_file(path).prepare()


def _of_file(path: str | os.PathLike[str]) -> Metadataset:
    if get_dataset_type(path) is not EnergonDatasetType.METADATASET and Path(path).exists():
        raise ConfigError(f"{os.fspath(path)} is no metadataset: that is a .yaml file")
    return _metadataset(read_metadataset(path), {})


def _metadataset(file: MetadatasetFile, settings: Mapping[str, Any]) -> Metadataset:
    if settings:
        raise ConfigError(
            f"{file.file}: {', '.join(settings)} are settings of single datasets; a metadataset "
            "has them in its entries"
        )
    return (Metadataset if file.older else MetadatasetV2).of_file(file)

"""From a path to the factory of its dataset, as the files of the folder say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energize.errors import ConfigError
from energize.flavors.base_dataset import BaseCoreDatasetFactory
from energize.flavors.crude import CrudeWebdataset
from energize.flavors.jsonl.crude_jsonl_dataset import CrudeJsonlDatasetFactory
from energize.flavors.webdataset.standard_webdataset import StandardWebdatasetFactory
from energize.samples.crude import CrudeSample
from energize.samples.registry import sample_type_named
from energize.storage.faults import own_errors
from energize.storage.nv_meta import CRUDE, read_dataset_yaml
from energize.task_encoder.folder_code import loading_code
from energize.topology import WorkerConfig


@own_errors
def get_dataset_from_config(
    path: str | os.PathLike[str],
    *,
    dataset_config: str | None = None,
    split_config: str | None = None,
    split_part: str | None = None,
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig | None = None,
    sample_type: type[Any] | None = None,
    **kwargs: Any,
) -> BaseCoreDatasetFactory[Any]:
    """The factory of a prepared folder, or of an indexed `.jsonl` file; `.build()` makes it.

    `dataset_config` and `split_config` are names of files in `.nv-meta`, by default dataset.yaml
    and split.yaml, or the split file that dataset.yaml names. `subflavors` win over those of
    dataset.yaml. `kwargs` go to the factory (`decoder`, `max_samples_per_sequence`, ...) and win
    over dataset.yaml too; `sample_loader`, `part_filter` and `trust_code` among them are those of
    `get_train_dataset`. With `sample_type`, samples have to be of that type.

    Raises `ConfigError` for samples of another type and for names of files with a `.jsonl` file;
    `DatasetError` and its kinds for what is wrong on disk.

    >>> import tempfile
    >>> from energize import prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "a", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> [sample.text for sample in get_dataset_from_config(folder, training=False).build()]
    ['a cat']
    """
    common = {"training": training, "worker_config": worker_config or WorkerConfig(), **kwargs}
    if Path(path).suffix == ".jsonl":
        _check_no_files(path, dataset_config=dataset_config, split_config=split_config)
        _check_type(path, CrudeSample, sample_type)
        common.pop("decoder", None)
        return CrudeJsonlDatasetFactory(path, subflavors=subflavors, **common)
    config = read_dataset_yaml(Path(path), dataset_config or "dataset.yaml", code=True)
    crude = config.sample_class == CRUDE
    sample_loader, part_filter = loading_code(common).of(Path(path), config.code, crude=crude)
    options = {**config.options, **common, "part_filter": part_filter}
    options["split_config"] = split_config or options.get("split_config")
    options["split_part"] = split_part or options.get("split_part", "train")
    options["subflavors"] = {**config.subflavors, **(subflavors or {})}
    if crude:
        _check_type(path, CrudeSample, sample_type)
        return CrudeWebdataset(path, **options)
    made = sample_type_named(config.sample_module, config.sample_class)
    _check_type(path, made, sample_type)
    if sample_loader is None:
        options["field_map"] = config.field_map
    elif part_filter is None:
        options["part_filter"] = _any_part
    return StandardWebdatasetFactory(path, sample_type=made, sample_loader=sample_loader, **options)


def _any_part(name: str) -> bool:
    return True


def _check_no_files(path: str | os.PathLike[str], **names: str | None) -> None:
    for name, given in names.items():
        if given is not None:
            raise ConfigError(
                f"{path}: {name}={given!r} names a file of a prepared folder, and this is a file "
                "of JSON lines, which has none; leave it out"
            )


def _check_type(path: object, made: type[Any], asked: type[Any] | None) -> None:
    if asked is not None and not issubclass(made, asked):
        raise ConfigError(
            f"{path}: its samples are of type {made.__name__}, and sample_type asks for "
            f"{asked.__name__}"
        )

"""From stages in a file to a dataset of batches that changes with the step of training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from energize.compat.data_stages.reading import StageData, read_stages
from energize.dataset import Dataset
from energize.errors import ConfigError, DatasetNotFoundError, MetadatasetError, nearest
from energize.metadataset.building import batch_size_of, check_one_epoch, get_train_dataset
from energize.metadataset.problems import place_noted
from energize.metadataset.resolving import Blend, Node, not_staged, resolve
from energize.order.stages.faults import stage_label
from energize.order.stages.plan import Stage
from energize.storage.faults import exists, own_errors
from energize.topology import WorkerConfig
from energize.wrappers.staged import StagedDataset

BuildStage = Callable[[Stage[Any]], Dataset[Any]]

_ENERGIZE = "energize"
_FOLDERS = "nanoset"
_BUILT = (_ENERGIZE, _FOLDERS)
_EPOCHS = ("repeat", "virtual_epoch_length")


@own_errors
def get_staged_train_dataset(
    path: str | os.PathLike[str],
    *,
    split_part: str = "train",
    build: BuildStage | None = None,
    carry_over: bool = True,
    worker_config: WorkerConfig | None = None,
    **options: Any,
) -> StagedDataset[Any]:
    """The batches of a run whose stages are in a file; see `read_stages` and `StagedDataset`.

    Each stage is made by `build(stage)`, or else by `build_stage` with `options`, which are those
    of `get_train_dataset` that do not cut epochs. `stage.dataset` is what the file says of its
    data, `stage.seq_len` and `stage.batch` are its settings; the stage's seed is applied to what
    `build` returns.

    Raises what `read_stages` and `get_train_dataset` raise, all before a sample is read, and
    `ConfigError` for options beside `build`, which takes none, and for a `build` that returns no
    dataset.
    """
    if build is not None and options:
        raise ConfigError(
            f"get_staged_train_dataset: {', '.join(options)} would have no effect beside build, "
            "which makes the datasets; use them in it, for example with build_stage"
        )
    check_one_epoch(path, **{key: options[key] for key in _EPOCHS if key in options})
    if build is not None and not callable(build):
        raise ConfigError(
            f"get_staged_train_dataset: build is a function of a stage that returns its dataset; "
            f"got {build!r}"
        )
    make = build or (lambda stage: build_stage(stage, **options))
    plan = read_stages(path, split_part).with_datasets(lambda stage: _made(stage, make(stage)))
    return StagedDataset(plan, carry_over=carry_over, worker_config=worker_config)


def _made(stage: Stage[Any], dataset: object) -> Dataset[Any]:
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"{stage_label(stage)}: build returns the dataset of the stage; got {dataset!r}"
        )
    return dataset


def build_stage(stage: Stage[StageData] | Stage[Node], **options: Any) -> Dataset[Any]:
    """The training batches of one stage of a file, by `get_train_dataset` with `options`.

    A stage of a metadataset has been resolved. Of one of a stage file, `dataset_type` "energize"
    reads `dataset_path`, a prepared folder or a metadataset, or a blend of `dataset_folders` by
    `dataset_weights`; so does "nanoset", when its folders are prepared ones. A `batch_size` in the
    stage's `batch` wins over that of `options`.

    Raises `MetadatasetError` for other types, naming the stage, and what `get_train_dataset`
    raises; `ConfigError` for a `split_part`, which is chosen where stages are read.
    """
    where = stage_label(stage)
    if "split_part" in options:
        raise ConfigError(
            f"{where}: split_part would have no effect here; give it to get_staged_train_dataset "
            "or read_stages"
        )
    size = batch_size_of(stage, options.get("batch_size"))
    if size is None and "batch_size" not in options:
        raise ConfigError(
            f"{where}: there is no batch_size; give it as an argument, or in the stage's batch"
        )
    with place_noted(stage.dataset.place):
        dataset: Dataset[Any] = get_train_dataset(
            stage_node(stage), **options | {"batch_size": size}
        )
    return dataset


def stage_node(stage: Stage[StageData] | Stage[Node]) -> Node:
    """What a stage of a file reads: what its path resolves to, or the blend of its folders.

    Raises what `build_stage` raises for data that energize does not read.
    """
    data, where = stage.dataset, stage_label(stage)
    if not isinstance(data, StageData):
        return data
    if data.dataset_type not in _BUILT:
        hint = nearest(data.dataset_type, _BUILT) or "."
        raise MetadatasetError(
            f"{where}: dataset_type {data.dataset_type!r} is not read by energize{hint} Types that "
            f"are: {', '.join(_BUILT)}; for others pass build=, a function of a stage that returns "
            "its dataset"
        )
    if data.dataset_path is not None:
        return _resolved(data, data.dataset_path, where)
    for folder in data.dataset_folders:
        path = _existing(data, folder, where)
        if data.dataset_type == _FOLDERS and not (path / ".nv-meta").is_dir():
            raise MetadatasetError(
                f"{where}: {path} has no .nv-meta, so it is not a prepared folder. A nanoset of "
                "tokens is not read by energize: pass build=, a function of a stage that returns "
                "its dataset, or prepare a folder of shards with `energize prepare`"
            )
    weights = data.dataset_weights or (1.0,) * len(data.dataset_folders)
    nodes = [_resolved(data, folder, where) for folder in data.dataset_folders]
    return Blend(tuple(zip(nodes, weights, strict=True)), data.place)


def _resolved(data: StageData, given: str, where: str) -> Node:
    node = resolve(_existing(data, given, where), data.split_part)
    return not_staged(node, f"{where}: {given!r}", "a stage is one mixture")


def _existing(data: StageData, given: str, where: str) -> Path:
    path = data.folder / given
    if not exists(path):
        raise DatasetNotFoundError(
            f"{where}: {given!r} does not exist, looked for {os.path.abspath(path)}"
        )
    return path

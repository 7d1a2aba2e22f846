"""From a stage file to a dataset of batches that changes with the step of training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from energize.dataset import Dataset
from energize.errors import ConfigError, DatasetNotFoundError, MetadatasetError, nearest
from energize.metadataset.building import get_train_dataset
from energize.metadataset.resolving import Blend, Node, resolve
from energize.metadataset.stages_reading import StageData, read_stages
from energize.order.stages import Stage
from energize.topology import WorkerConfig
from energize.wrappers.staged import StagedDataset

__all__ = ["StageData", "build_stage", "get_staged_train_dataset"]

BuildStage = Callable[[Stage[StageData]], Dataset[Any]]

_ENERGIZE = "energize"
_FOLDERS = "nanoset"
_BUILT = (_ENERGIZE, _FOLDERS)
_BATCH_SIZE = "batch_size"


def get_staged_train_dataset(
    path: str | os.PathLike[str],
    *,
    build: BuildStage | None = None,
    carry_over: bool = True,
    worker_config: WorkerConfig | None = None,
    **options: Any,
) -> StagedDataset[Any]:
    """The batches of a run whose stages are in a `.toml` or `.yaml` file; see `StagedDataset`.

    Each stage is made by `build(stage)`, or else by `build_stage` with `options`, which are those
    of `get_train_dataset`. `stage.dataset` is what the file says of its data, `stage.seq_len` and
    `stage.batch` are its settings; the stage's seed is applied to what `build` returns.

    Raises what `read_stages` and `get_train_dataset` raise, all before a sample is read, and
    `ConfigError` for options beside `build`, which takes none.
    """
    if build is not None and options:
        raise ConfigError(
            f"get_staged_train_dataset: {', '.join(options)} would have no effect beside build, "
            "which makes the datasets; use them in it, for example with build_stage"
        )
    make = build or (lambda stage: build_stage(stage, **options))
    plan = read_stages(path).with_datasets(make)
    return StagedDataset(plan, carry_over=carry_over, worker_config=worker_config)


def build_stage(stage: Stage[StageData], **options: Any) -> Dataset[Any]:
    """The training batches of one stage of a file, by `get_train_dataset` with `options`.

    `dataset_type` "energize" reads `dataset_path`, a prepared folder or a metadataset, or a blend
    of `dataset_folders` by `dataset_weights`; so does "nanoset", when its folders are prepared
    ones. A `batch_size` in the stage's `batch` wins over that of `options`.

    Raises `MetadatasetError` for other types, naming the stage, and what `get_train_dataset`
    raises.
    """
    data = stage.dataset
    where = f"{data.place}: stage {stage.name!r}"
    if data.dataset_type not in _BUILT:
        hint = nearest(data.dataset_type, _BUILT) or "."
        raise MetadatasetError(
            f"{where}: dataset_type {data.dataset_type!r} is not read by energize{hint} Types that "
            f"are: {', '.join(_BUILT)}; for others pass build=, a function of a stage that returns "
            "its dataset"
        )
    if _BATCH_SIZE in stage.batch:
        options[_BATCH_SIZE] = stage.batch[_BATCH_SIZE]
    if _BATCH_SIZE not in options:
        raise ConfigError(
            f"{where}: there is no batch_size; give it as an argument, or in the stage's batch"
        )
    mix = _mix(stage, str(options.get("split_part", "train")), where)
    dataset: Dataset[Any] = get_train_dataset(mix, **options)
    return dataset


def _mix(stage: Stage[StageData], split_part: str, where: str) -> Path | Node:
    """What a stage reads: a path, or the blend of its folders."""
    data = stage.dataset
    if data.dataset_path is not None:
        return _existing(data, data.dataset_path, where)
    paths = [_existing(data, folder, where) for folder in data.dataset_folders]
    for path in paths:
        if data.dataset_type == _FOLDERS and not (path / ".nv-meta").is_dir():
            raise MetadatasetError(
                f"{where}: {path} has no .nv-meta, so it is not a prepared folder. A nanoset of "
                "tokens is not read by energize: pass build=, a function of a stage that returns "
                "its dataset, or prepare a folder of shards with `energize prepare`"
            )
    weights = data.dataset_weights or (1.0,) * len(paths)
    nodes = [resolve(path, split_part) for path in paths]
    return Blend(tuple(zip(nodes, weights, strict=True)), data.place)


def _existing(data: StageData, given: str, where: str) -> Path:
    path = data.folder / given
    if not os.path.exists(path):
        raise DatasetNotFoundError(
            f"{where}: {given!r} does not exist, looked for {os.path.abspath(path)}"
        )
    return path

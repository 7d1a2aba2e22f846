"""Stages in a file: from TOML or YAML to a checked plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from energize.errors import ConfigError, MetadatasetError, nearest
from energize.metadataset.located_toml import read_toml
from energize.metadataset.located_yaml import KeyPath, LocatedYaml, read_yaml
from energize.metadataset.problems import Problem, as_error
from energize.metadataset.resolving import Node, Staged, resolve
from energize.metadataset.stage_fields import DEFAULT
from energize.metadataset.stages_schema import (
    DataFields,
    StageTable,
    TrainingTable,
    data_faults,
    schema_faults,
    unknown_key,
)
from energize.metadataset.staging import plan_problems
from energize.order.stages.plan import Stage, StagePlan

__all__ = ["StageData", "is_stage_file", "read_stages"]

_ROOT = "training"
_SPLITS = "splits"
_DATA_KEYS = ("dataset", "dataset_path", "dataset_type", "dataset_folders", "dataset_weights")


@dataclass(frozen=True, slots=True)
class StageData:
    """What a stage file says about the data of a stage, as it is written.

    `folder` is that of the file: paths are relative to it. `place`: where it was written.
    `split_part` is what is read of a folder or a metadataset.
    """

    dataset_type: str
    dataset: str | None
    dataset_path: str | None
    dataset_folders: tuple[str, ...]
    dataset_weights: tuple[float, ...]
    folder: Path
    place: str = ""
    split_part: str = "train"


def is_stage_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of stages rather than a metadataset: TOML, or YAML with `training`."""
    file = Path(path)
    if file.suffix == ".toml":
        return True
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return False
    text = read_yaml(file, [])
    return text is not None and isinstance(text.data, dict) and _ROOT in text.data


def read_stages(
    path: str | os.PathLike[str], split_part: str = "train"
) -> StagePlan[StageData] | StagePlan[Node]:
    """The plan in a `.toml` or `.yaml` file of stages, or in a split of a metadataset.

    In a stage file it is the table `training`. Each of `training.data_stages` says all about its
    data; only `dataset_random_seed`, `items_per_step` and `global_batch_size` fall back to
    `training`. The data fields of `training` itself make the stage "default": the only one when
    there are no others, or that of the steps before the first one. Other keys of `training`, and
    other tables, are the trainer's. `stage.dataset` is a `StageData`, and what it names is not
    looked at.

    In a metadataset the stages are those of its split `split_part`, and `stage.dataset` is what
    `resolve` makes of each.

    Raises `MetadatasetError` with every fault of the file, each with its place;
    `DatasetNotFoundError` when there is no such file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "run.toml"
    >>> _ = file.write_text('''
    ... [training]
    ... steps = 10
    ... dataset_type = "energize"
    ... dataset_path = "mix.yaml"
    ... seq_len = 512
    ... [[training.data_stages]]
    ... name = "ablation"
    ... start_step = 5
    ... dataset_type = "energize"
    ... dataset_path = "other.yaml"
    ... seq_len = 1024
    ... ''')
    >>> [(stage.name, stage.start_step, stage.end_step) for stage in read_stages(file).stages]
    [('default', 0, 5), ('ablation', 5, 10)]
    """
    file = Path(path)
    problems: list[Problem] = []
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise MetadatasetError(f"{file}: expected a .toml or .yaml file of stages")
    text = (read_toml if file.suffix == ".toml" else read_yaml)(file, problems)
    data = None if text is None else text.data
    if isinstance(data, dict) and _SPLITS in data and _ROOT not in data:
        return _of_split(file, split_part)
    table = None if text is None or problems else _table(text, problems)
    if text is None or table is None or problems:
        raise as_error(file, problems)
    parts: list[tuple[DataFields, KeyPath]]
    parts = [(each, ("data_stages", i)) for i, each in enumerate(table.data_stages)]
    stages = [_stage(each, key, table, text, split_part) for each, key in parts]
    default = _stage(table, (), table, text, split_part) if _has_data(table) else None
    try:
        return StagePlan(stages, table.steps, default)
    except ConfigError as error:
        given = [*stages, *([] if default is None else [default])]
        raise as_error(file, plan_problems(text, (_ROOT,), given, error)) from None


def _of_split(file: Path, split_part: str) -> StagePlan[Node]:
    node = resolve(file, split_part)
    if not isinstance(node, Staged):
        raise MetadatasetError(
            f"{node.place}: the split {split_part!r} has no stages, so there is no plan; read it "
            "with get_train_dataset, or give it `stages`"
        )
    return node.plan


def _table(text: LocatedYaml, problems: list[Problem]) -> TrainingTable | None:
    """The checked table `training`, or None when it is not of the grammar."""
    data = text.data.get(_ROOT) if isinstance(text.data, dict) else None
    if not isinstance(data, dict):
        fault = (
            f"there is no table {_ROOT!r}; a stage file has its stages in {_ROOT}.data_stages, and "
            f"a metadataset in its {_SPLITS}"
        )
        problems.append(text.problem((), fault))
        return None
    try:
        table = TrainingTable.model_validate(data)
    except ValidationError as error:
        problems += [text.problem((_ROOT, *path), fault) for path, fault in schema_faults(error)]
        table = None
    problems += [text.problem((_ROOT, key), fault) for key, fault in _misspelt(data)]
    if table is not None:
        for path, fault in _faults_together(table):
            problems.append(text.problem((_ROOT, *path), fault))
    problems.sort(key=lambda problem: problem.line)
    return table


def _misspelt(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of `training` that are meant for this library, and that nothing would read."""
    known = list(TrainingTable.model_fields)
    for key in set(map(str, data)) - set(known):
        if key.startswith(("dataset_", "data_stage")) and nearest(key, known):
            yield key, unknown_key(key, known)


def _faults_together(table: TrainingTable) -> Iterator[tuple[KeyPath, str]]:
    for i, stage in enumerate(table.data_stages):
        for key, fault in data_faults(stage):
            yield ("data_stages", i, key), fault
    if _has_data(table):
        for key, fault in data_faults(table):
            yield (key,), fault
        for key in ("dataset_type", "seq_len"):
            if getattr(table, key) is None:
                yield (), f"the key {key!r} is missing, and the stage {DEFAULT!r} needs it"


def _has_data(table: TrainingTable) -> bool:
    return any(getattr(table, key) is not None for key in _DATA_KEYS)


def _stage(
    fields: DataFields, path: KeyPath, table: TrainingTable, text: LocatedYaml, split_part: str
) -> Stage[StageData]:
    place = text.place((_ROOT, *path))
    own = fields if isinstance(fields, StageTable) else None
    batch = (
        {} if table.global_batch_size is None else {"global_batch_size": table.global_batch_size}
    )
    seed, items = fields.dataset_random_seed, fields.items_per_step or table.items_per_step
    return Stage(
        name=DEFAULT if own is None else own.name,
        start_step=0 if own is None else own.start_step,
        end_step=None if own is None else own.end_step,
        dataset=StageData(
            dataset_type=fields.dataset_type or "",
            dataset=fields.dataset,
            dataset_path=fields.dataset_path,
            dataset_folders=tuple(fields.dataset_folders or ()),
            dataset_weights=tuple(fields.dataset_weights or ()),
            folder=text.file.parent,
            place=place,
            split_part=split_part,
        ),
        seq_len=fields.seq_len,
        seed=table.dataset_random_seed if seed is None else seed,
        items_per_step=items or 1,
        batch=batch if own is None else batch | (own.batch or {}),
        place=place,
    )

"""Stages in a file: those of a trainer's table `training`, or of a split of a metadataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize.compat.data_stages.keys import DataKeys, StageKeys, TrainingKeys
from energize.compat.data_stages.located_toml import read_toml
from energize.errors import MetadatasetError, nearest
from energize.metadataset.checking import Checker
from energize.metadataset.keys import Spec
from energize.metadataset.located import KeyPath, read_yaml
from energize.metadataset.plans import FaultyError, plan_of
from energize.metadataset.problems import Problem, as_error, number_hint, shown
from energize.metadataset.resolving import Node, Staged, resolve
from energize.metadataset.table import keys_of
from energize.order.stages.plan import StagePlan
from energize.storage.faults import own_errors

_ROOT = "training"
_SPLITS = "splits"


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


@own_errors
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
    if text is None or problems:
        raise as_error(file, problems)
    checker = _Checker(text)
    training = checker.training()
    if training is None:
        raise as_error(file, sorted(checker.problems, key=lambda problem: problem.line))
    written: dict[KeyPath, DataKeys] = {
        (_ROOT, "data_stages", i): each for i, each in enumerate(training.data_stages)
    }

    def read(_: Spec, path: KeyPath) -> StageData:
        return _data(written.get(path, training), text.file.parent, text.place(path), split_part)

    around = _settings(training)
    stages = [(_settings(each), path) for path, each in written.items()]
    default = (around, (_ROOT,)) if training.has_data else None
    try:
        return plan_of(text, (_ROOT,), around, stages, default=default, read=read)
    except FaultyError as error:
        raise as_error(file, error.problems) from None


def _of_split(file: Path, split_part: str) -> StagePlan[Node]:
    node = resolve(file, split_part)
    if not isinstance(node, Staged):
        raise MetadatasetError(
            f"{node.place}: the split {split_part!r} has no stages, so there is no plan; read it "
            "with get_train_dataset, or give it `stages`"
        )
    return node.plan


class _Checker(Checker):
    """Reads the table `training`."""

    def training(self) -> TrainingKeys | None:
        """The table, or None when something in it is wrong."""
        root = self.text.data
        table = root.get(_ROOT) if isinstance(root, dict) else None
        if not isinstance(table, dict):
            self.fault(
                (),
                f"there is no table {_ROOT!r}; a stage file has its stages in {_ROOT}.data_stages, "
                f"and a metadataset in its {_SPLITS}",
            )
            return None
        rows = {row.name: row for row in keys_of(TrainingKeys)}
        meant = {key: value for key, value in table.items() if _is_meant(key, list(rows))}
        return self.mapping(TrainingKeys, meant, (_ROOT,), rows)

    def node(self, value: Any, path: KeyPath, place: str) -> StageKeys | None:
        """One of `data_stages`."""
        if not isinstance(value, Mapping):
            hint = number_hint(value)
            self.fault(path, f"expected a table of settings; got {shown(value)}{hint}")
            return None
        return self.mapping(StageKeys, value, path, {row.name: row for row in keys_of(StageKeys)})


def _is_meant(key: str, known: list[str]) -> bool:
    """Whether a key of `training` is for this library, and not for the trainer alone."""
    misspelt = key.startswith(("dataset_", "data_stage")) and nearest(key, known)
    return key in known or bool(misspelt)


def _settings(written: DataKeys) -> Spec:
    """What a table says beside its data, in the words of a metadataset."""
    settings: dict[str, Any] = {
        "seq_len": written.seq_len,
        "seed": written.dataset_random_seed,
        "items_per_step": written.items_per_step,
    }
    if isinstance(written, StageKeys):
        for name in ("name", "start_step", "end_step", "batch"):
            settings[name] = getattr(written, name)
    if isinstance(written, TrainingKeys):
        size = written.global_batch_size
        settings["steps"] = written.steps
        settings["batch"] = None if size is None else {"global_batch_size": size}
    return Spec(**settings)


def _data(written: DataKeys, folder: Path, place: str, split_part: str) -> StageData:
    return StageData(
        dataset_type=written.dataset_type or "",
        dataset=written.dataset,
        dataset_path=written.dataset_path,
        dataset_folders=tuple(written.dataset_folders or ()),
        dataset_weights=tuple(written.dataset_weights or ()),
        folder=folder,
        place=place,
        split_part=split_part,
    )

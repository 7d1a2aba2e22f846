"""Stages of a run in a trainer's own file, TOML or YAML: its table `training`."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from energize.core import limits
from energize.core.checks import check_names, raised_as
from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.core.lazy import optional_module, torch
from energize.core.os_errors import convert_os_errors
from energize.core.validation import KeyPath, Listed, check_depth, faults
from energize.data.files import files_at, joined, path_of
from energize.data.memory import HuggingFaceSource, SequenceSource
from energize.datasets.order import RepeatDataset, ShuffleDataset
from energize.datasets.stage_plan import Stage, StagePlan, stage_label
from energize.datasets.stages import StagedDataset
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    MetadatasetError,
    nearest,
)
from energize.metadataset.api import get_train_dataset
from energize.metadataset.build import batch_size_of, check_one_epoch
from energize.metadataset.located import (
    Located,
    Problem,
    as_error,
    place_noted,
    read_bytes,
    read_yaml,
)
from energize.metadataset.models import Expected, Name, Portion, StageSettings
from energize.metadataset.nodes import Blend, MixNode, Stages
from energize.metadataset.resolver import (
    DEFAULT_STAGE,
    not_staged,
    plan_of,
    resolve,
)
from energize.task.encoder import DefaultTaskEncoder, TaskEncoder

# TOML as plain values that remember the lines they were written on.

_BETWEEN = re.compile(r"[=\[\]{},\n]")
_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.-]+)\s*\]")
_KEY = re.compile(r"\s*([\w-]+)\s*=")


def read_toml(file: Path, problems: list[Problem]) -> Located | None:
    """Return the values of `file`, or None when it cannot be read; faults go to
    `problems`.
    """
    content = read_bytes(file, problems)
    if content is None:
        return None
    try:
        text = content.decode("utf-8")
        # The parser takes time that grows with the square of the parts of a dotted key.
        if len(text) > limits.TOML_BYTES:
            raise ValueError(limits.over("TOML_BYTES", len(text)))
        if any(piece.count(".") > limits.LEVELS for piece in _BETWEEN.split(text)):
            raise ValueError(limits.over("LEVELS"))
        data = tomllib.loads(text)
        check_depth(data)
    except (ValueError, RecursionError) as error:
        problems.append(Problem(str(file), f"invalid TOML: {error}"))
        return None
    return Located(file, data, _lines(text))


def _lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each table and of each of its keys, as far as they are plain
    words.
    """
    lines: dict[KeyPath, int] = {}
    last: dict[KeyPath, int] = {}
    table: KeyPath = ()
    in_text = False
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        key = _KEY.match(line)
        if header and not in_text:
            table = ()
            for name in header[2].split("."):
                table = (*table, last[table], name) if table in last else (*table, name)
            lines.setdefault(table, number)
            if header[1] == "[[":
                last[table] = last.get(table, -1) + 1
                table = (*table, last[table])
                lines[table] = number
        elif key and not in_text:
            lines.setdefault((*table, key[1]), number)
        in_text ^= bool((line.count('"""') + line.count("'''")) % 2)
    return lines


# What a stage file says: the table `training`, and each of its `data_stages`.

_TOLERANCE = 0.001
"""How far the sum of weights may be from 1: they are often written with two or three
digits."""

_NEEDED = {"huggingface": "dataset", "nanoset": "dataset_folders"}
_FOLDERS = Expected("a list of one or more folders, relative to this file")


class StageData(StageSettings):
    """Data of a stage as written in a stage file; paths are relative to its folder."""

    dataset_type: Name | None = None
    dataset: Name | None = None
    dataset_path: Name | None = None
    dataset_folders: Annotated[Listed[Name], Field(min_length=1), _FOLDERS] = ()
    dataset_weights: Annotated[Listed[Portion], Field(min_length=1)] = ()
    seed: NonNegativeInt | None = Field(None, alias="dataset_random_seed")
    _place: tuple[Path, str] = (Path(), "train")

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        return self._place[0]

    @property
    def split_part(self) -> str:
        """The split part that is read of a folder or a metadataset."""
        return self._place[1]

    @model_validator(mode="after")
    def _data(self, info: ValidationInfo) -> Self:
        self._place = info.context or self._place
        folders = self.dataset_folders
        weights = self.dataset_weights
        needed = _NEEDED.get(self.dataset_type or "")
        if needed is not None and not getattr(self, needed):
            raise ConfigError(
                f"a stage of dataset_type {self.dataset_type!r} needs {needed!r}"
            )
        if self.dataset_type == "energize" and (self.dataset_path is None) != bool(
            folders
        ):
            count = "neither" if self.dataset_path is None else "both"
            raise ConfigError(
                "a stage of dataset_type 'energize' needs either 'dataset_path' or "
                f"'dataset_folders', but it has {count}"
            )
        if weights and len(weights) != len(folders):
            raise ConfigError(
                f"'dataset_folders' has {len(weights)} weights for {len(folders)} "
                "folders. Set one weight for each"
            )
        if weights and abs(math.fsum(weights) - 1) > _TOLERANCE:
            raise ConfigError(
                f"the weights must sum to 1 (within {_TOLERANCE}), got "
                f"{math.fsum(weights):g}"
            )
        return self


class StageKeys(StageData):
    """An entry of `data_stages`, with all settings of its data."""

    name: Name
    start_step: NonNegativeInt
    end_step: PositiveInt | None = None
    dataset_type: Name
    seq_len: PositiveInt


class TrainingKeys(StageData):
    """The table `training`; its other keys belong to the trainer."""

    steps: PositiveInt | None = None
    global_batch_size: Annotated[int, Expected("a whole number")] | None = None
    data_stages: Listed[StageKeys] = ()

    @property
    def has_data(self) -> bool:
        """Whether the table sets the data of the stage `default`."""
        return bool(
            self.dataset
            or self.dataset_path
            or self.dataset_type
            or self.dataset_folders
        )

    @model_validator(mode="after")
    def _default(self) -> Self:
        for name in ("dataset_type", "seq_len"):
            if self.has_data and getattr(self, name) is None:
                raise ConfigError(
                    f"the key {name!r} is missing, and the stage "
                    f"{DEFAULT_STAGE!r} needs it"
                )
        return self


_TRAINING = TypeAdapter(TrainingKeys)


# Stages in a file: those of a trainer's table `training`, or of a split of a
# metadataset.

_ROOT = "training"
_SPLITS = "splits"


def is_stage_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is one of stages rather than a metadataset: TOML, or YAML
    with `training`.
    """
    file = path_of(path)
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return file.suffix == ".toml"
    text = read_yaml(file, [])
    return text is not None and isinstance(text.data, dict) and _ROOT in text.data


@convert_os_errors
def read_stages(
    path: str | os.PathLike[str], split_part: str = "train"
) -> StagePlan[StageData] | StagePlan[MixNode]:
    """Return the stages in a stage file (TOML or YAML), or in a split of a metadataset.

    A stage file has a table `training`. Entries of `training.data_stages` set all
    fields of their data; only `dataset_random_seed`, `items_per_step` and
    `global_batch_size` fall back to `training`. The data fields of `training` itself
    are the stage "default": the only stage, or the steps before the first entry. Other
    keys and tables are ignored. The data are not opened.

    Args:
        path: A `.toml`, `.yaml` or `.yml` file.
        split_part: The split of a metadataset.

    Returns:
        The plan. `stage.dataset` is a `StageData` for a stage file, and the result of
        `resolve` for a metadataset.

    Raises:
        MetadatasetError: With every fault of the file and its location.
        DatasetNotFoundError: If the file is missing.

    Example:
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
        >>> stages = read_stages(file).stages
        >>> [(stage.name, stage.start_step, stage.end_step) for stage in stages]
        [('default', 0, 5), ('ablation', 5, 10)]
    """
    file = path_of(path)
    problems: list[Problem] = []
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise MetadatasetError(f"{file}: expected a .toml or .yaml file of stages")
    text = (read_toml if file.suffix == ".toml" else read_yaml)(file, problems)
    data = None if text is None else text.data
    if isinstance(data, dict) and _SPLITS in data and _ROOT not in data:
        node = resolve(file, split_part)
        if isinstance(node, Stages):
            return node.plan
        raise MetadatasetError(
            f"{node.location}: the split {split_part!r} has no stages. Read it with "
            "get_train_dataset, or add `stages`"
        )
    plan = None if text is None or problems else _plan(text, split_part, problems)
    if plan is None:
        raise as_error(file, sorted(problems, key=lambda problem: problem.line))
    return plan


def _plan(
    text: Located, split_part: str, problems: list[Problem]
) -> StagePlan[StageData] | None:
    """Return the plan in the table `training`, or None when something in it is wrong,
    which goes to `problems`.
    """
    table = text.data.get(_ROOT) if isinstance(text.data, dict) else None
    if not isinstance(table, dict):
        message = (
            f"the table {_ROOT!r} is missing. A stage file has its stages in "
            f"{_ROOT}.data_stages"
        )
        problems.append(
            text.problem((), f"{message}, and a metadataset in its {_SPLITS}")
        )
        return None
    names = [stage.alias or name for name, stage in TrainingKeys.model_fields.items()]

    def is_ours(key: str) -> bool:
        misspelt = key.startswith(("dataset_", "data_stage")) and nearest(key, names)
        return key in names or bool(misspelt)

    values = {key: table[key] for key in table if is_ours(key)}
    folder = text.file.parent
    try:
        training = _TRAINING.validate_python(values, context=(folder, split_part))
    except ValidationError as error:
        for path, message in faults(error, _TRAINING, values):
            problems.append(text.problem((_ROOT, *path), message))
        return None
    size = training.global_batch_size
    return plan_of(
        text,
        (_ROOT,),
        training.model_copy(
            update={"batch": {} if size is None else {"global_batch_size": size}}
        ),
        [
            (stage, (_ROOT, "data_stages", number), stage)
            for number, stage in enumerate(training.data_stages)
        ],
        default=((_ROOT,), training) if training.has_data else None,
        fault=lambda location, message: problems.append(Problem(location, message)),
    )


# From stages in a file to a dataset of batches that changes with the step of training.

_BUILT = ("energize", "nanoset", "huggingface", "preprocessed", "packed_memmap")
_ROWS = _BUILT[2:]


@convert_os_errors
def get_staged_train_dataset(
    path: str | os.PathLike[str],
    *,
    split_part: str = "train",
    build: Callable[[Stage[Any]], Dataset[Any]] | None = None,
    carry_over: bool = True,
    worker_config: WorkerConfig | None = None,
    **options: Any,
) -> StagedDataset[Any]:
    """Return the training batches of the stages in a file.

    Args:
        path: A stage file or a metadataset; see `read_stages`.
        split_part: The split of a metadataset.
        build: Returns the dataset of a stage. None uses `build_stage`. `stage.dataset`
            holds the data settings, `stage.seq_len` and `stage.batch` the batch
            settings. The seed of the stage is applied to the result.
        carry_over: As in `StagedDataset`.
        worker_config: Ranks and workers; by default those of torch.distributed.
        **options: Options of `get_train_dataset` for `build_stage`; not with `build`.

    Raises:
        ConfigError: For options with `build`, or a `build` that returns no dataset.
        MetadatasetError: As in `read_stages`, before any sample is read.
    """
    if build is not None and options:
        raise ConfigError(
            f"get_staged_train_dataset: {', '.join(options)} would have no effect with "
            "build, which makes the datasets. Use them in build, for example with "
            "build_stage"
        )
    cuts = ("repeat", "virtual_epoch_length")
    check_one_epoch(path, **{key: options[key] for key in cuts if key in options})

    def dataset_of(stage: Stage[Any]) -> Dataset[Any]:
        dataset = build_stage(stage, **options) if build is None else build(stage)
        if not isinstance(dataset, Dataset):
            raise ConfigError(
                f"{stage_label(stage)}: build must return the dataset of the stage, "
                f"got {dataset!r}"
            )
        return dataset

    plan = read_stages(path, split_part).with_datasets(dataset_of)
    return StagedDataset(plan, carry_over=carry_over, worker_config=worker_config)


def build_stage(
    stage: Stage[StageData] | Stage[MixNode], **options: Any
) -> Dataset[Any]:
    """Return the training batches of one stage of a file, by `get_train_dataset` with
    `options`.

    A stage of a metadataset has been resolved. Of one of a stage file, `dataset_type`
    "energize" reads `dataset_path`, a prepared folder or a metadataset, or a blend of
    `dataset_folders` by `dataset_weights`; so does "nanoset", when its folders are
    prepared ones. Rows, of which the encoder is given dicts in random order, are read
    by "huggingface" (`dataset` from the Hub, or what `save_to_disk` wrote to
    `dataset_path`), "preprocessed" (the same, with tensors for lists of numbers), and
    "packed_memmap" (a `.npy` of token ids at `dataset_path`, rows as they are or one
    long one that is cut into rows of `seq_len`, each as `input_ids`). A `batch_size` in
    the stage's `batch` wins over that of `options`; the split part is chosen where
    stages are read.

    Raises `MetadatasetError` for other types, naming the stage, and what
    `get_train_dataset` raises.
    """
    size = batch_size_of(stage, options.get("batch_size"))
    if size is not None:
        options["batch_size"] = size
    with place_noted(stage.location):
        if isinstance(stage.dataset, StageData) and stage.dataset.dataset_type in _ROWS:
            return _batches_of(_rows(stage.dataset, stage_label(stage)), **options)
        # What a node reads is settled; an error tells whoever gives a split_part, too.
        dataset: Dataset[Any] = get_train_dataset(
            stage_node(stage), split_part="", **options
        )
    return dataset


def stage_node(stage: Stage[StageData] | Stage[MixNode]) -> MixNode:
    """Return what a stage of a file reads: what its path resolves to, or the blend of
    its folders.

    Raises what `build_stage` raises for data that energize does not read.
    """
    data = stage.dataset
    label = stage_label(stage)
    if not isinstance(data, StageData):
        return data
    if data.dataset_type not in _BUILT:
        hint = nearest(data.dataset_type or "", _BUILT) or "."
        raise MetadatasetError(
            f"{label}: dataset_type {data.dataset_type!r} is unknown{hint} Known "
            f"types: {', '.join(_BUILT)}. For others pass build=, a function of a "
            "stage that returns its dataset"
        )
    nodes = []
    for path in data.dataset_folders or (data.dataset_path or "",):
        node = resolve(joined(data.folder, path), data.split_part)
        nodes.append(not_staged(node, f"{label}: {path!r}", "a stage is one mixture"))
    if not data.dataset_folders:
        return nodes[0]
    weights = data.dataset_weights or (1.0,) * len(nodes)
    pairs = zip(nodes, weights, strict=True)
    children = [node.model_copy(update={"weight": weight}) for node, weight in pairs]
    return Blend.model_construct(children=children, location=stage.location)


# Stages whose data are rows.


@dataclass(frozen=True)
class TokenRows:
    """Rows of the token ids in a `.npy` file, which is mapped into memory by each
    process; of a store, a copy of it.
    """

    path: Path
    length: int

    @cached_property
    def _rows(self) -> Any:
        file = files_at(self.path).local(str(self.path))
        tokens = np.load(file, mmap_mode="r", allow_pickle=False)
        if tokens.ndim == 1:
            tokens = tokens[: len(tokens) // self.length * self.length].reshape(
                -1, self.length
            )
        if (
            tokens.ndim != 2
            or not np.issubdtype(tokens.dtype, np.integer)
            or not len(tokens)
        ):
            raise DatasetError(
                f"{self.path}: packed token ids must be integers, in rows or "
                f"{self.length} or more in one row, got {tokens.dtype} of shape "
                f"{tokens.shape}"
            )
        return tokens

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {"input_ids": torch.from_numpy(self._rows[position].astype(np.int64))}

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "length": self.length}


def _rows(data: StageData, label: str) -> Dataset[Any]:
    path = joined(data.folder, data.dataset_path or "")
    if data.dataset_type != "huggingface" and not path.exists():
        raise DatasetNotFoundError(f"{label}: {path} is missing. Set its dataset_path")
    if data.dataset_type == "packed_memmap":
        return _token_rows(data, path, label)
    return _huggingface_rows(data, path, label)


def _token_rows(data: StageData, path: Any, label: str) -> Dataset[Any]:
    if path.suffix != ".npy":
        raise MetadatasetError(
            f"{label}: packed_memmap reads a .npy file of token ids, got {path}. For "
            "other formats pass build=, a function of a stage that returns its dataset"
        )
    name = data.dataset or data.dataset_path or ""
    return SequenceSource(TokenRows(path, data.seq_len or 1), name=name)


def _huggingface_rows(data: StageData, path: Any, label: str) -> Dataset[Any]:
    name = data.dataset or data.dataset_path or ""
    library = optional_module(
        "datasets", "energize[hf]", f"{label}: dataset_type {data.dataset_type!r}"
    )
    is_local = data.dataset_path is not None and path.is_dir()
    try:
        if is_local:
            rows = library.load_from_disk(str(path))
        else:
            rows = library.load_dataset(data.dataset)
        if isinstance(rows, dict):
            rows = rows[data.split_part]
    except Exception as reason:  # the library raises errors of many types
        raise DatasetNotFoundError(
            f"{label}: Hugging Face's datasets cannot load "
            f"{str(path) if is_local else name!r} ({data.split_part}): "
            f"{type(reason).__name__}: {reason}. Correct the name, or set dataset_path "
            "to a folder written by save_to_disk"
        ) from reason
    if data.dataset_type == "preprocessed":
        rows = rows.with_format("torch")
    return HuggingFaceSource(rows, name=name)


def _batches_of(
    rows: Dataset[Any],
    *,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None,
    worker_config: WorkerConfig | None = None,
    **options: Any,
) -> Dataset[Any]:
    """Return batches of rows."""
    with raised_as("a stage that reads rows"):
        check_names(options, ("batch_size", "batch_drop_last", "packing_buffer_size"))
    encoder = task_encoder or DefaultTaskEncoder()
    samples = encoder.build_encode_sample(RepeatDataset(ShuffleDataset(rows)))
    return encoder.build_batch(samples, **options).with_worker_config(worker_config)

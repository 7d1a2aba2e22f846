"""What a pipeline is made of."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from energize.compat.checks import checked_list
from energize.compat.easydel.mixing import Mixing
from energize.compat.easydel.tokenizing import Tokenizer, TokenizerConfig
from energize.errors import ConfigError, WeightError
from energize.order.schedules.schedule import INTERPOLATIONS, WeightSchedulePoint, WeightScheduler
from energize.order.weights import checked_weight
from energize.sources.row_files import DataFiles
from energize.wrappers.checks import checked_count, raised_as

__all__ = ["DatasetConfig", "LoadStageConfig", "MixStageConfig", "PipelineConfig"]

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """One dataset of a pipeline.

    `data_files`: a path, a pattern, or a list of them; the path of a dataset on the Hugging Face
    hub with `type="huggingface"`.
    `type`: parquet, json (or jsonl), csv, arrow, text, huggingface; by default what the names of
    the files end in.
    `tokenizer`: a function of a text, the file of a saved tokenizer, or the name of one that lies
    in the local cache of transformers.
    `content_field`: the field with the text; `additional_fields`: those kept beside the tokens.
    `format_callback`: a function of each example; `format_fields`: new names of fields by old ones;
    both come before tokenizing, the function first.
    `num_rows`: only the first so many examples.
    """

    data_files: DataFiles
    name: str | None = None
    type: str | None = None
    split: str = "train"
    num_rows: int | None = None
    tokenizer: str | TokenizerConfig | Tokenizer | None = None
    content_field: str = "text"
    additional_fields: Sequence[str] = ()
    format_callback: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    format_fields: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        listed = isinstance(self.data_files, Sequence) and not isinstance(self.data_files, str)
        if not (listed or isinstance(self.data_files, str | os.PathLike)) or not self.data_files:
            raise ConfigError(
                f"DatasetConfig {self.name!r}: data_files is a path, a pattern or a list of them; "
                f"got {self.data_files!r}"
            )
        if self.num_rows is not None:
            checked_count(self.num_rows, "num_rows", f"DatasetConfig {self.name!r}")


@dataclass(frozen=True)
class MixStageConfig:
    """How the datasets of a pipeline are mixed: by `weights`, which sum to 1, or by a schedule.

    A `weight_schedule` comes before `weights`. `seed=None` takes the seed of the pipeline.

    >>> MixStageConfig(weights={"code": 0.3, "text": 0.8})
    Traceback (most recent call last):
        ...
    energize.errors.WeightError: MixStageConfig: the weights sum to 1.1, not to 1
    """

    weights: Mapping[str, float] | None = None
    weight_schedule: Sequence[WeightSchedulePoint] | None = None
    weight_schedule_type: str = "step"
    block_size: int = 1000
    stop_strategy: str = "restart"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            if not isinstance(self.weights, Mapping):
                raise WeightError(
                    "MixStageConfig: weights are numbers by the names of the datasets, in a dict; "
                    f"got {self.weights!r}"
                )
            total = math.fsum(
                checked_weight(weight, f"MixStageConfig: weight of {name!r}")
                for name, weight in self.weights.items()
            )
            if not abs(total - 1) <= _SUM_TOLERANCE:
                raise WeightError(f"MixStageConfig: the weights sum to {total:.9g}, not to 1")
        if self.weight_schedule_type not in INTERPOLATIONS:
            raise ConfigError(
                f"MixStageConfig: weight_schedule_type is one of {', '.join(INTERPOLATIONS)}; got "
                f"{self.weight_schedule_type!r}"
            )
        with raised_as("MixStageConfig", "WeightScheduler"):
            self.scheduler()  # the points are checked here
        self.mixing(0)

    def scheduler(self) -> WeightScheduler | None:
        """The schedule, where there is one."""
        if not self.weight_schedule:
            return None
        return WeightScheduler(self.weight_schedule, self.weight_schedule_type)

    def mixing(self, pipeline_seed: int | None) -> Mixing:
        """The rules of the mix."""
        seed = pipeline_seed if self.seed is None else self.seed
        return Mixing("MixStageConfig", self.block_size, seed, self.stop_strategy)


@dataclass(frozen=True)
class LoadStageConfig:
    """How examples become batches, and how many processes read them."""

    batch_size: int = 8
    drop_last: bool = True
    num_workers: int = 0
    prefetch_factor: int = 2

    def __post_init__(self) -> None:
        checked_count(self.batch_size, "batch_size", "LoadStageConfig")


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """The datasets of a pipeline and its stages.

    A dataset without a name is called dataset_0, dataset_1, ... by its place. `default_tokenizer`
    is for datasets that name none.

    Raises `ConfigError` for no datasets, and for two of one name.
    """

    datasets: Sequence[DatasetConfig]
    default_tokenizer: str | TokenizerConfig | Tokenizer | None = None
    streaming: bool = True
    seed: int | None = None
    mix: MixStageConfig = field(default_factory=MixStageConfig)
    load: LoadStageConfig = field(default_factory=LoadStageConfig)

    def __post_init__(self) -> None:
        checked_list(self.datasets, DatasetConfig, "PipelineConfig: datasets")
        names = self.names()
        if not names:
            raise ConfigError("PipelineConfig: there are no datasets")
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"PipelineConfig: two datasets are called {name!r}")

    def names(self) -> list[str]:
        """The names of the datasets."""
        return [each.name or f"dataset_{number}" for number, each in enumerate(self.datasets)]

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> PipelineConfig:
        """A config from plain dicts; `ConfigError` naming keys that are not known."""
        values = dict(tree)
        given = tree.get("datasets") or ()
        if isinstance(given, Sequence) and not isinstance(given, str):
            given = [_made(DatasetConfig, each) for each in given]
        values["datasets"] = given
        for name, kind in (("mix", MixStageConfig), ("load", LoadStageConfig)):
            if tree.get(name) is not None:
                values[name] = _made(kind, tree[name])
            else:
                values.pop(name, None)
        made: PipelineConfig = _made(cls, values)
        return made


def _made(kind: Any, values: Any) -> Any:
    if isinstance(values, kind):
        return values
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{kind.__name__}: {error}; known are {_fields(kind)}") from error


def _fields(kind: Any) -> str:
    return ", ".join(kind.__dataclass_fields__)

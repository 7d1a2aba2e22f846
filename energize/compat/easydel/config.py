"""What a pipeline is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import InstanceOf, StrictBool

from energize.compat.checks import (
    Count,
    Weights,
    Whole,
    checked_fields,
    of_fields,
    or_fields,
)
from energize.compat.easydel.files import ExampleFiles, named
from energize.compat.easydel.mixing import Stop
from energize.compat.easydel.tokenizing import AnyTokenizer
from energize.errors import WeightError
from energize.order import WeightSchedulePoint, WeightScheduler
from energize.order.weights import checked_weight
from energize.wrappers.checks import raised_as

_SUM_TOLERANCE = 1e-6


@checked_fields
@dataclass(frozen=True, kw_only=True)
class DatasetConfig(ExampleFiles):
    """One dataset of a pipeline: `ExampleFiles`, and a `tokenizer` for them: a function of a text,
    the file of a saved tokenizer, or the name of one that lies in the local cache of transformers.
    """

    tokenizer: AnyTokenizer | None = None


@checked_fields
@dataclass(frozen=True)
class MixStageConfig:
    """How the datasets of a pipeline are mixed: by `weights`, which sum to 1, or by a schedule.

    A `weight_schedule` comes before `weights`. `seed=None` takes the seed of the pipeline.

    >>> MixStageConfig(weights={"code": 0.3, "text": 0.8})
    Traceback (most recent call last):
        ...
    energize.errors.WeightError: MixStageConfig: the weights sum to 1.1, not to 1
    """

    weights: Weights | None = None
    weight_schedule: Sequence[InstanceOf[WeightSchedulePoint]] | None = None
    weight_schedule_type: Literal["step", "linear", "cosine"] = "step"
    block_size: Count = 1000
    stop_strategy: Stop = "restart"
    seed: Whole | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            total = math.fsum(
                checked_weight(weight, f"MixStageConfig: weight of {name!r}")
                for name, weight in self.weights.items()
            )
            if not abs(total - 1) <= _SUM_TOLERANCE:
                raise WeightError(f"MixStageConfig: the weights sum to {total:.9g}, not to 1")
        with raised_as("MixStageConfig", "WeightScheduler"):
            self.scheduler()  # the points are checked here

    def scheduler(self) -> WeightScheduler | None:
        """The schedule, where there is one."""
        if not self.weight_schedule:
            return None
        return WeightScheduler(self.weight_schedule, self.weight_schedule_type)


@checked_fields
@dataclass(frozen=True)
class LoadStageConfig:
    """How examples become batches, and how many processes read them."""

    batch_size: Count = 8
    drop_last: StrictBool = True
    num_workers: Whole = 0
    prefetch_factor: Count = 2


@checked_fields
@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """The datasets of a pipeline and its stages, each also as a dict of its fields.

    A dataset without a name is called dataset_0, dataset_1, ... by its place. `default_tokenizer`
    is for datasets that name none.

    Raises `ConfigError` for no datasets, and for two of one name.
    """

    datasets: Sequence[Annotated[InstanceOf[DatasetConfig], or_fields(DatasetConfig)]]
    default_tokenizer: AnyTokenizer | None = None
    streaming: StrictBool = True
    seed: Whole | None = None
    mix: Annotated[InstanceOf[MixStageConfig], or_fields(MixStageConfig)] = field(
        default_factory=MixStageConfig
    )
    load: Annotated[InstanceOf[LoadStageConfig], or_fields(LoadStageConfig)] = field(
        default_factory=LoadStageConfig
    )

    def __post_init__(self) -> None:
        datasets = named(self.datasets, "PipelineConfig", "datasets", "dataset_", 0)
        object.__setattr__(self, "datasets", datasets)

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> PipelineConfig:
        """A config from plain dicts; `ConfigError` naming keys that are not known."""
        return of_fields(cls, tree)

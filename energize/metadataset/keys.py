"""The table of keys: all that a node of a metadataset may say, whatever grammar it is written in.

A new key is a new field here. Its row is all that checks it, explains it and tells editors of it.
"""

# ruff: noqa: RUF009 - `key` makes a dataclass field

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from energize.errors import ConfigError
from energize.metadataset.problems import shown
from energize.metadataset.table import OneOf, Table, key, keys_of
from energize.order import Schedule
from energize.order.arrangement import SCHEMES
from energize.order.ends import STOP_RULES
from energize.order.epochs.composition import BATCHING_METHODS
from energize.order.epochs.quotas import Quota, epoch_size_in_samples
from energize.order.schedule import CHANGES, INTERPOLATIONS
from energize.wrappers.quota import SAMPLING_METHODS

ENERGIZE: Final = "energize"
ENERGON: Final = "megatron.energon"


class Home(StrEnum):
    """What has a key."""

    DATASET = "dataset"
    BLEND = "blend"
    WEIGHTED_BLEND = "blend by weights"
    QUOTA_BLEND = "blend by quotas"
    OUTERMOST = "outermost blend by quotas"
    ENTRY = "entry"
    WEIGHTED_ENTRY = "entry of a blend by weights"
    QUOTA_ENTRY = "entry of a blend by quotas"
    SPLIT = "split"
    STAGE = "stage"
    SETTING = "stage, or split with stages"
    PLAN = "split with stages"
    OLDER_BLEND = "blend of the older grammar"
    OLDER_ENTRY = "entry of the older grammar"
    TABLE = "table"


ENTRIES = (Home.ENTRY, Home.WEIGHTED_ENTRY, Home.QUOTA_ENTRY)
BY_WEIGHTS = (Home.WEIGHTED_BLEND, Home.ENTRY, Home.WEIGHTED_ENTRY)
BY_QUOTAS = (Home.QUOTA_BLEND, Home.OUTERMOST, Home.QUOTA_ENTRY)

_STEP = r"[0-9][0-9_]*"
_LONGEST_STEP = 18
_POINTS = "a mapping of steps to weights in the order of steps, such as {0: 0.2, 10_000: 0.5}"
_COUNT = r"^\s*\+?[.0-9][-+0-9._/eE]*\s*[kKmMbBtT]?\s*$"
"""What a text that counts samples looks like, for editors; reading it looks closer."""


def _points(value: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"expected {_POINTS}; got {shown(value)}")
    for step, weight in value.items():
        if not re.fullmatch(_STEP, str(step)) or len(str(step).replace("_", "")) > _LONGEST_STEP:
            raise ConfigError(f"a step is a whole number, 0 or more; got {shown(step)}")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"the weight at step {step} is a number; got {shown(weight)}")
    points = tuple((int(step), weight) for step, weight in value.items())
    Schedule(points)
    return points


_POINTS_SCHEMA = {
    "description": _POINTS,
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": f"^{_STEP}$"},
    "additionalProperties": {"type": "number", "minimum": 0},
}


def _samples(least: int, text: str) -> WithJsonSchema:
    number, written = {"type": "integer", "minimum": least}, {"type": "string", "pattern": _COUNT}
    return WithJsonSchema({"description": text, "anyOf": [number, written]})


# What values are; the description is what a message says was expected.
Text = Annotated[str, Field(min_length=1, description="text")]
Name = Annotated[str, Field(min_length=1, pattern=r"\S", description="text")]
Named = Annotated[dict[str, Any], Field(description="a mapping")]
Flag = Annotated[bool, Field(description="true or false")]
Whole = Annotated[int, Field(ge=0, description="a whole number, 0 or more")]
Positive = Annotated[int, Field(ge=1, description="a whole number, 1 or more")]
Number = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, allow_inf_nan=False)],
    Field(description="a finite number, 0 or more"),
]
Portion = Annotated[
    Annotated[int, Field(ge=0, le=1)] | Annotated[float, Field(ge=0, le=1)],
    Field(description="a number from 0 to 1"),
]
Multiplier = Annotated[
    Annotated[int, Field(ge=1)] | Literal[-1],
    Field(
        description="a whole number above 0, or -1 (draw with replacement), or null (no shuffle)"
    ),
]
Points = Annotated[
    tuple[tuple[int, float], ...], PlainValidator(_points), WithJsonSchema(_POINTS_SCHEMA)
]
Chosen = Annotated[
    int,
    PlainValidator(lambda value: Quota(choose=value).choose),
    _samples(0, "a whole number, 0 or more, or text like 10k"),
]
EpochSize = Annotated[
    int,
    PlainValidator(epoch_size_in_samples),
    _samples(1, "a whole number from 1, or text like 10k or 1.5M"),
]


@dataclass(frozen=True)
class ScheduleTable(Table):
    """A weight that changes with the step."""

    points: Points = key(Home.TABLE, required=True)
    interpolation: Annotated[str, OneOf(INTERPOLATIONS)] = key(Home.TABLE, default="step")
    slots_per_step: Positive = key(Home.TABLE, "slots of the blend that a step takes", default=1)
    change: Annotated[str, OneOf(CHANGES)] = key(Home.TABLE, default="block")

    def schedule(self) -> Schedule:
        """The weight as what a blend takes."""
        return Schedule(self.points, self.interpolation, self.slots_per_step, self.change)


@dataclass(frozen=True)
class Composed(Table):
    """What a global batch is made of, see `ComposedDataset`; None: as large as a batch, and
    `drop_last` as the program that reads the mix says.
    """

    method: Annotated[str, OneOf(BATCHING_METHODS)] = key(Home.TABLE, required=True)
    global_batch_size: Positive | None = key(Home.TABLE, "samples of a global batch")
    drop_last: Flag | None = key(
        Home.TABLE, "whether samples that fill no global batch are left out"
    )


@dataclass(frozen=True)
class Spec(Table):
    """A dataset, a blend or stages, as they are written; keys that are left out are None.

    `given` are those that are not.
    """

    path: Text = key(
        Home.DATASET,
        "a prepared folder or a metadataset .yaml, relative to this file",
        required=True,
    )
    split_part: Text | None = key(Home.DATASET, "the name of a split part, such as train")
    subflavors: Named | None = key(Home.DATASET)
    shuffle_over_epochs_multiplier: Multiplier | None = key(Home.DATASET, default=1)
    dataset_config: Text | None = key(Home.DATASET, "the name of a file in the .nv-meta folder")
    split_config: Text | None = key(Home.DATASET, "the name of a file in the .nv-meta folder")
    subflavor: Text | None = key(Home.OLDER_ENTRY, "`subflavors` is the newer key")
    weight: Number | ScheduleTable = key(
        Home.ENTRY, table=ScheduleTable, called="a schedule (a mapping with 'points')", default=1
    )
    min_share: Portion | None = key(Home.WEIGHTED_ENTRY)
    max_share: Portion | None = key(Home.WEIGHTED_ENTRY)
    max_epochs: Positive | None = key(Home.WEIGHTED_ENTRY, "how often it is read at most")
    proportion: Number | None = key(Home.QUOTA_ENTRY, "its part of an epoch")
    repeat: Number | None = key(Home.QUOTA_ENTRY, "passes over it in an epoch")
    choose: Chosen | None = key(Home.QUOTA_ENTRY, "samples of it in an epoch")
    blend: tuple[Spec, ...] = key(
        Home.BLEND,
        nodes=Home.ENTRY,
        called="a list of one or more datasets or blends, each with its weight",
        required=True,
        default=(),
    )
    datasets: tuple[Spec, ...] = key(
        Home.OLDER_BLEND,
        nodes=Home.ENTRY,
        called="a list of one or more datasets, each with its weight",
        required=True,
        default=(),
    )
    scheme: Annotated[str, OneOf(SCHEMES)] | None = key(Home.WEIGHTED_BLEND)
    block_size: Positive | None = key(Home.WEIGHTED_BLEND, "slots of a block")
    stop: Annotated[str, OneOf(STOP_RULES)] | None = key(Home.WEIGHTED_BLEND)
    temperature: Number | None = key(
        Home.WEIGHTED_BLEND, "1 keeps the weights, 0 makes shares equal", default=1
    )
    epoch_size: EpochSize | None = key(Home.QUOTA_BLEND, "samples of an epoch")
    sampling_method: Annotated[str, OneOf(SAMPLING_METHODS)] | None = key(Home.QUOTA_BLEND)
    composition: Composed | None = key(
        Home.OUTERMOST, table=Composed, called="a mapping with 'method'"
    )
    name: Name = key(Home.STAGE, "the name of the stage", required=True)
    start_step: Whole = key(Home.STAGE, "the first step", required=True)
    end_step: Positive | None = key(Home.STAGE, "the step after the last one")
    seq_len: Positive | None = key(Home.SETTING, "tokens per sequence")
    items_per_step: Positive | None = key(
        Home.SETTING, "micro batches per optimizer step, over all ranks"
    )
    batch: Named | None = key(Home.SETTING, "settings of batches")
    seed: Whole | None = key(Home.SETTING, "the order of what is read")
    steps: Positive | None = key(Home.PLAN, "the steps of the training")
    stages: tuple[Spec, ...] = key(
        Home.PLAN,
        nodes=Home.STAGE,
        called="a list of one or more stages",
        required=True,
        default=(),
    )
    given: frozenset[str] = frozenset()

    @property
    def entries(self) -> tuple[Spec, ...]:
        """What is blended; nothing in a dataset."""
        return self.blend or self.datasets

    @property
    def own_subflavors(self) -> dict[str, Any]:
        """The subflavors given here."""
        older = {} if self.subflavor is None else {"__subflavor__": self.subflavor}
        return older | (self.subflavors or {})

    def quota(self) -> Quota:
        """What it gives to an epoch, in a blend by quotas."""
        return Quota(proportion=self.proportion, repeat=self.repeat, choose=self.choose)

    @property
    def by_quotas(self) -> bool:
        """Whether its entries are mixed by quotas, not by weights."""
        return any(self.mixed_by(BY_QUOTAS))

    def mixed_by(self, homes: Collection[Home]) -> Iterator[str]:
        """The keys of some homes that it and its entries have, as messages call them."""
        rows = [row for row in keys_of(Spec) if row.home in homes]
        own = (row.name for row in rows if row.home not in ENTRIES)
        yield from (repr(name) for name in own if name in self.given)
        for number, entry in enumerate(self.entries):
            names = (row.name for row in rows if row.home in ENTRIES and row.name in entry.given)
            yield from (f"{name!r} of entry [{number}]" for name in names)

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong with keys that are right one by one."""
        try:
            self.quota()
        except ConfigError as reason:
            yield "", str(reason)
        weights, quotas = (next(self.mixed_by(h), None) for h in (BY_WEIGHTS, BY_QUOTAS))
        if weights and quotas:
            yield (
                "",
                f"a blend is mixed by weights or by quotas, and {weights} is for the one, {quotas} "
                "for the other; remove either",
            )
        if self.block_size is not None and self.scheme not in (None, "block"):
            yield (
                "",
                f"block_size is for scheme: block, and the scheme is {self.scheme}; remove it",
            )
        if self.entries and not quotas and not any(entry.weight for entry in self.entries):
            yield (
                "blend" if self.blend else "datasets",
                f"all {len(self.entries)} weights are 0, so nothing could ever be drawn; give at "
                "least one entry a weight above 0",
            )

    def unweighted(self) -> str:
        """What is wrong with weights that only some entries have, which Energon allows; or ""."""
        without = [i for i, entry in enumerate(self.entries) if "weight" not in entry.given]
        if self.by_quotas or not 0 < len(without) < len(self.entries):
            return ""
        which = ", ".join(f"[{i}]" for i in without)
        return (
            f"some entries have a weight and others have none: {which}; give every entry of a "
            "blend a weight, or none of them for equal shares"
        )

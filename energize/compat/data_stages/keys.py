"""The tables of keys of a stage file: `training`, and each of its `data_stages`."""

# ruff: noqa: RUF009 - `key` makes a dataclass field

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from energize.metadataset.json_schema import DIALECT, object_schema
from energize.metadataset.keys import Spec
from energize.metadataset.plans import DEFAULT
from energize.metadataset.problems import shown
from energize.metadataset.table import Table, key, keys_of, same_key
from energize.metadataset.values import Name, Named, Positive, Whole

DATA = "data"
STAGE = "stage"
TRAINING = "training"

_TOLERANCE = 0.001
"""How far the sum of weights may be from 1: they are often written with two or three digits."""

_Weight = Annotated[int | float, Field(json_schema_extra={"minimum": 0, "maximum": 1})]
Size = Annotated[int, Field(description="a whole number")]
Folders = Annotated[
    list[Name],
    Field(min_length=1, description="a list of one or more folders, relative to this file"),
]
_Weights = Annotated[
    list[_Weight], Field(min_length=1, description="a list of numbers, one for each folder")
]


@dataclass(frozen=True)
class DataKeys(Table):
    """What says which data are read."""

    dataset: Name | None = key(DATA, "the name of a dataset")
    dataset_path: Name | None = key(
        DATA, "a prepared folder or a metadataset .yaml, relative to this file"
    )
    dataset_type: Name | None = key(DATA, "such as energize")
    dataset_folders: Folders | None = key(DATA)
    dataset_weights: _Weights | None = key(DATA)
    dataset_random_seed: Whole | None = same_key(Spec, "seed")
    seq_len: Positive | None = same_key(Spec, "seq_len")
    items_per_step: Positive | None = same_key(Spec, "items_per_step")

    @property
    def has_data(self) -> bool:
        """Whether anything says which data are read."""
        rows = [row for row in keys_of(DataKeys) if row.home == DATA]
        return any(getattr(self, row.name) is not None for row in rows)

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong with keys that are right one by one."""
        if self.dataset_type == "huggingface" and self.dataset is None:
            yield "dataset_type", "a huggingface dataset is named by 'dataset'; give it"
        if self.dataset_type == "nanoset" and self.dataset_folders is None:
            yield "dataset_type", "a nanoset is read from 'dataset_folders'; give them"
        if self.dataset_type == "energize":
            given = [key for key in ("dataset_path", "dataset_folders") if getattr(self, key)]
            if len(given) != 1:
                found = "both are given" if given else "neither is given"
                yield "dataset_type", f"energize reads 'dataset_path' or 'dataset_folders'; {found}"
        if self.dataset_weights is not None:
            for fault in _weight_faults(self.dataset_weights, self.dataset_folders):
                yield "dataset_weights", fault


@dataclass(frozen=True)
class StageKeys(DataKeys):
    """One of `data_stages`, which says all about its data."""

    name: Name = same_key(Spec, "name")
    start_step: Whole = same_key(Spec, "start_step")
    end_step: Positive | None = same_key(Spec, "end_step")
    dataset_type: Name = key(DATA, "such as energize", required=True)
    seq_len: Positive = same_key(Spec, "seq_len", required=True)
    batch: Named | None = same_key(Spec, "batch")


@dataclass(frozen=True)
class TrainingKeys(DataKeys):
    """The table `training`, whose other keys belong to the trainer."""

    steps: Positive | None = same_key(Spec, "steps")
    global_batch_size: Size | None = key(TRAINING, "sequences per step")
    data_stages: tuple[StageKeys, ...] = key(
        TRAINING, nodes=STAGE, called="a list of tables", default=()
    )

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong with keys that are right one by one."""
        yield from super().faults()
        for name in ("dataset_type", "seq_len"):
            if self.has_data and getattr(self, name) is None:
                yield "", f"the key {name!r} is missing, and the stage {DEFAULT!r} needs it"


def json_schema() -> dict[str, Any]:
    """The grammar of stage files as a JSON schema, for editors and other tools."""
    stage = object_schema(keys_of(StageKeys))
    training = object_schema(keys_of(TrainingKeys), lambda _: stage, more=True)
    return {
        "$schema": DIALECT,
        "title": "energize stages",
        "description": "Named stages of a training run, each with its own data",
        "type": "object",
        "properties": {"training": training},
        "required": ["training"],
    }


def _weight_faults(weights: Sequence[float], folders: Sequence[str] | None) -> Iterator[str]:
    if folders is None:
        yield "weights are for 'dataset_folders', and there are none; give folders, or no weights"
    elif len(weights) != len(folders):
        yield f"there are {len(weights)} weights for {len(folders)} folders; give one for each"
    wrong = [weight for weight in weights if not 0 <= weight <= 1]  # not a number is wrong too
    if wrong:
        yield f"a weight is a finite number from 0 to 1; got {', '.join(map(shown, wrong))}"
    elif abs(math.fsum(weights) - 1) > _TOLERANCE:
        yield f"weights sum to 1 (within {_TOLERANCE}); these sum to {math.fsum(weights):g}"

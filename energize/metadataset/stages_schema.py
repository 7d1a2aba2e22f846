"""The grammar of stage files: a `training` table with `data_stages`, as typed models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from energize.errors import nearest
from energize.metadataset.located_yaml import KeyPath
from energize.metadataset.problems import number_hint, shown
from energize.metadataset.stage_fields import (
    SEED,
    LengthFields,
    NonEmpty,
    PlanFields,
    Positive,
    StageFields,
    Whole,
)

__all__ = [
    "DataFields",
    "StageTable",
    "TrainingTable",
    "data_faults",
    "json_schema",
    "schema_faults",
]

_TOLERANCE = 0.001
"""How far the sum of weights may be from 1: they are often written with two or three digits."""


class DataFields(LengthFields):
    """What says which data are read."""

    dataset: NonEmpty | None = Field(None, description="text: the name of a dataset")
    dataset_path: NonEmpty | None = Field(
        None, description="text: a prepared folder or a metadataset .yaml, relative to this file"
    )
    dataset_type: NonEmpty | None = Field(None, description="text, such as energize")
    dataset_folders: list[NonEmpty] | None = Field(
        None, min_length=1, description="a list of one or more folders, relative to this file"
    )
    dataset_weights: list[float] | None = Field(
        None,
        min_length=1,
        description="a list of numbers, one for each folder",
        json_schema_extra={"items": {"type": "number", "minimum": 0, "maximum": 1}},
    )
    dataset_random_seed: Whole | None = Field(None, description=SEED)


class StageTable(DataFields, StageFields):
    """One of `data_stages`."""

    dataset_type: NonEmpty = Field(description="text, such as energize")
    seq_len: Positive = Field(description="tokens per sequence: a whole number, 1 or more")


class TrainingTable(DataFields, PlanFields):
    """The table `training`, whose other keys belong to the trainer."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    global_batch_size: int | None = Field(None, description="sequences per step: a whole number")
    data_stages: list[StageTable] = Field(default_factory=list, description="a list of tables")


class StageDocument(BaseModel):
    """A stage file; what is beside `training` is the trainer's."""

    training: TrainingTable


def json_schema() -> dict[str, Any]:
    """The grammar of stage files as a JSON schema, for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **StageDocument.model_json_schema(),
        "title": "energize stages",
        "description": "Named stages of a training run, each with its own data",
    }


def schema_faults(error: ValidationError) -> Iterator[tuple[KeyPath, str]]:
    """The path below `training`, and what is wrong there, of each fault in `error`."""
    for each in error.errors(include_url=False):
        path: KeyPath = each["loc"]
        names = [part for part in path if isinstance(part, str)]
        in_stage = names[:1] == ["data_stages"] and len(names) > 1
        model: type[DataFields] = StageTable if in_stage else TrainingTable
        key = names[1 if in_stage else 0] if names else ""
        if each["type"] == "missing":
            what = f"the key {key!r} is missing; expected {_expected(model, key)}"
            yield path[:-1], what
        elif each["type"] == "extra_forbidden":
            yield path, unknown_key(key, list(model.model_fields))
        else:
            expected = "a table of settings" if names == ["data_stages"] and path[1:] else None
            got = f"{shown(each['input'])}{number_hint(each['input'])}"
            yield path, f"expected {expected or _expected(model, key)}; got {got}"


def _expected(model: type[DataFields], key: str) -> str:
    field = model.model_fields.get(key)
    return "a table" if field is None else str(field.description)


def unknown_key(key: str, known: Sequence[str]) -> str:
    """What to say of a key that nothing reads."""
    return f"unknown key {key!r}{nearest(key, known) or '.'} Valid keys here: {', '.join(known)}"


def data_faults(fields: DataFields) -> Iterator[tuple[str, str]]:
    """What is wrong with valid fields together: the key that is to be changed, and why."""
    if fields.dataset_type == "huggingface" and fields.dataset is None:
        yield "dataset_type", "a huggingface dataset is named by 'dataset'; give it"
    if fields.dataset_type == "nanoset" and fields.dataset_folders is None:
        yield "dataset_type", "a nanoset is read from 'dataset_folders'; give them"
    if fields.dataset_type == "energize":
        given = [key for key in ("dataset_path", "dataset_folders") if getattr(fields, key)]
        if len(given) != 1:
            found = "both are given" if given else "neither is given"
            yield "dataset_type", f"energize reads 'dataset_path' or 'dataset_folders'; {found}"
    if fields.dataset_weights is not None:
        for fault in _weight_faults(fields.dataset_weights, fields.dataset_folders):
            yield "dataset_weights", fault


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

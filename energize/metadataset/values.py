"""What the values of keys may be: annotations that check them, and say what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from energize.data.source import Subset
from energize.datasets.item_cost import ItemCost
from energize.errors import ConfigError
from energize.metadataset.joiners import JOINER_SCHEMA, joiner_of
from energize.metadataset.problems import shown
from energize.metadataset.subsets import SUBSET_SCHEMA, subset_of
from energize.order import Schedule
from energize.order.quota import Quota, epoch_size_in_samples

_STEP = r"[0-9][0-9_]*"
_LONGEST_STEP = 18
_ARGUMENT = r"^[^\W\d]\w*$"
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


_UNIT = "the name of a column of all folders, such as tokens, or {field: NAME} of encoded samples"


def _unit(value: Any) -> str | ItemCost:
    field = value.get("field") if isinstance(value, Mapping) and len(value) == 1 else None
    if isinstance(field, str) and field:
        return ItemCost(field)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"expected {_UNIT}, or samples; got {shown(value)}")
    return value


_UNIT_SCHEMA = {
    "description": _UNIT,
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "properties": {"field": {"type": "string", "minLength": 1}},
            "required": ["field"],
            "additionalProperties": False,
        },
    ],
}

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
Sizes = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)],
    Field(description="a whole number, 1 or more, or a list of them"),
]
Names = Annotated[
    Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)],
    Field(description="the name of a field, or a list of them"),
]
Named = Annotated[dict[str, Any], Field(description="a mapping")]
Flag = Annotated[bool, Field(description="true or false")]
Whole = Annotated[int, Field(ge=0, description="a whole number, 0 or more")]
Positive = Annotated[int, Field(ge=1, description="a whole number, 1 or more")]
Number = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, allow_inf_nan=False)],
    Field(description="a finite number, 0 or more"),
]
Correction = Annotated[
    Annotated[int, Field(ge=1)] | Annotated[float, Field(ge=1, allow_inf_nan=False)],
    Field(description="a finite number, 1 or more"),
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


UnitKey = Annotated[str | ItemCost, PlainValidator(_unit), WithJsonSchema(_UNIT_SCHEMA)]
Range = Annotated[Subset, PlainValidator(subset_of), WithJsonSchema(SUBSET_SCHEMA)]
JoinerKey = Annotated[Any, PlainValidator(joiner_of), WithJsonSchema(JOINER_SCHEMA)]
References = Annotated[
    dict[Annotated[str, Field(pattern=_ARGUMENT)], Annotated[str, Field(min_length=1)]],
    WithJsonSchema(
        {
            "description": "a mapping of names, as Python writes arguments, each to a prepared "
            "folder, a .jsonl file or filesystem://FOLDER",
            "type": "object",
            "propertyNames": {"pattern": _ARGUMENT},
            "additionalProperties": {"type": "string", "minLength": 1},
        }
    ),
]

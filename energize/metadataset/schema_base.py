"""What all grammars of metadataset files share: datasets, and blends with weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

__all__ = [
    "ENERGIZE",
    "ENERGON",
    "NODE",
    "RULE",
    "DatasetNode",
    "Module",
    "Number",
    "Strict",
    "checked_weights",
    "entry_kind",
    "has_blend",
    "node_kind",
    "rule",
]

ENERGIZE: Final = "energize"
ENERGON: Final = "megatron.energon"
NODE = "a dataset (a mapping with 'path') or a blend (a mapping with 'blend')"
RULE = "rule"
"""The type of errors whose message is complete as it stands."""

Module = Literal["energize", "megatron.energon"]


Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def rule(message: str) -> PydanticCustomError:
    """An error whose message is complete as it stands."""
    return PydanticCustomError(RULE, "{message}", {"message": message})


class Strict(BaseModel):
    """No unknown keys, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DatasetNode(Strict):
    """A reference to a prepared folder, or to another metadataset file."""

    path: str = Field(
        min_length=1,
        description="text: a prepared folder or a metadataset .yaml, relative to this file",
    )
    split_part: str | None = Field(
        None, min_length=1, description="text: the name of a split part, such as train"
    )
    subflavors: dict[str, Any] | None = Field(None, description="a mapping")
    shuffle_over_epochs_multiplier: Annotated[int, Field(ge=-1)] | None = Field(
        1,
        description="a whole number above 0, or -1 (draw with replacement), or null (no shuffle)",
        json_schema_extra={"not": {"const": 0}},
    )
    dataset_config: str | None = Field(
        None, min_length=1, description="text: the name of a file in the .nv-meta folder"
    )
    split_config: str | None = Field(
        None, min_length=1, description="text: the name of a file in the .nv-meta folder"
    )

    @field_validator("shuffle_over_epochs_multiplier")
    @classmethod
    def _not_zero(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("0 is no multiplier")
        return value

    @property
    def own_subflavors(self) -> dict[str, Any]:
        """The subflavors given here."""
        return dict(self.subflavors or {})


def checked_weights(entries: list[Any], info: ValidationInfo) -> list[Any]:
    """All entries have a weight or none has, and one is above 0."""
    without = [i for i, entry in enumerate(entries) if "weight" not in entry.model_fields_set]
    own = bool(info.context and info.context["module"] == ENERGIZE)
    if own and 0 < len(without) < len(entries):
        which = ", ".join(f"[{i}]" for i in without)
        raise rule(
            f"some entries have a weight and others have none: {which}; give every entry of a "
            "blend a weight, or none of them for equal shares"
        )
    if not any(entry.weight for entry in entries):
        raise rule(
            f"all {len(entries)} weights are 0, so nothing could ever be drawn; give at least one "
            "entry a weight above 0"
        )
    return entries


def has_blend(value: object) -> bool:
    """Whether a node is a blend, and not a dataset."""
    return hasattr(value, "blend") or (isinstance(value, Mapping) and "blend" in value)


def node_kind(value: object) -> str:
    """Which model a split has."""
    return "<blend>" if has_blend(value) else "<dataset>"


def entry_kind(value: object) -> str:
    """Which model an entry of a blend has."""
    return "<blend entry>" if has_blend(value) else "<dataset entry>"

"""What stages say of themselves, whichever file they are written in, as typed models."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from energize.metadataset.schema_base import Strict

__all__ = [
    "DEFAULT",
    "SEED",
    "LengthFields",
    "NonEmpty",
    "PlanFields",
    "Positive",
    "SettingFields",
    "StageFields",
    "Whole",
]

DEFAULT = "default"
"""The name of the stage that fills the steps before the first one."""

SEED = "a whole number, 0 or more"

NonEmpty = Annotated[str, Field(min_length=1, pattern=r"\S")]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class ItemFields(Strict):
    """How much a step takes: said by a stage, or around it for all stages."""

    items_per_step: Positive | None = Field(
        None,
        description="micro batches per optimizer step, over all ranks: a whole number, 1 or more",
    )


class LengthFields(ItemFields):
    """With the length of its sequences."""

    seq_len: Positive | None = Field(
        None, description="tokens per sequence: a whole number, 1 or more"
    )


class SettingFields(LengthFields):
    """All settings of a stage, of which the trainer's are in its batch."""

    batch: dict[str, Any] | None = Field(None, description="a table of batch settings")


class StageFields(SettingFields):
    """A stage, without what it reads."""

    name: NonEmpty = Field(description="text that names the stage")
    start_step: Whole = Field(description="the first step: a whole number, 0 or more")
    end_step: Positive | None = Field(
        None, description="the step behind the last one: a whole number, 1 or more"
    )


class PlanFields(ItemFields):
    """What is said of all stages together."""

    steps: Positive | None = Field(
        None, description="the steps of the training: a whole number, 1 or more"
    )

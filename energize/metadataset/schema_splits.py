"""The grammar of energize's own metadataset files: what a split may be, as typed models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from energize.metadataset.schema_base import (
    NODE,
    DatasetNode,
    Module,
    Strict,
    has_blend,
    node_kind,
)
from energize.metadataset.schema_mixing import MixNode
from energize.metadataset.stage_fields import (
    SEED,
    PlanFields,
    SettingFields,
    StageFields,
    Whole,
)

__all__ = [
    "STAGE",
    "STAGES",
    "BlendAndStages",
    "BlendStage",
    "DatasetAndStages",
    "DatasetStage",
    "DocumentV2",
    "SeededSettings",
    "Stages",
    "has_stages",
    "split_model",
]

STAGES = "stages"
STAGE = "a stage (a mapping with 'name', 'start_step' and either 'path' or 'blend')"


class SeededSettings(SettingFields):
    """The settings of a stage, and the order of what it reads."""

    seed: Whole | None = Field(None, description=SEED)


class DatasetStage(DatasetNode, StageFields, SeededSettings):
    """A stage that reads a dataset."""


class BlendStage(MixNode, StageFields, SeededSettings):
    """A stage that reads a blend."""


Stage = Annotated[
    Annotated[DatasetStage, Tag("<dataset>")] | Annotated[BlendStage, Tag("<blend>")],
    Discriminator(node_kind),
]


class Stages(PlanFields, SeededSettings):
    """Stages that follow one another. Settings beside them are those of stages without their own;
    a dataset or a blend beside them fills the steps before the first.
    """

    stages: list[Stage] = Field(min_length=1, description="a list of one or more stages")


class DatasetAndStages(DatasetNode, Stages):
    """A dataset, and then stages."""


class BlendAndStages(MixNode, Stages):
    """A blend, and then stages."""


def has_stages(value: object) -> bool:
    """Whether a split has stages."""
    return isinstance(value, Stages) or (isinstance(value, Mapping) and STAGES in value)


def split_model(value: object) -> type[Strict]:
    """Which model a split has."""
    if not has_stages(value):
        return MixNode if has_blend(value) else DatasetNode
    if has_blend(value):
        return BlendAndStages
    has_path = isinstance(value, DatasetNode) or (isinstance(value, Mapping) and "path" in value)
    return DatasetAndStages if has_path else Stages


Split = Annotated[
    Annotated[DatasetNode, Tag("DatasetNode")]
    | Annotated[MixNode, Tag("MixNode")]
    | Annotated[Stages, Tag("Stages")]
    | Annotated[DatasetAndStages, Tag("DatasetAndStages")]
    | Annotated[BlendAndStages, Tag("BlendAndStages")],
    Discriminator(lambda value: split_model(value).__name__),
]


class DocumentV2(Strict):
    """A metadataset file."""

    module: Module = Field(
        alias="__module__",
        description="energize or megatron.energon",
        json_schema_extra={"enum": ["energize"]},
    )
    kind: Literal["MetadatasetV2"] = Field(alias="__class__", description="MetadatasetV2")
    splits: dict[str, Split] = Field(
        min_length=1, description=f"a mapping of split names, each to {NODE}, or to stages"
    )

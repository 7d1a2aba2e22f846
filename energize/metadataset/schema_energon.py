"""The two grammars of Megatron-Energon that are read, as typed models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from energize.metadataset.schema_base import (
    ENERGON,
    NODE,
    DatasetNode,
    Module,
    Strict,
    checked_weights,
    entry_kind,
    node_kind,
)

__all__ = [
    "BlendEntry",
    "BlendNode",
    "BlendNodeV1",
    "DatasetEntry",
    "DatasetEntryV1",
    "DocumentEnergon",
    "DocumentV1",
]


class Weighted(Strict):
    """An entry of a blend."""

    weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="a finite number, 0 or more")


class BlendNode(Strict):
    """Nodes to draw from in proportion to their weights."""

    entries_key: ClassVar[str] = "blend"
    blend: list[Entry] = Field(
        min_length=1, description="a list of one or more datasets or blends, each with its weight"
    )

    _weights = field_validator("blend")(checked_weights)

    @property
    def entries(self) -> Sequence[DatasetEntry | BlendEntry]:
        """What is blended."""
        return self.blend


class DatasetEntry(Weighted, DatasetNode):
    """A dataset in a blend."""


class BlendEntry(Weighted, BlendNode):
    """A blend in a blend."""


class DatasetEntryV1(DatasetEntry):
    """A dataset in a split of the older grammar."""

    subflavor: str | None = Field(None, description="text; `subflavors` is the newer key")

    @property
    def own_subflavors(self) -> dict[str, Any]:
        older = {} if self.subflavor is None else {"__subflavor__": self.subflavor}
        return older | super().own_subflavors


class BlendNodeV1(Strict):
    """A split of the older grammar."""

    entries_key: ClassVar[str] = "datasets"
    datasets: list[DatasetEntryV1] = Field(
        min_length=1, description="a list of one or more datasets, each with its weight"
    )

    _weights = field_validator("datasets")(checked_weights)

    @property
    def entries(self) -> Sequence[DatasetEntryV1]:
        """What is blended."""
        return self.datasets


Entry = Annotated[
    Annotated[DatasetEntry, Tag("<dataset entry>")] | Annotated[BlendEntry, Tag("<blend entry>")],
    Discriminator(entry_kind),
]
SplitNode = Annotated[
    Annotated[DatasetNode, Tag("<dataset>")] | Annotated[BlendNode, Tag("<blend>")],
    Discriminator(node_kind),
]


class DocumentEnergon(Strict):
    """A metadataset file that Megatron-Energon reads too."""

    module: Literal["megatron.energon"] = Field(alias="__module__", description=ENERGON)
    kind: Literal["MetadatasetV2"] = Field(alias="__class__", description="MetadatasetV2")
    splits: dict[str, SplitNode] = Field(
        min_length=1, description=f"a mapping of split names, each to {NODE}"
    )


class DocumentV1(Strict):
    """A metadataset file of the older grammar, which may leave out its first two keys."""

    module: Module = Field(ENERGON, alias="__module__", description="energize or megatron.energon")
    kind: Literal["Metadataset"] = Field(
        "Metadataset", alias="__class__", description="Metadataset"
    )
    splits: dict[str, BlendNodeV1] = Field(
        min_length=1, description="a mapping of split names, each to a mapping with 'datasets'"
    )


BlendNode.model_rebuild()
BlendEntry.model_rebuild()

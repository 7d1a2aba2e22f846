"""The grammar of metadataset files, as typed models.

A `description` is what an error message says was expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

__all__ = [
    "NODE",
    "RULE",
    "BlendNode",
    "DatasetNode",
    "Document",
    "DocumentV1",
    "DocumentV2",
    "Node",
    "Strict",
    "document_model",
    "model_at",
    "node_expected",
]

ENERGIZE: Final = "energize"
ENERGON: Final = "megatron.energon"
NODE = "a dataset (a mapping with 'path') or a blend (a mapping with 'blend')"
RULE = "rule"
"""The type of errors whose message is complete as it stands."""

Module = Literal["energize", "megatron.energon"]


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
        1, description="a whole number above 0, or -1 (draw with replacement), or null (no shuffle)"
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


class Weighted(Strict):
    """An entry of a blend."""

    weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="a finite number, 0 or more")


def _checked_weights(entries: list[Any], info: ValidationInfo) -> list[Any]:
    """All entries have a weight or none has, and one is above 0."""
    without = [i for i, entry in enumerate(entries) if "weight" not in entry.model_fields_set]
    own = bool(info.context and info.context["module"] == ENERGIZE)
    if own and 0 < len(without) < len(entries):
        which = ", ".join(f"[{i}]" for i in without)
        raise PydanticCustomError(
            RULE,
            "some entries have a weight and others have none: {which}; give every entry of a blend "
            "a weight, or none of them for equal shares",
            {"which": which},
        )
    if not any(entry.weight for entry in entries):
        raise PydanticCustomError(
            RULE,
            "all {count} weights are 0, so nothing could ever be drawn; give at least one entry a "
            "weight above 0",
            {"count": len(entries)},
        )
    return entries


class BlendNode(Strict):
    """Nodes to draw from in proportion to their weights."""

    entries_key: ClassVar[str] = "blend"
    blend: list[Entry] = Field(
        min_length=1, description="a list of one or more datasets or blends, each with its weight"
    )

    _weights = field_validator("blend")(_checked_weights)

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

    _weights = field_validator("datasets")(_checked_weights)

    @property
    def entries(self) -> Sequence[DatasetEntryV1]:
        """What is blended."""
        return self.datasets


def _has_blend(value: object) -> bool:
    return isinstance(value, BlendNode) or (isinstance(value, Mapping) and "blend" in value)


def _node_kind(value: object) -> str:
    return "<blend>" if _has_blend(value) else "<dataset>"


def _entry_kind(value: object) -> str:
    return "<blend entry>" if _has_blend(value) else "<dataset entry>"


Entry = Annotated[
    Annotated[DatasetEntry, Tag("<dataset entry>")] | Annotated[BlendEntry, Tag("<blend entry>")],
    Discriminator(_entry_kind),
]
SplitNode = Annotated[
    Annotated[DatasetNode, Tag("<dataset>")] | Annotated[BlendNode, Tag("<blend>")],
    Discriminator(_node_kind),
]
Node = DatasetNode | BlendNode | BlendNodeV1


class DocumentV2(Strict):
    """A metadataset file."""

    module: Module = Field(alias="__module__", description="energize or megatron.energon")
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


Document = DocumentV1 | DocumentV2
BlendNode.model_rebuild()
BlendEntry.model_rebuild()


def document_model(data: Any) -> type[DocumentV1] | type[DocumentV2]:
    """Which grammar a document follows: the one it names, else the one it looks like."""
    if not isinstance(data, Mapping) or "__class__" in data:
        older = isinstance(data, Mapping) and data["__class__"] == "Metadataset"
    else:
        splits = data.get("splits")
        nodes = splits.values() if isinstance(splits, Mapping) else ()
        older = any(isinstance(node, Mapping) and "datasets" in node for node in nodes)
    return DocumentV1 if older else DocumentV2


def model_at(document: type[Document], path: Sequence[str | int], value: Any) -> type[Strict]:
    """The model of the mapping `value` at `path` of a document."""
    if not path:
        return document
    in_blend = isinstance(path[-1], int)
    if document is DocumentV1:
        return DatasetEntryV1 if in_blend else BlendNodeV1
    if _has_blend(value):
        return BlendEntry if in_blend else BlendNode
    return DatasetEntry if in_blend else DatasetNode


def node_expected(document: type[Document], path: Sequence[str | int]) -> str:
    """What is expected at the root, at a split or at an entry of a blend."""
    if not path:
        return "a mapping with __module__, __class__ and splits"
    if document is DocumentV2:
        return NODE
    return "a mapping with 'path'" if isinstance(path[-1], int) else "a mapping with 'datasets'"

"""Which grammar a metadataset file follows, and which model each part of it has.

A `description` in the models is what an error message says was expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from energize.metadataset.schema_base import ENERGON, NODE, DatasetNode, Strict, has_blend
from energize.metadataset.schema_energon import (
    BlendEntry,
    BlendNode,
    BlendNodeV1,
    DatasetEntry,
    DatasetEntryV1,
    DocumentEnergon,
    DocumentV1,
)
from energize.metadataset.schema_mixing import (
    CompositionTable,
    MixBlendEntry,
    MixDatasetEntry,
    MixOptions,
)
from energize.metadataset.schema_schedule import ScheduleTable
from energize.metadataset.schema_splits import (
    STAGE,
    STAGES,
    BlendStage,
    DatasetStage,
    DocumentV2,
    Stages,
    split_model,
)

__all__ = [
    "BlendSpec",
    "Document",
    "Node",
    "Split",
    "document_model",
    "json_schema",
    "model_at",
    "node_expected",
    "without_kinds",
]

Document = DocumentV1 | DocumentEnergon | DocumentV2
BlendSpec = BlendNode | BlendNodeV1 | MixOptions
Node = DatasetNode | BlendSpec

Split = Node | Stages

_ENERGON = ((DatasetNode, BlendNode), (DatasetEntry, BlendEntry))
_OWN = (MixDatasetEntry, MixBlendEntry)
_STAGE = (DatasetStage, BlendStage)
"""Models of datasets and of blends: in files of Energon as a split or an entry, and in our own as
an entry or a stage."""


def document_model(data: Any) -> type[Document]:
    """Which grammar a document follows: the one it names, else the one it looks like."""
    if not isinstance(data, Mapping) or "__class__" in data:
        older = isinstance(data, Mapping) and data["__class__"] == "Metadataset"
    else:
        splits = data.get("splits")
        nodes = splits.values() if isinstance(splits, Mapping) else ()
        older = any(isinstance(node, Mapping) and "datasets" in node for node in nodes)
    if older:
        return DocumentV1
    energon = isinstance(data, Mapping) and data.get("__module__") == ENERGON
    return DocumentEnergon if energon else DocumentV2


def model_at(document: type[Document], path: Sequence[str | int], value: Any) -> type[Strict]:
    """The model of the mapping `value` at `path` of a document."""
    if not path:
        return document
    in_list = isinstance(path[-1], int)
    if document is DocumentV1:
        return DatasetEntryV1 if in_list else BlendNodeV1
    if len(path) > 2 and not in_list:
        return CompositionTable if path[-1] == "composition" else ScheduleTable
    if document is DocumentEnergon:
        return _ENERGON[in_list][has_blend(value)]
    if not in_list:
        return split_model(value)
    return (_STAGE if path[-2] == STAGES else _OWN)[has_blend(value)]


def node_expected(document: type[Document], path: Sequence[str | int]) -> str:
    """What is expected at the root, at a split, or in a list of entries or stages."""
    if not path:
        return "a mapping with __module__, __class__ and splits"
    if document is not DocumentV1:
        return STAGE if path[-2:-1] == (STAGES,) else NODE
    return "a mapping with 'path'" if isinstance(path[-1], int) else "a mapping with 'datasets'"


def without_kinds(document: type[Document], location: Sequence[str | int]) -> tuple[str | int, ...]:
    """The location of a fault as a path in the document.

    The models put the kind behind the name of a split, the index of an entry or a stage, and the
    weight of an entry.
    """
    if document is DocumentV1:
        return tuple(location)
    path: list[str | int] = []
    for i, part in enumerate(location):
        after_weight = i > 2 and location[i - 1] == "weight" and isinstance(location[i - 3], int)
        after_entry = i > 0 and isinstance(location[i - 1], int)
        if i != 2 and not after_entry and not after_weight:
            path.append(part)
    return tuple(path)


def json_schema() -> dict[str, Any]:
    """The grammars of metadataset files as one JSON schema, for editors and other tools."""
    schema = TypeAdapter(DocumentV2 | DocumentEnergon | DocumentV1).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "energize metadataset",
        "description": "Weighted sources of a training run",
        **schema,
    }

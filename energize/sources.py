"""Sources, the leaves of a mix: lists, prepared folders, tables, tar shards and more.

The most common sources are also in `energize`.
"""

from energize.data.join import JoinedSource
from energize.data.jsonl import JsonlSource
from energize.data.lance import LanceSource
from energize.data.mds import MdsSource
from energize.data.memory import (
    HuggingFaceSource,
    IterableSource,
    ListSource,
    SequenceSource,
)
from energize.data.rows import ArrowSource, JsonSource, ParquetSource
from energize.data.source import Source, Subset
from energize.data.webdataset import WebdatasetSource
from energize.datasets.web_shards import web_shards

__all__ = [
    "ArrowSource",
    "HuggingFaceSource",
    "IterableSource",
    "JoinedSource",
    "JsonSource",
    "JsonlSource",
    "LanceSource",
    "ListSource",
    "MdsSource",
    "ParquetSource",
    "SequenceSource",
    "Source",
    "Subset",
    "WebdatasetSource",
    "web_shards",
]

"""The protocol of nodes, for datasets of your own.

the docstring of `IndexedDataset` has an example of a node.
"""

from energize.core.dataset import Dataset, IndexedDataset, PassingDataset
from energize.core.failures import Failed
from energize.core.lanes import Lane
from energize.core.node import (
    INFINITE,
    LoopTraits,
    MixTraits,
    NodeTraits,
    Refs,
    Routes,
    StreamTraits,
)
from energize.core.reader import Reader
from energize.core.trace import ReadContext, Request

__all__ = [
    "INFINITE",
    "Dataset",
    "Failed",
    "IndexedDataset",
    "Lane",
    "LoopTraits",
    "MixTraits",
    "NodeTraits",
    "PassingDataset",
    "ReadContext",
    "Reader",
    "Refs",
    "Request",
    "Routes",
    "StreamTraits",
]

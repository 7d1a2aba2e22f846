"""Metadataset files: YAML that lists weighted sources."""

from energize.metadataset.reading import Metadataset, read_metadataset
from energize.metadataset.resolving import Blend, Leaf, Node, Staged, resolve
from energize.metadataset.shares import leaves_with_weights

__all__ = [
    "Blend",
    "Leaf",
    "Metadataset",
    "Node",
    "Staged",
    "leaves_with_weights",
    "read_metadataset",
    "resolve",
]

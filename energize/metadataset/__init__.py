"""Metadataset files: YAML that lists weighted sources."""

from energize.metadataset.flattening import leaves_with_weights
from energize.metadataset.reading import Metadataset, read_metadataset
from energize.metadataset.resolving import Blend, Leaf, Node, Staged, resolve

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

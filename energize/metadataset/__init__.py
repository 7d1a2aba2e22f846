"""Metadataset files: YAML that lists weighted sources."""

from energize.metadataset.documents import MetadatasetFile, read_metadataset
from energize.metadataset.leaves import leaves_with_weights
from energize.metadataset.nodes import Blend, Join, Leaf, MixNode, Stages
from energize.metadataset.resolver import resolve

__all__ = [
    "Blend",
    "Join",
    "Leaf",
    "MetadatasetFile",
    "MixNode",
    "Stages",
    "leaves_with_weights",
    "read_metadataset",
    "resolve",
]

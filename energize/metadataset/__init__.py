"""Metadataset files: YAML that lists weighted sources."""

from energize.metadataset.dataset_loader import DatasetLoader
from energize.metadataset.loader import load_dataset, prepare_metadataset, traverse_metadataset
from energize.metadataset.loader_interface import DatasetBlendMode, DatasetLoaderInterface
from energize.metadataset.metadataset import DatasetReference, Metadataset, MetadatasetV2
from energize.metadataset.nodes import Blend, JoinedLeaf, JoinedPart, Leaf, Node, Staged
from energize.metadataset.reading import MetadatasetFile, read_metadataset
from energize.metadataset.resolving import resolve
from energize.metadataset.shares import leaves_with_weights

__all__ = [
    "Blend",
    "DatasetBlendMode",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DatasetReference",
    "JoinedLeaf",
    "JoinedPart",
    "Leaf",
    "Metadataset",
    "MetadatasetFile",
    "MetadatasetV2",
    "Node",
    "Staged",
    "leaves_with_weights",
    "load_dataset",
    "prepare_metadataset",
    "read_metadataset",
    "resolve",
    "traverse_metadataset",
]

"""Metadataset files: YAML that lists weighted sources."""

from energize.metadataset.documents import read_metadataset
from energize.metadataset.leaves import leaves_with_weights
from energize.metadataset.nodes import Blend, Stages
from energize.metadataset.resolver import resolve

__all__ = ["Blend", "Stages", "leaves_with_weights", "read_metadataset", "resolve"]

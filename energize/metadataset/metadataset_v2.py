"""Metadatasets in the newer grammar of Megatron-Energon."""

from energize.metadataset.metadataset import MetadatasetV2

__all__ = ["MetadatasetV2"]

"""Factories of datasets over indexed files of JSON lines."""

from energize.flavors.jsonl.crude_jsonl_dataset import (
    CrudeJsonlDatasetFactory,
    DefaultCrudeJsonlDatasetFactory,
)

__all__ = ["CrudeJsonlDatasetFactory", "DefaultCrudeJsonlDatasetFactory"]

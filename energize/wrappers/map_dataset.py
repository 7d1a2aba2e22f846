"""A function of each item."""

from energize.wrappers.map import MapDataset

__all__ = ["MapDataset"]

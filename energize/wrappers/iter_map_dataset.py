"""A function of a stream."""

from energize.wrappers.iter_map import IterMapDataset

__all__ = ["IterMapDataset"]

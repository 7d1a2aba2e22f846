"""The first items of each epoch."""

from energize.wrappers.limit import LimitDataset

__all__ = ["LimitDataset"]

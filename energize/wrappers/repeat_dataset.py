"""Several passes."""

from energize.wrappers.repeat import RepeatDataset

__all__ = ["RepeatDataset"]

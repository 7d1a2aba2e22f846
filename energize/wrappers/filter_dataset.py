"""Items that fulfil a condition."""

from energize.wrappers.filter import FilterDataset

__all__ = ["FilterDataset"]

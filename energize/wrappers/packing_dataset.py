"""Packs of items."""

from energize.wrappers.packing import PackingDataset

__all__ = ["PackingDataset"]

"""Weighted mixes."""

from energize.wrappers.blend import BlendDataset

__all__ = ["BlendDataset"]

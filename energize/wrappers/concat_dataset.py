"""Datasets one after another."""

from energize.wrappers.concat import ConcatDataset

__all__ = ["ConcatDataset"]

"""Loops of a fixed length."""

from energize.wrappers.epochize import EpochizeDataset

__all__ = ["EpochizeDataset"]

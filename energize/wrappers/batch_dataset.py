"""Batches of a fixed size."""

from energize.wrappers.batch import BatchDataset

__all__ = ["BatchDataset"]

"""Batches of items of one group."""

from energize.wrappers.group_batch import GroupBatchDataset

__all__ = ["GroupBatchDataset"]

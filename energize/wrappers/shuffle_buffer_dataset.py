"""Shuffling in a buffer."""

from energize.wrappers.shuffle_buffer import ShuffleBufferDataset

__all__ = ["ShuffleBufferDataset"]

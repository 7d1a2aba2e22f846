"""Writing down which samples were read."""

from energize.wrappers.log_sample import LogSampleDataset

__all__ = ["LogSampleDataset"]

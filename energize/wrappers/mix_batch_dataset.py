"""Batches of several datasets."""

from energize.task_encoder.concat import concat_pad, generic_concat, homogeneous_concat_mix
from energize.wrappers.mix_batch import MixBatchDataset

__all__ = ["MixBatchDataset", "concat_pad", "generic_concat", "homogeneous_concat_mix"]

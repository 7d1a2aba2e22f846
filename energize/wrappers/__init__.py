"""Datasets over datasets, one class per file."""

from energize.errors import SkipSample
from energize.task_encoder.concat import concat_pad, generic_concat, homogeneous_concat_mix
from energize.wrappers.batch import BatchDataset
from energize.wrappers.blend import BlendDataset
from energize.wrappers.composed import ComposedDataset
from energize.wrappers.concat import ConcatDataset
from energize.wrappers.epochize import EpochizeDataset
from energize.wrappers.filter import FilterDataset
from energize.wrappers.gc_dataset import GcDataset
from energize.wrappers.group_batch import GroupBatchDataset
from energize.wrappers.iter_map import IterMapDataset
from energize.wrappers.level import LevelDataset
from energize.wrappers.level_buffer import LevelBufferDataset
from energize.wrappers.limit import LimitDataset
from energize.wrappers.log_sample import LogSampleDataset
from energize.wrappers.map import MapDataset
from energize.wrappers.mix_batch import MixBatchDataset
from energize.wrappers.packing import PackingDataset
from energize.wrappers.quota import QuotaDataset
from energize.wrappers.repeat import RepeatDataset
from energize.wrappers.shuffle import ShuffleDataset
from energize.wrappers.shuffle_buffer import ShuffleBufferDataset
from energize.wrappers.staged import StagedDataset

__all__ = [
    "BatchDataset",
    "BlendDataset",
    "ComposedDataset",
    "ConcatDataset",
    "EpochizeDataset",
    "FilterDataset",
    "GcDataset",
    "GroupBatchDataset",
    "IterMapDataset",
    "LevelBufferDataset",
    "LevelDataset",
    "LimitDataset",
    "LogSampleDataset",
    "MapDataset",
    "MixBatchDataset",
    "PackingDataset",
    "QuotaDataset",
    "RepeatDataset",
    "ShuffleBufferDataset",
    "ShuffleDataset",
    "SkipSample",
    "StagedDataset",
    "concat_pad",
    "generic_concat",
    "homogeneous_concat_mix",
]

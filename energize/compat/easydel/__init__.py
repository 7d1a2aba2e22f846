"""EasyDeL's data mixing: Hugging Face datasets, Parquet and JSON files in deterministic blocks."""

from energize.compat.easydel.config import (
    DatasetConfig,
    LoadStageConfig,
    MixStageConfig,
    PipelineConfig,
)
from energize.compat.easydel.mixed_source import MixedShardedSource, block_mixture_interleave
from energize.compat.easydel.mixture import DatasetMixture, TextDatasetInform, build_dataset
from energize.compat.easydel.pipeline import Pipeline
from energize.compat.easydel.sharded import (
    CompositeShardedSource,
    HFDatasetShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    ShardedDataSource,
)
from energize.compat.easydel.tokenizing import TokenizerConfig
from energize.order import WeightSchedulePoint, WeightScheduler

__all__ = [
    "CompositeShardedSource",
    "DatasetConfig",
    "DatasetMixture",
    "HFDatasetShardedSource",
    "JsonShardedSource",
    "LoadStageConfig",
    "MixStageConfig",
    "MixedShardedSource",
    "ParquetShardedSource",
    "Pipeline",
    "PipelineConfig",
    "ShardedDataSource",
    "TextDatasetInform",
    "TokenizerConfig",
    "WeightSchedulePoint",
    "WeightScheduler",
    "block_mixture_interleave",
    "build_dataset",
]

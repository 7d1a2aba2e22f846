"""energize decides what a training run reads, in which proportion, and delivers typed batches."""

from energize.compat.data_stages.building import build_stage, get_staged_train_dataset
from energize.compat.data_stages.reading import StageData, read_stages
from energize.cursor import INFINITE, Cursor
from energize.dataset import Dataset, IndexedDataset
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    DecodeError,
    EmptyDatasetError,
    EncoderError,
    EnergizeError,
    FailureBudgetError,
    LoaderError,
    MetadatasetError,
    NotIndexedError,
    NotPreparedError,
    PrepareError,
    SampleError,
    ShardError,
    SkipSample,
    SplitError,
    StateError,
    StateMismatchError,
    SubstitutionError,
    UntrustedCodeError,
    WeightError,
    WorkerDiedError,
)
from energize.loader import Loader, get_loader, get_savable_loader
from energize.metadataset.building import get_train_dataset, get_val_dataset, get_val_datasets
from energize.order.epochs.quotas import Quota
from energize.order.making import make_scheme
from energize.order.protocol import Scheme
from energize.order.schedule import Schedule, WeightSchedulePoint, WeightScheduler
from energize.order.stages.plan import Stage, StagePlan
from energize.padding import is_padding
from energize.prepare import PrepareReport, prepare, write_shards
from energize.reading import Failed, Reading
from energize.refs import Refs
from energize.samples.crude import CrudeSample
from energize.samples.image import CaptioningSample, ImageClassificationSample, ImageSample
from energize.samples.interleaved import InterleavedSample
from energize.samples.ocr import OCRSample
from energize.samples.pinning import pin_memory
from energize.samples.sample import Sample
from energize.samples.source_info import SourceInfo
from energize.samples.text import TextSample
from energize.samples.vqa import MultiChoiceVQASample, VQASample
from energize.sources.base import Source
from energize.sources.hugging_face import HuggingFaceSource
from energize.sources.iterable import IterableSource
from energize.sources.json_rows import JsonSource
from energize.sources.mds import MdsSource
from energize.sources.memory import ListSource, SequenceSource
from energize.sources.parquet import ParquetSource
from energize.sources.webdataset import WebdatasetSource
from energize.task_encoder.batch import Batch
from energize.task_encoder.batching import batch_list, batch_pad_stack, batch_stack, generic_batch
from energize.task_encoder.concat import concat_pad, generic_concat, homogeneous_concat_mix
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.encoder import DefaultTaskEncoder, TaskEncoder, stateless
from energize.topology import Lane, WorkerConfig
from energize.wrappers.batch import BatchDataset
from energize.wrappers.blend import BlendDataset
from energize.wrappers.composed import ComposedDataset
from energize.wrappers.concat import ConcatDataset
from energize.wrappers.epochize import EpochizeDataset
from energize.wrappers.filter import FilterDataset
from energize.wrappers.limit import LimitDataset
from energize.wrappers.log_sample import LogSampleDataset
from energize.wrappers.map import MapDataset
from energize.wrappers.mix_batch import MixBatchDataset
from energize.wrappers.quota import QuotaDataset
from energize.wrappers.repeat import RepeatDataset
from energize.wrappers.shuffle import ShuffleDataset
from energize.wrappers.staged import StagedDataset

__version__ = "0.1.0"

__all__ = [
    "INFINITE",
    "Batch",
    "BatchDataset",
    "BlendDataset",
    "CaptioningSample",
    "ComposedDataset",
    "ConcatDataset",
    "ConfigError",
    "CrudeSample",
    "Cursor",
    "DataError",
    "Dataset",
    "DatasetError",
    "DatasetNotFoundError",
    "DecodeError",
    "DefaultTaskEncoder",
    "EmptyDatasetError",
    "EncoderError",
    "EnergizeError",
    "EpochizeDataset",
    "Failed",
    "FailureBudgetError",
    "FilterDataset",
    "HuggingFaceSource",
    "ImageClassificationSample",
    "ImageSample",
    "IndexedDataset",
    "InterleavedSample",
    "IterableSource",
    "JsonSource",
    "Lane",
    "LimitDataset",
    "ListSource",
    "Loader",
    "LoaderError",
    "LogSampleDataset",
    "MapDataset",
    "MdsSource",
    "MetadatasetError",
    "MixBatchDataset",
    "MultiChoiceVQASample",
    "NotIndexedError",
    "NotPreparedError",
    "OCRSample",
    "ParquetSource",
    "PrepareError",
    "PrepareReport",
    "Quota",
    "QuotaDataset",
    "Reading",
    "Refs",
    "RepeatDataset",
    "Sample",
    "SampleDecoder",
    "SampleError",
    "Schedule",
    "Scheme",
    "SequenceSource",
    "ShardError",
    "ShuffleDataset",
    "SkipSample",
    "Source",
    "SourceInfo",
    "SplitError",
    "Stage",
    "StageData",
    "StagePlan",
    "StagedDataset",
    "StateError",
    "StateMismatchError",
    "SubstitutionError",
    "TaskEncoder",
    "TextSample",
    "UntrustedCodeError",
    "VQASample",
    "WebdatasetSource",
    "WeightError",
    "WeightSchedulePoint",
    "WeightScheduler",
    "WorkerConfig",
    "WorkerDiedError",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "build_stage",
    "concat_pad",
    "generic_batch",
    "generic_concat",
    "get_loader",
    "get_savable_loader",
    "get_staged_train_dataset",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "homogeneous_concat_mix",
    "is_padding",
    "make_scheme",
    "pin_memory",
    "prepare",
    "read_stages",
    "stateless",
    "write_shards",
]

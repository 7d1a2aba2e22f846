"""energize decides what a training run reads, in which proportion, and delivers typed batches."""

from energize.cache import (
    CachePool,
    DecodeFileStore,
    DirectLazy,
    FileCacheLazy,
    FileStore,
    FileStoreCachePool,
    FileStoreDecoder,
    JsonlFileStore,
    Lazy,
    MockLazy,
    NoCachePool,
    PrimaryFileStore,
    SystemFileStore,
    WebdatasetFileStore,
)
from energize.compat.data_stages.building import build_stage, get_staged_train_dataset
from energize.compat.data_stages.reading import StageData, read_stages
from energize.costs import ColumnCost
from energize.cursor import INFINITE, Cursor
from energize.dataset import Dataset, IndexedDataset
from energize.dataset_config import get_dataset_from_config
from energize.edataclass import edataclass
from energize.epathlib import EPath
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
    FatalSampleError,
    LoaderError,
    MetadatasetError,
    NotIndexedError,
    NotPreparedError,
    PrepareError,
    RestoreKeyError,
    ReturnError,
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
    log_exception,
    reraise_exception,
)
from energize.flavors import (
    BaseCoreDatasetFactory,
    BaseWebdatasetFactory,
    CaptioningWebdataset,
    CrudeJsonlDatasetFactory,
    CrudeWebdataset,
    DefaultCrudeJsonlDatasetFactory,
    DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory,
    ImageClassificationWebdataset,
    ImageWebdataset,
    InterleavedWebdataset,
    MultiChoiceVQAWebdataset,
    OCRWebdataset,
    SavableDataset,
    SimilarityInterleavedWebdataset,
    StandardWebdatasetFactory,
    TextWebdataset,
    VidQAWebdataset,
    VQAOCRWebdataset,
    VQAWebdataset,
)
from energize.flavors.webdataset.joined_webdataset import JoinedWebdatasetFactory
from energize.ledger import Ledger
from energize.loader import (
    Follower,
    Loader,
    RemapReport,
    WeightsFile,
    get_loader,
    get_savable_loader,
)
from energize.metadataset import (
    DatasetLoader,
    DatasetLoaderInterface,
    Metadataset,
    MetadatasetV2,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from energize.metadataset.building import get_train_dataset, get_val_dataset, get_val_datasets
from energize.mixing import ExcessLoss, LossCurves, MixingPolicy, unimax
from energize.order.epochs.quotas import Quota
from energize.order.making import make_scheme
from energize.order.protocol import Scheme
from energize.order.schedule import Schedule, WeightSchedulePoint, WeightScheduler
from energize.order.stages.plan import Stage, StagePlan
from energize.packing import Packer, concat_pack
from energize.padding import is_padding
from energize.prepare import (
    PrepareReport,
    prepare,
    prepare_checksums,
    prepare_columns,
    write_shards,
)
from energize.reading import Failed, Reading
from energize.refs import Refs
from energize.restoring import restore_sample
from energize.sample_weights import (
    batch_weights,
    effective_sample_size,
    total_weight,
    weighted_mean,
)
from energize.samples.crude import CrudeSample
from energize.samples.image import CaptioningSample, ImageClassificationSample, ImageSample
from energize.samples.interleaved import InterleavedSample, SimilarityInterleavedSample
from energize.samples.ocr import OCRSample, VQAOCRSample
from energize.samples.pinning import pin_memory
from energize.samples.sample import Sample
from energize.samples.source_info import SourceInfo
from energize.samples.text import TextSample
from energize.samples.video import VidQASample
from energize.samples.vqa import MultiChoiceVQASample, VQASample
from energize.savable_loader import (
    BasicDataLoader,
    SavableDataLoader,
    SavableDataLoaderState,
)
from energize.sources.base import Source
from energize.sources.hugging_face import HuggingFaceSource
from energize.sources.iterable import IterableSource
from energize.sources.joined import JoinedSource
from energize.sources.json_rows import JsonSource
from energize.sources.jsonl import JsonlSource
from energize.sources.mds import MdsSource
from energize.sources.memory import ListSource, SequenceSource
from energize.sources.parquet import ParquetSource
from energize.sources.webdataset import WebdatasetSource
from energize.task_encoder.augment import AugmentTaskEncoder
from energize.task_encoder.batch import Batch
from energize.task_encoder.batching import batch_list, batch_pad_stack, batch_stack, generic_batch
from energize.task_encoder.concat import concat_pad, generic_concat, homogeneous_concat_mix
from energize.task_encoder.cooking import Cooker, basic_sample_keys, cooker
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.encoder import DefaultTaskEncoder, TaskEncoder
from energize.task_encoder.stateless import stateless
from energize.topology import Lane, WorkerConfig
from energize.wrappers.batch import BatchDataset
from energize.wrappers.blend import BlendDataset
from energize.wrappers.by_property import by_property
from energize.wrappers.composed import ComposedDataset
from energize.wrappers.concat import ConcatDataset
from energize.wrappers.epochize import EpochizeDataset
from energize.wrappers.filter import FilterDataset
from energize.wrappers.gc_dataset import GcDataset
from energize.wrappers.group_batch import GroupBatchDataset
from energize.wrappers.item_cost import ItemCost
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
from energize.wrappers.sample_weight import SampleWeightDataset
from energize.wrappers.shuffle import ShuffleDataset
from energize.wrappers.shuffle_buffer import ShuffleBufferDataset
from energize.wrappers.staged import StagedDataset

__version__ = "0.1.0"

__all__ = [
    "INFINITE",
    "AugmentTaskEncoder",
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "BasicDataLoader",
    "Batch",
    "BatchDataset",
    "BlendDataset",
    "CachePool",
    "CaptioningSample",
    "CaptioningWebdataset",
    "ColumnCost",
    "ComposedDataset",
    "ConcatDataset",
    "ConfigError",
    "Cooker",
    "CrudeJsonlDatasetFactory",
    "CrudeSample",
    "CrudeWebdataset",
    "Cursor",
    "DataError",
    "Dataset",
    "DatasetError",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DatasetNotFoundError",
    "DecodeError",
    "DecodeFileStore",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "DefaultTaskEncoder",
    "DirectLazy",
    "EPath",
    "EmptyDatasetError",
    "EncoderError",
    "EnergizeError",
    "EpochizeDataset",
    "ExcessLoss",
    "Failed",
    "FailureBudgetError",
    "FatalSampleError",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "FilterDataset",
    "Follower",
    "GcDataset",
    "GroupBatchDataset",
    "HuggingFaceSource",
    "ImageClassificationSample",
    "ImageClassificationWebdataset",
    "ImageSample",
    "ImageWebdataset",
    "IndexedDataset",
    "InterleavedSample",
    "InterleavedWebdataset",
    "ItemCost",
    "IterMapDataset",
    "IterableSource",
    "JoinedSource",
    "JoinedWebdatasetFactory",
    "JsonSource",
    "JsonlFileStore",
    "JsonlSource",
    "Lane",
    "Lazy",
    "Ledger",
    "LevelBufferDataset",
    "LevelDataset",
    "LimitDataset",
    "ListSource",
    "Loader",
    "LoaderError",
    "LogSampleDataset",
    "LossCurves",
    "MapDataset",
    "MdsSource",
    "Metadataset",
    "MetadatasetError",
    "MetadatasetV2",
    "MixBatchDataset",
    "MixingPolicy",
    "MockLazy",
    "MultiChoiceVQASample",
    "MultiChoiceVQAWebdataset",
    "NoCachePool",
    "NotIndexedError",
    "NotPreparedError",
    "OCRSample",
    "OCRWebdataset",
    "Packer",
    "PackingDataset",
    "ParquetSource",
    "PrepareError",
    "PrepareReport",
    "PrimaryFileStore",
    "Quota",
    "QuotaDataset",
    "Reading",
    "Refs",
    "RemapReport",
    "RepeatDataset",
    "RestoreKeyError",
    "ReturnError",
    "Sample",
    "SampleDecoder",
    "SampleError",
    "SampleWeightDataset",
    "SavableDataLoader",
    "SavableDataLoaderState",
    "SavableDataset",
    "Schedule",
    "Scheme",
    "SequenceSource",
    "ShardError",
    "ShuffleBufferDataset",
    "ShuffleDataset",
    "SimilarityInterleavedSample",
    "SimilarityInterleavedWebdataset",
    "SkipSample",
    "Source",
    "SourceInfo",
    "SplitError",
    "Stage",
    "StageData",
    "StagePlan",
    "StagedDataset",
    "StandardWebdatasetFactory",
    "StateError",
    "StateMismatchError",
    "SubstitutionError",
    "SystemFileStore",
    "TaskEncoder",
    "TextSample",
    "TextWebdataset",
    "UntrustedCodeError",
    "VQAOCRSample",
    "VQAOCRWebdataset",
    "VQASample",
    "VQAWebdataset",
    "VidQASample",
    "VidQAWebdataset",
    "WebdatasetFileStore",
    "WebdatasetSource",
    "WeightError",
    "WeightSchedulePoint",
    "WeightScheduler",
    "WeightsFile",
    "WorkerConfig",
    "WorkerDiedError",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "batch_weights",
    "build_stage",
    "by_property",
    "concat_pack",
    "concat_pad",
    "cooker",
    "edataclass",
    "effective_sample_size",
    "generic_batch",
    "generic_concat",
    "get_dataset_from_config",
    "get_loader",
    "get_savable_loader",
    "get_staged_train_dataset",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "homogeneous_concat_mix",
    "is_padding",
    "load_dataset",
    "log_exception",
    "make_scheme",
    "pin_memory",
    "prepare",
    "prepare_checksums",
    "prepare_columns",
    "prepare_metadataset",
    "read_stages",
    "reraise_exception",
    "restore_sample",
    "stateless",
    "total_weight",
    "traverse_metadataset",
    "unimax",
    "weighted_mean",
    "write_shards",
]

"""The public names; `__init__.py` loads each when it is first used."""

from . import compat, errors, mixing, order, packing, testing
from .compat.stage_files import (
    StageData,
    build_stage,
    get_staged_train_dataset,
    read_stages,
)
from .core.costs import ColumnCost, ItemCost
from .core.dataset import Dataset, IndexedDataset
from .core.failures import Failed, FailurePolicy
from .core.lanes import Lane, WorkerConfig
from .core.loss_weights import batch_weights
from .core.means import effective_sample_size, total_weight, weighted_mean
from .core.node import INFINITE, Refs
from .core.padding import is_padding, padding_rows
from .core.reader import Reader
from .core.restoring import restore_sample
from .core.samples import (
    CaptioningSample,
    ConversationSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    PreferenceSample,
    Sample,
    SimilarityInterleavedSample,
    SourceInfo,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
    pin_memory,
)
from .core.stores import (
    CachePool,
    DecodeFileStore,
    DirectLazy,
    FileStore,
    FileStoreDecoder,
    Lazy,
    NoCachePool,
    PrimaryFileStore,
)
from .core.trace import ReadContext
from .core.turns import Turn
from .data.join import JoinedSource
from .data.jsonl import JsonlSource
from .data.mds import MdsSource
from .data.memory import HuggingFaceSource, IterableSource, ListSource, SequenceSource
from .data.rows import ArrowSource, JsonSource, ParquetSource
from .data.source import Source
from .data.stores import JsonlFileStore, SystemFileStore, WebdatasetFileStore
from .data.webdataset import WebdatasetSource
from .datasets.batch import BatchDataset, MixBatchDataset
from .datasets.blend import BlendDataset
from .datasets.group import GroupBatchDataset
from .datasets.level import LevelBufferDataset, LevelDataset
from .datasets.order import (
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    RepeatDataset,
    ShuffleDataset,
)
from .datasets.packing import PackingDataset, ShuffleBufferDataset
from .datasets.prop import by_property
from .datasets.quota import ComposedDataset, QuotaDataset
from .datasets.stage_plan import Stage, StagePlan
from .datasets.stages import StagedDataset
from .datasets.transform import (
    FilterDataset,
    GcDataset,
    IterMapDataset,
    LogSampleDataset,
    MapDataset,
    SampleWeightDataset,
)
from .energon.edataclass import edataclass
from .energon.factories import (
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
    JoinedWebdatasetFactory,
    MultiChoiceVQAWebdataset,
    OCRWebdataset,
    SimilarityInterleavedWebdataset,
    StandardWebdatasetFactory,
    TextWebdataset,
    VidQAWebdataset,
    VQAOCRWebdataset,
    VQAWebdataset,
    get_dataset_from_config,
)
from .energon.loading import (
    DatasetLoader,
    DatasetLoaderInterface,
    Metadataset,
    MetadatasetV2,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from .energon.ranks import SavableDataset
from .errors import (
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
from .extras.cache import FileCacheLazy, FileStoreCachePool, MockLazy
from .extras.paths import EPath
from .inference.converting import convert
from .inference.engine import infer
from .inference.spec import DataSpec
from .loader import (
    Follower,
    Loader,
    RemapReport,
    WeightsFile,
    get_loader,
    get_savable_loader,
)
from .loader.agreement import shared_reading
from .loader.loader import BasicDataLoader, SavableDataLoader, SavableDataLoaderState
from .metadataset.api import get_train_dataset, get_val_dataset, get_val_datasets
from .mixing import ExcessLoss, MixingPolicy, unimax
from .order.quota import Quota
from .order.scheme import Scheme
from .order.timeline import make_scheme
from .order.weights import Schedule, WeightSchedulePoint, WeightScheduler
from .packing import Packer, concat_pack
from .preparation import (
    PrepareReport,
    prepare,
    prepare_checksums,
    prepare_columns,
    write_shards,
)
from .report import Ledger
from .task.encoder import AugmentTaskEncoder, DefaultTaskEncoder, TaskEncoder
from .task.hooks import (
    Batch,
    Cooker,
    basic_sample_keys,
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    cooker,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
    stateless,
)
from .task.load import SampleDecoder
from .task.pipeline import BaseCoreDatasetFactory
from .task.ready import (
    ImageClassificationBatch,
    ImageClassificationTaskEncoder,
    ProcessorBatch,
    ProcessorTaskEncoder,
)

__version__: str

__all__ = [
    "INFINITE",
    "ArrowSource",
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
    "ConversationSample",
    "Cooker",
    "CrudeJsonlDatasetFactory",
    "CrudeSample",
    "CrudeWebdataset",
    "DataError",
    "DataSpec",
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
    "FailurePolicy",
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
    "ImageClassificationBatch",
    "ImageClassificationSample",
    "ImageClassificationTaskEncoder",
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
    "PreferenceSample",
    "PrepareError",
    "PrepareReport",
    "PrimaryFileStore",
    "ProcessorBatch",
    "ProcessorTaskEncoder",
    "Quota",
    "QuotaDataset",
    "ReadContext",
    "Reader",
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
    "Turn",
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
    "convert",
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
    "infer",
    "is_padding",
    "load_dataset",
    "log_exception",
    "make_scheme",
    "padding_rows",
    "pin_memory",
    "prepare",
    "prepare_checksums",
    "prepare_columns",
    "prepare_metadataset",
    "read_stages",
    "reraise_exception",
    "restore_sample",
    "shared_reading",
    "stateless",
    "total_weight",
    "traverse_metadataset",
    "unimax",
    "weighted_mean",
    "write_shards",
]

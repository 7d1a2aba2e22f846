"""The public names; `__init__.py` loads each when it is first used."""

from . import (
    compat,
    encoders,
    energon,
    errors,
    experimental,
    mixing,
    nodes,
    order,
    packing,
    preparation,
    report,
    samples,
    sources,
    stores,
    testing,
)
from .core.costs import ColumnCost, ItemCost
from .core.dataset import Dataset, IndexedDataset
from .core.failures import FailurePolicy
from .core.lanes import WorkerConfig
from .core.loss_weights import batch_weights
from .core.means import (
    effective_sample_size,
    token_weights,
    total_weight,
    weighted_mean,
)
from .core.padding import is_padding, padding_rows
from .core.restoring import restore_sample
from .core.samples import (
    CaptioningSample,
    ConversationSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    PreferenceSample,
    Sample,
    TextSample,
    VQASample,
)
from .core.turns import Turn
from .data.memory import IterableSource, ListSource, SequenceSource
from .data.webdataset import WebdatasetSource
from .datasets.batch import BatchDataset, MixBatchDataset
from .datasets.blend import BlendDataset
from .datasets.group import GroupBatchDataset
from .datasets.order import (
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    RepeatDataset,
    ShuffleDataset,
)
from .datasets.packing import PackingDataset, ShuffleBufferDataset
from .datasets.planned import BudgetBatchDataset, PackDataset
from .datasets.prop import by_property
from .datasets.quota import ComposedDataset, QuotaDataset
from .datasets.transform import (
    FilterDataset,
    GcDataset,
    IterMapDataset,
    LogSampleDataset,
    MapDataset,
    SampleWeightDataset,
)
from .errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    EmptyDatasetError,
    EncoderError,
    EnergizeError,
    FailureBudgetError,
    LoaderError,
    MetadatasetError,
    NotIndexedError,
    NotPreparedError,
    SkipSample,
    StateError,
    StateMismatchError,
    UntrustedCodeError,
    WeightError,
)
from .inference.converting import convert
from .inference.engine import infer
from .inference.spec import DataSpec
from .loader import Loader, get_loader
from .loader.agreement import shared_reading
from .metadataset.api import get_train_dataset, get_val_dataset, get_val_datasets
from .order.quota import Quota
from .order.weights import Schedule
from .preparation import prepare, write_shards
from .report import Ledger
from .task.classification import ImageClassificationTaskEncoder
from .task.decode import SampleDecoder
from .task.encoder import DefaultTaskEncoder, TaskEncoder
from .task.hooks import (
    Batch,
    Cooker,
    basic_sample_keys,
    concat_pad,
    cooker,
    generic_batch,
    homogeneous_concat_mix,
    stateless,
)
from .task.ready import ProcessorTaskEncoder

__version__: str

__all__ = [
    "Batch",
    "BatchDataset",
    "BlendDataset",
    "BudgetBatchDataset",
    "CaptioningSample",
    "ColumnCost",
    "ComposedDataset",
    "ConcatDataset",
    "ConfigError",
    "ConversationSample",
    "Cooker",
    "CrudeSample",
    "DataError",
    "DataSpec",
    "Dataset",
    "DatasetError",
    "DatasetNotFoundError",
    "DefaultTaskEncoder",
    "EmptyDatasetError",
    "EncoderError",
    "EnergizeError",
    "EpochizeDataset",
    "FailureBudgetError",
    "FailurePolicy",
    "FilterDataset",
    "GcDataset",
    "GroupBatchDataset",
    "ImageClassificationSample",
    "ImageClassificationTaskEncoder",
    "ImageSample",
    "IndexedDataset",
    "InterleavedSample",
    "ItemCost",
    "IterMapDataset",
    "IterableSource",
    "Ledger",
    "LimitDataset",
    "ListSource",
    "Loader",
    "LoaderError",
    "LogSampleDataset",
    "MapDataset",
    "MetadatasetError",
    "MixBatchDataset",
    "NotIndexedError",
    "NotPreparedError",
    "PackDataset",
    "PackingDataset",
    "PreferenceSample",
    "ProcessorTaskEncoder",
    "Quota",
    "QuotaDataset",
    "RepeatDataset",
    "Sample",
    "SampleDecoder",
    "SampleWeightDataset",
    "Schedule",
    "SequenceSource",
    "ShuffleBufferDataset",
    "ShuffleDataset",
    "SkipSample",
    "StateError",
    "StateMismatchError",
    "TaskEncoder",
    "TextSample",
    "Turn",
    "UntrustedCodeError",
    "VQASample",
    "WebdatasetSource",
    "WeightError",
    "WorkerConfig",
    "basic_sample_keys",
    "batch_weights",
    "by_property",
    "concat_pad",
    "convert",
    "cooker",
    "effective_sample_size",
    "generic_batch",
    "get_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "homogeneous_concat_mix",
    "infer",
    "is_padding",
    "padding_rows",
    "prepare",
    "restore_sample",
    "shared_reading",
    "stateless",
    "token_weights",
    "total_weight",
    "weighted_mean",
    "write_shards",
]

"""Task encoders, and functions for their hooks.

A task encoder turns stored samples into batches for a model. The most common names are
also in `energize`.
"""

from energize.core.means import TokenMean
from energize.task.classification import (
    ImageClassificationBatch,
    ImageClassificationTaskEncoder,
)
from energize.task.decode import SampleDecoder
from energize.task.encoder import AugmentTaskEncoder, DefaultTaskEncoder, TaskEncoder
from energize.task.hooks import (
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
from energize.task.model_packing import ModelPacking
from energize.task.planning import BatchBudget, PackPlan
from energize.task.ready import (
    Padding,
    ProcessorBatch,
    ProcessorTaskEncoder,
    TurnKeys,
)

__all__ = [
    "AugmentTaskEncoder",
    "Batch",
    "BatchBudget",
    "Cooker",
    "DefaultTaskEncoder",
    "ImageClassificationBatch",
    "ImageClassificationTaskEncoder",
    "ModelPacking",
    "PackPlan",
    "Padding",
    "ProcessorBatch",
    "ProcessorTaskEncoder",
    "SampleDecoder",
    "TaskEncoder",
    "TokenMean",
    "TurnKeys",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "concat_pad",
    "cooker",
    "generic_batch",
    "generic_concat",
    "homogeneous_concat_mix",
    "stateless",
]

"""Task encoders, and functions for their hooks.

A task encoder turns stored samples into batches for a model. The most common names are
also in `energize`.
"""

from energize.core.means import TokenMean
from energize.task.boxes import (
    BOX_FORMATS,
    BoxFormat,
    GroundingTaskEncoder,
    moved_boxes,
)
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
from energize.task.interleaved import InterleavedTaskEncoder
from energize.task.model_packing import ModelPacking
from energize.task.planning import BatchBudget, PackPlan
from energize.task.preferences import PreferenceBatch, PreferenceTaskEncoder
from energize.task.questions import QuestionsTaskEncoder, answer_losses
from energize.task.ready import (
    Padding,
    ProcessorBatch,
    ProcessorTaskEncoder,
    TurnKeys,
)
from energize.task.video import (
    SampledVideo,
    VideoBatch,
    VideoFrames,
    VideoTaskEncoder,
)

__all__ = [
    "BOX_FORMATS",
    "AugmentTaskEncoder",
    "Batch",
    "BatchBudget",
    "BoxFormat",
    "Cooker",
    "DefaultTaskEncoder",
    "GroundingTaskEncoder",
    "ImageClassificationBatch",
    "ImageClassificationTaskEncoder",
    "InterleavedTaskEncoder",
    "ModelPacking",
    "PackPlan",
    "Padding",
    "PreferenceBatch",
    "PreferenceTaskEncoder",
    "ProcessorBatch",
    "ProcessorTaskEncoder",
    "QuestionsTaskEncoder",
    "SampleDecoder",
    "SampledVideo",
    "TaskEncoder",
    "TokenMean",
    "TurnKeys",
    "VideoBatch",
    "VideoFrames",
    "VideoTaskEncoder",
    "answer_losses",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "concat_pad",
    "cooker",
    "generic_batch",
    "generic_concat",
    "homogeneous_concat_mix",
    "moved_boxes",
    "stateless",
]

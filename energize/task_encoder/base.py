"""The hooks between stored samples and batches."""

from energize.errors import SkipSample
from energize.samples.sample import Sample
from energize.task_encoder.augment import AugmentTaskEncoder
from energize.task_encoder.batch import Batch
from energize.task_encoder.batching import batch_list, batch_pad_stack, batch_stack, generic_batch
from energize.task_encoder.cooking import Cooker, basic_sample_keys, cooker
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.encoder import DefaultTaskEncoder, TaskEncoder
from energize.task_encoder.stateless import get_stateless, stateless
from energize.topology import WorkerConfig

__all__ = [
    "AugmentTaskEncoder",
    "Batch",
    "Cooker",
    "DefaultTaskEncoder",
    "Sample",
    "SampleDecoder",
    "SkipSample",
    "TaskEncoder",
    "WorkerConfig",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "cooker",
    "generic_batch",
    "get_stateless",
    "stateless",
]

"""Hooks, decoding and batching: from stored samples to batches."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from energize.task_encoder.augment import AugmentTaskEncoder
from energize.task_encoder.batch import Batch
from energize.task_encoder.batching import batch_list, batch_pad_stack, batch_stack, generic_batch
from energize.task_encoder.cooking import Cooker, basic_sample_keys, cooker
from energize.task_encoder.encoder import DefaultTaskEncoder, TaskEncoder
from energize.task_encoder.stateless import stateless

if TYPE_CHECKING:
    from energize.task_encoder.loader import get_train_dataset, get_val_dataset, get_val_datasets

__all__ = [
    "AugmentTaskEncoder",
    "Batch",
    "Cooker",
    "DefaultTaskEncoder",
    "TaskEncoder",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "cooker",
    "generic_batch",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "stateless",
]

_ABOVE = ("get_train_dataset", "get_val_dataset", "get_val_datasets")
"""Of Megatron-Energon's module of this name, but made of what is above this package here."""


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        return getattr(import_module("energize.task_encoder.loader"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

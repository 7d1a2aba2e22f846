"""Any collection of samples as a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.late import torch
from energize.optional import is_instance_of
from energize.sources.hugging_face import HuggingFaceSource
from energize.sources.iterable import IterableSource
from energize.sources.memory import SequenceSource


def as_dataset(samples: Any, name: str) -> Dataset[Any]:
    """`samples` as a dataset called `name`: with random access where they have it, else a stream.

    Takes energize datasets as they are, also those inside a torch dataset of `energize.compat`;
    Hugging Face datasets of both kinds, objects with `__len__` and `__getitem__`, anything that can
    be iterated over again and again, and functions that make an iterable. Raises `ConfigError` for
    anything else, an iterator for example.

    >>> as_dataset([1, 2], "numbers").indexed, as_dataset({1, 2}, "numbers").indexed
    (True, False)
    """
    if isinstance(samples, Dataset):
        return samples
    if isinstance(samples, Mapping | str | bytes):
        raise ConfigError(
            f"{name!r} is a {type(samples).__name__}, which is not a collection of samples: "
            f"{str(samples)[:80]!r}"
        )
    if isinstance(samples, torch.utils.data.IterableDataset):
        inside = getattr(samples, "dataset", None)
        return inside if isinstance(inside, Dataset) else IterableSource(samples, name=name)
    if is_instance_of(samples, "datasets", "Dataset"):
        return HuggingFaceSource(samples, name=name)
    streaming = is_instance_of(samples, "datasets", "IterableDataset")
    if not streaming and hasattr(samples, "__len__") and hasattr(samples, "__getitem__"):
        return SequenceSource(samples, name=name)
    if not callable(samples) and not isinstance(samples, Iterable):
        raise ConfigError(
            f"{name!r} is neither a dataset nor anything that can be iterated over; got "
            f"{type(samples).__name__} {str(samples)[:80]!r}"
        )
    return IterableSource(samples, name=name)

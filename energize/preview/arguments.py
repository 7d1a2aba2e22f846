"""What the functions of a preview are given, checked."""

from __future__ import annotations

from typing import Any

from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, IndexedDataset
from energize.errors import ConfigError, NotIndexedError

_FARTHEST = 2**62
"""Positions of samples below it fit in int64 with all that is computed from them."""


def indexed(dataset: Dataset[Any], purpose: str) -> IndexedDataset[Any]:
    """`dataset`, if it has positions; `NotIndexedError` for a stream."""
    if not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        raise NotIndexedError(
            f"{purpose}: which samples a stream reads is known by reading it only, and "
            f"{type(dataset).__name__} is one, or reads from one; leave out what "
            "filters or packs, or filter when the data are prepared"
        )
    return dataset


def checked_steps(dataset: IndexedDataset[Any], at: object, steps: object) -> tuple[int, int]:
    """`at` and `steps` as whole numbers of Python; numpy's will do.

    Raises `ConfigError` for steps from `at` on that are none, or too far away to be counted.

    >>> import numpy as np
    >>> from energize import ListSource
    >>> checked_steps(ListSource("ab"), np.int64(7), 2)
    (7, 2)
    """
    first, count = checked_whole(at, "at", 0), checked_whole(steps, "steps", 1)
    samples = int(dataset.consumed(1).sum())
    if (first + count) * samples > _FARTHEST:
        raise ConfigError(
            f"step {first + count:,} of {samples:,} samples each is too far away; samples are "
            f"counted up to {_FARTHEST:,}"
        )
    return first, count

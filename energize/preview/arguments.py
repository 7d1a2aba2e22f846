"""What the functions of a preview are given, checked."""

from __future__ import annotations

from typing import Any

from energize.dataset import Dataset, IndexedDataset
from energize.errors import ConfigError, NotIndexedError

__all__ = ["check_steps", "indexed"]

_FARTHEST = 2**62
"""Positions of samples below it fit in int64 with all that is computed from them."""


def indexed(dataset: Dataset[Any], purpose: str) -> IndexedDataset[Any]:
    """`dataset`, if it has positions; `NotIndexedError` for a stream."""
    if not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        raise NotIndexedError(
            f"{purpose}: which samples a stream reads is known by reading it only, and "
            f"{type(dataset).__name__} is one, or reads from one; leave out what filters, or "
            "filter when the data are prepared"
        )
    return dataset


def check_steps(dataset: IndexedDataset[Any], at: int, steps: int) -> None:
    """Raise `ConfigError` for steps from `at` on that are none, or too far away to be counted."""
    for name, value, least in (("at", at, 0), ("steps", steps, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} counts steps, {least} or more; got {value!r}")
    samples = int(dataset.consumed(1).sum())
    if (at + steps) * samples > _FARTHEST:
        raise ConfigError(
            f"step {at + steps:,} of {samples:,} samples each is too far away; samples are counted "
            f"up to {_FARTHEST:,}"
        )

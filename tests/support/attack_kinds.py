"""What is read while workers are attacked: items that travel in every way, and can be checked."""

from __future__ import annotations

from typing import Any

import torch

from energize import (
    BatchDataset,
    Dataset,
    FilterDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
)

IN_SOCKET, IN_REGION = 300_000, 700_000
"""Bytes of an item: those that are sent in the message itself, and those in shared memory."""

LANES = 4


def is_wanted(item: int) -> bool:
    return item % 3 != 0


def large(item: int) -> tuple[int, bytes, torch.Tensor]:
    value = item % 251
    return item, bytes([value]) * IN_SOCKET, torch.full((IN_REGION,), value, dtype=torch.uint8)


def in_fives(items: list[int]) -> list[list[int]]:
    return [items[at : at + 5] for at in range(0, len(items), 5)]


def checked(item: Any) -> Any:
    """The number of a large item, all of whose bytes are right; a small item itself."""
    if not isinstance(item, tuple):
        return item
    number, text, pixels = item
    value = number % 251
    if text != bytes([value]) * IN_SOCKET or pixels.shape != (IN_REGION,):
        raise AssertionError(f"item {number}: the bytes of another one")
    if not bool((pixels.numpy() == value).all()):
        raise AssertionError(f"item {number}: the pixels of another one")
    return number


def indexed() -> Dataset[Any]:
    return RepeatDataset(ShuffleDataset(ListSource(range(1000))))


def stream() -> Dataset[Any]:
    return RepeatDataset(FilterDataset(ShuffleDataset(ListSource(range(1000))), is_wanted))


def small_batches() -> Dataset[Any]:
    return BatchDataset(indexed(), 8, list)


def packs() -> Dataset[Any]:
    return PackingDataset(stream(), 30, in_fives, list)


def large_indexed() -> Dataset[Any]:
    return MapDataset(indexed(), large)


def large_stream() -> Dataset[Any]:
    return MapDataset(stream(), large)


def unadorned(dataset: Dataset[Any]) -> Dataset[Any]:
    """A dataset of the numbers that the items of another one have."""
    return dataset.inputs[0] if isinstance(dataset, MapDataset) else dataset


KINDS = {each.__name__: each for each in (large_indexed, large_stream, small_batches, packs)}

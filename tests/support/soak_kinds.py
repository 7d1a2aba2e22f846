"""What the soak reads: a dataset of every kind, small, and with something to check in each item."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from energize import (
    BatchDataset,
    BlendDataset,
    DataError,
    Dataset,
    FileStoreCachePool,
    FilterDataset,
    GroupBatchDataset,
    ListSource,
    Loader,
    MapDataset,
    MdsSource,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
    SystemFileStore,
    get_train_dataset,
)
from energize.core.stores import active_pool
from tests.support.mds import numbered_mds
from tests.support.prepared import captions

PIXELS = 700_000
"""Bytes of a large item: they travel through shared memory."""

FILES = 12

LOST_IN_WORKERS = 0
"""Bytes that whoever makes a large item loses, where a leak is asked for."""

_lost: list[bytes] = []


@dataclass(frozen=True)
class Kind:
    """A dataset; how many items a round reads, and of how many samples each is made; what loaders
    of it are given, made anew for each; and what is done to a loader in the middle.
    """

    dataset: Dataset[Any]
    items: int = 40
    samples: int = 1
    options: Callable[[], dict[str, Any]] = dict
    change: Callable[[Loader[Any]], None] | None = None
    lanes: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lanes", None if self.dataset.indexed else 4)


def digest(item: Any) -> bytes:
    """A few bytes that differ where items do."""
    found = hashlib.blake2b(digest_size=8)
    _feed(item, found)
    return found.digest()


def _feed(item: Any, found: Any) -> None:
    if isinstance(item, torch.Tensor):
        found.update(item.numpy())
    elif isinstance(item, np.ndarray):
        found.update(np.ascontiguousarray(item))
    elif isinstance(item, list | tuple):
        for each in item:
            _feed(each, found)
    else:
        found.update(repr(item).encode())


def numbers(count: int, name: str = "numbers") -> ListSource[int]:
    return ListSource(range(count), name=name)


def is_wanted(number: int) -> bool:
    return number % 3 != 0


def squared(number: int) -> tuple[int, int]:
    return number, number * number


def pixels(number: int) -> tuple[int, torch.Tensor]:
    if LOST_IN_WORKERS:
        _lost.append(b"1" * LOST_IN_WORKERS)
    return number, torch.full((PIXELS,), number % 251, dtype=torch.uint8)


def sometimes_damaged(number: int) -> int:
    if number % 9 == 0:
        raise DataError(f"sample {number} is damaged")
    return number


def in_threes(samples: list[int]) -> list[list[int]]:
    return [samples[at : at + 3] for at in range(0, len(samples), 3)]


def rest(number: int) -> tuple[int, None]:
    return number % 3, None


def shown(batch: Any) -> tuple[Any, ...]:
    return batch.__key__, batch.image, batch.caption


class ReadsFiles:
    """Reads a file for each item by way of the loader's cache pool."""

    def __init__(self, folder: Path) -> None:
        self.store = SystemFileStore(folder)

    def __call__(self, number: int) -> bytes:
        content: bytes = active_pool().get_lazy(self.store, f"{number}.txt").get()
        return content


def other_weights(loader: Loader[Any]) -> None:
    loader.set_weights({"web": 1, "code": 5})


def look_at_the_ledger(loader: Loader[Any]) -> None:
    loader.report(show=False)


def mix() -> BlendDataset[int]:
    parts = {name: ShuffleDataset(numbers(90, name)) for name in ("web", "code")}
    return BlendDataset(parts, weights={"web": 3, "code": 1})


def kinds_in(folder: Path) -> Iterator[tuple[str, Kind]]:
    """All kinds, over files below `folder`, which are written now."""
    shuffled = RepeatDataset(ShuffleDataset(numbers(5000)))
    stream = FilterDataset(shuffled, is_wanted)
    yield "indexed", Kind(BatchDataset(MapDataset(shuffled, squared), 64, list), 800, 64)
    yield "large items", Kind(MapDataset(shuffled, pixels), 60)
    yield "stream", Kind(BatchDataset(stream, 64, list), 200, 64)
    yield "packs", Kind(PackingDataset(stream, 30, in_threes, list), 200, 3)
    yield "groups", Kind(GroupBatchDataset(stream, 8, rest, list), 100, 8)
    yield "live weights", Kind(BatchDataset(mix(), 8, list), 200, 8, change=other_weights)
    yield "live weights of a stream", Kind(FilterDataset(mix(), is_wanted), change=other_weights)
    yield "ledger", Kind(BatchDataset(mix(), 8, list), 200, 8, change=look_at_the_ledger)
    bad = folder / "bad.jsonl"
    yield (
        "failing samples",
        Kind(
            MapDataset(shuffled, sometimes_damaged),
            200,
            options=lambda: {"quarantine": bad, "failure_budget": None},
        ),
    )
    files, caches = folder / "files", folder / "caches"
    files.mkdir()
    caches.mkdir()
    for number in range(FILES):
        (files / f"{number}.txt").write_text(f"file {number}")
    read = MapDataset(RepeatDataset(numbers(FILES)), ReadsFiles(files))
    yield (
        "cache pool",
        Kind(
            read,
            options=lambda: {
                "cache_pool": FileStoreCachePool(parent_cache_dir=caches, num_workers=1)
            },
        ),
    )
    prepared = get_train_dataset(captions(folder / "captions"), batch_size=4)
    yield "prepared folder", Kind(MapDataset(prepared, shown), 20, 4)
    mds = MdsSource(numbered_mds(folder / "mds", 60))
    yield "MDS", Kind(BatchDataset(RepeatDataset(ShuffleDataset(mds)), 4, list), 60, 4)

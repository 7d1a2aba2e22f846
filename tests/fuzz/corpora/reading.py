"""How corpora are read: as training and validation scripts do."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from energize import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import Failed
from energize.core.trace import ReadContext
from tests.fuzz.formats import Seen, told

HERE = WorkerConfig(rank=0, world_size=1, num_workers=0)
"""One rank, which reads in its own process."""


class AsTheyAre(DefaultTaskEncoder):
    """Batches are lists of decoded samples."""

    def batch(self, samples: list[Any]) -> list[Any]:
        return list(samples)


def delivered(dataset: Dataset[Any], steps: int = 1000, **options: Any) -> Seen:
    """The first items that a loader delivers, and the failures that it counts."""
    with get_loader(dataset, worker_config=HERE, ledger=False, **options) as loader:
        items = tuple(told(item) for item in islice(loader, steps))
        found = loader.failures
    reported = tuple(found.kinds) if found.count else ()
    return Seen(items, reported, described(dataset))


def described(dataset: Dataset[Any]) -> str:
    """What is read, by the dataset's own words."""
    return json.dumps(dataset.describe(), sort_keys=True, default=str)


def validated(folder: Path, split: str = "train", **options: Any) -> Seen:
    """Every sample of a folder once, in stored order."""
    dataset = get_val_dataset(
        folder, split_part=split, batch_size=1, task_encoder=AsTheyAre(), **options
    )
    return delivered(dataset)


def trained(path: Path, encoder: AsTheyAre, steps: int) -> Seen:
    """The first batches of a training."""
    dataset = get_train_dataset(path, batch_size=2, task_encoder=encoder)
    return delivered(dataset, steps)


def fetched(source: IndexedDataset[Any]) -> Seen:
    """Every item of an epoch by its position; failed ones are what is reported."""
    found = source.fetch(
        np.arange(min(source.size, 1000), dtype=np.int64), ReadContext()
    )
    failed = [each for each in found if isinstance(each, Failed)]
    items = tuple(told(each) for each in found if not isinstance(each, Failed))
    return Seen(
        items,
        tuple(f"{each.where}: {each.reason}" for each in failed),
        described(source),
    )

"""torch's DataLoader, and torchdata's StatefulDataLoader, over any dataset.

`python -m examples.clients.torch_dataloader`
"""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from energize import (
    Dataset,
    EpochizeDataset,
    RepeatDataset,
    WorkerConfig,
    get_loader,
)
from energize.integrations.torch_data import as_torch_dataset
from examples.clients.common import Numbers, alike, batches, numbers, stream
from examples.command_line import run

WORKERS = 2

INDEXED = batches(11)

STREAM = EpochizeDataset(RepeatDataset(stream(13)), 8)
"""Epochs of 8 batches of each rank: a number that the workers divide."""


def torch_dataset(dataset: Dataset[Numbers]) -> Any:
    """What DataLoader takes."""
    config = WorkerConfig(rank=0, world_size=1)
    return as_torch_dataset(dataset, worker_config=config)


def epochs(loader: Any, count: int) -> list[list[int]]:
    """The samples of each batch of so many loops."""
    return [numbers(batch) for _ in range(count) for batch in loader]


def expected(dataset: Dataset[Numbers], count: int) -> list[list[int]]:
    """What energize's own loader delivers."""
    with get_loader(dataset, worker_config=WorkerConfig(0, 1)) as loader:
        return epochs(loader, count)


def plain() -> bool:
    """DataLoader: whoever saves counts the steps."""
    dataset = torch_dataset(INDEXED)
    loader = DataLoader(dataset, batch_size=None, num_workers=WORKERS)
    whole = expected(INDEXED, 3)
    equal = [alike("DataLoader, two epochs", whole[:22], epochs(loader, 2))]
    steps = 0
    for _ in islice(loader, 5):
        steps += 1
    state = json.loads(json.dumps(dataset.state_dict(steps)))
    resumed = torch_dataset(INDEXED)
    resumed.load_state_dict(state)
    # As many workers as one likes: the state is that of the run.
    again = DataLoader(resumed, batch_size=None, num_workers=WORKERS + 1)
    equal.append(
        alike("  resumed after 5 steps of the third", whole[27:], epochs(again, 1))
    )
    return all(equal)


def stateful(name: str, dataset: Dataset[Numbers]) -> bool:
    """StatefulDataLoader: it asks its workers where they stand."""
    options: dict[str, Any] = {
        "batch_size": None,
        "num_workers": WORKERS,
        "persistent_workers": True,
    }
    whole = expected(dataset, 3)
    loader = StatefulDataLoader(torch_dataset(dataset), **options)
    steps = len(whole) // 3
    found = epochs(loader, 1)
    iterator = iter(loader)
    found += [numbers(batch) for batch in islice(iterator, 3)]
    state = loader.state_dict()
    found += [numbers(batch) for batch in iterator]
    equal = [
        alike(f"StatefulDataLoader, {name}, two epochs", whole[: 2 * steps], found)
    ]
    again = StatefulDataLoader(torch_dataset(dataset), **options)
    again.load_state_dict(state)
    return all(
        [*equal, alike("  resumed in the second", whole[steps + 3 :], epochs(again, 2))]
    )


def main() -> bool:
    """Read, save, resume and compare."""
    return all([plain(), stateful("indexed", INDEXED), stateful("a stream", STREAM)])


if __name__ == "__main__":
    run(main)

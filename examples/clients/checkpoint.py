"""torch.distributed.checkpoint: saved by 4 ranks, loaded by 3; no sample lost, and none
twice.

`python -m examples.clients.checkpoint`
"""

from __future__ import annotations

import json
import tempfile
from itertools import islice
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from energize import Dataset, Loader, WorkerConfig, get_loader
from examples.clients.common import (
    Numbers,
    alike,
    batches,
    numbers,
    of_all_ranks,
    on_ranks,
    stream,
)
from examples.command_line import run

DATASETS: dict[str, Dataset[Numbers]] = {"indexed": batches(30), "stream": stream(30)}


def loaders() -> dict[str, Loader[Numbers]]:
    """A loader of each dataset, for this rank."""
    config = WorkerConfig(num_workers=1)
    return {
        name: get_loader(each, worker_config=config) for name, each in DATASETS.items()
    }


def trained(loader: Loader[Numbers], steps: int | None = None) -> list[list[int]]:
    """What all ranks have trained on in some steps, or to the end of the epoch."""
    return of_all_ranks([numbers(batch) for batch in islice(loader, steps)])


def four_ranks(folder: Path) -> None:
    """Train for a while, and save. What has a `state_dict` is given by itself, not
    within another dict: deeper down the checkpoint would pickle it.
    """
    dist.init_process_group("gloo")
    made = loaders()
    found = {name: trained(loader, steps=4) for name, loader in made.items()}
    save(dict(made), checkpoint_id=folder / "checkpoint")
    _write(folder / "before.json", found, made)


def three_ranks(folder: Path) -> None:
    """Load, and train to the end of the epoch, and for another one."""
    dist.init_process_group("gloo")
    made = loaders()
    load(dict(made), checkpoint_id=folder / "checkpoint")
    found = {name: trained(loader) + trained(loader) for name, loader in made.items()}
    _write(folder / "after.json", found, made)


def _write(
    path: Path, found: dict[str, list[list[int]]], made: dict[str, Loader[Numbers]]
) -> None:
    if dist.get_rank() == 0:
        path.write_text(json.dumps(found))
    for loader in made.values():
        loader.close()
    dist.destroy_process_group()


def main() -> bool:
    """Save with four, load with three, and compare with a run of one that was not
    stopped.
    """
    equal = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        on_ranks(4, four_ranks, folder)
        on_ranks(3, three_ranks, folder)
        before = json.loads((folder / "before.json").read_text())
        after = json.loads((folder / "after.json").read_text())
    for name, dataset in DATASETS.items():
        with get_loader(dataset, worker_config=WorkerConfig(0, 1)) as loader:
            whole = [numbers(batch) for _ in range(2) for batch in loader]
        found = [
            batch for batch in before[name] + after[name] if batch
        ]  # without padding
        equal.append(alike(f"Batches of the {name} dataset, two epochs", whole, found))
    return all(equal)


if __name__ == "__main__":
    run(main)

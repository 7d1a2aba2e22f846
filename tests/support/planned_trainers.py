"""Planned packs under Lightning and transformers, resumed on other numbers of ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from energize import (
    EpochizeDataset,
    ListSource,
    MapDataset,
    PackDataset,
    RepeatDataset,
    ShuffleDataset,
)
from examples.clients.common import Numbers, encode, numbers, of_all_ranks, on_ranks
from tests.support.trainers import BATCHES, under_lightning, under_transformers

TRAINERS = {"lightning": under_lightning, "transformers": under_transformers}


def packs() -> Any:
    """Endless packs, which have anchors in states."""
    lengths = [1 + number * 7 % 9 for number in range(50)]
    source = ListSource(range(50), name="numbers", columns={"length": lengths})
    samples = MapDataset(RepeatDataset(ShuffleDataset(source)), encode)
    return PackDataset(samples, "length", 24, Numbers.from_samples, window=16)


def rank(folder: Path, trainer: str, resumed: bool) -> None:
    """Train on one rank; rank 0 writes the batches of all ranks."""
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    environment = dict(os.environ)
    seen: list[Any] = []
    dataset = EpochizeDataset(packs(), BATCHES)
    TRAINERS[trainer](folder, dataset, seen.append, resumed=resumed)
    os.environ |= environment
    batches = of_all_ranks([*map(numbers, seen)])
    if dist.get_rank() == 0:
        text = json.dumps(batches)
        (folder / f"{trainer}-{world_size}-{resumed}.json").write_text(text)
    dist.destroy_process_group()


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in TRAINERS:
        on_ranks(2, rank, root, name, False)
        for count in (1, 3):
            on_ranks(count, rank, root, name, True)

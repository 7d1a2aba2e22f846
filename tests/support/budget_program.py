"""Batches of a budget, aligned on ranks; each rank writes down what it gets.

`torchrun -m tests.support.budget_program OUT WORKERS STATE STEPS`: continues from the
file STATE if it exists, and writes a line with the keys and weights of every batch to
OUT. Rank 0 saves the state after every third step.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from energize import BlendDataset, ListSource, ShuffleDataset, WorkerConfig, get_loader
from energize.datasets.align import AlignedBudgetDataset

RANKS = 6


def source(name: str, count: int, images: int) -> ListSource:
    lengths = torch.randint(1, 50, (count,), generator=torch.Generator().manual_seed(3))
    return ListSource(
        [{"__key__": f"{name}{number}"} for number in range(count)],
        name=name,
        columns={"images": [images] * count, "tokens": lengths.tolist()},
    )


def collated(samples: list[Any]) -> dict[str, Any]:
    return {"__key__": [sample["__key__"] for sample in samples]}


def dataset() -> Any:
    mix = BlendDataset(
        (ShuffleDataset(source("text", 90, 0)), 16),
        (ShuffleDataset(source("pictures", 25, 1)), 1),
        scheme="random",
    )
    return AlignedBudgetDataset(
        mix,
        {"tokens": 150},
        collated,
        columns={"images": "together"},
        ranks=RANKS,
        window=100,
    )


def line_of(batch: dict[str, Any]) -> str:
    return json.dumps([batch["__key__"], batch["sample_weights"].tolist()])


def main() -> None:
    out, workers, state, steps = sys.argv[1:]
    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    config = WorkerConfig(rank=rank, world_size=ranks, num_workers=int(workers))
    loader = get_loader(dataset(), worker_config=config)
    file = Path(state)
    if file.exists():
        loader.load_state_dict(json.loads(file.read_text()))
    with Path(out, f"{rank}.jsonl").open("w") as lines:
        for step, batch in zip(range(1, int(steps) + 1), loader, strict=False):
            lines.write(line_of(batch) + "\n")
            lines.flush()
            if rank == 0 and step % 3 == 0:
                new = file.with_suffix(".new")
                new.write_text(json.dumps(loader.state_dict()))
                new.replace(file)


if __name__ == "__main__":
    main()

"""Run on ranks: a training under DDP on a mix on the disk or in a store."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import FilterDataset, ShuffleBufferDataset, get_loader, get_train_dataset
from energize.core.dataset import Dataset

BATCH = 4


def half(batch) -> bool:
    """Of batches, some that are the same everywhere."""
    return sum(map(ord, "".join(batch.__key__))) % 2 == 0


def dataset_of(mix: str, kind: str) -> Dataset:
    dataset = get_train_dataset(mix, batch_size=BATCH)
    return (
        dataset
        if kind == "indexed"
        else ShuffleBufferDataset(FilterDataset(dataset, half), 5)
    )


def main(
    mix: str, kind: str, workers: str, steps: str, folder: str, job: str, saved: str
) -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lanes = {} if kind == "indexed" else {"lanes": 6}
    given = []
    with get_loader(dataset_of(mix, kind), num_workers=int(workers), **lanes) as loader:
        if saved:
            loader.load_state_dict(json.loads(Path(saved).read_text()))
        for batch in islice(loader, int(steps)):
            loss = model(batch.image.float().mean(dim=(2, 3))).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            given.append(list(batch.__key__))
        state = loader.state_dict()
    out = Path(folder)
    (out / f"{job}-{dist.get_rank()}.json").write_text(json.dumps(given))
    if not dist.get_rank():
        (out / f"{job}.state").write_text(json.dumps(state))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Ranks that train with DDP on a disk that fails.

    python -m tests.support.sick_ranks FOLDER OUT STEPS WORKERS [SICK]

After the sixth step rank 0 makes the file SICK unreadable for ever. Resumes from OUT/state.json,
where it is. Each rank writes the samples of its steps, and what was raised, to OUT; rank 0 the
state after the last step that all have made.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import (
    BatchDataset,
    EpochizeDataset,
    ShuffleDataset,
    WebdatasetSource,
    WorkerConfig,
    get_loader,
)
from tests.support.sick_disk import Fault, planned


def mix(folder: Path) -> EpochizeDataset[Any]:
    """What the ranks read."""
    batches = BatchDataset(ShuffleDataset(WebdatasetSource(folder)), 2, list)
    return EpochizeDataset(batches, 1000)


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    steps, workers = int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    config = WorkerConfig(rank=rank, world_size=world, num_workers=workers)
    ahead = {"prefetch_factor": 2} if workers else {}
    loader = get_loader(mix(folder), worker_config=config, timeout=30, **ahead)
    saved = out / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    told: dict[str, object] = {"steps": [], "error": None}
    state = loader.state_dict()
    try:
        for _, batch in zip(range(steps), loader, strict=False):
            lengths = torch.tensor([[float(len(each["txt"]))] for each in batch])
            model(lengths).sum().backward()
            told["steps"].append([each["__key__"] for each in batch])  # type: ignore[attr-defined]
            state = loader.state_dict()
            if rank == 0 and len(told["steps"]) == 6 and sys.argv[5:]:  # type: ignore[arg-type]
                planned(Fault(sys.argv[5], "read open", error="EIO"))
    except Exception as error:
        told["error"] = f"{type(error).__name__}: {error}"
    (out / f"rank{rank}.of{world}.json").write_text(json.dumps(told))
    if rank == 0:
        (out / "new_state.json").write_text(json.dumps(state))
    sys.stdout.flush()
    if told["error"] is not None:
        os._exit(3)  # as a training program that ends by its exception
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

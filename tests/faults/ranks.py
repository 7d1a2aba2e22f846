"""Ranks that train with DDP on a disk that fails, while workers are killed and stopped.

    python -m tests.faults.ranks KIND FOLDER OUT STEPS WORKERS [SICK]

After its first step each rank stops one of its workers, after its third it kills one. After the
sixth rank 0 makes the file SICK unreadable for ever. Resumes from OUT/state.json, where it is. Each
rank writes the samples of its steps, and what was raised, to OUT; rank 0 the state after the last
step that all have made.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import (
    BatchDataset,
    Dataset,
    FilterDataset,
    Loader,
    RepeatDataset,
    ShuffleDataset,
    WebdatasetSource,
    WorkerConfig,
    get_loader,
)
from tests.faults.disk import Fault, planned

EPOCH = 29
"""Batches of two samples, which neither 2 nor 3 ranks divide."""

ATTACKS = {1: (signal.SIGSTOP, 0), 3: (signal.SIGKILL, -1)}
"""After which step of a rank what is sent to which of its workers: not the same one twice."""


def is_long(sample: dict[str, Any]) -> bool:
    return len(sample["txt"]) > 1


def mix(kind: str, folder: Path) -> Dataset[Any]:
    """What the ranks read."""
    samples = ShuffleDataset(WebdatasetSource(folder, checksums=True))
    if kind == "stream":
        return BatchDataset(FilterDataset(RepeatDataset(samples), is_long), 2, list)
    return BatchDataset(samples, 2, list)


def loader_of(kind: str, folder: Path, config: WorkerConfig, **options: Any) -> Loader[Any]:
    """Its loader, on any ranks."""
    return get_loader(
        mix(kind, folder), worker_config=config, lanes=6 if kind == "stream" else None, **options
    )


def batches_of(loader: Loader[Any], count: int) -> Iterator[list[str] | None]:
    """The keys of so many batches, over as many epochs as they take; None for one of padding."""
    made = 0
    while made < count:
        for batch in loader:
            yield None if loader.padding else [each["__key__"] for each in batch]
            made += 1
            if made == count:
                return


def attack(how: signal.Signals, which: int) -> None:
    """Send a signal to a worker of this process."""
    workers = sorted(each.pid or 0 for each in multiprocessing.active_children())
    os.kill(workers[which], how)


def main() -> None:
    kind, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    steps, workers = int(sys.argv[4]), int(sys.argv[5])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    config = WorkerConfig(rank=rank, world_size=world, num_workers=workers)
    ahead = {"prefetch_factor": 2} if workers else {}
    loader = loader_of(kind, folder, config, timeout=10, **ahead)
    saved = out / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    made: list[list[str] | None] = []
    error, state = None, loader.state_dict()
    try:
        for keys in batches_of(loader, steps):
            model(torch.full((2, 1), float(len(made)))).sum().backward()
            made.append(keys)
            state = loader.state_dict()
            if len(made) in ATTACKS:
                attack(*ATTACKS[len(made)])
            if rank == 0 and len(made) == 6 and sys.argv[6:]:
                planned(Fault(sys.argv[6], "read open", error="EIO"))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    told = {"steps": made, "error": error, "replaced": loader.workers_replaced}
    (out / f"rank{rank}.of{world}.json").write_text(json.dumps(told))
    if rank == 0:
        (out / "new_state.json").write_text(json.dumps(state))
    sys.stdout.flush()
    if error is not None:
        os._exit(3)  # as a training program that ends by its exception
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Ranks that are given different things; see tests/loader/test_rank_groups.py."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch.distributed as dist

from energize import (
    BatchDataset,
    BlendDataset,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    RepeatDataset,
    WorkerConfig,
    get_loader,
)
from energize.errors import EnergizeError


def mix(weight: float = 1.0, count: int = 40, size: int = 2, limit: int = 9):
    parts = ((ListSource(range(count), name="a"), weight), (ListSource(range(40), name="b"), 1))
    return LimitDataset(BatchDataset(BlendDataset(*parts), size, list), limit)


def given(rank: int) -> dict:
    """What each rank has; the first is the same everywhere."""
    numbers = ListSource(range(40), name="numbers")
    alone = WorkerConfig(rank=0, world_size=2)
    return {
        "nothing": lambda: get_loader(mix()),
        "weights": lambda: get_loader(mix(weight=1.0 + rank)),
        "samples": lambda: get_loader(mix(count=40 + rank)),
        "batch size": lambda: get_loader(mix(size=2 + rank)),
        "limit": lambda: get_loader(mix(limit=9 + rank)),
        "uneven": lambda: get_loader(mix(), uneven="drop" if rank else "pad"),
        "lanes": lambda: get_loader(FilterDataset(numbers, bool), lanes=4 + 2 * rank),
        "loop": lambda: get_loader(EpochizeDataset(RepeatDataset(numbers), 4 + rank)),
        "global": lambda: get_loader(mix(limit=8), global_batch_size=4 + 4 * rank),
        "seed": lambda: get_loader(numbers, worker_config=WorkerConfig(seed_offset=rank)),
        "dataset": lambda: get_loader(mix() if rank else numbers),
        "rank": lambda: get_loader(mix(), worker_config=alone),
    }


def said(function) -> str:
    try:
        function()
    except EnergizeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), {}
    for name, make in given(rank).items():
        began = time.monotonic()
        found[name] = [said(lambda make=make: next(iter(make()))), time.monotonic() - began]
        dist.barrier()
    loader = get_loader(BlendDataset(*((ListSource(range(40), name=n), 1) for n in "ab")))
    items = iter(loader)
    next(items)
    call = (lambda: loader.set_weights({"a": 2, "b": 1})) if rank else (lambda: iter(loader))
    found["call"] = [said(call), 0.0]
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()

"""The step time of a training whose cost grows with its input, in the plain and a level
order.

    torchrun --nproc-per-node 2 -m benchmarks.programs.levelling_training MIX STEPS

The ranks, processes of torchrun with gloo and DistributedDataParallel, train a small
network on all tokens of their micro batch, so a step takes as long as that of the
dearest one. The same global batches are read in both orders before the clock starts,
and trained on in turn: a global batch in the plain order, then with level batches. The
first ones warm up. Rank 0 prints the seconds for a step as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import (
    ReduceOp,
    all_reduce,
    barrier,
    destroy_process_group,
    init_process_group,
)
from torch.nn.parallel import DistributedDataParallel

from benchmarks.programs.levelling_samples import PATCH, Encoder, tokens_of
from energize import get_loader, get_train_dataset

__all__ = ["BATCH", "Steps", "main", "trained"]

BATCH = 8
"""Samples of a rank."""

_RANKS = 2
_WARM_UP = 3
_WIDTH = 64
_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Seconds for a step, on average over the same global batches in both orders; and
    what the slowest rank's tokens lead to expect of one by the other.
    """

    ranks: int
    plain: float
    level: float
    expected: float


def trained(mix: Path, steps: int, ranks: int = _RANKS) -> Steps:
    """Run the training. Raises `RuntimeError` with what it wrote when it fails."""
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
    ]
    program = [
        *launch,
        str(ranks),
        "-m",
        "benchmarks.programs.levelling_training",
        str(mix),
        str(steps),
    ]
    done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"the training failed:\n{done.stdout}\n{done.stderr}")
    return Steps(**json.loads(done.stdout.splitlines()[-1]))


def main(mix: str, steps: int) -> Steps:
    """Train on this rank."""
    init_process_group("gloo")
    ranks = int(os.environ["WORLD_SIZE"])
    level: dict[str, Any] = {"level": tokens_of, "global_batch_size": ranks * BATCH}
    read: list[list[Any]] = []
    orders: list[dict[str, Any]] = [{}, level]
    for options in orders:
        dataset = get_train_dataset(
            mix, batch_size=BATCH, task_encoder=Encoder(), **options
        )
        with get_loader(dataset) as loader:
            read.append(list(islice(loader, steps + _WARM_UP)))
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(3 * PATCH**2, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)
    )
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seconds = [0.0, 0.0]
    slowest = [0.0, 0.0]
    for number, batches in enumerate(zip(*read, strict=True)):
        for order, tokens in enumerate(batches):
            barrier()
            began = time.perf_counter()
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
            optimizer.step()
            barrier()
            seconds[order] += (time.perf_counter() - began) * (number >= _WARM_UP)
            length = torch.tensor(float(len(tokens)))
            all_reduce(length, ReduceOp.MAX)
            slowest[order] += float(length) * (number >= _WARM_UP)
    destroy_process_group()
    return Steps(
        ranks=ranks,
        plain=seconds[0] / steps,
        level=seconds[1] / steps,
        expected=slowest[0] / slowest[1],
    )


if __name__ == "__main__":
    found = main(sys.argv[1], int(sys.argv[2]))
    if os.environ["RANK"] == "0":
        print(json.dumps(asdict(found)))

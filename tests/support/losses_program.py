"""Run on ranks: ranks that report the loss of each sample, save a state, and are
killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import get_loader, get_train_dataset

SAVED_AT, STEPS = 4, 7


def main(home: Path, resumed: bool) -> None:
    """The loss of a sample is its key, and that of 000017 no number."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    dataset = get_train_dataset(home / "mix.yaml", batch_size=4)
    loader = get_loader(dataset, num_workers=2, losses=home / "losses.jsonl")
    first = 0
    if resumed:
        loader.load_state_dict(torch.load(home / "state.pt")["data"])
        first = SAVED_AT
    with (home / f"keys-{resumed:d}-{rank}.jsonl").open("w") as keys:
        for step, batch in zip(range(first, STEPS), loader, strict=False):
            model(torch.ones(4, 1)).sum().backward()
            losses = torch.tensor([float(key) for key in batch.__key__])
            losses[losses == 17] = float("nan")
            loader.record_losses(losses, step)
            keys.write(json.dumps(batch.__key__) + "\n")
            keys.flush()
            if step + 1 == SAVED_AT and not rank:
                torch.save({"data": loader.state_dict()}, home / "state.pt")
    report = loader.report(all_ranks=True)
    if not rank:
        (home / f"report-{resumed:d}.json").write_text(
            json.dumps(
                [
                    [r.name, r.losses.count, r.losses.mean, r.losses.not_finite]
                    for r in report.rows
                ]
            )
        )
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "resumed")

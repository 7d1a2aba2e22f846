"""torchrun and DistributedDataParallel: an epoch that the ranks do not divide, saved
and resumed.

`python -m examples.clients.ddp`, or as the program starts itself:
`torchrun --nproc-per-node=2 -m examples.clients.ddp --folder FOLDER`
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import Loader, WorkerConfig, get_loader
from examples.clients.common import (
    Numbers,
    alike,
    batches,
    loss_of,
    new_model,
    numbers,
    of_all_ranks,
)
from examples.command_line import ROOT, run

BATCHES = 11
RANKS = 2
SAVED_AFTER = 4


class Run:
    """A model under DDP, and the loader of this rank."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(new_model())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        # Which rank this is comes from the process group.
        config = WorkerConfig.default_worker_config(num_workers=2)
        self.loader: Loader[Numbers] = get_loader(
            batches(BATCHES), worker_config=config
        )

    def train(self, save: Path | None = None) -> list[list[int]]:
        """Train to the end of the epoch, saving on the way; the samples of each
        step.
        """
        trained: list[list[int]] = []
        for batch in self.loader:
            loss = loss_of(self.model, batch)
            loss.backward()  # type: ignore[no-untyped-call]  # waits for the other ranks
            self.optimizer.step()
            self.optimizer.zero_grad()
            trained.append(numbers(batch))
            if save is not None and len(trained) == SAVED_AFTER:
                state = self.state()  # the same on all ranks, so one writes it
                if dist.get_rank() == 0:
                    torch.save(state, save)
        return trained

    def state(self) -> dict[str, Any]:
        """All that a checkpoint holds."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])


def rank(folder: Path) -> None:
    """What each rank does; the first one writes down what all have trained on."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    whole = Run()
    resumed = Run()
    found = {"epoch": of_all_ranks(whole.train(save=folder / "checkpoint.pt"))}
    found["next epoch"] = of_all_ranks(whole.train())
    resumed.load(torch.load(folder / "checkpoint.pt", weights_only=True))
    found["resumed"] = of_all_ranks(resumed.train())
    found["resumed, next epoch"] = of_all_ranks(resumed.train())
    weights = [each.module.weight.tolist() for each in (whole.model, resumed.model)]
    if dist.get_rank() == 0:
        (folder / "found.json").write_text(json.dumps(found | {"weights": weights}))
    whole.loader.close()
    resumed.loader.close()
    dist.destroy_process_group()


def main() -> bool:
    """Start the ranks and compare; with --folder, be one of them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--folder", type=Path, help="be a rank, and write what it found there"
    )
    folder = options.parse_args().folder
    if folder is not None:
        rank(folder)
        return True
    with tempfile.TemporaryDirectory() as made:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [
            f"--nproc-per-node={RANKS}",
            "-m",
            "examples.clients.ddp",
            "--folder",
            made,
        ]
        subprocess.run(command, cwd=ROOT, check=True)
        found = json.loads((Path(made) / "found.json").read_text())
    epoch = found["epoch"]
    steps = -(-BATCHES // RANKS)
    samples = sorted(number for batch in epoch for number in batch)
    return all(
        (
            alike("Steps of an epoch, all ranks", [RANKS * steps], [len(epoch)]),
            alike("Padding in its last step", [True], [epoch[-1] == []]),
            alike("Samples, each once", list(range(len(samples))), samples),
            alike("Batches after it", epoch[RANKS * SAVED_AFTER :], found["resumed"]),
            alike(
                "The next epoch's", found["next epoch"], found["resumed, next epoch"]
            ),
            alike("Weights", found["weights"][:1], found["weights"][1:]),
        )
    )


if __name__ == "__main__":
    run(main)

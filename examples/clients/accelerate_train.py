"""Accelerate on two ranks: the loader is registered for checkpointing, not prepared.

`python -m examples.clients.accelerate_train`
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from energize import (
    Dataset,
    EpochizeDataset,
    Loader,
    RepeatDataset,
    WorkerConfig,
    get_loader,
)
from energize.integrations.accelerate import AccelerateLoader
from examples.clients.common import (
    BATCH_SIZE,
    Numbers,
    alike,
    batches,
    loss_of,
    new_model,
    numbers,
    of_all_ranks,
    on_ranks,
    stream,
)
from examples.command_line import run

RANKS = 2
GLOBAL_BATCH = 16

SAVED_AFTER = 4
"""Steps of each rank: a checkpoint holds no gradients, so it comes after a whole global
batch."""

DATASETS: dict[str, Dataset[Numbers]] = {
    "epochs of 11 batches": batches(11),
    "stream, 8 steps an epoch": EpochizeDataset(RepeatDataset(stream(13)), 8),
}


class Run:
    """What Accelerate prepares, and the loader.

    `prepare` would divide a DataLoader's batches among the ranks, and gives back a
    loader, which has divided them already, as it is: it need not be given.
    """

    def __init__(self, name: str) -> None:
        self.loader: Loader[Numbers] = get_loader(
            DATASETS[name],
            worker_config=WorkerConfig(num_workers=1),
            global_batch_size=GLOBAL_BATCH,
            micro_batch_size=BATCH_SIZE,
        )
        steps = self.loader.accumulation_steps
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
        model = new_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        # save_state asks for its state on all ranks, as a stream needs it, and one rank
        # writes.
        self.accelerator.register_for_checkpointing(self.loader)

    def train(self, save: Path | None = None) -> list[list[int]]:
        """Train to the end of the epoch, saving on the way; the samples of each step of
        all ranks.
        """
        trained: list[list[int]] = []
        for batch in AccelerateLoader(self.loader, self.accelerator):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(loss_of(self.model, batch))
                self.optimizer.step()
                self.optimizer.zero_grad()
            trained.append(numbers(batch))
            if save is not None and len(trained) == SAVED_AFTER:
                self.accelerator.save_state(str(save))
        return of_all_ranks(trained)

    def finish(self, save: Path | None = None) -> dict[str, Any]:
        """Train to the end of the epoch, and for another one: on what, and what came of
        it. With `save`, on what after the checkpoint.
        """
        first = self.train(save)
        trained = first[0 if save is None else RANKS * SAVED_AFTER :] + self.train()
        self.loader.close()
        return {
            "batches": trained,
            "weights": [each.tolist() for each in self.model.parameters()],
        }


def train_and_save(folder: Path) -> None:
    """A run that is not stopped, and saves on its way."""
    found = {}
    for name in DATASETS:
        found[name] = Run(name).finish(save=folder / name)
    _write(folder / "expected.json", found)


def resume(folder: Path) -> None:
    """Fresh ranks, which go on from what was saved."""
    found = {}
    for name in DATASETS:
        one = Run(name)
        one.accelerator.load_state(str(folder / name))
        found[name] = one.finish()
    _write(folder / "found.json", found)


def _write(path: Path, found: dict[str, Any]) -> None:
    if torch.distributed.get_rank() == 0:
        path.write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def main() -> bool:
    """Train on two ranks, resume on two others, and compare."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        on_ranks(RANKS, train_and_save, folder)
        on_ranks(RANKS, resume, folder)
        expected = json.loads((folder / "expected.json").read_text())
        found = json.loads((folder / "found.json").read_text())
    equal = [
        alike(f"{name}: {what}", expected[name][what], found[name][what])
        for name in DATASETS
        for what in ("batches", "weights")
    ]
    return all(equal)


if __name__ == "__main__":
    run(main)

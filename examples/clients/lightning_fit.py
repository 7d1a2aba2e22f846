"""PyTorch Lightning on two ranks: a loader made before them, and a fit that goes on in
mid-epoch.

`python -m examples.clients.lightning_fit`
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch

from energize import (
    Dataset,
    EpochizeDataset,
    Loader,
    RepeatDataset,
    WorkerConfig,
    get_loader,
)
from energize.integrations.lightning import LightningLoaderState
from examples.clients.common import (
    Numbers,
    alike,
    batches,
    loss_of,
    new_model,
    numbers,
    stream,
)
from examples.command_line import run

RANKS = 2

DATASETS: dict[str, Dataset[Numbers]] = {
    "epochs of 11 batches": batches(11),
    "endless, 7 steps an epoch": EpochizeDataset(RepeatDataset(batches(11)), 7),
    "stream of unknown length": stream(13),
}

STOPPED_AFTER = 9
"""Steps of each rank: in the middle of the second epoch."""


def loader(name: str) -> Loader[Numbers]:
    """A loader that is made before there are ranks; they are looked up when it is
    read.
    """
    return get_loader(DATASETS[name], worker_config=WorkerConfig(num_workers=1))


class Module(lightning.LightningModule):
    """Writes down what it trains on, epoch by epoch, in a file of its rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.model = new_model()

    def training_step(self, batch: Numbers) -> torch.Tensor:
        with (self.folder / f"rank-{self.global_rank}").open("a") as file:
            file.write(json.dumps([self.current_epoch, numbers(batch)]) + "\n")
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Save(lightning.Callback):
    """Saves a checkpoint after so many steps; `ModelCheckpoint` does it alike."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == STOPPED_AFTER:
            trainer.save_checkpoint(self.path)


def fit(folder: Path, name: str, checkpoint: Path | None = None) -> list[list[Any]]:
    """Fit three epochs; the epoch and the samples of each step of all ranks in turn."""
    folder.mkdir()
    train = loader(name)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp_fork",
        max_epochs=3,
        callbacks=[Save(folder / "saved.ckpt"), LightningLoaderState(train)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(folder), train, ckpt_path=checkpoint, weights_only=True)
    ranks = [
        (folder / f"rank-{rank}").read_text().splitlines() for rank in range(RANKS)
    ]
    return [json.loads(line) for step in zip(*ranks, strict=True) for line in step]


def main() -> bool:
    """Fit, fit on from the checkpoint in the middle, and compare."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning|torch")
    equal = []
    with tempfile.TemporaryDirectory() as made:
        for name in DATASETS:
            folder = Path(made) / name.replace(" ", "-")
            whole = fit(folder, name)
            resumed = fit(Path(f"{folder}-resumed"), name, folder / "saved.ckpt")
            equal.append(alike(name, whole[RANKS * STOPPED_AFTER :], resumed))
            if "endless" not in name:
                first = sorted(
                    n for epoch, samples in whole if epoch == 0 for n in samples
                )
                equal.append(
                    alike(
                        "  samples of its first epoch, once", sorted(set(first)), first
                    )
                )
    return all(equal)


if __name__ == "__main__":
    run(main)

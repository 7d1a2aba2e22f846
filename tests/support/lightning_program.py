"""The launcher of Lightning: each rank is this script, with half of the variables of
torchrun."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from energize import BatchDataset, ListSource, ShuffleDataset, WorkerConfig, get_loader


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def training_step(self, batch: list[int], number: int) -> Any:
        self.seen += batch
        return self.layer(torch.tensor([[float(sum(batch))]])).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-6)


if __name__ == "__main__":
    dataset = BatchDataset(ShuffleDataset(ListSource(list(range(24)))), 2, list)
    loader = get_loader(dataset, worker_config=WorkerConfig(num_workers=2))
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
    }
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", **quiet
    )
    module = Module()
    trainer.fit(module, loader)
    loader.close()
    (Path(sys.argv[1]) / f"{trainer.global_rank}.txt").write_text(repr(module.seen))

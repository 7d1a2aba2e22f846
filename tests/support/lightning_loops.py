"""Lightning on two ranks, left early in every way: sanity check, limits, overfitting,
checkpoints.

Each rank writes down what it validated and trained on; see
tests/project/test_trainers.py.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch

from energize import get_loader
from energize.integrations.lightning import LightningLoaderState
from examples.clients.common import batches, numbers, on_ranks, stream

RANKS = 2


class Module(lightning.LightningModule):
    """Writes down the numbers of each batch, by what was done with it."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(2, 1), seen

    def training_step(self, batch: Any) -> torch.Tensor:
        self.seen.append(["train", self.current_epoch, numbers(batch)])
        return self.layer(batch.x).mean()

    def validation_step(self, batch: Any) -> None:
        kind = "sanity" if self.trainer.sanity_checking else "validate"
        self.seen.append([kind, self.current_epoch, numbers(batch)])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Save(lightning.Callback):
    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def fit(
    train: Any,
    val: Any,
    save: tuple[Path, int] | None = None,
    path: Any = None,
    **options: Any,
) -> list[Any]:
    seen: list[Any] = []
    loader = get_loader(train)
    callbacks: list[Any] = [LightningLoaderState(loader)]
    if save is not None:
        callbacks.insert(0, Save(*save))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **options,
    )
    validated = get_loader(val, role="eval")
    trainer.fit(Module(seen), loader, validated, ckpt_path=path, weights_only=False)
    return seen


LIMITS = {"limit_val_batches": 3, "num_sanity_val_steps": 2, "max_epochs": 3}


def rank(folder: Path) -> None:
    found = {}
    for name, make in {"indexed": batches, "stream": stream}.items():
        file = folder / f"{name}.ckpt"
        limited = {**LIMITS, "limit_train_batches": 4}
        found[name] = fit(make(22), make(10), (file, 6), **limited)
        found[f"{name} resumed"] = fit(make(22), make(10), path=file, **limited)
        found[f"{name} overfit"] = fit(
            make(22), make(10), overfit_batches=2, max_epochs=3
        )
        file = folder / f"{name}-whole.ckpt"
        found[f"{name} whole"] = fit(make(9), make(10), (file, 7), max_epochs=3)
        found[f"{name} whole resumed"] = fit(make(9), make(10), path=file, max_epochs=3)
    number = torch.distributed.get_rank()
    (folder / f"loops-{number}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    for library in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(library).setLevel(logging.ERROR)
    on_ranks(RANKS, rank, Path(sys.argv[1]))

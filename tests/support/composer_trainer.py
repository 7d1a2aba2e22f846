"""Composer in its shortest form, as tests/support/trainers.py has the others; run in
the environment of MosaicML's libraries.

It is installed without torchvision, which it imports for models and augmentations that
are not used here, and without the client of a platform: names stand in for these.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from torchmetrics import MeanMetric, SumMetric

from energize import StateError, get_loader
from examples.clients.common import batches, on_ranks
from tests.support.trainers import (
    BATCH_SIZE,
    BATCHES,
    BREAKS,
    CHECKED,
    STOPPED,
    TRAINED,
    VALIDATED,
    Model,
    Note,
    main,
    steps_of_run,
    validation,
)

_OF_TORCHVISION = (
    "datasets models models.resnet ops transforms transforms.functional utils"
)
_ABSENT = (
    "mcli",
    "torchvision",
    *(f"torchvision.{each}" for each in _OF_TORCHVISION.split()),
)
sys.modules |= dict.fromkeys(_ABSENT, MagicMock(__spec__=None, __path__=[]))

from composer import ComposerModel, Evaluator, Trainer  # noqa: E402

from energize.integrations.composer import ComposerLoaderState  # noqa: E402


class Module(ComposerModel):
    """Tells a function what it was given. Composer makes a dict of a batch, which has
    lost what says that it is padding; the loader knows.
    """

    def __init__(self, note: Note, train: Any, val: Any) -> None:
        super().__init__()
        self.model, self.note, self.train_loader, self.val_loader = (
            Model(),
            note,
            train,
            val,
        )
        self.metrics = {"loss": MeanMetric(), "n": SumMetric()}

    def forward(self, batch: Any) -> Any:
        self.note("train", {**batch, "__padding__": self.train_loader.padding})
        return self.model(**batch)

    def loss(self, told: Any, batch: Any) -> Any:
        return told["loss"] * (not self.train_loader.padding)

    def eval_forward(self, batch: Any, outputs: Any = None) -> Any:
        self.note("validate", {**batch, "__padding__": self.val_loader.padding})
        return self.model(**batch)

    def get_metrics(self, is_train: bool = False) -> Any:
        return {} if is_train else self.metrics

    def update_metric(self, batch: Any, told: Any, metric: Any) -> None:
        if not self.val_loader.padding:
            metric.update(
                told["losses" if isinstance(metric, MeanMetric) else "logits"]
            )


def trainer(note: Note, train: Any = None, val: Any = None, **options: Any) -> Trainer:
    model = Module(note, train, val)
    return Trainer(
        model=model,
        train_dataloader=train,
        eval_dataloader=val
        and Evaluator(label="eval", dataloader=val, device_eval_microbatch_size=4),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        device="cpu",
        device_train_microbatch_size=BATCH_SIZE,
        progress_bar=False,
        **options,
    )


def by_composer() -> Any:
    made = trainer(lambda *_: None, val=validation())
    made.eval()
    return tuple(
        found.compute().item() for found in made.state.eval_metrics["eval"].values()
    )


def under_composer(
    folder: Path, dataset: Any, step: Any, *, resumed: bool, callback: bool = True
) -> None:
    loader, saved = get_loader(dataset), folder / "composer"
    options: dict[str, Any] = {
        "max_duration": f"{steps_of_run() if resumed else STOPPED}ba",
        "callbacks": [ComposerLoaderState(loader)] if callback else [],
    }
    if resumed:
        options |= {"load_path": str(saved / f"ep0-ba{STOPPED}-rank0.pt")}
    else:
        options |= {"save_folder": str(saved), "save_interval": f"{STOPPED}ba"}
    trainer(lambda _, batch: step(batch), loader, **options).fit()


def left_under_composer(train: Any, val: Any, note: Note) -> None:
    limits = {"train_subset_num_batches": TRAINED, "eval_subset_num_batches": VALIDATED}
    made = trainer(
        note, train, val, max_duration=f"{BREAKS}ep", eval_interval="1ep", **limits
    )
    made.eval(subset_num_batches=CHECKED)
    made.fit()


def refused(folder: Path) -> None:
    """What each rank is told that resumes from a checkpoint without a state."""
    dist.init_process_group("gloo")
    said = "nothing"
    under_composer(folder, batches(BATCHES), print, resumed=False, callback=False)
    try:
        under_composer(folder, batches(BATCHES), print, resumed=True)
    except StateError as error:
        said = str(error)
    (folder.parent / f"composer-refused-{dist.get_rank()}.json").write_text(
        json.dumps(said)
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ |= {"NODE_RANK": "0"}
    made = Path(sys.argv[1])
    tables = (
        {"Composer": each}
        for each in (by_composer, under_composer, left_under_composer)
    )
    main(made, "composer-", *tables)
    (made / "unsaved").mkdir()
    on_ranks(2, refused, made / "unsaved")

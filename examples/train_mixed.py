"""Trains on batches that are mixed sample by sample, from folders of two types.

`python -m examples.train_mixed --data demo-data`
"""

from __future__ import annotations

from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from energize import (
    Dataset,
    MixBatchDataset,
    TaskEncoder,
    WorkerConfig,
    concat_pad,
    get_loader,
    get_train_dataset,
)
from examples.command_line import Settings, parser, run, settings
from examples.encoders import (
    PADDING,
    CaptionBatch,
    CaptioningTask,
    ImageBatch,
    ImageTask,
)
from examples.model import NO_LABEL, MixedBatch, Model, new_model
from examples.photographs import make_photographs
from examples.showing import loss_table, share_table
from examples.training import History, train

WEIGHTS = {"classification": 6, "captions_a": 3, "captions_b": 1}


def mix_fn(entries: list[ImageBatch | CaptionBatch]) -> MixedBatch:
    """Batches of one sample each as one batch that has room for both types."""
    no_label = torch.full((1,), NO_LABEL)
    no_tokens = torch.full((1, 1), PADDING)
    return MixedBatch(
        __key__=[key for entry in entries for key in entry.__key__],
        __sources__=list(
            chain.from_iterable(entry.__sources__ or [] for entry in entries)
        ),
        image=concat_pad([entry.image for entry in entries]),
        label=concat_pad(
            [e.label if isinstance(e, ImageBatch) else no_label for e in entries]
        ),
        tokens=concat_pad(
            [e.tokens if isinstance(e, CaptionBatch) else no_tokens for e in entries],
            pad_value=PADDING,
        ),
    )


def mix(data: Path, batch_size: int) -> Dataset[MixedBatch]:
    """Batches whose samples are drawn one by one in the proportion of WEIGHTS."""
    images = ImageTask()
    captions = CaptioningTask()
    encoders: dict[str, TaskEncoder[Any, Any, Any, Any]] = {
        "classification": images,
        "captions_a": captions,
        "captions_b": captions,
    }
    pairs = [
        (
            get_train_dataset(data / name, batch_size=1, task_encoder=encoders[name]),
            weight,
        )
        for name, weight in WEIGHTS.items()
    ]
    return MixBatchDataset(pairs, batch_size=batch_size, batch_mix_fn=mix_fn)


def train_mixed(
    told: Settings,
    steps: int,
    model: Model,
    optimizer: torch.optim.Optimizer,
    console: Console,
) -> History:
    """Train on mixed batches, and show losses and shares."""
    config = WorkerConfig.default_worker_config(num_workers=told.workers)
    with get_loader(mix(told.data, told.batch_size), worker_config=config) as loader:
        history = train(model, optimizer, loader, steps, console)
    console.print(loss_table(history.losses))
    asked = {
        name: Fraction(weight, sum(WEIGHTS.values()))
        for name, weight in WEIGHTS.items()
    }
    console.print(
        share_table(asked, history.delivered, history.weights, "Shares of the mix")
    )
    return history


def main() -> bool:
    """Train a new model."""
    given = parser("Train on mixed batches.", steps=250).parse_args()
    console = Console()
    make_photographs(given.data, console)
    train_mixed(settings(given), given.steps, *new_model(), console)
    return True


if __name__ == "__main__":
    run(main)

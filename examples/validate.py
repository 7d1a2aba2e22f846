"""Validates on folders one after another: every sample once, the same in every pass.

`python -m examples.validate --data demo-data --model model.pt`
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from rich.console import Console

from energize import ConcatDataset, Dataset, WorkerConfig, get_loader, get_val_dataset
from examples.command_line import Settings, parser, run, settings
from examples.encoders import CaptionBatch, CaptioningTask, ImageBatch, ImageTask
from examples.model import Model, loaded_model, new_model
from examples.photographs import make_photographs
from examples.showing import table
from examples.training import folders_of

Scores = dict[str, tuple[int, float, float]]
"""Of each folder the samples, the mean loss and the mean share of right answers."""


def validation(data: Path, batch_size: int) -> Dataset[ImageBatch | CaptionBatch]:
    """All validation samples, as they are stored and without augmentation."""
    images = get_val_dataset(
        data / "classification", batch_size=batch_size, task_encoder=ImageTask()
    )
    captions = [
        get_val_dataset(
            data / name, batch_size=batch_size, task_encoder=CaptioningTask()
        )
        for name in ("captions_a", "captions_b")
    ]
    return ConcatDataset(images, *captions)


def scores(model: Model, told: Settings) -> Scores:
    """One pass over the validation samples."""
    losses: dict[str, list[float]] = defaultdict(list)
    correct: dict[str, list[float]] = defaultdict(list)
    config = WorkerConfig.default_worker_config(num_workers=told.workers)
    with get_loader(
        validation(told.data, told.batch_size), worker_config=config
    ) as loader:
        for batch in loader:
            with torch.no_grad():
                outcome = model(batch)
            rows = zip(
                folders_of(batch),
                outcome.losses.tolist(),
                outcome.correct.tolist(),
                strict=True,
            )
            for folder, loss, right in rows:
                losses[folder].append(loss)
                correct[folder].append(right)
    return {
        name: (len(losses[name]), fmean(losses[name]), fmean(correct[name]))
        for name in losses
    }


def validate(told: Settings, model: Model, console: Console) -> bool:
    """Two passes, the second without worker processes; whether their numbers are
    equal.
    """
    first = scores(model, told)
    second = scores(model, replace(told, workers=0))
    shown = table(
        "folder", "samples", "loss", "right", "second pass", title="Validation"
    )
    for folder, (count, loss, right) in first.items():
        again = "equal" if second.get(folder) == first[folder] else "DIFFERS"
        shown.add_row(folder, str(count), f"{loss:.4f}", f"{right:.1%}", again)
    console.print(shown)
    return first == second


def main() -> bool:
    """Validate a saved model, or a new one."""
    options = parser("Validate on all folders.")
    options.add_argument(
        "--model", type=Path, help="saved by train_blend --save; else untrained"
    )
    given = options.parse_args()
    console = Console()
    make_photographs(given.data, console)
    model = new_model()[0] if given.model is None else loaded_model(given.model)
    return validate(settings(given), model, console)


if __name__ == "__main__":
    run(main)

"""Trains on a blend that a metadataset file describes: whole batches of two types.

`python -m examples.train_blend --data demo-data`
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from energize import (
    CaptioningSample,
    Dataset,
    ImageClassificationSample,
    Loader,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energize.metadataset import leaves_with_weights, resolve
from examples.command_line import DEFAULT_DATA, ROOT, Settings, parser, run, settings
from examples.encoders import CaptionBatch, CaptioningTask, ImageBatch, ImageTask
from examples.model import Model, new_model
from examples.photographs import make_photographs
from examples.showing import loss_table, share_table
from examples.training import History, train

METADATASET = ROOT / "metadatasets" / "demo.yaml"

BlendBatch = ImageBatch | CaptionBatch


def metadataset(data: Path) -> Path:
    """The metadataset file of the demo; for data elsewhere, a copy beside them."""
    if data.resolve() == ROOT / DEFAULT_DATA:
        return METADATASET
    copy = data / METADATASET.name
    text = METADATASET.read_text().replace(f"../{DEFAULT_DATA}/", "./")
    if not copy.exists() or copy.read_text() != text:
        copy.write_text(text)
    return copy


def blend(told: Settings) -> Dataset[BlendBatch]:
    """Batches of the type that suits each folder's samples, blended as the file
    says.
    """
    encoders: dict[type, TaskEncoder[Any, Any, Any, Any]] = {
        ImageClassificationSample: ImageTask(),
        CaptioningSample: CaptioningTask(),
    }
    return get_train_dataset(
        metadataset(told.data), batch_size=told.batch_size, task_encoder=encoders
    )


def blend_loader(told: Settings) -> Loader[BlendBatch]:
    """The blend, read by worker processes."""
    return get_loader(
        blend(told),
        worker_config=WorkerConfig.default_worker_config(num_workers=told.workers),
    )


def asked_shares(data: Path) -> dict[str, Fraction]:
    """The share of the samples that the file gives to each folder."""
    parts = leaves_with_weights(resolve(metadataset(data), "train"))
    return {leaf.path.name: share for leaf, share in parts}


def train_blend(
    told: Settings,
    steps: int,
    model: Model,
    optimizer: torch.optim.Optimizer,
    console: Console,
    *,
    weights_file: Path | None = None,
) -> History:
    """Train on the blend, and show losses and shares; with the weights of a file, once
    it is there and whenever it is edited.
    """
    with blend_loader(told) as loader:
        if weights_file is not None:
            loader.watch_weights(weights_file, every=10)
        history = train(model, optimizer, loader, steps, console)
    console.print(loss_table(history.losses))
    asked = asked_shares(told.data)
    console.print(
        share_table(asked, history.delivered, history.weights, "Shares of the blend")
    )
    return history


def main() -> bool:
    """Train a new model."""
    options = parser("Train on the blend of metadatasets/demo.yaml.", steps=1000)
    options.add_argument("--save", type=Path, help="where to save the model")
    options.add_argument(
        "--weights-file", type=Path, help="weights that may be edited meanwhile"
    )
    given = options.parse_args()
    console = Console()
    make_photographs(given.data, console)
    model, optimizer = new_model()
    told = settings(given)
    file = given.weights_file
    train_blend(told, given.steps, model, optimizer, console, weights_file=file)
    if given.save is not None:
        torch.save(model.state_dict(), given.save)
    return True


if __name__ == "__main__":
    run(main)

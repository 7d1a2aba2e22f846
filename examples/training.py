"""The loop that trains, and what it remembers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console

from energize import Batch, weighted_mean
from examples.model import AnyBatch, Model
from examples.showing import progress

T_batch = TypeVar("T_batch", bound=AnyBatch)


@dataclass(slots=True)
class History:
    """Losses by type of batch, in order of steps; by folder the delivered samples and
    the sum of their loss weights.
    """

    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    delivered: Counter[str] = field(default_factory=Counter)
    weights: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def note(self, batch: AnyBatch, loss: float) -> None:
        """Remember a step."""
        self.losses[type(batch).__name__].append(loss)
        folders = folders_of(batch)
        weights = batch.sample_weights
        told = [1.0] * len(folders) if weights is None else weights.tolist()
        for folder, weight in zip(folders, told, strict=True):
            self.delivered[folder] += 1
            self.weights[folder] += weight


def folders_of(batch: Batch) -> list[str]:
    """The name of the folder that each sample of a batch comes from."""
    of_samples = batch.__sources__ or []
    return [
        Path(source.dataset_path).name for each in of_samples for source in each or ()
    ]


def training_step(
    model: Model, optimizer: torch.optim.Optimizer, batch: AnyBatch
) -> float:
    """One step on the weighted loss; returns the mean loss without weights."""
    losses = model(batch).losses
    optimizer.zero_grad()
    weighted_mean(losses, batch.sample_weights).backward()  # type: ignore[no-untyped-call]  # torch
    optimizer.step()
    return float(losses.detach().mean())


def train(
    model: Model,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[T_batch],
    steps: int,
    console: Console,
) -> History:
    """Train on the next `steps` of `batches`."""
    history = History()
    with progress(console) as bar:
        task = bar.add_task("training", total=steps, loss="")
        for step, batch in enumerate(islice(batches, steps), 1):
            loss = training_step(model, optimizer, batch)
            history.note(batch, loss)
            bar.update(
                task, completed=step, loss=f"loss {loss:.2f}", refresh=step % 10 == 0
            )
    return history

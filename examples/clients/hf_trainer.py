"""Hugging Face's Trainer: the loader's state in every checkpoint, and a resume that
skips nothing.

`python -m examples.clients.hf_trainer`
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainingArguments
from transformers.utils import logging

from energize import Dataset, Loader, MapDataset, WorkerConfig, get_loader
from energize.integrations.transformers import LoaderTrainer
from examples.clients import common
from examples.clients.common import BATCH_SIZE, Numbers, alike, batches, numbers, stream
from examples.command_line import run

RANKS = 2
GLOBAL_BATCH = 16
STEPS = 14
SAVED_AFTER = 10
"""Optimizer steps, of 4 batches each: an epoch of 11 is 3 of them, the last filled with
padding. So the checkpoint lies within the fourth epoch."""

DATASETS: dict[str, Dataset[Numbers]] = {"indexed": batches(11), "stream": stream(11)}


class NotingTrainer(LoaderTrainer):
    """Notes what it was trained on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[list[int]] = []

    def compute_loss(  # type: ignore[override]
        self, model: Any, inputs: Numbers, *_: Any, **__: Any
    ) -> torch.Tensor:
        """The loss of a batch, of weight 0 for padding."""
        self.seen.append(numbers(inputs))
        return common.loss_of(model, inputs)


def noted(file: Path, batch: Numbers) -> Numbers:
    """The same batch; its samples are noted in the worker that has read it."""
    with file.open("a") as lines:
        lines.write(f"{numbers(batch)}\n")
    return batch


def train(name: str, folder: Path, *, resumed: bool) -> dict[str, Any]:
    """Train, from the start or from the checkpoint; the batches of all ranks, and the
    weights.
    """
    dataset = MapDataset(
        DATASETS[name], partial(noted, folder / f"{name}-{resumed}.read")
    )
    loader: Loader[Numbers] = get_loader(
        dataset,
        worker_config=WorkerConfig(num_workers=1),
        global_batch_size=GLOBAL_BATCH,
        micro_batch_size=BATCH_SIZE,
    )
    arguments = TrainingArguments(
        output_dir=str(folder / name),
        max_steps=STEPS,
        gradient_accumulation_steps=loader.accumulation_steps,
        save_steps=SAVED_AFTER,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    model = common.new_model()
    trainer = NotingTrainer(model=model, args=arguments, train_loader=loader)
    trainer.remove_callback(PrinterCallback)
    checkpoint = folder / name / f"checkpoint-{SAVED_AFTER}"
    trainer.train(resume_from_checkpoint=str(checkpoint) if resumed else None)
    loader.close()
    weights = [each.tolist() for each in model.parameters()]
    return {"batches": common.of_all_ranks(trainer.seen), "weights": weights}


def rank(folder: Path, resumed: bool) -> None:
    """What each rank does; the first one writes down what was found."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    found = {name: train(name, folder, resumed=resumed) for name in DATASETS}
    if torch.distributed.get_rank() == 0:
        (folder / f"resumed-{resumed}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def main() -> bool:
    """Train, go on in fresh processes from the middle of an epoch, and compare."""
    equal = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for resumed in (False, True):
            common.on_ranks(RANKS, rank, folder, resumed)
        whole, again = (
            json.loads((folder / f"resumed-{each}.json").read_text())
            for each in (False, True)
        )
        for name in DATASETS:
            trained = whole[name]["batches"]
            before = trained[: SAVED_AFTER * GLOBAL_BATCH // BATCH_SIZE]
            after = trained[len(before) :]
            equal.append(
                alike(
                    f"{name}: batches after the checkpoint",
                    after,
                    again[name]["batches"],
                )
            )
            equal.append(
                alike("  weights", whole[name]["weights"], again[name]["weights"])
            )
            read = (folder / f"{name}-True.read").read_text().splitlines()
            twice = {str(each) for each in before}.intersection(read)
            more = max(0, len(twice) - after.count([]))  # padding is a copy of a batch
            equal.append(alike("  read again of those before it", [0], [more]))
    return all(equal)


if __name__ == "__main__":
    run(main)

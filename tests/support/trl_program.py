"""A DPOTrainer on a loader of preference pairs, whole, and resumed from step 6.

`torchrun -m tests.support.trl_program DATA FOLDER`
"""

from __future__ import annotations

import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch.distributed as dist
import transformers  # before lazy loaders of it
from trl import DPOConfig

from energize import get_loader, get_train_dataset
from energize.encoders import PreferenceTaskEncoder
from energize.integrations.trl import LoaderDPOTrainer
from tests.support.models import llava

STEPS = 12


def trained(data: Path, folder: Path, checkpoint: str | None) -> list[float]:
    assert transformers
    processor, model = llava()
    reference = deepcopy(model)
    if checkpoint:  # the Trainer does not rename the weights of the file
        model = type(model).from_pretrained(checkpoint)
    dataset = get_train_dataset(
        data / "pairs.jsonl",
        image_folder="images",
        batch_size=4,
        task_encoder=PreferenceTaskEncoder(processor),
    )
    options: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    config = DPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=STEPS // 2,
        logging_steps=1,
        learning_rate=0.005,
        lr_scheduler_type="constant",
        bf16=False,
        gradient_checkpointing=False,
        **options,
    )
    with get_loader(dataset, num_workers=2) as loader:
        trainer = LoaderDPOTrainer(
            model,
            reference,
            config,
            processing_class=processor,
            train_loader=loader,
        )
        trainer.train(resume_from_checkpoint=checkpoint)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main(data: Path, folder: Path) -> None:
    whole = trained(data, folder / "run", None)
    if dist.get_rank() == 0:
        shutil.rmtree(folder / "run" / f"checkpoint-{STEPS}")
    dist.barrier()
    resumed = trained(data, folder / "run", str(folder / "run" / "checkpoint-6"))
    if dist.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps([whole, resumed]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

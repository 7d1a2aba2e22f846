"""A rank that trains on documents, preference pairs or questions, from loose files.

`torchrun -m tests.support.tasks_program DATA FOLDER TASK WORKERS KILLED` makes 30 steps of
two micro batches, from the checkpoint in the folder if there is one, and writes the
losses of the steps. It saves at step 12, and ends by SIGKILL at step `KILLED`, if not 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers  # before lazy loaders of it
from torch.nn.functional import cross_entropy, logsigmoid
from torch.nn.parallel import DistributedDataParallel

from energize import get_loader, get_train_dataset, total_weight, weighted_mean
from energize.encoders import (
    InterleavedTaskEncoder,
    ModelPacking,
    PreferenceTaskEncoder,
    QuestionsTaskEncoder,
    answer_losses,
)
from tests.support.models import qwen2_vl

STEPS = 30
SAVED = 12
MICRO_BATCHES = 2

FILES = {
    "documents": "documents.jsonl",
    "preferences": "pairs.jsonl",
    "questions": "questions.jsonl",
}


def dataset_of(task: str, data: Path, processor: Any, model: Any) -> Any:
    """The batches of a task; those of documents are a stream of packs."""
    options: dict[str, Any] = {"image_folder": "images", "batch_size": 4}
    packing = ModelPacking(model)
    encoder: Any = PreferenceTaskEncoder(processor)
    if task == "documents":
        encoder = InterleavedTaskEncoder(processor, packing=packing, max_length=96)
        options |= {"batch_size": 1, "packing_buffer_size": 16}
    if task == "questions":
        encoder = QuestionsTaskEncoder(processor, questions="separate", packing=packing)
        options["sample_type"] = "ConversationSample"
    return get_train_dataset(data / FILES[task], task_encoder=encoder, **options)


def losses_of(task: str, model: Any, reference: Any, batch: Any) -> torch.Tensor:
    """The losses of the tokens, pairs or answers of a batch."""
    if task == "preferences":
        chosen, rejected = batch.log_probs(model(**batch.inputs).logits)
        with torch.no_grad():
            chosen0, rejected0 = batch.log_probs(reference(**batch.inputs).logits)
        return -logsigmoid(0.1 * (chosen - rejected - chosen0 + rejected0))
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits
    if task == "questions":
        return answer_losses(logits, batch.labels)
    logits = logits[:, :-1].transpose(1, 2)
    losses = cross_entropy(logits, batch.labels[:, 1:], reduction="none")
    return losses[batch.labels[:, 1:] != -100]


def main(data: Path, folder: Path, task: str, workers: int, killed: int) -> None:
    assert transformers
    dist.init_process_group("gloo")
    processor, model = qwen2_vl()
    reference = deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.005)
    dataset = dataset_of(task, data, processor, model)
    lanes = {"lanes": 4} if task == "documents" else {}
    loader = get_loader(dataset, num_workers=workers, **lanes)
    done = 0
    file = folder / "saved.pt"
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        done = SAVED
    module = DistributedDataParallel(model, find_unused_parameters=True)
    parts = MICRO_BATCHES // dist.get_world_size()
    batches = iter(loader)
    steps = []
    for step in range(done, STEPS):
        losses = [
            losses_of(task, module if parts == 1 else model, reference, batch)
            for batch in islice(batches, parts)
        ]
        total = total_weight([torch.ones_like(loss) for loss in losses])
        means = [weighted_mean(loss, total=total) for loss in losses]
        optimizer.zero_grad()
        torch.stack(means).sum().backward()
        optimizer.step()
        mean = torch.stack(means).sum().detach() / dist.get_world_size()
        dist.all_reduce(mean)
        steps.append(mean.item())
        if step + 1 == SAVED:
            state = loader.state_dict()
            if dist.get_rank() == 0:
                parts_of_run = {"model": model, "optimizer": optimizer}
                saved = {name: x.state_dict() for name, x in parts_of_run.items()}
                torch.save(saved | {"loader": state}, file)
            dist.barrier()
        if step + 1 == killed:
            os.kill(os.getpid(), signal.SIGKILL)
    if dist.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps(steps))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:6]))

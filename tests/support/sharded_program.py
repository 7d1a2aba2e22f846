"""A small LLaVA under FSDP2 or DDP, whose vision tower is called only for batches with
images.

`torchrun -m tests.support.sharded_program OUT WRAP BATCHES ALIGN STEPS SAVE_AT STATE`:
WRAP is "fsdp", "ddp" or "none"; BATCHES is "fixed" for batches of equal size, or
"budget"; ALIGN is "plain", "together" or "always". Model, optimizer and loader are saved
to the folder STATE after SAVE_AT steps; if SAVE_AT is "resume", they are loaded from
there.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

from energize import BatchDataset, BlendDataset, ListSource, ShuffleDataset, get_loader
from energize.datasets.planned import BudgetBatchDataset
from energize.experimental import AlignDataset, AlignedBudgetDataset
from tests.support.models import llava

MICRO, GLOBAL, RANKS = 2, 48, 12
"""Micro steps of 12 micro batches, which 2, 3 and 4 ranks divide."""

MICRO_STEPS = GLOBAL // MICRO // RANKS
"""Micro steps of an optimizer step."""

BUDGET = {"words": 30}
WINDOW = 40
"""Samples that are batched together; fewer than `RANKS` of them have an image."""

WORDS = (7, 15)
"""Words of a sample: the minimum, and the number above the maximum."""

IMAGE_TOKENS = 4
PAD, NO_LABEL = 0, -100
TIMEOUT = timedelta(seconds=40)


def source(name: str, count: int, image_token: int | None = None) -> ListSource:
    """Samples of words; with a token of images, also with an image."""
    generator = torch.Generator().manual_seed(len(name))
    words = torch.randint(*WORDS, (count,), generator=generator).tolist()
    samples = []
    for number in range(count):
        ids = torch.randint(7, 20, (words[number],), generator=generator)
        sample = {"__key__": f"{name}{number}", "ids": ids, "labels": ids.clone()}
        if image_token is not None:
            sample["pixels"] = torch.randn(3, 16, 16, generator=generator)
            sample["ids"][:IMAGE_TOKENS] = image_token
            sample["labels"][:IMAGE_TOKENS] = NO_LABEL
        samples.append(sample)
    images = [int(image_token is not None)] * count
    columns = {"images": images, "words": words}
    return ListSource(samples, name=name, columns=columns)


def padded(rows: list[torch.Tensor], value: int) -> torch.Tensor:
    """Pad on the right, which words do not attend to."""
    return pad_sequence(rows, batch_first=True, padding_value=value)


def collated(samples: list[Any]) -> dict[str, Any]:
    pixels = [sample["pixels"] for sample in samples if "pixels" in sample]
    return {
        "__key__": [sample["__key__"] for sample in samples],
        "ids": padded([sample["ids"] for sample in samples], PAD),
        "labels": padded([sample["labels"] for sample in samples], NO_LABEL),
        "pixels": torch.stack(pixels) if pixels else None,
    }


def dataset(batches: str, align: str, image_token: int) -> Any:
    mix = BlendDataset(
        (ShuffleDataset(source("text", 100)), 4),
        (ShuffleDataset(source("pictures", 30, image_token)), 1),
        scheme="random",
    )
    options: Any = {"columns": {"images": align}, "ranks": RANKS}
    if batches == "fixed" and align == "plain":
        return BatchDataset(mix, MICRO, collated)
    if batches == "fixed":
        return AlignDataset(mix, MICRO, collated, global_batch_size=GLOBAL, **options)
    if align == "plain":
        return BudgetBatchDataset(mix, BUDGET, collated, window=WINDOW)
    return AlignedBudgetDataset(mix, BUDGET, collated, window=WINDOW, **options)


def sharded(model: Any) -> None:
    """Shard the parts of the vision tower, the projector, and each decoder layer.

    The vision tower itself keeps its class, by which transformers records outputs.
    """
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    inner = model.model
    tower = inner.vision_tower
    vision = (tower.embeddings, *tower.encoder.layers, inner.multi_modal_projector)
    for part in (*vision, *inner.language_model.layers, model):
        fully_shard(part, mesh=mesh)


def local_size(model: nn.Module) -> int:
    """The number of elements of parameters on this rank."""
    parameters = model.parameters()
    local = [p.to_local() if isinstance(p, DTensor) else p for p in parameters]
    return sum(p.numel() for p in local)


def loss_of(
    model: nn.Module, batch: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted sum of the mean losses of rows, and the sum of the weights."""
    logits = model(input_ids=batch["ids"], pixel_values=batch["pixels"]).logits
    labels = batch["labels"][:, 1:]
    losses = cross_entropy(logits[:, :-1].mT, labels, reduction="none")
    rows = losses.sum(dim=1) / (labels != NO_LABEL).sum(dim=1)
    weights = batch.get("sample_weights", torch.ones(len(rows)))
    return (rows * weights).sum(), weights.sum()


def trained(
    wrap: str, batches: str, align: str, steps: int, save_at: str, state: Path
) -> dict[str, Any]:
    """The mean losses of the optimizer steps, and the model at the end."""
    processor, model = llava()
    model.train()
    model.model.vision_tower.post_layernorm.requires_grad_(False)  # LLaVA skips it
    world_size = distributed.get_world_size()
    if wrap == "fsdp":
        sharded(model)
    elif wrap == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mix = dataset(batches, align, processor.image_token_id)
    loader = get_loader(mix, num_workers=2)
    if save_at == "resume":
        parts = get_state_dict(model, optimizer)
        app = {"model": parts[0], "optimizer": parts[1], "loader": loader}
        checkpoint.load(app, checkpoint_id=state)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=app["model"],
            optim_state_dict=app["optimizer"],
        )
    losses: list[float] = []
    called: list[bool] = []
    items = iter(loader)
    for step in range(1, steps + 1):
        sums = torch.zeros(2)  # of losses, and of weights
        for _ in range(MICRO_STEPS * RANKS // world_size):
            batch = next(items)
            loss, weight = loss_of(model, batch)
            (loss / GLOBAL * world_size).backward()
            sums += torch.stack([loss.detach(), weight])
            called.append(batch["pixels"] is not None)
        optimizer.step()
        optimizer.zero_grad()
        distributed.all_reduce(sums)
        losses.append(float(sums[0] / sums[1]))
        if str(step) == save_at:
            parts = get_state_dict(model, optimizer)
            app = {"model": parts[0], "optimizer": parts[1], "loader": loader}
            checkpoint.save(app, checkpoint_id=state)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=whole)
    report = loader.report(all_ranks=True).to_dict()
    return {
        "losses": losses,
        "called": called,
        "local_size": local_size(model),
        "model": {name: value.flatten().tolist() for name, value in weights.items()},
        "fillers": report["mix/fillers"],
        "padding": report["mix/padding"],
    }


def main() -> None:
    out, wrap, batches, align, steps, save_at, state = sys.argv[1:]
    distributed.init_process_group("gloo", timeout=TIMEOUT)
    run = trained(wrap, batches, align, int(steps), save_at, Path(state))
    Path(out, f"{distributed.get_rank()}.json").write_text(json.dumps(run))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

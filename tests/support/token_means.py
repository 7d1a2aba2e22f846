"""Means of the losses of tokens, of conversations that are packed or padded."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers  # before lazy loaders of it
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from energize import ProcessorTaskEncoder, token_weights, total_weight, weighted_mean
from energize.encoders import ModelPacking
from tests.support.models import llava
from tests.task.test_ready import talk

MEANS = ("tokens", "samples", "sqrt_tokens")
NUMBERS = (0, 1, 2, 3, 2, 2, 0, 3)
"""The conversations of a global batch."""

WEIGHTS = (1.0, 0.5, 2.0, 1.0, 0.0, 1.0, 3.0, 1.0)


def batches(model: Any, parts: list[range], *, packed: bool) -> list[Any]:
    """Return a micro batch for each part of the global batch."""
    assert transformers
    processor, _ = llava()
    packing = ModelPacking(model) if packed else False
    encoder = ProcessorTaskEncoder(processor, packing=packing)
    made = []
    for part in parts:
        batch = encoder.batch([encoder.encode_sample(talk(NUMBERS[i])) for i in part])
        batch.sample_weights = torch.tensor([WEIGHTS[i] for i in part])
        made.append(batch)
    return made


def trained(module: Any, micro_batches: list[Any], mean: Any) -> tuple[float, Any]:
    """Return the mean of a global batch on this rank, and its gradient."""
    module.zero_grad()
    weights = [token_weights(batch, mean) for batch in micro_batches]
    total = total_weight(weights)
    whole = 0.0
    for number, batch in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        own = nullcontext() if is_last else getattr(module, "no_sync", nullcontext)()
        with own:
            left_out = ("labels", "sample_weights")
            inputs = {name: batch[name] for name in batch if name not in left_out}
            logits = module(**inputs).logits[:, :-1].transpose(1, 2)
            losses = cross_entropy(logits, batch.labels[:, 1:], reduction="none")
            loss = weighted_mean(losses, weights[number][:, 1:], total=total)
            loss.backward()
        whole += loss.item()
    return whole, [p.grad.flatten() for p in module.parameters() if p.grad is not None]


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    _, model = llava()
    whole = DistributedDataParallel(model, find_unused_parameters=True)
    parts = [range(4), range(4, 5)] if rank else [range(5, 6), range(6, 8)]
    made = {}
    for mean in MEANS:
        for packed in (False, True):
            value, gradient = trained(whole, batches(model, parts, packed=packed), mean)
            values = [0.0] * dist.get_world_size()
            dist.all_gather_object(values, value)
            name = f"{mean}, {'packed' if packed else 'padded'}"
            made[name] = (sum(values) / len(values), torch.cat(gradient).tolist())
    if rank == 0:
        out.write_text(json.dumps(made))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

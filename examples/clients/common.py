"""What the examples of clients share: small data, a small model, several ranks, a
comparison.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from rich.console import Console

from energize import (
    Batch,
    BatchDataset,
    Dataset,
    FilterDataset,
    ListSource,
    MapDataset,
    Sample,
    ShuffleDataset,
    is_padding,
)

BATCH_SIZE = 4


@dataclass
class Number(Sample):
    """A number, and what a model is to learn of it."""

    number: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Numbers(Batch):
    """A batch of them: tensors with a row for each."""

    number: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor


def encode(number: int) -> Number:
    """A sample of a number."""
    x = torch.tensor([number % 7, number % 5], dtype=torch.float32)
    y = x.sum(-1, keepdim=True)
    return Number(__key__=str(number), number=torch.tensor(number), x=x, y=y)


def wanted(number: int) -> bool:
    """Whether a sample is kept: only reading tells."""
    return number % 3 > 0


def batches(count: int) -> Dataset[Numbers]:
    """So many batches in an epoch, in another order in each; every batch is known by
    position.
    """
    source = ShuffleDataset(ListSource(range(count * BATCH_SIZE), name="numbers"))
    return BatchDataset(MapDataset(source, encode), BATCH_SIZE, Numbers.from_samples)


def stream(count: int) -> Dataset[Numbers]:
    """About so many batches of what a filter leaves."""
    source = ShuffleDataset(
        ListSource(range(count * BATCH_SIZE * 3 // 2), name="numbers")
    )
    kept = FilterDataset(source, wanted)
    return BatchDataset(MapDataset(kept, encode), BATCH_SIZE, Numbers.from_samples)


def numbers(batch: Mapping[str, torch.Tensor]) -> list[int]:
    """Which samples a batch has: none, if it is padding."""
    return [] if is_padding(batch) else batch["number"].tolist()


def new_model() -> torch.nn.Module:
    """The same small model each time."""
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)


def loss_of(model: torch.nn.Module, batch: Numbers) -> torch.Tensor:
    """The loss, which padding has no part in."""
    weight = 0.0 if is_padding(batch) else 1.0
    return weight * torch.nn.functional.mse_loss(model(batch.x), batch.y)


def of_all_ranks(mine: list[list[int]]) -> list[list[int]]:
    """The batches of all ranks, step by step, in turn."""
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, mine)
    return [each for step in zip(*found, strict=True) for each in step]


def on_ranks(count: int, function: Callable[..., None], *arguments: Any) -> None:
    """Run a function on so many ranks, in forked processes, with what torchrun would
    tell them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    os.environ |= told
    torch.multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        _on_rank, (count, function, arguments), nprocs=count, start_method="fork"
    )


def _on_rank(
    rank: int, count: int, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    torch.set_num_threads(1)
    function(*arguments)


def alike(what: str, expected: Sequence[Any], found: Sequence[Any]) -> bool:
    """Say whether what was found is what was expected; where they part, if they do."""
    console = Console(width=100, highlight=False)
    equal = bool(expected) and list(expected) == list(found)
    console.print(
        f"{what}: {len(found)} of {len(expected)}, {'equal' if equal else 'DIFFERENT'}"
    )
    if not equal:
        pairs = zip(expected, found, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
        at = min(len(expected), len(found)) if at is None else at
        console.print(f"  from {at} on: expected {list(expected)[at : at + 2]}")
        console.print(f"  found {list(found)[at : at + 2]}")
    return equal

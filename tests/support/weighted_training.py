"""A linear model on weighted data, trained the same however a global batch is
divided."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from energize import (
    BatchDataset,
    BlendDataset,
    Dataset,
    FilterDataset,
    ListSource,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    SampleWeightDataset,
    ShuffleDataset,
    generic_batch,
    get_loader,
    total_weight,
    weighted_mean,
)
from energize.core.lanes import WorkerConfig
from energize.experimental import LevelDataset
from energize.loader import Loader
from energize.packing import concat_pack

GLOBAL, MICRO = 8, 2
STEPS = 200


def rows(name: str, count: int, slope: float) -> Dataset[Any]:
    """Samples whose slope is that of their source, in an order of their own."""
    drawn = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 3, generator=drawn)
    samples = [
        {
            "__key__": f"{name}{i}",
            "x": x,
            "y": slope * x.sum() + 0.1 * i % 1,
            "size": i % 7 + 1,
        }
        for i, x in enumerate(inputs)
    ]
    sizes = {"size": [sample["size"] for sample in samples]}
    return ShuffleDataset(ListSource(samples, name=name, columns=sizes))


def encoded(sample: dict[str, Any]) -> dict[str, Any]:
    """As an encoder would: it says itself how much some samples count."""
    return {
        **sample,
        "sample_weight": 0.0 if sample["size"] == 3 else sample["size"] / 4,
    }


def samples() -> Dataset[Any]:
    """A blend with weights of its sources, of its samples, and for what they are
    drawn."""
    two = BlendDataset(
        (rows("b", 23, -2.0), 1), (rows("c", 31, 0.5), 2), target_weights=[1, 1]
    )
    blend = BlendDataset(
        (SampleWeightDataset(rows("a", 37, 1.0), 0.25), 3),
        (SampleWeightDataset(two, lambda sample: 1 + sample["size"] % 2), 2),
    )
    return MapDataset(blend, encoded)


def batches(size: int) -> Dataset[Any]:
    """Micro batches of the blend."""
    return BatchDataset(samples(), size, generic_batch)


def levelled(size: int) -> Dataset[Any]:
    """The same global batches, each in micro batches of about the same size."""
    level = LevelDataset(samples(), size, global_batch_size=GLOBAL, cost="size")
    return BatchDataset(level, size, generic_batch)


def epochs(size: int) -> Dataset[Any]:
    """Epochs of 37 samples, which no number of ranks divides."""
    weighed = SampleWeightDataset(rows("a", 37, 1.0), lambda sample: sample["size"])
    return BatchDataset(weighed, size, generic_batch)


def stream(size: int) -> Dataset[Any]:
    """Packs of three of what a filter leaves, in batches of two packs."""
    kept = FilterDataset(samples(), lambda sample: sample["size"] != 5)
    packs = PackingDataset(RepeatDataset(kept), 9, thirds, packed)
    return BatchDataset(packs, size, generic_batch)


def thirds(items: list[Any]) -> list[list[Any]]:
    return [items[:2], items[2:5], items[5:]]


def packed(items: list[Any]) -> dict[str, Any]:
    return concat_pack([{**item, "x": item["x"][None], "y": item["y"][None]} for item in items],
                       ["x", "y"])  # fmt: skip


class Model(nn.Module):
    """A linear one, float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.line = nn.Linear(3, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of each sample, or of each piece of each pack."""
        return (self.line(batch["x"]).squeeze(-1) - batch["y"]) ** 2


def trained(
    loader: Loader[Any],
    steps: int,
    *,
    accumulation: int = 1,
    parallel: bool = False,
    weighed: bool = True,
    model: Model | None = None,
) -> list[float]:
    """The parameters after so many optimizer steps, each over `accumulation` micro
    batches."""
    model = model or Model()
    module: nn.Module = DistributedDataParallel(model) if parallel else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    stream = endless(loader)
    for _ in range(steps):
        micro_batches = list(islice(stream, accumulation))
        optimizer.zero_grad()
        total = total_weight(micro_batches)
        for batch in micro_batches:
            losses = module(batch)
            loss = weighted_mean(losses, batch["sample_weights"], total=total)
            (loss if weighed else losses.mean() / accumulation).backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def endless(loader: Loader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def loader_over(dataset: Dataset[Any], workers: int = 0, **options: Any) -> Loader[Any]:
    return get_loader(
        dataset, worker_config=WorkerConfig(num_workers=workers), **options
    )

"""Run on ranks: what ledgers of real ranks say, each alone and all together, as
JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from energize import (
    BatchDataset,
    BlendDataset,
    FilterDataset,
    Ledger,
    WorkerConfig,
    get_loader,
)
from energize.errors import LoaderError
from tests.support.deliveries import counted, told, weighed_batch
from tests.support.loading import eventually


def is_odd(sample: Any) -> bool:
    return sample[2] % 2 == 1


def epoch_of_eleven() -> Any:
    """Eleven batches, which two ranks do not divide."""
    parts = {"a": told(33, "a"), "b": told(11, "b")}
    blend = BlendDataset(parts, weights={"a": 3, "b": 1}, stop="first_exhausted")
    return BatchDataset(blend, 4, weighed_batch)


def stream() -> Any:
    parts = {"odd": FilterDataset(told(40, "odd"), is_odd), "b": told(12, "b")}
    return BatchDataset(
        BlendDataset(parts, weights={"odd": 1, "b": 1}), 3, weighed_batch
    )


def summary(report: Any) -> dict[str, Any]:
    return {
        "samples": {row.name: row.counts.samples for row in report.rows},
        "weight": {row.name: row.counts.weight for row in report.rows},
        "tokens": {row.name: row.counts.cost for row in report.rows},
        "items": [each.items for each in report.ranks],
        "padding": [each.padding for each in report.ranks],
        "text": str(report),
        "warnings": report.warnings,
    }


def run(dataset: Any, steps: int, state: Any = None) -> dict[str, Any]:
    """Some steps under DDP, whose items are counted one by one too."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    cost = Ledger("tokens")
    config = WorkerConfig(num_workers=2)
    with get_loader(dataset, worker_config=config, lanes=4, ledger=cost) as loader:
        if state is not None:
            loader.load_state_dict(state)
        items = []
        for _, batch in zip(range(steps), loader, strict=False):
            model(batch["sample_weights"][:, None]).sum().backward()
            if not loader.padding:
                items.append(batch)
        together = loader.report(all_ranks=True)
        alone = loader.report()
        state = loader.state_dict()
    mine = {
        "samples": dict(counted(items)),
        "weight": sum(float(batch["sample_weights"].sum()) for batch in items),
        "tokens": sum(
            1 + sample[2] % 5 for batch in items for sample in batch["samples"]
        ),
        "alone": summary(alone),
    }
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    return {"together": summary(together), "ranks": ranks, "state": state}


def not_called_by_all() -> str:
    """What rank 0 is told. Nothing can be agreed on afterwards, so it comes last."""
    loader = get_loader(epoch_of_eleven(), timeout=1)
    next(iter(loader))
    if dist.get_rank():
        assert eventually(Path(sys.argv[1]).exists, 60)
        return ""
    try:
        loader.report(all_ranks=True)
    except LoaderError as error:
        return str(error)
    return "no error"


def main() -> None:
    dist.init_process_group("gloo")
    results: dict[str, Any] = {
        "epoch": run(epoch_of_eleven(), 20),
        "stream": run(stream(), 20),
    }
    results["resumed"] = run(stream(), 5, results["stream"]["state"])
    dist.barrier()
    results["not called by all"] = not_called_by_all()
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

"""How long ranks wait for the slowest of them, with and without level batches.

    python -m benchmarks.levelling [--data FOLDER] [--ranks 8 64 512] [--json FILE]

Half of the samples are photographs of many sizes, half are texts of many lengths. A
photograph costs its patches of 28 x 28 pixels, at most 4,096 after it was made smaller,
a text its tokens; or what a transformer computes for so many, by `attention_cost`. Each
rank has 8 samples of a global batch.

The first table is of simulated ranks: the cost of the slowest by the mean of all, in
the plain order and with `level`, over some global batches: on average, and in the worst
of them.

The second is what planning takes of the time of loading: the CPU time that one rank
needs to choose its 8 samples of a global batch, by that of reading, decoding and
encoding 8 samples from prepared folders of JPEG photographs and of texts.

The third is a training: see `benchmarks.programs.levelling_training`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.programs.levelling_samples import (
    Encoder,
    operations_of,
    sizes,
    stored,
    tokens_of,
)
from benchmarks.programs.levelling_training import BATCH, Steps, trained
from energize import (
    BatchDataset,
    BlendDataset,
    ListSource,
    ShuffleDataset,
    get_train_dataset,
)
from energize.core.costs import ColumnCost
from energize.experimental import LevelDataset

__all__ = ["Planned", "Slowest", "main", "planned", "slowest"]

_GLOBAL_BATCHES = 20
_RUNS = 5
_SAMPLES = 100_000
"""Of each kind, in simulations."""

_STORED = 200
"""Of each kind, to be read."""

_ORDERS = ("plain", "level")

COSTS: dict[str, Callable[..., Any]] = {
    "tokens": tokens_of,
    "operations": operations_of,
}


@dataclass(frozen=True, kw_only=True)
class Slowest:
    """The cost of the slowest rank by the mean of all: on average over global batches,
    and in the worst of them.
    """

    ranks: int
    cost: str
    plain: float
    plain_worst: float
    level: float
    level_worst: float


@dataclass(frozen=True, kw_only=True)
class Planned:
    """CPU milliseconds that a rank takes to plan a global batch, and to load its
    samples of it.
    """

    ranks: int
    planning: float
    loading: float

    @property
    def share(self) -> float:
        """Of planning in loading."""
        return self.planning / self.loading


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables and write them to the JSON file when one is asked
    for.
    """
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 64, 256, 1024])
    parser.add_argument("--global-batches", type=int, default=_GLOBAL_BATCHES)
    parser.add_argument(
        "--data", type=Path, help="a folder for the stored samples, to keep them"
    )
    parser.add_argument(
        "--stored", type=int, default=_STORED, help="samples that are stored"
    )
    parser.add_argument(
        "--steps", type=int, default=30, help="of the training; 0 for none"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of the training")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    count = options.global_batches
    found = [slowest(ranks, cost, count) for cost in COSTS for ranks in options.ranks]
    print(
        f"{'cost':<11} {'ranks':>5} {'plain':>7} {'worst':>7} {'level':>7} {'worst':>7}"
    )
    for each in found:
        print(
            f"{each.cost:<11} {each.ranks:>5} {each.plain:>7.3f} "
            f"{each.plain_worst:>7.3f} "
            f"{each.level:>7.3f} {each.level_worst:>7.3f}"
        )
    with tempfile.TemporaryDirectory() as folder:
        root = options.data or Path(folder)
        mix = stored(root, options.stored)
        plans = [planned(mix, ranks, count) for ranks in options.ranks]
        print(f"\n{'ranks':>5} {'planning, ms':>13} {'loading, ms':>12} {'share':>7}")
        for plan in plans:
            print(
                f"{plan.ranks:>5} {plan.planning:>13.2f} {plan.loading:>12.1f} "
                f"{plan.share:>7.2%}"
            )
        steps = [
            trained(mix, options.steps)
            for _ in range(options.rounds if options.steps else 0)
        ]
    if steps:
        print(_told(steps))
    if options.json:
        tables: dict[str, Any] = {
            "slowest": found,
            "planned": plans,
            "trained": steps,
        }
        rows = {
            name: [asdict(each) for each in table] for name, table in tables.items()
        }
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _told(steps: Sequence[Steps]) -> str:
    ratios = sorted(each.plain / each.level for each in steps)
    plain, level = (
        statistics.median(getattr(each, name) for each in steps) for name in _ORDERS
    )
    return (
        "\n"
        f"{steps[0].ranks} ranks: {plain * 1e3:.0f} ms for a step in the plain order, "
        f"{level * 1e3:.0f} ms with level batches; plain by level "
        f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); the "
        f"tokens of the slowest rank lead to expect {steps[0].expected:.3f}"
    )


def simulated() -> BlendDataset[int]:
    """Samples of which nothing is there but what they cost."""
    drawn = sizes(_SAMPLES)
    photographs, texts = (
        ListSource(
            range(_SAMPLES), name=name, columns={each: drawn[each] for each in columns}
        )
        for name, columns in (
            ("photographs", ("width", "height")),
            ("texts", ("characters",)),
        )
    )
    return BlendDataset((ShuffleDataset(photographs), 1), (ShuffleDataset(texts), 1))


def slowest(ranks: int, cost: str, count: int = _GLOBAL_BATCHES) -> Slowest:
    """The slowest of simulated ranks, in the plain order and with level batches."""
    samples = simulated()
    priced = ColumnCost(COSTS[cost])
    found = []
    for batches in (
        BatchDataset(samples, BATCH, list),
        BatchDataset(
            samples, BATCH, list, level=COSTS[cost], global_batch_size=ranks * BATCH
        ),
    ):
        costs = priced.of(batches, np.arange(count * ranks)).reshape(-1, ranks)
        found.append(costs.max(axis=1) / costs.mean(axis=1))
    (plain, plain_worst), (level, level_worst) = (
        (each.mean(), each.max()) for each in found
    )
    return Slowest(
        ranks=ranks,
        cost=cost,
        plain=float(plain),
        plain_worst=float(plain_worst),
        level=float(level),
        level_worst=float(level_worst),
    )


def planned(mix: Path, ranks: int, count: int = _GLOBAL_BATCHES) -> Planned:
    """What planning and loading take a rank, in this process, with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole = ranks * BATCH
    samples = simulated()
    plain: Any = get_train_dataset(mix, batch_size=BATCH, task_encoder=Encoder())
    planning = []
    loading = []
    for _ in range(_RUNS):
        # Made anew, so that nothing is known of the global batches.
        order = LevelDataset(samples, BATCH, global_batch_size=whole, cost=tokens_of)
        began = time.process_time()
        for step in range(count):
            order.route(np.arange(step * whole, step * whole + BATCH))
        planning.append((time.process_time() - began) / count)
        began = time.process_time()
        for step in range(count):
            plain.at([step * ranks])
        loading.append((time.process_time() - began) / count)
    torch.set_num_threads(threads)
    return Planned(
        ranks=ranks,
        planning=1e3 * statistics.median(planning),
        loading=1e3 * statistics.median(loading),
    )


if __name__ == "__main__":
    main()

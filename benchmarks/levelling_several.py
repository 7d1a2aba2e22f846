"""How level ranks are when two costs matter: of an image encoder and a language model.

    python -m benchmarks.levelling_several [--ranks 8 64 512] [--json FILE]

Each rank has 8 samples of a global batch. Tokens are log-normal with a median of 1,100
and at most 8,192; two of five samples have no image, the others have 256 to 4,096
patches. The table has the most expensive micro batch over the mean, by each cost, in
the worst of some global batches: in the plain order, with `level` by tokens, with
`level` by the sum of both, and with `level` by both. `us` is the CPU time of the plan
for each sample.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energize import BatchDataset, ListSource, ShuffleDataset
from energize.core.costs import LevelCost

__all__ = ["ORDERS", "Dearest", "dearest", "main", "samples"]

_BATCH = 8
_GLOBAL_BATCHES = 10
_MEDIAN = 1100
_LONGEST = 8192
_PATCHES = (256, 4096)
_WITH_IMAGES = 0.6


def both(
    tokens: npt.NDArray[np.int64], patches: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Tokens and patches of a sample as one cost."""
    return tokens + patches


ORDERS: dict[str, LevelCost | None] = {
    "plain": None,
    "tokens": "tokens",
    "sum": both,
    "several": {"tokens": 1, "patches": 1},
}
"""The costs by which batches are levelled."""


@dataclass(frozen=True, kw_only=True)
class Dearest:
    """The dearest micro batch over the mean, in the worst global batch.

    Attributes:
        microseconds: CPU time of the plan, for each sample.
    """

    ranks: int
    order: str
    tokens: float
    patches: float
    microseconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write it to a JSON file if one is named."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--global-batches", type=int, default=_GLOBAL_BATCHES)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    print(f"{'ranks':>5} {'level':<8} {'tokens':>7} {'patches':>8} {'us':>6}")
    rows = []
    for ranks in options.ranks:
        source = samples(ranks * _BATCH * options.global_batches)
        for order in ORDERS:
            row = dearest(source, ranks, order)
            rows.append(row)
            print(
                f"{row.ranks:>5} {row.order:<8} {row.tokens:>7.3f} "
                f"{row.patches:>8.3f} {row.microseconds:>6.1f}"
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


def samples(count: int, seed: int = 0) -> ListSource[int]:
    """Return samples that have nothing but their costs."""
    drawn = np.random.default_rng(seed)
    tokens = np.clip(drawn.lognormal(np.log(_MEDIAN), 1, count), 8, _LONGEST)
    patches = drawn.integers(_PATCHES[0], _PATCHES[1] + 1, count)
    patches[drawn.random(count) >= _WITH_IMAGES] = 0
    columns = {"tokens": tokens.astype(np.int64).tolist(), "patches": patches.tolist()}
    return ListSource(range(count), name="samples", columns=columns)


def dearest(source: ListSource[int], ranks: int, order: str) -> Dearest:
    """Return the dearest of simulated ranks over whole global batches."""
    positions = np.arange(source.count // _BATCH)
    _batches(source, ranks, order).refs(positions[:1])  # first calls take longer
    batches = _batches(source, ranks, order)
    began = time.process_time()
    index = batches.refs(positions).index
    spent = time.process_time() - began
    ratios = {}
    for name in ("tokens", "patches"):
        costs = np.asarray(source.column(name).values)[index]
        totals = costs.reshape(-1, ranks, _BATCH).sum(axis=2)
        ratios[name] = float((totals.max(axis=1) / totals.mean(axis=1)).max())
    return Dearest(
        ranks=ranks, order=order, microseconds=1e6 * spent / len(index), **ratios
    )


def _batches(
    source: ListSource[int], ranks: int, order: str
) -> BatchDataset[list[int]]:
    level = ORDERS[order]
    whole = None if level is None else ranks * _BATCH
    return BatchDataset(
        ShuffleDataset(source), _BATCH, list, level=level, global_batch_size=whole
    )


if __name__ == "__main__":
    main()

"""How full packs are, and how fast samples are selected for them.

    python -m benchmarks.packing [--energon PYTHON] [--buffers 100 1000 10000]

Captions have log-normal lengths in tokens. Each buffer of them is packed alone, as
`PackingDataset` does. `fill` is the part of all packs that holds tokens. `dearest` and
`cheapest` are the costs of these packs by their mean, by `attention_cost`. Samples/s
are of CPU time, the median of five runs, in which methods take turns.

The second table is of packs that a loader delivers from a prepared folder of the
captions, see `benchmarks.programs.packing`. `--energon` is the interpreter of an
environment that has Megatron-Energon.

`energon greedy` is what the packing guide of Megatron-Energon shows as an example for
`select_samples_to_pack` (docs/source/advanced/packing.md): captions in ascending order,
each pack filled until the next caption would reach the capacity. It never ends there
where one is too long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.common.comparing import OWN, failure, run_module
from benchmarks.programs.packing import GREEDY, greedy
from energize import prepare, write_shards
from energize.packing import attention_cost, balanced, best_fit, first_fit

__all__ = ["Delivered", "Packed", "captions", "delivered", "main", "measured"]

_RUNS = 5
_PEER = "megatron.energon"

Select = Callable[[Sequence[int], int], list[list[int]]]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What a method made of buffers of samples."""

    method: str
    buffer: int
    packs: int
    fill: float
    dearest: float
    cheapest: float
    samples_per_second: float


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """Packs of an epoch that a loader delivered."""

    library: str
    method: str
    buffer: int
    packs: int
    fill: float
    samples_per_second: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print both tables and write them to the JSON file when one is asked
    for.
    """
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--captions", type=int, default=10_000)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--buffers", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--median", type=int, default=100, help="tokens of a caption")
    parser.add_argument(
        "--sigma", type=float, default=0.7, help="of the logarithm of tokens"
    )
    parser.add_argument(
        "--energon", help="the Python interpreter that has Megatron-Energon"
    )
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    lengths = captions(
        options.captions, options.median, options.sigma, options.capacity
    )
    fewest = -(-sum(lengths) // options.capacity)
    print(
        f"{len(lengths)} captions of {statistics.mean(lengths):.0f} tokens on average, "
        "at most "
        f"{max(lengths)}; fewest packs {fewest}: "
        f"{sum(lengths) / fewest / options.capacity:.4f}\n"
    )
    print(f"{'method':<15} {'buffer':>7} {'packs':>6} {'fill':>7} ", end="")
    print(f"{'dearest':>8} {'cheapest':>8} {'samples/s':>10}")
    found: list[Packed] = []
    for buffer in options.buffers:
        for each in measured(lengths, options.capacity, buffer):
            found.append(each)
            print(
                f"{each.method:<15} {each.buffer:>7} {each.packs:>6} {each.fill:>7.4f} "
                f"{each.dearest:>8.3f} {each.cheapest:>8.3f} "
                f"{each.samples_per_second:>10,.0f}"
            )
    print(
        f"\n{'delivered by':<16} {'method':<15} {'buffer':>7} {'packs':>6} "
        f"{'fill':>7} ",
        end="",
    )
    print(f"{'samples/s':>10}")
    came: list[Delivered] = []
    for buffer in options.buffers:
        for one in delivered(lengths, options.capacity, buffer, options.energon):
            came.append(one)
            print(
                f"{one.library:<16} {one.method:<15} {one.buffer:>7} {one.packs:>6} "
                f"{one.fill:>7.4f} {one.samples_per_second:>10,.0f}"
            )
    if options.json:
        tables = {
            "packed": list(map(asdict, found)),
            "delivered": list(map(asdict, came)),
        }
        options.json.write_text(json.dumps(tables, indent=1) + "\n")


def captions(count: int, median: int, sigma: float, capacity: int) -> list[int]:
    """Lengths in tokens, from 1 to below the capacity."""
    drawn = np.random.default_rng(0).lognormal(np.log(median), sigma, count)
    lengths: list[int] = np.clip(drawn, 1, capacity - 1).astype(int).tolist()
    return lengths


def measured(lengths: Sequence[int], capacity: int, buffer: int) -> list[Packed]:
    """What each method makes of these lengths, in buffers of so many."""
    buffers = [
        lengths[start : start + buffer] for start in range(0, len(lengths), buffer)
    ]
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(_RUNS):
        for name, select in METHODS.items():
            start = time.process_time()
            for each in buffers:
                select(each, capacity)
            seconds[name].append(time.process_time() - start)
    return [
        _packed(
            name, buffers, capacity, len(lengths) / statistics.median(seconds[name])
        )
        for name in METHODS
    ]


def _packed(
    name: str, buffers: Sequence[Sequence[int]], capacity: int, speed: float
) -> Packed:
    packs = [
        [each[i] for i in pack]
        for each in buffers
        for pack in METHODS[name](each, capacity)
    ]
    costs = [sum(map(attention_cost, pack)) for pack in packs]
    mean = statistics.mean(costs)
    return Packed(
        method=name,
        buffer=len(buffers[0]),
        packs=len(packs),
        fill=sum(map(sum, packs)) / (len(packs) * capacity),
        dearest=max(costs) / mean,
        cheapest=min(costs) / mean,
        samples_per_second=speed,
    )


def delivered(
    lengths: Sequence[int], capacity: int, buffer: int, energon: str | None
) -> list[Delivered]:
    """What loaders deliver of a prepared folder of captions of these lengths, texts of
    a byte for each token; Energon too, when its interpreter is given.
    """
    subjects = {OWN: (sys.executable, list(METHODS))}
    if energon:
        subjects[_PEER] = (energon, [GREEDY])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        texts = ({"__key__": f"{i:06d}", "txt": "a" * n} for i, n in enumerate(lengths))
        write_shards(texts, folder, samples_per_shard=-(-len(lengths) // 4))
        prepare(
            folder,
            split_ratios={"train": 1},
            sample_type="TextSample",
            field_map={"text": "txt"},
        )
        for library, (python, methods) in subjects.items():
            arguments = [
                library,
                folder,
                str(buffer),
                str(capacity),
                str(_RUNS),
                *methods,
            ]
            done = run_module(python, "benchmarks.programs.packing", *arguments)
            if done.returncode:
                raise failure(done)
            for each in json.loads(done.stdout.splitlines()[-1]):
                if each["tokens"] != sum(lengths) or each["longest"] > capacity:
                    raise RuntimeError(
                        f"{library} did not deliver every caption once: {each}"
                    )
                found.append(
                    Delivered(
                        library=library,
                        method=each["method"],
                        buffer=buffer,
                        packs=each["packs"],
                        fill=each["tokens"] / (each["packs"] * capacity),
                        samples_per_second=len(lengths) / each["seconds"],
                    )
                )
    return found


def _energon_greedy(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    return greedy(range(len(lengths)), capacity, lengths.__getitem__)


METHODS: dict[str, Select] = {
    GREEDY: _energon_greedy,
    "first_fit": first_fit,
    "best_fit": best_fit,
    "balanced": balanced,
}


if __name__ == "__main__":
    main()

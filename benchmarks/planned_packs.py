"""How full planned packs are, what a plan costs, and how even the order of packs is.

    python -m benchmarks.planned_packs [--samples 1000000] [--position 10000000]

The first table packs captions, conversations with up to 8 images, and documents:

- `planned`: `PackDataset` with its window of 16,384 samples, in shuffled order.
- `energon greedy`: the example of Megatron-Energon's guide, see `benchmarks.packing`,
  with a buffer of 1,000 samples.
- `first fit`: with a buffer of 1,000 samples.
- `best fit`: best fit decreasing over all samples at once.

`fill` is the share of all packs that holds tokens. With two capacities, tokens and
images, it is the lower bound on the number of packs by this number. CPU time per sample
includes the order and the columns for `planned`, and only counting packs for others.

The second table is the difference of global batches from the shares of tokens in their
window, on average and at most, in planned and random order. The third is the CPU time
of the first pack of a loader: fresh, and resumed at `--position`. The state is that of
a run that planned all packs up to there once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.programs.packing import GREEDY, greedy
from energize import (
    BlendDataset,
    ListSource,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
)
from energize.core.config import packed, unpacked
from energize.datasets.planned import PackDataset
from energize.loader.state import sealed

__all__ = ["Evenness", "Packed", "Resumed", "evenness", "main", "packed_by", "resumed"]

CAPACITY = 8192
"""Tokens of a pack."""

_IMAGES = 16
"""Images of a pack with two capacities."""

_BUFFER = 1000
_IMAGE_TOKENS = 256
_WEIGHTS = {"captions": 0.5, "conversations": 0.3, "documents": 0.2}
_WINDOWS = 8
"""Windows in the second table."""

_GLOBAL_BATCHES = (8, 32, 64, 512)
_ROUNDS = 15

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Packs of one kind of samples by one method."""

    samples: str
    method: str
    packs: int
    fill: float
    microseconds: float


@dataclass(frozen=True, kw_only=True)
class Evenness:
    """Differences of global batches from the shares of tokens in their window."""

    global_batch_size: int
    planned: float
    planned_worst: float
    random: float
    random_worst: float


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """CPU seconds up to the first pack, and of planning up to the position once."""

    position: int
    planning: float
    fresh: float
    resumed: float

    @property
    def ratio(self) -> float:
        """Time of a resumed start by that of a fresh one."""
        return self.resumed / self.fresh


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write them to the JSON file if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--samples", type=int, default=10**6, help="of each kind")
    parser.add_argument("--position", type=int, default=10**7, help="in packs")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    sources = {name: source(name, options.samples) for name in _WEIGHTS}
    print(f"{'samples':<14} {'method':<15} {'packs':>7} {'fill':>7} {'us/sample':>9}")
    packs = []
    for row in packed_by(sources):
        packs.append(row)
        print(
            f"{row.samples:<14} {row.method:<15} {row.packs:>7} {row.fill:>7.4f} "
            f"{row.microseconds:>9.2f}"
        )
    print(
        f"\n{'global batch':>12} {'planned':>8} {'worst':>7} {'random':>8} {'worst':>7}"
    )
    even = evenness(sources)
    for batch in even:
        print(
            f"{batch.global_batch_size:>12} {batch.planned:>8.4f} "
            f"{batch.planned_worst:>7.4f} {batch.random:>8.4f} "
            f"{batch.random_worst:>7.4f}"
        )
    start = resumed(sources, options.position)
    print(
        f"\npack {start.position:,}: fresh {start.fresh * 1e3:.1f} ms, resumed "
        f"{start.resumed * 1e3:.1f} ms, ratio {start.ratio:.3f}; planned once in "
        f"{start.planning:.0f} s"
    )
    if options.json:
        tables = {
            "packed": list(map(asdict, packs)),
            "evenness": list(map(asdict, even)),
            "resumed": [asdict(start)],
        }
        options.json.write_text(json.dumps(tables, indent=1) + "\n")


def source(name: str, count: int) -> ListSource[int]:
    """Return samples with the columns "tokens" and "images", by the seed 0."""
    rng = np.random.default_rng(0)
    images = np.zeros(count, dtype=np.int64)
    if name == "captions":
        text = rng.lognormal(np.log(60), 0.7, count)
    elif name == "documents":
        text = rng.lognormal(np.log(900), 1.1, count)
    else:
        text = np.clip(rng.lognormal(np.log(180), 0.9, count), 8, 6000)
        images = rng.choice(
            np.arange(9), count, p=[0.25, 0.4, 0.1, 0.07, 0.06, 0.04, 0.03, 0.02, 0.03]
        )
    tokens = np.clip(text.astype(np.int64) + images * _IMAGE_TOKENS, 8, CAPACITY)
    columns = {"tokens": tokens.tolist(), "images": images.tolist()}
    return ListSource(range(count), name=name, columns=columns)


def _column(samples: ListSource[int], name: str) -> IntArray:
    values: IntArray = samples.column(name).values.astype(np.int64)
    return values


def packed_by(sources: Mapping[str, ListSource[int]]) -> Iterator[Packed]:
    """Yield the packs of each kind of samples by each method."""
    for name, samples in sources.items():
        lengths = _column(samples, "tokens")
        shuffled = np.random.default_rng(1).permutation(lengths).tolist()
        methods: dict[str, Callable[[], int]] = {
            "planned": partial(_planned, samples, "tokens", CAPACITY),
            GREEDY: partial(_in_buffers, shuffled, _greedy),
            "first fit": partial(_in_buffers, shuffled, _first_fit),
            "best fit": partial(_best_fit, shuffled),
        }
        fewest = int(lengths.sum()) / CAPACITY
        for method, count_packs in methods.items():
            yield _timed(name, method, fewest, len(lengths), count_packs)
        images = _column(samples, "images")
        if images.any():
            yield _timed(
                name,
                "two capacities",
                max(fewest, int(images.sum()) / _IMAGES),
                len(lengths),
                partial(_planned, samples, ("tokens", "images"), (CAPACITY, _IMAGES)),
            )


def _timed(
    name: str, method: str, fewest: float, samples: int, count_packs: Callable[[], int]
) -> Packed:
    start = time.process_time()
    packs = count_packs()
    seconds = time.process_time() - start
    return Packed(
        samples=name,
        method=method,
        packs=packs,
        fill=fewest / packs,
        microseconds=seconds / samples * 1e6,
    )


def _planned(samples: ListSource[int], length: Any, capacity: Any) -> int:
    return int(PackDataset(ShuffleDataset(samples), length, capacity, list).size)


def _in_buffers(lengths: list[int], count_packs: Callable[[list[int]], int]) -> int:
    starts = range(0, len(lengths), _BUFFER)
    return sum(count_packs(lengths[start : start + _BUFFER]) for start in starts)


def _greedy(lengths: list[int]) -> int:
    return len(greedy(lengths, CAPACITY, int))


def _first_fit(lengths: list[int]) -> int:
    rooms: list[int] = []
    for length in lengths:
        for pack, room in enumerate(rooms):
            if length <= room:
                rooms[pack] -= length
                break
        else:
            rooms.append(CAPACITY - length)
    return len(rooms)


def _best_fit(lengths: list[int]) -> int:
    rooms: list[int] = []  # ascending
    packs = 0
    for length in sorted(lengths, reverse=True):
        pack = bisect_left(rooms, length)
        if pack == len(rooms):
            packs += 1
            room = CAPACITY
        else:
            room = rooms.pop(pack)
        if room > length:
            rooms.insert(bisect_left(rooms, room - length), room - length)
    return packs


def _mix(sources: Mapping[str, ListSource[int]]) -> PackDataset[list[int]]:
    shuffled = {name: ShuffleDataset(samples) for name, samples in sources.items()}
    return PackDataset(
        BlendDataset(shuffled, weights=_WEIGHTS), "tokens", CAPACITY, list
    )


def evenness(sources: Mapping[str, ListSource[int]]) -> list[Evenness]:
    """Return the differences of global batches, in planned and random order."""
    packs = _mix(sources)
    lengths = [_column(samples, "tokens") for samples in sources.values()]
    rng = np.random.default_rng(0)
    planned: dict[int, list[float]] = {size: [] for size in _GLOBAL_BATCHES}
    random: dict[int, list[float]] = {size: [] for size in _GLOBAL_BATCHES}
    first = 0
    for window in range(_WINDOWS):
        end = first + 1
        while packs.window_of(end)[0] == window:
            end += 1
        amounts = _amounts(packs, np.arange(first, end), lengths)
        for size in _GLOBAL_BATCHES:
            planned[size] += _differences(amounts, size)
            random[size] += _differences(rng.permutation(amounts), size)
        first = end
    return [
        Evenness(
            global_batch_size=size,
            planned=statistics.mean(planned[size]),
            planned_worst=max(planned[size]),
            random=statistics.mean(random[size]),
            random_worst=max(random[size]),
        )
        for size in _GLOBAL_BATCHES
        if planned[size]
    ]


def _amounts(
    packs: PackDataset[list[int]], positions: IntArray, lengths: list[IntArray]
) -> npt.NDArray[np.float64]:
    """Return the tokens of each source in each pack."""
    refs = packs.refs(positions)
    amounts = np.zeros((len(positions), len(lengths)))
    for number, values in enumerate(lengths):
        rows = refs.source == number
        np.add.at(amounts[:, number], refs.item[rows], values[refs.index[rows]])
    return amounts


def _differences(amounts: npt.NDArray[np.float64], size: int) -> list[float]:
    """Return how far the shares of each global batch are from those of the window."""
    shares = amounts.sum(axis=0) / amounts.sum()
    differences = []
    for start in range(0, len(amounts) - size + 1, size):
        tokens = amounts[start : start + size].sum(axis=0)
        differences.append(float(np.abs(tokens / tokens.sum() - shares).max()))
    return differences


def resumed(sources: Mapping[str, ListSource[int]], position: int) -> Resumed:
    """Return the time of the first pack of a fresh loader, and of a resumed one."""
    start = time.process_time()
    packs = _mix(sources)
    anchor = list(packs.window_of(position))
    planning = time.process_time() - start
    fresh_state = get_loader(_mix(sources), worker_config=_config()).state_dict()
    cursor = unpacked(fresh_state["cursor"], "cursor")
    del cursor["places"]
    cursor |= {"position": position, "anchors": {"": anchor}}
    state = sealed(fresh_state | {"cursor": packed(cursor)})
    if _first(sources, state) != packs.at([position])[0]:
        raise RuntimeError(f"the resumed loader does not begin with pack {position}")
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for begin, times in zip((None, state), seconds, strict=True):
            start = time.process_time()
            _first(sources, begin)
            times.append(time.process_time() - start)
    fresh, again = map(statistics.median, seconds)
    return Resumed(position=position, planning=planning, fresh=fresh, resumed=again)


def _config() -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=0)


def _first(sources: Mapping[str, ListSource[int]], state: Any) -> list[int]:
    """Return the first pack of a new loader."""
    with get_loader(_mix(sources), worker_config=_config()) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return next(iter(loader))


if __name__ == "__main__":
    main()

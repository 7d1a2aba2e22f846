"""What a drawn sample costs in one library, as the iterator of a weighted mix delivers
it.

    python -m benchmarks.programs.mixing LIBRARY SOURCES POSITION...

prints one JSON line for each position. It needs the standard library and the one it
measures.

Every source is a list of 16 small dicts, repeated for ever; weights are whole numbers,
most of them different. Nothing runs ahead in threads or processes.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import cycle, islice
from typing import Any

__all__ = ["LIMIT", "OPENERS", "Drawn", "Opener", "main"]

LIMIT = 15
"""Seconds within which a mix has to be built, and to give its first sample."""

_REPLAYED = 3
"""Seconds of CPU time that a replay may take to be made at all."""

_PER_SOURCE = 16
_STRETCHES = 5
_SAMPLES = 2**14
_SECONDS = 0.2
_CALL = 32

Item = dict[str, int]
Starts = Callable[[int], Iterator[Item]]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What samples of a mix cost from one position on, in CPU time of the process.

    `build`: seconds to describe sources and mix. `first`: seconds from there to the
    sample at `position`; estimated where a replay would take too long, and then `each`
    is None. `each`: us per later sample, median of several stretches.
    """

    library: str
    version: str
    sources: int
    position: int
    replays: bool
    build: float
    first: float
    each: float | None


@dataclass(frozen=True)
class Opener:
    """A library: its module, how its mix of lists is made, and whether it starts
    anywhere.

    `build(lists, weights)` gives a function from a position to an iterator that starts
    there, or at 0 when the library `replays`.
    """

    module: str
    build: Callable[[list[list[Item]], list[int]], Starts]
    replays: bool


class _Endless:
    """A list that is repeated for ever, as the iterable that webdataset takes."""

    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        return cycle(self._items)


def _energize(lists: list[list[Item]], weights: list[int]) -> Starts:
    energize: Any = import_module("energize")
    sources = [energize.ListSource(each, name=str(i)) for i, each in enumerate(lists)]
    blend = energize.BlendDataset(zip(sources, weights, strict=True))
    return lambda position: blend.open(state={"position": position})


def _grain(lists: list[list[Item]], weights: list[int]) -> Starts:
    grain: Any = import_module("grain")
    sources = [grain.MapDataset.source(each).repeat() for each in lists]
    mix = grain.MapDataset.mix(sources, weights)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)

    def start(position: int) -> Iterator[Item]:
        iterator: Any = iter(mix.to_iter_dataset(options))
        iterator.set_state({"next_index": position})
        return iterator  # type: ignore[no-any-return]

    return start


def _torchdata(lists: list[list[Item]], weights: list[int]) -> Starts:
    nodes: Any = import_module("torchdata.nodes")
    mix = nodes.MultiNodeWeightedSampler(
        {str(i): nodes.IterableWrapper(each) for i, each in enumerate(lists)},
        {str(i): float(weight) for i, weight in enumerate(weights)},
        stop_criteria=nodes.StopCriteria.CYCLE_FOREVER,
        rank=0,
        world_size=1,
    )

    def start(_: int) -> Iterator[Item]:
        mix.reset()
        return mix  # type: ignore[no-any-return]

    return start


def _webdataset(lists: list[list[Item]], weights: list[int]) -> Starts:
    webdataset: Any = import_module("webdataset")
    mix = webdataset.RandomMix([_Endless(each) for each in lists], weights)
    return lambda _: iter(mix)


def _hugging_face(lists: list[list[Item]], weights: list[int]) -> Starts:
    datasets: Any = import_module("datasets")
    mix = datasets.interleave_datasets(
        [
            datasets.IterableDataset.from_generator(
                cycle_of, gen_kwargs={"items": each}
            )
            for each in lists
        ],
        probabilities=[weight / sum(weights) for weight in weights],
        seed=1,
        stopping_strategy="all_exhausted",
    )
    return lambda _: iter(mix)


def cycle_of(items: list[Item]) -> Iterator[Item]:
    """The items for ever; Hugging Face names its cache after this function, so it is
    public.
    """
    yield from cycle(items)


OPENERS = {
    "energize": Opener("energize", _energize, replays=False),
    "grain": Opener("grain", _grain, replays=False),
    "torchdata": Opener("torchdata.nodes", _torchdata, replays=True),
    "webdataset": Opener("webdataset", _webdataset, replays=True),
    "datasets": Opener("datasets", _hugging_face, replays=True),
}


def main(arguments: Sequence[str]) -> None:
    """Measure what the arguments name; SIGALRM ends the process when `LIMIT` is not
    kept.
    """
    # No limit of CPU time: with one in force, Linux counts CPU time in ticks.
    library, sources, *positions = arguments
    opener = OPENERS[library]
    import_module(opener.module)
    lists = [
        [{"value": _PER_SOURCE * source + item} for item in range(_PER_SOURCE)]
        for source in range(int(sources))
    ]
    weights = [1 + source * 7919 % 97 for source in range(len(lists))]
    signal.alarm(LIMIT)
    before = time.process_time()
    starts = opener.build(lists, weights)
    build = time.process_time() - before
    each = 0.0
    for position in map(int, positions):
        skipped = position if opener.replays else 0
        first = skipped * each / 1e6
        measured = None
        if first < _REPLAYED:
            signal.alarm(LIMIT)
            first, measured = _measure(starts, position, skipped)
            each = measured
        drawn = Drawn(
            library=library,
            version=version(library),
            sources=len(lists),
            position=position,
            replays=opener.replays,
            build=build,
            first=first,
            each=measured,
        )
        print(json.dumps(asdict(drawn)), flush=True)


def _measure(starts: Starts, position: int, skipped: int) -> tuple[float, float]:
    """Seconds to the first sample, the skipped ones included, and us for each later
    one.
    """
    before = time.process_time()
    items = starts(position)
    item = next(islice(items, skipped, None))
    first = time.process_time() - before
    if not isinstance(item, dict) or not isinstance(item["value"], int):
        raise TypeError(f"samples are dicts of a whole number, got {item!r}")
    signal.alarm(0)
    return first, statistics.median(_stretch(items) for _ in range(_STRETCHES))


def _stretch(items: Iterator[Item]) -> float:
    """The next samples, until there are enough of them or time is up: us for each."""
    drawn = 0
    spent = 0.0
    before = time.process_time()
    while drawn < _SAMPLES and spent < _SECONDS:
        deque(islice(items, _CALL), maxlen=0)
        drawn += _CALL
        spent = time.process_time() - before
    return spent / drawn * 1e6


if __name__ == "__main__":
    main(sys.argv[1:])

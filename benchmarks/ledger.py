"""What the ledger costs: loading with it and without it, side by side.

    python -m benchmarks.ledger [--runs 15] [--json FILE]

Each run delivers the same batches of 32 twice in one process, without a ledger and with
one, in turns that change; the second ends with a report. Time is CPU time of the
process that trains and of its workers, their start with it. The ratio is the median
over pairs, with its quartiles. `noted` is what the ledger takes for itself: the same
batches, read before, are noted once more and looked up. Where the machine is busy it
tells more than the ratio of two runs.

Cases: photographs (JPEG of 256 x 256 decoded), captions (split into words and padded to
a tensor), the same packed to 512 words (a stream, whose packs say what they are made
of) and numbers, which cost nothing to load: the worst case.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

from energize import (
    BatchDataset,
    BlendDataset,
    Dataset,
    ListSource,
    MapDataset,
    PackingDataset,
    ShuffleDataset,
    WorkerConfig,
    get_loader,
)
from energize.core.padding import UNMARKED
from energize.report import Book, Ledger

__all__ = ["CASES", "main"]

_SOURCES = 8
_BATCH = 32
_NOTED_AT_ONCE = 64


def _blend(source: Callable[[int], Any]) -> Dataset[Any]:
    pairs = [(ShuffleDataset(source(number)), number + 1) for number in range(_SOURCES)]
    return BlendDataset(pairs)


def photographs() -> Dataset[Any]:
    """Batches of decoded photographs."""
    generator = np.random.default_rng(0)
    small = generator.integers(0, 255, (32, 8, 8, 3), dtype=np.uint8)
    texts = []
    for each in small:
        file = io.BytesIO()
        Image.fromarray(each).resize((256, 256), Image.Resampling.BICUBIC).save(
            file, "JPEG"
        )
        texts.append(file.getvalue())
    blend = _blend(
        lambda n: ListSource([texts[(n + i) % 32] for i in range(500)], name=f"p{n}")
    )
    return BatchDataset(MapDataset(blend, _decoded, seeded=False), _BATCH, torch.stack)


def _decoded(data: bytes) -> torch.Tensor:
    return torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)


def _captions(number: int) -> ListSource[str]:
    generator = np.random.default_rng(number)
    lengths = generator.integers(5, 80, 2000).tolist()
    rows = [" ".join(f"word{i % 97}" for i in range(length)) for length in lengths]
    return ListSource(rows, name=f"c{number}")


def _words(text: str) -> torch.Tensor:
    return torch.tensor([hash(word) % 50_000 for word in text.split()])


def captions() -> Dataset[Any]:
    """Batches of captions, padded."""
    return BatchDataset(
        MapDataset(_blend(_captions), _words, seeded=False), _BATCH, _padded
    )


def _padded(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def packs() -> Dataset[Any]:
    """Captions packed to 512 words; an item is one pack of about a dozen."""
    words = MapDataset(_blend(_captions), _words, seeded=False)
    return PackingDataset(words, 256, _lists, torch.cat)


def _lists(rows: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    lists: list[list[torch.Tensor]] = [[]]
    room = 512
    for row in rows:
        if len(row) > room:
            lists.append([])
            room = 512
        lists[-1].append(row)
        room -= len(row)
    return lists


def numbers() -> Dataset[Any]:
    """Batches of numbers."""
    return BatchDataset(
        _blend(lambda n: ListSource(range(1000), name=f"n{n}")), _BATCH, list
    )


CASES = {
    "photographs": photographs,
    "captions": captions,
    "packs": packs,
    "numbers": numbers,
}
_ITEMS = {"photographs": 100, "captions": 400, "packs": 800, "numbers": 1500}


def _cpu(dataset: Dataset[Any], items: int, workers: int, *, ledger: bool) -> float:
    """Seconds of CPU time for so many items, after a few that are not measured."""
    config = WorkerConfig(num_workers=workers)
    with get_loader(dataset, worker_config=config, ledger=ledger, lanes=4) as loader:
        read = iter(loader)
        for _ in range(max(8, items // 10)):
            next(read)
        began = time.process_time()
        before = _of_children()
        for _ in range(items):
            next(read)
        if ledger:
            loader.report()
        own = time.process_time() - began
    return own + _of_children() - before


def _of_children() -> float:
    """Seconds of CPU time of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _noted(dataset: Dataset[Any], items: int, workers: int) -> float:
    """Seconds of CPU time per item that the ledger takes for itself, on what a loader
    delivered.

    Where the trainer itself reads, what it has just read is noted, as in a run; what
    workers read, after all of it, so that the order of the mix has to be looked up once
    more.
    """
    book = Book(dataset, Ledger())
    at_once = items if workers else _NOTED_AT_ONCE
    seconds = 0.0
    with get_loader(dataset, lanes=4) as loader:
        read = iter(loader)
        for first in range(0, items, at_once):
            told = []
            for item in itertools.islice(read, min(at_once, items - first)):
                feed = loader._feed
                told.append((feed.made if feed is not None else 0, item))
            began = time.process_time()
            for made, item in told:
                book.wait(0.0, time.perf_counter())
                book.note(made, item, UNMARKED)
            seconds += time.process_time() - began
        began = time.process_time()
        _ = book.counted()
        return (seconds + time.process_time() - began) / items


def measure(name: str, workers: int, runs: int) -> dict[str, Any]:
    """The figures of a case."""
    dataset = CASES[name]()
    items = _ITEMS[name]
    pairs = []
    for run in range(runs):
        order = (False, True) if run % 2 else (True, False)
        found = {each: _cpu(dataset, items, workers, ledger=each) for each in order}
        pairs.append((found[False], found[True]))
    ratios = [on / off for off, on in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "case": name,
        "workers": workers,
        "us_per_item": 1e6 * statistics.median(off for off, _ in pairs) / items,
        "noted_us": 1e6
        * statistics.median(_noted(dataset, items, workers) for _ in range(5)),
        "ratio": middle,
        "quartiles": [low, high],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all cases, print a table, and write it to the JSON file if one is asked
    for.
    """
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--runs", type=int, default=15, help="pairs of each case")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(
        "| case | workers | us per item | noted, us | noted, % | with / without "
        "(quartiles) |"
    )
    print("|---|---|---|---|---|---|")
    found = []
    for name in options.cases:
        for workers in options.workers:
            row = measure(name, workers, options.runs)
            found.append(row)
            low, high = row["quartiles"]
            print(
                f"| {name} | {workers} | {row['us_per_item']:.1f} | "
                f"{row['noted_us']:.2f} | "
                f"{100 * row['noted_us'] / row['us_per_item']:.2f} | "
                f"{row['ratio']:.3f} ({low:.3f}-{high:.3f}) |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What it costs to check that bytes are those that were prepared.

    python -m benchmarks.integrity [--samples 8000] [--runs 7]

The same folder is read in three ways, which take turns: as Megatron-Energon prepares
it, without a record of its shards, so that what follows each sample is looked at; with
the record, as `energize prepare` writes it; and with a checksum of each sample
compared. Microseconds are of CPU time for a sample, the median of the runs, each way as
new descriptions in one process, in random order.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.photographs import prepared_folder
from energize import Dataset, WebdatasetSource, get_train_dataset, prepare, write_shards
from energize.preparation import prepare_checksums

__all__ = ["WAYS", "main", "measured"]

WAYS = ("no record", "record", "checksums")
_AT_ONCE = {"raw, one by one": 1, "raw, 32 at once": 32}
_BATCH = 32


def main(arguments: list[str] | None = None) -> None:
    """Measure and print a table; with `--json` write it too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as root:
        found = measured(Path(root), given.samples, given.runs)
    print(f"{'us per sample':34}" + "".join(f"{way:>14}" for way in WAYS))
    for case, ways in found.items():
        shown = (f"{ways[way]:8.2f} {ways[way] / ways['record']:.2f}" for way in WAYS)
        print(f"{case:34}" + "".join(f"{each:>14}" for each in shown))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))


def measured(root: Path, samples: int, runs: int) -> dict[str, dict[str, float]]:
    """By case and way, the microseconds that a sample takes."""
    found: dict[str, dict[str, float]] = {}
    for name, folder in (
        ("texts of 1 KB", _texts(root / "texts", samples)),
        ("photographs", prepared_folder(root, samples // 8)),
    ):
        ways = _in_all_ways(folder)
        order = np.random.default_rng(0).permutation(WebdatasetSource(folder).count)
        for case, at_once in _AT_ONCE.items():
            readers = {
                way: _raw(each, order, at_once, way) for way, each in ways.items()
            }
            found[f"{name}, {case}"] = _taking_turns(readers, len(order), runs)
        if name == "photographs":
            readers = {
                way: _decoded(each, len(order), way) for way, each in ways.items()
            }
            found[f"{name}, decoded"] = _taking_turns(readers, len(order), runs)
    return found


def _texts(folder: Path, count: int) -> Path:
    def samples() -> Iterator[dict[str, Any]]:
        for number in range(count):
            text = f"{number} lorem ipsum " * 64
            yield {
                "__key__": f"{number:08d}",
                "txt": text[:1024],
                "json": {"n": number},
            }

    write_shards(samples(), folder, samples_per_shard=1000)
    prepare(folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset")
    return folder


def _in_all_ways(folder: Path) -> dict[str, Path]:
    """A copy of the folder without a record, itself, and itself with checksums."""
    prepare_checksums(folder)
    copy = folder.with_name(f"{folder.name} without")
    shutil.copytree(folder, copy)
    (copy / ".nv-meta" / "shards.json").unlink()
    return {"no record": copy, "record": folder, "checksums": folder}


def _raw(folder: Path, order: Any, at_once: int, way: str) -> Callable[[], None]:
    source = WebdatasetSource(folder, checksums=way == "checksums")

    def read() -> None:
        for first in range(0, len(order), at_once):
            source.read(order[first : first + at_once])

    return read


def _decoded(folder: Path, count: int, way: str) -> Callable[[], None]:
    checksums = way == "checksums"
    dataset: Dataset[Any] = get_train_dataset(
        folder, batch_size=_BATCH, checksums=checksums
    )

    def read() -> None:
        batches = iter(dataset)
        for _ in range(count // _BATCH):
            next(batches)

    return read


def _taking_turns(
    readers: dict[str, Callable[[], None]], samples: int, runs: int
) -> dict[str, float]:
    """The median of each reader, in microseconds of CPU time for a sample."""
    seconds: dict[str, list[float]] = {way: [] for way in readers}
    for run in range(runs + 1):
        for way, read in readers.items():
            began = time.process_time()
            read()
            if run:  # the first one opens the shards and fills the page cache
                seconds[way].append(time.process_time() - began)
    return {
        way: 1e6 * statistics.median(each) / samples for way, each in seconds.items()
    }


if __name__ == "__main__":
    main()

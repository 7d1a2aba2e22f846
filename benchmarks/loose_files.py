"""Decoded batches of loose photographs with a CSV, beside Hugging Face's imagefolder,
and shards.

    python -m benchmarks.loose_files --samples 4000 --workers 2

Every measurement is a process of its own, and the three take turns. The clock starts
after an eighth of the samples; opening, which looks at all files, is told by itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.photographs import prepared_folder
from energize import WebdatasetSource, get_loader, get_train_dataset

BATCH = 32


def loose_folder(shards: Path) -> Path:
    """The photographs of a prepared folder as files with a metadata.csv, made once."""
    folder = shards.with_name(f"{shards.name}-loose")
    if not (folder / "metadata.csv").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rows = [("file_name", "text")]
        for raw in WebdatasetSource(shards).open():
            name = f"{raw['__key__']}.jpg"
            (folder / name).write_bytes(raw["jpg"])
            rows.append((name, raw["txt"].decode()))
        with (folder / "metadata.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return folder


def _own(folder: Path, workers: int) -> Iterator[int]:
    dataset: Any = get_train_dataset(folder, batch_size=BATCH)
    loader = get_loader(dataset, num_workers=workers)
    return (len(batch.image) for batch in loader)


def _imagefolder(folder: Path, workers: int) -> Iterator[int]:
    import datasets
    import torch
    from torch.utils.data import DataLoader

    def collate(rows: list[dict[str, Any]]) -> torch.Tensor:
        pixels = [np.array(row["image"].convert("RGB")) for row in rows]
        return (
            torch.stack([torch.from_numpy(each).permute(2, 0, 1) for each in pixels])
            / 255
        )

    loaded = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train")
    loader: Any = DataLoader(
        loaded,
        BATCH,
        shuffle=True,
        num_workers=workers,
        collate_fn=collate,
        drop_last=True,
    )
    while True:
        yield from map(len, loader)


KINDS = {"loose": _own, "shards": _own, "imagefolder": _imagefolder}


def measured(
    kind: str, folder: Path, workers: int, samples: int
) -> tuple[float, float]:
    """Seconds to the first batch, and samples per second after an eighth of them."""
    begun = time.perf_counter()
    batches = KINDS[kind](folder, workers)
    read = next(batches)
    first = time.perf_counter() - begun
    while read < samples // 8:
        read += next(batches)
    begun = time.perf_counter()
    read = 0
    while read < samples:
        read += next(batches)
    return first, read / (time.perf_counter() - begun)


def main() -> None:
    """Measure all kinds in turns and print medians; or one, for the process that
    does.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=KINDS)
    told = parser.parse_args()
    shards = prepared_folder(told.data, told.samples)
    folder = shards if told.only == "shards" else loose_folder(shards)
    if told.only is not None:
        print(json.dumps(measured(told.only, folder, told.workers, told.samples)))
        return
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for _ in range(told.rounds):
        for kind, each in found.items():
            command = [sys.executable, "-m", "benchmarks.loose_files", *sys.argv[1:]]
            done = subprocess.run(
                [*command, "--only", kind], check=False, capture_output=True, text=True
            )
            if done.returncode:
                print(
                    f"{kind} cannot be measured: {done.stderr.strip().splitlines()[-1]}"
                )
            else:
                each.append(json.loads(done.stdout.splitlines()[-1]))
    for kind, runs in found.items():
        if runs:
            first, rate = (median(column) for column in zip(*runs, strict=True))
            print(f"{kind}: {rate:,.0f} samples/s, the first batch after {first:.2f} s")


if __name__ == "__main__":
    main()

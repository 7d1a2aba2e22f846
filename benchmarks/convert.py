"""Loose images with a CSV made tar shards, beside webdataset's TarWriter in a loop.

    python -m benchmarks.convert --samples 100000

All take turns, each in a process of its own, on files that were read before. What the
loop writes has no index; `loop, prepared` is the loop and then `prepare`, which is what
`convert` comes to.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import webdataset
from PIL import Image

from energize import convert, prepare

PER_SHARD = 1000


def loose_images(folder: Path, samples: int) -> Path:
    """Small images with a metadata.csv, made once."""
    if not (folder / "metadata.csv").exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(0)
        kinds = []
        for _ in range(64):
            stream = io.BytesIO()
            Image.fromarray(draw.integers(0, 255, (48, 48, 3), np.uint8)).save(
                stream, "JPEG"
            )
            kinds.append(stream.getvalue())
        rows = [("file_name", "text")]
        for number in range(samples):
            name = f"{number // PER_SHARD:04d}/{number:07d}.jpg"
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(kinds[number % len(kinds)])
            rows.append((name, f"image {number}"))
        with (folder / "metadata.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return folder


def _loop(folder: Path, out: Path) -> None:
    out.mkdir()
    with (folder / "metadata.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for first in range(0, len(rows), PER_SHARD):
        with webdataset.TarWriter(str(out / f"{first // PER_SHARD:06d}.tar")) as tar:
            for row in rows[first : first + PER_SHARD]:
                data = (folder / row["file_name"]).read_bytes()
                tar.write({"__key__": row["file_name"][:-4], "jpg": data, "json": row})


def _loop_prepared(folder: Path, out: Path) -> None:
    _loop(folder, out)
    prepare(out, split_ratios={"train": 1}, sample_type="CrudeWebdataset")


KINDS: dict[str, Callable[..., Any]] = {
    "loop": _loop,
    "loop, prepared": _loop_prepared,
    "convert, 1 process": lambda folder, out: convert(folder, out, workers=1),
    "convert": convert,
}


def main() -> None:
    """Measure all kinds in turns and print medians; or one, for the process that
    does.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=KINDS)
    told = parser.parse_args()
    folder = told.data / f"small-{told.samples}"
    out = told.data / "converted"
    if told.only is not None:
        shutil.rmtree(out, ignore_errors=True)
        begun = time.perf_counter()
        KINDS[told.only](folder, out)
        print(json.dumps(time.perf_counter() - begun))
        return
    for path in loose_images(folder, told.samples).rglob("*.jpg"):
        path.read_bytes()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(told.rounds):
        for kind, each in found.items():
            command = [
                sys.executable,
                "-m",
                "benchmarks.convert",
                *sys.argv[1:],
                "--only",
                kind,
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            each.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{kind}: {each[-1]:.1f} s", file=sys.stderr, flush=True)
    whole = median(found["loop"])
    for kind, runs in found.items():
        took = median(runs)
        rate = told.samples / took
        print(
            f"{kind}: {took:.1f} s, {rate:,.0f} samples/s, {whole / took:.2f} times "
            "the loop"
        )


if __name__ == "__main__":
    main()

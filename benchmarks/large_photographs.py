"""The first batch of large photographs, and the shared memory that reading ahead takes.

    python -m benchmarks.large_photographs FOLDER BATCHES

prints one JSON line.
"""

from __future__ import annotations

import io
import json
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from rich.console import Console
from rich.table import Table
from skimage import data

from benchmarks.common.comparing import failure, run_module
from energize import (
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    prepare,
    write_shards,
)

__all__ = ["Large", "compare_large", "large_folder"]

_SIDE = 2000
_COUNT = 24
_PHOTOGRAPH = "astronaut"
_WORKERS = 2
_BATCHES = 40
_SLOW = 0.25
"""Seconds that the trainer takes for a batch, so that workers read as far ahead as they
may."""

_LOOK = 0.02
_SLOT = "/memfd:energize"


@dataclass(frozen=True, kw_only=True)
class Large:
    """What one process measured: seconds to the first batch, workers started within
    them, and to the second; bytes of the largest shared memory while `batches` were
    read slowly, and of one.
    """

    kind: str
    decoded: str
    first: float
    second: float
    shared: int
    one: int
    batches: int


def compare_large(root: Path, runs: int, console: Console) -> list[Large]:
    """Measure JPEG and PNG `runs` times each, and print the medians."""
    found: list[Large] = []
    table = Table(
        title=f"photographs of {_SIDE} x {_SIDE}, batch size 1, {_WORKERS} workers"
    )
    for heading in (
        "",
        "decoded to",
        "first batch, s",
        "second, s",
        "shared memory, MB",
    ):
        table.add_column(heading)
    for kind in ("jpg", "png") if runs else ():
        folder = large_folder(root, kind)
        for decoded in ("torchrgb8", "torchrgb"):
            some = [_measured(folder, kind, decoded) for _ in range(runs)]
            found += some
            table.add_row(
                kind,
                decoded,
                f"{statistics.median(each.first for each in some):.2f}",
                f"{statistics.median(each.second for each in some):.2f}",
                f"{max(each.shared for each in some) / 1e6:,.0f}",
            )
    if found:
        console.print(table)
    return found


def large_folder(root: Path, kind: str, side: int = _SIDE) -> Path:
    """The prepared folder of a few large photographs; made when it is not there yet."""
    folder = root / f"large-{kind}-{side}"
    if (folder / ".nv-meta" / ".info.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    write_shards(_samples(kind, side), folder)
    prepare(folder, split_ratios={"train": 1}, sample_type="CaptioningSample")
    return folder


def _samples(kind: str, side: int) -> Iterator[dict[str, Any]]:
    photograph = PIL.Image.fromarray(getattr(data, _PHOTOGRAPH)()).resize((side, side))
    pixels = np.asarray(photograph)
    for number in range(_COUNT):
        buffer = io.BytesIO()
        turned = PIL.Image.fromarray(np.roll(pixels, number * 50, axis=1))
        turned.save(buffer, "JPEG" if kind == "jpg" else "PNG")
        yield {"__key__": f"{number:03d}", kind: buffer.getvalue(), "txt": str(number)}


def _measured(folder: Path, kind: str, decoded: str) -> Large:
    done = run_module(
        sys.executable,
        "benchmarks.large_photographs",
        str(folder),
        decoded,
        str(_BATCHES),
    )
    if done.returncode:
        raise failure(done)
    return Large(kind=kind, decoded=decoded, **json.loads(done.stdout.splitlines()[-1]))


def shared_memory(processes: Sequence[str]) -> int:
    """Bytes of the slots that these processes have mapped, each slot counted once."""
    slots: dict[str, int] = {}
    for process in processes:
        try:
            lines = (Path("/proc") / process / "maps").read_text().splitlines()
        except OSError:  # it has ended meanwhile
            continue
        for line in lines:
            if _SLOT in line:
                span, _, _, _, inode, *_ = line.split()
                first, end = (int(each, 16) for each in span.split("-"))
                slots[inode] = end - first
    return sum(slots.values())


def _family() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [
        "self",
        *(pid for task in tasks for pid in (task / "children").read_text().split()),
    ]


def main(folder: str, decoded: str, batches: int) -> dict[str, Any]:
    """Read slowly, as a trainer does, and watch."""
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.decoder = SampleDecoder(image_decode=decoded)
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=_WORKERS),
        batch_size=1,
        task_encoder=encoder,
    )
    largest = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not ended.wait(_LOOK):
            largest = max(largest, shared_memory(_family()))

    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    with get_loader(dataset) as loader:
        items = iter(loader)
        one = next(items).image.nbytes
        first = time.perf_counter() - began
        next(items)
        second = time.perf_counter() - began
        for _ in range(batches):
            next(items)
            time.sleep(_SLOW)
        ended.set()
    measured = {"first": first, "second": second, "shared": largest, "one": one}
    return measured | {"batches": batches}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))

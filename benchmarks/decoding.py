"""Decoded photographs of energize beside a bare loop of the decoder.

    python -m benchmarks.decoding --rounds 9

The limit is simplejpeg in a loop over the same bytes, into tensors of the same layout,
in as many processes as energize decodes in. It reads no file and makes no sample or
batch. Rounds alternate between the limit and energize. Ratios are samples per CPU
second of all processes, by those of the limit; ratios of wall time follow.
`--torchcodec LIBRARY` adds the JPEG decoder of torchcodec's libtorchcodec_image.so.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import simplejpeg
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.photographs import prepared_folder
from benchmarks.loading import _machine
from benchmarks.programs.object_storage import photographs
from energize import (
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)

__all__ = ["main"]

_BATCH = 32
_WARM_UP = 6
"""Batches before the clock starts, more than workers have ready."""
_AHEAD = 2
"""Batches that each worker prepares while the decoder is measured."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Photographs of a size, decoded to a type of tensors, in full or reduced by 2."""

    width: int
    height: int
    image_decode: str = "torchrgb8"
    reduced: bool = False

    def __str__(self) -> str:
        """Return the name in tables."""
        scale = ", by 1/2" if self.reduced else ""
        return f"{self.width}x{self.height} {self.image_decode}{scale}"

    @property
    def min_side(self) -> int | None:
        """The argument of `SampleDecoder`."""
        return min(self.width, self.height) // 2 if self.reduced else None

    def tensor(self, data: bytes) -> torch.Tensor:
        """Decode a photograph as directly as possible."""
        pixels = simplejpeg.decode_jpeg(
            data,
            "RGB",
            min_width=self.width // 2 if self.reduced else 0,
            min_height=self.height // 2 if self.reduced else 0,
        )
        planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        if self.image_decode == "torchrgb":
            planes = np.divide(planes, 255, dtype=np.float32)
        return torch.from_numpy(planes)


CASES = tuple(
    Case(width=width, height=height, image_decode=image_decode, reduced=reduced)
    for width, height in ((256, 256), (640, 480))
    for image_decode, reduced in (
        ("torchrgb8", False),
        ("torchrgb8", True),
        ("torchrgb", False),
    )
)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds for one sample."""

    cpu: float
    wall: float


def _loop(case: Case, data: Sequence[bytes]) -> float:
    began = time.process_time()
    for jpeg in data:
        case.tensor(jpeg)
    return time.process_time() - began


def _limit(case: Case, data: Sequence[bytes], pool: Pool | None) -> Spent:
    """Measure the decoder in this process, or in those of a pool."""
    began = time.perf_counter()
    if pool is None:
        cpu = _loop(case, data)
    else:
        parts = [(case, data[part::_WORKERS]) for part in range(_WORKERS)]
        cpu = sum(pool.starmap(_loop, parts, chunksize=1))
    wall = time.perf_counter() - began
    return Spent(cpu=cpu / len(data), wall=wall / len(data))


_WORKERS = 2


def _batches(case: Case, folder: Path, workers: int) -> Iterator[Any]:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.decoder = SampleDecoder(
        image_decode=case.image_decode, min_side=case.min_side
    )
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(num_workers=workers),
        batch_size=_BATCH,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=encoder,
    )
    return iter(get_loader(dataset, prefetch_factor=_AHEAD))


def _energize(batches: Iterator[Any], samples: int) -> Spent:
    for _ in range(_WARM_UP):
        next(batches)
    processes = [os.getpid(), *(p.pid for p in multiprocessing.active_children())]
    cpu = sum(map(_cpu_of, processes))
    began = time.perf_counter()
    for _ in range(samples // _BATCH):
        next(batches)
    wall = time.perf_counter() - began
    cpu = sum(map(_cpu_of, processes)) - cpu
    done = samples // _BATCH * _BATCH
    return Spent(cpu=cpu / done, wall=wall / done)


def _cpu_of(process: int | None) -> float:
    """Return the CPU seconds of a process, by its CPU clock."""
    assert process is not None
    return time.clock_gettime(~process << 3 | 2)  # clock_getcpuclockid(3)


def _measured(
    case: Case, folder: Path, data: Sequence[bytes], rounds: int, workers: int
) -> list[tuple[Spent, Spent]]:
    """Return limit and energize of each round."""
    pool = multiprocessing.get_context("fork").Pool(workers) if workers else None
    try:
        batches = _batches(case, folder, workers)
        limit = _limit(case, data, pool)
        results = []
        for _ in range(rounds):
            own = _energize(batches, len(data))
            after = _limit(case, data, pool)
            # The machine changes its speed: compare with the mean of both neighbours.
            mean = Spent(
                cpu=(limit.cpu + after.cpu) / 2, wall=(limit.wall + after.wall) / 2
            )
            results.append((mean, own))
            limit = after
        return results
    finally:
        if pool is not None:
            pool.terminate()
            pool.join()


def _summary(rounds: list[tuple[Spent, Spent]]) -> dict[str, float]:
    """Return medians, and the ratios of the worst and best round."""
    ratios = [limit.cpu / own.cpu for limit, own in rounds]
    return {
        "limit": statistics.median(limit.cpu for limit, _ in rounds) * 1e6,
        "energize": statistics.median(own.cpu for _, own in rounds) * 1e6,
        "ratio": statistics.median(ratios),
        "worst": min(ratios),
        "best": max(ratios),
        "wall": statistics.median(limit.wall / own.wall for limit, own in rounds),
    }


def _decoders(torchcodec: str | None) -> dict[str, Callable[[bytes], Any]]:
    """Return decoders to contiguous uint8 tensors, channels first."""

    def by_pillow(data: bytes) -> Any:
        with PIL.Image.open(io.BytesIO(data)) as image:
            return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))

    simple = Case(width=0, height=0).tensor
    decoders: dict[str, Callable[[bytes], Any]] = {
        "simplejpeg": simple,
        "Pillow": by_pillow,
    }
    if torchcodec is not None:
        torch.ops.load_library(torchcodec)  # type: ignore[no-untyped-call]
        decode: Any = torch.ops.torchcodec_ns.decode_jpeg.default
        rgb = 3  # the mode
        decoders["torchcodec"] = lambda data: np.ascontiguousarray(
            decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), rgb).numpy()
        )
    return decoders


def _compared(
    decoders: dict[str, Callable[[bytes], Any]], data: Sequence[bytes], rounds: int
) -> dict[str, float]:
    """Return the CPU microseconds for a photograph of each decoder."""
    spent: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(rounds):
        for name, decode in decoders.items():
            began = time.process_time()
            for jpeg in data:
                decode(jpeg)
            spent[name].append((time.process_time() - began) / len(data) * 1e6)
    return {name: statistics.median(values) for name, values in spent.items()}


def main(argv: list[str] | None = None) -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(prog="benchmarks.decoding", description=__doc__)
    parser.add_argument("--samples", type=int, default=512, help="photographs")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of a case")
    parser.add_argument("--torchcodec", help="a library of torchcodec")
    parser.add_argument(
        "--only", action="append", help="only cases whose name contains this text"
    )
    parser.add_argument("--json", help="file for all measurements")
    parser.add_argument(
        "--data",
        default=os.path.join(tempfile.gettempdir(), "energize-benchmarks"),
        help="where the photographs are kept between runs",
    )
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    console = Console(width=max(Console().width, 120))
    console.print(", ".join(f"{name} {value}" for name, value in _machine().items()))
    decoders = _decoders(arguments.torchcodec)
    beside = Table("photographs", *decoders, title="CPU us of a decoder")
    table = Table(
        "", "limit, CPU us", "energize, CPU us", "ratio", "ratio of wall time"
    )
    results: dict[str, dict[str, float]] = {}
    for case in CASES:
        if not any(text in str(case) for text in arguments.only or [""]):
            continue
        folder = prepared_folder(
            Path(arguments.data), arguments.samples, case.width, case.height
        )
        data = [jpeg for jpeg, _ in photographs(str(folder))]
        if case.image_decode == "torchrgb8" and not case.reduced:
            compared = _compared(decoders, data, arguments.rounds)
            size = f"{case.width}x{case.height}"
            beside.add_row(size, *(f"{spent:,.0f}" for spent in compared.values()))
        for workers in (0, _WORKERS):
            rounds = _measured(case, folder, data, arguments.rounds, workers)
            name = f"{case}, {f'{workers} workers' if workers else 'in process'}"
            row = results[name] = _summary(rounds)
            ratio = f"{row['ratio']:.2f} ({row['worst']:.2f}-{row['best']:.2f})"
            spent = [f"{row[subject]:,.0f}" for subject in ("limit", "energize")]
            table.add_row(name, *spent, ratio, f"{row['wall']:.2f}")
    console.print(beside, table)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

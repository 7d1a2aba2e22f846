"""One measurement in a process of its own; run in the environment of each library.

It needs nothing but the standard library, so that it measures a peer without importing
energize.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SHARES", "Case", "Measurement", "Size", "main"]

_WARM_UP = 1 / 8
"""The part of the samples, read before the clock starts, on top of those that are
measured."""

_TICKS = 100
"""Units of CPU time per second in /proc, on every platform that Linux runs on."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is asked of every library: shuffled samples for ever, as described here.

    `folder`: a folder of photographs, or one with two of them, "0" and "1", which have
    six and four tenths of the samples; `image_decode`: what JPEG bytes become, None for
    the bytes themselves; `batch_size`: None for single samples; `samples`: how many are
    measured.
    """

    folder: str
    image_decode: str | None
    batch_size: int | None
    workers: int
    samples: int
    shuffle_buffer_size: int | None = 1000
    max_samples_per_sequence: int | None = 100

    @property
    def folders(self) -> list[str]:
        """The folders of photographs."""
        parts = [Path(self.folder) / name for name in ("0", "1")]
        return [str(part) for part in parts if part.exists()] or [self.folder]


SHARES = (0.6, 0.4)
"""The shares of two folders."""


class Size(NamedTuple):
    """How many samples an item holds, and bytes of parts or pixels."""

    samples: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one process measured.

    `startup`: seconds from the start of the process to the first item; `wall` and
    `cpu`: seconds for `samples` samples after a warm-up, `cpu` of all processes of the
    library together; `item`: what an item's image looks like.
    """

    startup: float
    wall: float
    cpu: float
    samples: int
    bytes: int
    item: str
    versions: dict[str, str]


def main(
    open_items: Callable[[Case], Iterator[Any]],
    parts_of: Callable[[Any], tuple[Any, Any]],
    packages: tuple[str, ...],
) -> None:
    """Measure the case given on the command line and print the measurement, both as
    JSON.

    `parts_of(item)` gives the image and the caption of an item, or those of a batch.
    """
    launched = float(sys.argv[1])
    case = Case(**json.loads(sys.argv[2]))
    items = open_items(case)
    image, _ = parts_of(next(items))
    startup = time.monotonic() - launched
    size_of = _size_of_sample if case.batch_size is None else _size_of_batch
    _read(items, int(case.samples * _WARM_UP), lambda item: size_of(*parts_of(item)))
    cpu = _cpu_seconds()
    wall = time.perf_counter()
    size = _read(items, case.samples, lambda item: size_of(*parts_of(item)))
    wall = time.perf_counter() - wall
    cpu = _cpu_seconds() - cpu
    measurement = Measurement(
        startup=startup,
        wall=wall,
        cpu=max(
            cpu, 1 / _TICKS
        ),  # less than a tick of the system's clock cannot be told
        samples=size.samples,
        bytes=size.bytes,
        item=_look_of(image),
        versions={name: version(name) for name in packages},
    )
    print(json.dumps(asdict(measurement)))


def _read(items: Iterator[Any], samples: int, size_of: Callable[[Any], Size]) -> Size:
    """Read at least `samples` samples."""
    count = total = 0
    while count < samples:
        more, size = size_of(next(items))
        count += more
        total += size
    return Size(count, total)


def _size_of_sample(image: Any, caption: Any) -> Size:
    return Size(1, len(image) + len(caption))


def _size_of_batch(image: Any, caption: Any) -> Size:
    size = sum(map(len, image)) if _is_raw(image) else image.nbytes
    return Size(len(caption), size)


def _is_raw(images: Any) -> bool:
    return isinstance(images, list | tuple)


def _look_of(image: Any) -> str:
    if isinstance(image, bytes):
        return "bytes"
    if _is_raw(image):
        return f"{len(image)} times bytes"
    return f"{type(image).__name__} {image.dtype} {tuple(image.shape)}"


def _cpu_seconds() -> float:
    """User and system time of this process and its living descendants."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    own = Path("/proc/self").resolve().name
    family = {int(own)}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks[pid] for pid in family) / _TICKS

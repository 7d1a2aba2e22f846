"""What a long run may not need more and more of, and whether it does."""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.leftovers import children_of

WORDS = ("samples", "loaders")
"""What is shown and may grow."""

TOLERANCES = {
    "trainer MB": 32.0,
    "workers MB": 32.0,
    "shared MB": 8.0,
    "mappings": 60.0,
    "descriptors": 3.0,
    "threads": 1.0,
    "children": 1.0,
    "files": 3.0,
    "/dev/shm": 3.0,
    "objects": 4000.0,
}
"""By how much each may have grown at the end of a run, on a line through all of it after the
warm-up: an allocator keeps some pages for later, and nothing else is kept.
"""

_PAGE = os.sysconf("SC_PAGE_SIZE")


def measured(lasting: Iterable[int]) -> dict[str, float]:
    """What this process holds now, and its workers `lasting` together."""
    gc.collect()
    mappings = Path("/proc/self/maps").read_text().splitlines()
    return {
        "trainer MB": own_memory(os.getpid()) / 1e6,
        "workers MB": sum(map(own_memory, lasting)) / 1e6,
        "shared MB": shared_memory(mappings) / 1e6,
        "mappings": len(mappings),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children_of(os.getpid())),
        "files": sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
        "/dev/shm": len(os.listdir("/dev/shm")),
        "objects": len(gc.get_objects()),
    }


def own_memory(pid: int) -> int:
    """Bytes of memory of a process that it does not share with files."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * _PAGE


def shared_memory(mappings: Iterable[str]) -> int:
    """Bytes of the nameless shared memory that is mapped, each piece counted once."""
    pieces: dict[str, int] = {}
    for line in mappings:
        if "/memfd:" in line:
            span, _, _, _, inode, *_ = line.split()
            first, end = (int(each, 16) for each in span.split("-"))
            pieces[inode] = end - first
    return sum(pieces.values())


def growth(values: Sequence[float]) -> float:
    """By how much a line through equidistant values rises from the first to the last; its slope is
    the median of those between any two of them (Theil and Sen), so that single peaks, of what
    others do on the machine, tilt nothing.
    """
    numbered = list(enumerate(values))
    slopes = [
        (b - a) / (at - before) for (before, a), (at, b) in itertools.combinations(numbered, 2)
    ]
    return statistics.median(slopes) * (len(values) - 1) if slopes else 0.0


def grown(series: Sequence[dict[str, float]]) -> dict[str, float]:
    """What rose beyond its tolerance, and by how much."""
    rises = {name: growth([each[name] for each in series]) for name in TOLERANCES}
    return {name: rise for name, rise in rises.items() if rise > TOLERANCES[name]}

"""Shared memory in which large tensors and arrays travel from a worker to the trainer.

Making shared memory costs far more than copying into it: the kernel clears every page, and both
sides map it anew. So a worker keeps its regions, and writes into one again as soon as the trainer
has let go of everything in it. The first byte of a region says whether it has: the worker sets it,
the trainer clears it, and no message is needed. A region is a file without a name (memfd), whose
descriptor travels once with the message that first uses it, so nothing can be left over, and the
size of /dev/shm is no limit.
"""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_HEADER = 64
"""Bytes before the data: the flag, and the rest of a cache line, to which data are aligned."""

_FREE_REGIONS = 16
"""How many unused regions a worker keeps, or as many as are in use."""

_MOST_WASTE = 2
"""A region this many times as large as what it shall hold is left to larger ones."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RegionBytes:
    """What travels in place of bytes: where they are."""

    region: int
    size: int


class Regions:
    """The worker's side: puts bytes into regions, made as they are needed.

    `made` are the numbers and descriptors of regions that are new to the trainer, `dropped` the
    numbers of those given up, both since they were last taken by `news`.
    """

    def __init__(self) -> None:
        self._regions: dict[int, Bytes] = {}
        self._count = 0
        self._made: list[tuple[int, int]] = []
        self._dropped: list[int] = []

    def put(self, data: Bytes) -> RegionBytes:
        """A copy of contiguous bytes in a region, which is taken until the trainer frees it."""
        number = self._free_region(len(data))
        if number is None:
            number = self._make(len(data))
        memory = self._regions[number]
        memory[0] = 1
        memory[_HEADER : _HEADER + len(data)] = data
        return RegionBytes(number, len(data))

    def _make(self, size: int) -> int:
        whole = _HEADER + _rounded(size)
        descriptor = os.memfd_create("energize", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, whole)  # an error now, not a bus error later
            memory = np.frombuffer(mmap.mmap(descriptor, whole), dtype=np.uint8)
        except BaseException:
            os.close(descriptor)
            raise
        number, self._count = self._count, self._count + 1
        self._regions[number] = memory
        self._made.append((number, descriptor))
        return number

    def news(self) -> tuple[list[int], list[int], list[int]]:
        """The numbers of new regions, their descriptors, and the numbers of those given up."""
        made, dropped = self._made, self._dropped
        self._made, self._dropped = [], []
        return [number for number, _ in made], [descriptor for _, descriptor in made], dropped

    def _free_region(self, size: int) -> int | None:
        """The smallest free region that fits. Of other free ones, too many are not kept."""
        free = [number for number, memory in self._regions.items() if not memory[0]]
        room = {number: len(self._regions[number]) - _HEADER for number in free}
        fitting = [n for n in free if size <= room[n] <= max(size, 1) * _MOST_WASTE]
        best = min(fitting, key=room.__getitem__, default=None)
        kept = max(_FREE_REGIONS, len(self._regions) - len(free))
        for number in [n for n in free if n != best][: max(0, len(free) - kept)]:
            del self._regions[number]
            self._dropped.append(number)
        return best


@dataclass(slots=True)
class ReceivedRegions:
    """The trainer's side of one worker's regions."""

    _regions: dict[int, Bytes] = field(default_factory=dict)

    def update(self, made: list[int], descriptors: list[int], dropped: list[int]) -> None:
        """Take over new regions, whose descriptors are closed, and forget those given up."""
        for number, descriptor in zip(made, descriptors, strict=True):
            try:
                memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)
            self._regions[number] = np.frombuffer(memory, dtype=np.uint8)
        for number in dropped:
            self._regions.pop(number, None)

    def view(self, sent: RegionBytes) -> Bytes:
        """The bytes; their region is freed when the last array or tensor over them is gone."""
        memory = self._regions[sent.region]
        lease = memory[_HEADER : _HEADER + sent.size]  # what is made of it keeps this very object
        weakref.finalize(lease, _free, memory, os.getpid()).atexit = False
        return lease


def _rounded(size: int) -> int:
    """At most an eighth more, so that batches of slightly different sizes share regions."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-max(size, 1) // step) * step


def _free(memory: Bytes, owner: int) -> None:
    # A process forked from the trainer has copies of its tensors, but may not free their region.
    if os.getpid() == owner:
        memory[0] = 0

"""Where a `StreamingDataset` stands: one place for a process and its DataLoader workers."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from energize.rng import derive

__all__ = ["Pass", "SharedPosition"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One iteration as all its workers see it: where it starts, and who of how many this is."""

    start: int
    worker: int
    workers: int


class SharedPosition:
    """Positions of an endless sequence cut into epochs of `size`, at which iterations start.

    A DataLoader that iterates makes iterators in all its workers, which do not know of each other;
    the first of them moves the position on, the others of the same iteration find it moved.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._begun = 0
        self._shared = _shared_array([0] * 4)

    def __getstate__(self) -> dict[str, Any]:
        """A worker that is being started shares the place; any other copy has one of its own."""
        shared = self._shared if get_spawning_popen() else list(self._shared)
        return {**self.__dict__, "_shared": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._shared, list):
            self._shared = _shared_array(self._shared)

    def begin(self) -> Pass:
        """Start an iteration, or join the one that another worker has started."""
        info = get_worker_info()
        self._begun += 1
        seed = 0 if info is None else info.seed - info.id
        token = derive("iteration", seed, self._begun) % 2**63
        with self._shared:
            if self._shared[0] != token:
                following = (self._shared[2] // self._size + 1) * self._size
                self._shared[:] = [token, self._shared[2], following, info is not None]
            start = self._shared[1]
        return Pass(start, 0, 1) if info is None else Pass(start, info.id, info.num_workers)

    def set(self, position: int) -> None:
        """Start the next iteration at `position`."""
        with self._shared:
            self._shared[:] = [0, position, position, 0]

    @property
    def start(self) -> int:
        """Where the last iteration started, or the first will."""
        return int(self._shared[1])

    @property
    def following(self) -> int:
        """Where the next iteration will start."""
        return int(self._shared[2])

    @property
    def in_workers(self) -> bool:
        """Whether the last iteration is one of DataLoader's workers."""
        return bool(self._shared[3])


def _shared_array(values: list[int]) -> Any:
    # Spawned workers can take over locks of this context only, forked ones any.
    return multiprocessing.get_context("spawn").Array("q", values)

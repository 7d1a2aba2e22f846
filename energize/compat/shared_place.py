"""Where something stands that torch's DataLoader reads: one place for a process and its workers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

from energize.errors import LoaderError

Place = tuple[int, ...]
"""A place: some whole numbers, always as many."""

_OWNERS = 64
_OWNER, _SEED, _BEGUN, _JOINED, _IN_WORKERS, _PLACES = range(6)

_NO_SEED = -1


@dataclass(frozen=True, slots=True)
class Pass:
    """One iteration as all its workers see it: where it starts, and who of how many this is.

    `given_up`: it was left before this worker came to it, and the next one has begun; nobody will
    take what the worker delivers.
    """

    start: Place
    worker: int
    workers: int
    given_up: bool = False


class SharedPlace:
    """The place at which the next iteration starts, known to a process and its DataLoader workers.

    A DataLoader that iterates makes iterators in all its workers, which do not know of each other;
    the first of them moves the place on, the others of the same iteration find it moved.

    Each process that makes DataLoaders has a place of its own. Ranks that are forked or spawned
    with one made before begin where the process that made it stood.
    """

    def __init__(self, place: Place) -> None:
        self._width = len(place)
        self._begun = 0
        self._shared = _shared_array(self._new_table(place, place))

    def _new_table(self, start: Place, following: Place) -> list[int]:
        row = [os.getpid(), _NO_SEED, 0, 0, 0, *start, *following]
        return row + [0] * len(row) * (_OWNERS - 1)

    def __getstate__(self) -> dict[str, Any]:
        """A process that is being started shares the table; any other copy has one of its own."""
        shared: Any = self._shared if get_spawning_popen() else (self.start, self.following)
        return {**self.__dict__, "_shared": shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._shared, tuple):
            self._shared = _shared_array(self._new_table(*self._shared))

    def begin(self, following: Callable[[Place], Place], at: Place | None = None) -> Pass:
        """Start an iteration, or join the one that another worker has started.

        `following(start)` is where the one after it starts. `at` is where this one starts, if not
        where the last one said. What either raises leaves the place as it is.
        """
        info = get_worker_info()
        self._begun += 1
        seed = _NO_SEED if info is None else info.seed - info.id
        with self._shared:
            row = self._row()
            begun = self._get(row, _BEGUN) if self._get(row, _SEED) == seed else 0
            # Iterations of equal seeds are told apart by their workers, who are all there by then.
            all_there = info is not None and self._get(row, _JOINED) >= info.num_workers
            failed = self._begun == begun and self._get(row, _JOINED) < 0
            if self._begun > begun or all_there or failed:
                self._put(row, _SEED, seed, self._begun, -1, info is not None)
                start = at or self._places(row)[1]
                self._put(row, _PLACES, *start, *following(start))
                self._put(row, _JOINED, 1)
            elif self._begun == begun:
                self._put(row, _JOINED, self._get(row, _JOINED) + 1)
            start = self._places(row)[0]
            given_up = self._begun < begun
        if info is None:
            return Pass(start, 0, 1)
        return Pass(start, info.id, info.num_workers, given_up)

    def set(self, place: Place) -> None:
        """Start the next iteration at `place`."""
        with self._shared:
            row = self._row()
            # A worker that is slow to join the iteration before is still known by its seed.
            self._put(row, _JOINED, 0, 0, *place, *place)

    @property
    def start(self) -> Place:
        """Where the last iteration started, or the first will."""
        with self._shared:
            return self._places(self._row())[0]

    @property
    def following(self) -> Place:
        """Where the next iteration will start."""
        with self._shared:
            return self._places(self._row())[1]

    @property
    def in_workers(self) -> bool:
        """Whether the last iteration is one of DataLoader's workers."""
        with self._shared:
            return bool(self._get(self._row(), _IN_WORKERS))

    def _row(self) -> int:
        """Where the row of this process begins in the table; a new one if it has none."""
        width = _PLACES + 2 * self._width
        rows = range(0, _OWNERS * width, width)
        owners = [self._get(row, _OWNER) for row in rows]
        me = owner()
        if me in owners:
            return rows[owners.index(me)]
        free = [number for number, pid in enumerate(owners) if number and not _runs(pid)]
        if not free:
            raise LoaderError(f"more than {_OWNERS} processes on this machine read one dataset")
        row = rows[free[0]]
        self._put(row, _OWNER, me, _NO_SEED, 0, 0, 0, *self._shared[_PLACES:width])
        return row

    def _get(self, row: int, name: int) -> int:
        return int(self._shared[row + name])

    def _put(self, row: int, name: int, *values: int) -> None:
        self._shared[row + name : row + name + len(values)] = list(map(int, values))

    def _places(self, row: int) -> tuple[Place, Place]:
        found = tuple(self._shared[row + _PLACES : row + _PLACES + 2 * self._width])
        return found[: self._width], found[self._width :]


def owner() -> int:
    """The process that iterates: in a worker of DataLoader the one that made it, else this one."""
    parent = None if get_worker_info() is None else multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def _runs(pid: int) -> bool:
    if not pid:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _shared_array(values: list[int]) -> Any:
    # Spawned workers can take over locks of this context only, forked ones any.
    return multiprocessing.get_context("spawn").Array("q", values)

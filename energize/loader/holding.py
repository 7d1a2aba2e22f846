"""What a loader holds while it reads: workers, the list of what fails, who watches."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace

from energize.core.lanes import Ranks
from energize.core.quarantine import path_for_rank
from energize.loader.ahead import ReadAhead
from energize.loader.edits import NOT_EDITED
from energize.loader.failures import FailureLog
from energize.loader.listing import ListWriter
from energize.loader.pool import WorkerPool
from energize.loader.settings import LoaderSettings
from energize.loader.watching import HereWatch
from energize.loader.worker import Task


class Holding:
    """Opened when reading begins, and again after a `close`."""

    def __init__(self, settings: LoaderSettings, workers: int) -> None:
        self._settings, self._workers = settings, workers
        self._pool: WorkerPool | None = None
        self._list: ListWriter | None = None
        self._replaced = 0
        self.watch: HereWatch | None = None

    @property
    def workers_replaced(self) -> int:
        """How many workers died or hung, and others took their places."""
        return self._replaced + (self._pool.replaced if self._pool is not None else 0)

    @property
    def lists(self) -> bool:
        """Whether what fails is being written down."""
        return self._list is not None

    def begin(self, ranks: Ranks, failures: FailureLog) -> None:
        """Begin to write down what fails, where that is wanted, and to watch what is read in this
        process; workers are watched by their pool.
        """
        path = self._settings.quarantine
        if path is not None and self._list is None:
            self._list = ListWriter(path_for_rank(os.fspath(path), ranks.rank, ranks.world_size))
            failures.keep = self._list.add
        if self.watch is None and not self._workers:
            self.watch = HereWatch(self._settings.patience)
            weakref.finalize(self, self.watch.close).atexit = False

    def pool_for(self, task: Task) -> tuple[WorkerPool, ReadAhead]:
        """The workers, started if there are none, and how much to ask of them."""
        settings, pool = self._settings, self._pool
        if pool is not None and not pool.closed and pool.task != task and _edited(pool.task, task):
            pool.edit(task)
        if pool is None or pool.closed or pool.task != task:
            self._end_pool()
            method = settings.start_method
            silence, patience = settings.silence, settings.patience
            self._pool = pool = WorkerPool(task, self._workers, method, silence, patience)
        pool.forget()
        return pool, ReadAhead(self._workers, settings.prefetch_factor, settings.prefetch_bytes)

    def forked(self) -> None:
        """In a process forked from the one that reads: what is held belongs to that."""
        self._pool = self.watch = None

    def close(self, failures: FailureLog) -> None:
        """Let go of all of it."""
        self._end_pool()
        for each in (self.watch, self._list, self._settings.cache_pool):
            if each is not None:
                each.close()
        self.watch = self._list = failures.keep = None

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._replaced += self._pool.replaced
            self._pool.close()
            self._pool = None

    def __getstate__(self) -> dict[str, object]:
        """A copy in another process holds nothing."""
        return {**self.__dict__, "_pool": None, "_list": None, "watch": None}


def _edited(before: Task, now: Task) -> bool:
    """Whether the two differ in nothing but what became of the dataset since the run began."""
    return replace(before, edits=NOT_EDITED) == replace(now, edits=NOT_EDITED)

"""The trainer's cursors over what workers read."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar, cast

from energize.cursor import Cursor, State, epoch_positions, state_field
from energize.dataset import Dataset, IndexedDataset, Int64Array
from energize.fetching import Attempt, Failed, Fetches
from energize.loader.failures import FailureLog
from energize.loader.pool import WorkerPool
from energize.loader.shipping import ContinueStream, Reply, rebuilt
from energize.topology import Lane

__all__ = ["open_in_workers"]

T = TypeVar("T")


def open_in_workers(
    dataset: Dataset[T], lane: Lane, state: State | None, pool: WorkerPool, failures: FailureLog
) -> Cursor[T]:
    """What `dataset.open(lane, state)` gives, read by the workers of `pool`.

    Any number of workers fetch the positions of an indexed dataset; a stream is read by one.
    """
    here = dataset.open(lane, state, failures.add)
    start = here.state()
    here.close()
    if not dataset.indexed:
        return _StreamCursor(pool, start, failures)
    indexed = cast("IndexedDataset[T]", dataset)
    position = state_field(start, "position", int)
    pool.begin(_chunks(epoch_positions(position, indexed.size, lane), indexed.read_ahead))
    ahead = _Ahead(indexed, pool, failures)
    return indexed.cursor(ahead, lane, position, Attempt(0, failures.add))


def _chunks(positions: range, length: int) -> Iterator[range]:
    for first in range(0, len(positions), length):
        yield positions[first : first + length]


class _Ahead(Fetches[T]):
    """An indexed dataset whose chunks have been asked of workers in the order of its cursor."""

    def __init__(self, dataset: IndexedDataset[T], pool: WorkerPool, failures: FailureLog) -> None:
        self.size = dataset.size
        self.read_ahead = dataset.read_ahead
        self._pool = pool
        self._failures = failures

    def fetch(self, positions: Int64Array, attempt: Attempt) -> list[T | Failed]:
        reply = self._pool.take()
        _report(reply, self._failures)
        if reply.error is not None:
            raise rebuilt(reply.error)
        return reply.items


class _StreamCursor(Cursor[T]):
    """A stream that a worker reads; its state comes with every item."""

    def __init__(self, pool: WorkerPool, start: State, failures: FailureLog) -> None:
        self._pool = pool
        self._state = start
        self._failures = failures
        self._reply = Reply(ticket=-1)
        self._waiting: deque[tuple[Any, State]] = deque()
        pool.begin(
            itertools.chain(
                [ContinueStream(reopen=True, state=start)], itertools.repeat(ContinueStream())
            )
        )

    def __next__(self) -> T:
        while not self._waiting:
            self._receive()
        item, self._state = self._waiting.popleft()
        return cast("T", item)

    def _receive(self) -> None:
        """The next items, or what came after the last: an error or the end."""
        if self._reply.error is not None:
            raise rebuilt(self._reply.error)
        if self._reply.end is not None:
            self._state = self._reply.end
            raise StopIteration
        self._reply = self._pool.take()
        _report(self._reply, self._failures)
        self._waiting.extend(zip(self._reply.items, self._reply.states, strict=True))

    def state(self) -> State:
        return self._state


def _report(reply: Reply, failures: FailureLog) -> None:
    for each in reply.failures:
        failures.add(each)

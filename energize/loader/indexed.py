"""Delivering an indexed dataset: positions, read here or by workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from energize.core.arrays import Int64Array
from energize.core.dataset import IndexedDataset
from energize.core.padding import marked
from energize.core.reading import Reading
from energize.core.restoring import position_key
from energize.core.stream import State
from energize.core.trace import padding, read_items
from energize.loader.ahead import ReadAhead
from energize.loader.epochs import EpochPlan
from energize.loader.failures import FailureLog
from energize.loader.pool import WorkerPool
from energize.loader.shipping import Fetch, rebuilt

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Ask = Callable[[int, int], Int64Array]
"""The positions of so many steps from a step on; fewer, or none, at the end."""

_AT_ONCE_SECONDS = 0.02
"""Items are read together in the trainer while that takes no longer."""


class Reader(Protocol[T_co]):
    """Delivers the items of the steps one after another."""

    def __call__(self, ask: Ask) -> Iterator[T_co]: ...


class IndexedFeed(Generic[T]):
    """The steps of `plan`, over an indexed dataset.

    `loop` is how many steps a loop has, of which `step` are made already; None where a loop ends
    with the epoch.
    """

    may_be_over = False

    def __init__(
        self,
        dataset: IndexedDataset[T],
        plan: EpochPlan,
        reader: Reader[T],
        *,
        pads: bool,
        loop: int | None,
        step: int,
    ) -> None:
        self._dataset, self._plan, self._pads = dataset, plan, pads
        self._loop, self._step = loop, step
        self._done = 0
        self._coming: deque[tuple[int, bool]] = deque()
        self._position = 0
        self._items = reader(self._positions)
        self._watch = dataset._watcher(plan.lane)
        self.padding = False

    def _positions(self, first: int, count: int) -> Int64Array:
        at, missing = self._plan.positions(first, count)
        pads = padding(self._dataset, at) | (missing & self._pads)
        self._coming.extend(zip(at.tolist(), pads.tolist(), strict=True))
        return at

    @property
    def loop_ended(self) -> bool:
        """Whether the loop has no item any more."""
        if self._loop is not None:
            return self._step >= self._loop
        return self._done >= self._plan.steps

    def begin_loop(self) -> bool:
        """Get ready for another loop; False when the epoch has ended, and it begins elsewhere."""
        if self._loop is None:
            return self._done < self._plan.steps
        self._step %= self._loop
        return True

    def __next__(self) -> T:
        if self._loop is not None and self._step >= self._loop:
            raise StopIteration
        item = next(self._items)
        self._position, self.padding = self._coming.popleft()
        if self._watch is not None:
            self._watch(self._position)
        self._done += 1
        self._step += 1
        return marked(item) if self.padding else item

    @property
    def made(self) -> int:
        """What the last item is made of: its position."""
        return self._position

    @property
    def restore_key(self) -> tuple[Any, ...]:
        """What the last item can be restored by."""
        return position_key(self._position)

    def state(self) -> State:
        """The state after the last item."""
        state = self._dataset._state_at(self._plan.position_after(self._done))
        return state if self._loop is None else state | {"step": self._step % self._loop}

    @property
    def reached(self) -> State:
        """The state, which says no more than how far it has come."""
        return self.state()

    def close(self) -> None:
        """Let go of what has been read ahead."""
        self._items = iter(())


def in_process(dataset: IndexedDataset[Any], reading: Reading) -> Reader[Any]:
    """Reads in this process: one item at first, then as many together as come quickly."""

    def read(ask: Ask) -> Iterator[Any]:
        first, count = 0, 1
        while True:
            positions = ask(first, count)
            if not len(positions):
                return
            began = time.perf_counter()
            items = read_items(dataset, positions, reading)
            if time.perf_counter() - began < _AT_ONCE_SECONDS:
                count = min(2 * count, dataset._read_ahead)
            first += len(positions)
            yield from items

    return read


def in_workers(pool: WorkerPool, ahead: ReadAhead, failures: FailureLog) -> Reader[Any]:
    """Reads by worker processes, ahead of what is delivered."""

    def read(ask: Ask) -> Iterator[Any]:
        asked: deque[int] = deque()
        first = outstanding = 0

        def send() -> None:
            nonlocal first, outstanding
            while count := ahead.room(outstanding):
                positions = ask(first, count)
                if not len(positions):
                    return
                request = Fetch(tuple(positions.tolist()))
                asked.append(pool.ask(request))
                first, outstanding = first + len(request), outstanding + len(request)

        send()
        while asked:
            ticket = asked.popleft()
            reply = pool.take(ticket)
            ahead.learn(reply)
            failures.add_all(reply.failures, reply.left_out)
            send()
            if reply.error is not None:
                raise rebuilt(reply.error)
            for item in reply.items:
                outstanding -= 1
                send()
                yield item

    return read

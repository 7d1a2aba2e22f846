"""The lanes of a stream that this process hosts, read here or by workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from energize.core.dataset import Dataset
from energize.core.lanes import Lane
from energize.core.reading import Reading
from energize.core.stream import Cursor, State
from energize.ledger.places import NOTHING, Made, flat
from energize.loader.ahead import ReadAhead
from energize.loader.failures import FailureLog
from energize.loader.pool import WorkerPool
from energize.loader.shipping import Reply, ShippedError, StreamOn, rebuilt

T = TypeVar("T")


class HostedLanes(ABC, Generic[T]):
    """Lanes, each read from its front to the end of the epoch."""

    made: Made = NOTHING
    """What the last item that was taken is made of."""

    tells_states: ClassVar[bool] = False
    """Whether states are known without asking."""

    @abstractmethod
    def has(self, lane: int) -> bool:
        """Whether the lane has another item in this epoch; reads it if that has to be known."""

    @abstractmethod
    def take(self, lane: int) -> T:
        """The lane's next item; `StopIteration` at the end of its epoch."""

    @abstractmethod
    def state(self, lane: int) -> State | None:
        """The lane's state after what was taken; None before its first item."""

    def close(self) -> None:
        """Let go of what the lanes hold."""


@dataclass(slots=True)
class _Peeked:
    """An item that was read, and not taken; and the state before it."""

    item: Any
    before: State
    made: Made


class HereLanes(HostedLanes[T]):
    """Read in this process."""

    def __init__(
        self,
        dataset: Dataset[T],
        states: Mapping[int, State | None],
        count: int,
        reading: Reading,
        *,
        endless: bool,
    ) -> None:
        self._cursors: dict[int, Cursor[T]] = {
            lane: dataset._open_lane(Lane(lane, count), state, reading, endless=endless)
            for lane, state in states.items()
        }
        self._peeked: dict[int, _Peeked] = {}

    def has(self, lane: int) -> bool:
        if lane not in self._peeked:
            before = self._cursors[lane].state()
            try:
                item = next(self._cursors[lane])
                self._peeked[lane] = _Peeked(item, before, flat(self._cursors[lane].origin))
            except StopIteration:
                return False
        return True

    def take(self, lane: int) -> T:
        peeked = self._peeked.pop(lane, None)
        if peeked is not None:
            self.made = peeked.made
            taken: T = peeked.item
            return taken
        item = next(self._cursors[lane])
        self.made = flat(self._cursors[lane].origin)
        return item

    def state(self, lane: int) -> State | None:
        peeked = self._peeked.get(lane)
        return self._cursors[lane].state() if peeked is None else peeked.before

    def close(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()


@dataclass(slots=True)
class _Lane:
    """What is known of a lane.

    `taken` is its state after what was taken, `read` the one after what came; `waiting` what lies
    between, each item with the state after it and what it is made of. `end` is the state after the
    last item, once that came, and `error` what came instead of the next one. `asked` is what the
    last request asked for.
    """

    taken: State | None
    read: State | None
    waiting: deque[tuple[Any, State, Made]] = field(default_factory=deque)
    came: int = 0
    end: State | None = None
    error: ShippedError | None = None
    ticket: int | None = None
    asked: int = 0

    @property
    def open(self) -> bool:
        """Whether there may be more to ask for."""
        return self.end is None and self.error is None


class WorkerLanes(HostedLanes[T]):
    """Read by workers, each of which has some of the lanes for itself; `order` is that in which
    they are taken in turn.
    """

    tells_states = True

    def __init__(
        self,
        states: Mapping[int, State | None],
        order: Sequence[int],
        pool: WorkerPool,
        ahead: ReadAhead,
        failures: FailureLog,
    ) -> None:
        self._pool, self._ahead, self._failures = pool, ahead, failures
        self._lanes = {lane: _Lane(states[lane], states[lane]) for lane in order}
        self._worker = {lane: turn % pool.workers for turn, lane in enumerate(order)}
        self._outstanding = 0
        self._ask()

    def has(self, lane: int) -> bool:
        known = self._lanes[lane]
        while not known.waiting:
            if known.error is not None:
                raise rebuilt(known.error)
            if known.end is not None:
                known.taken = known.end
                return False
            if known.ticket is None:
                self._ask_for(lane, 1)
            self._note(known, self._pool.take(known.ticket or 0))
            self._ask()
        return True

    def take(self, lane: int) -> T:
        known = self._lanes[lane]
        if not self.has(lane):
            raise StopIteration
        item: T
        item, known.taken, self.made = known.waiting.popleft()
        self._outstanding -= 1
        self._ask()
        return item

    def state(self, lane: int) -> State | None:
        return self._lanes[lane].taken

    def _note(self, known: _Lane, reply: Reply) -> None:
        """Take in the reply to the last request of a lane."""
        known.ticket = None
        known.waiting.extend(zip(reply.items, reply.states, reply.made, strict=False))
        known.came += len(reply.states)
        known.read = reply.states[-1] if reply.states else known.read
        known.end, known.error = reply.end, reply.error
        self._outstanding += len(reply.states) - known.asked
        self._ahead.learn(reply)
        self._failures.add_all(reply.failures, reply.left_out)

    def _ask(self) -> None:
        """Keep the workers busy with the lanes that have the least waiting."""
        self._pool.look()
        for known in self._lanes.values():
            if known.ticket is not None and self._pool.has(known.ticket):
                self._note(known, self._pool.take(known.ticket))
        while items := self._ahead.room(self._outstanding):
            idle = [n for n, each in self._lanes.items() if each.ticket is None and each.open]
            if not idle:
                return
            self._ask_for(min(idle, key=lambda lane: len(self._lanes[lane].waiting)), items)

    def _ask_for(self, lane: int, items: int) -> None:
        known = self._lanes[lane]
        request = StreamOn(lane, known.came, known.read, items)
        known.asked, known.ticket = items, self._pool.ask(request, self._worker[lane])
        self._outstanding += items

"""Readers of the lanes of a rank: in this process, or by its workers."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from energize.core.ignored import said_once
from energize.core.node import INFINITE
from energize.core.stream import (
    State,
)
from energize.core.trace import READY, ReadContext
from energize.loader.failures import FailureLog
from energize.loader.pool import WorkerPool
from energize.loader.shipping import (
    GarbledError,
    LaneSet,
    Read,
    Reply,
    ShippedError,
)
from energize.report.levels import NOTHING, Made, flat

T = TypeVar("T")

_AT_ONCE_SECONDS = 0.02
"""Seconds after which no further item of a stream is read ahead in this process."""


class HereLanes(Generic[T]):
    """Lanes that are read in this process; of an indexed dataset, `left` items of each.

    A stream is read ahead while that is quick, so that what is done once for a read,
    checking for random draws above all, is shared by several items.

    Attributes:
        made: What the last item that was taken is made of, of a stream.
    """

    def __init__(
        self,
        dataset: Any,
        lanes: LaneSet,
        states: Mapping[int, State | None],
        reading: ReadContext,
        left: int = INFINITE,
    ) -> None:
        self._cursors = {
            lane: lanes.open(dataset, lane, 0, state, reading)
            for lane, state in states.items()
        }
        self._is_stream = lanes.plan is None
        if not self._is_stream:
            for cursor in self._cursors.values():
                cursor.left = left
        self._states = dict(states)
        self._at_once = dict.fromkeys(states, 1)
        self._waiting: defaultdict[int, deque[tuple[T, State, Made]]] = defaultdict(
            deque
        )
        self.made: Made = NOTHING

    def has(self, lane: int, after: int = 0) -> bool:
        """Return whether the lane has another item after so many; read on if that is
        not known.
        """
        waiting = self._waiting[lane]
        while len(waiting) <= after:
            if not self._read(lane):
                if not waiting:
                    self._states[lane] = self._cursors[
                        lane
                    ].state()  # that of the next epoch
                return False
        return True

    def _read(self, lane: int) -> bool:
        """Read some items of a stream; return False at the end of its epoch."""
        many = self._at_once[lane]
        began = time.monotonic()
        try:
            found = self._cursors[lane].several(many, _AT_ONCE_SECONDS)
        except StopIteration:
            return False
        if time.monotonic() - began < _AT_ONCE_SECONDS:
            self._at_once[lane] = min(2 * many, READY)
        for item, state, origin in found:
            self._waiting[lane].append((item, state, flat(origin)))
        return True

    def take(self, lane: int) -> T:
        """Return the lane's next item; raise `StopIteration` at the end of its
        epoch.
        """
        if not self._is_stream:
            return cast("T", next(self._cursors[lane]))
        if not self.has(lane):
            raise StopIteration
        item, self._states[lane], self.made = self._waiting[lane].popleft()
        return item

    def state(self, lane: int) -> State | None:
        """Return the state of a lane of a stream after what was taken; None before its
        first item.
        """
        return self._states[lane]

    def close(self) -> None:
        """Let go of what the lanes hold."""
        self._waiting.clear()
        for cursor in self._cursors.values():
            cursor.close()


_MEMORY = 0.7
"""How much of what was known of sizes is kept with each reply."""


class ReadAhead:
    """How many items workers may have ready or in work: `items` for each worker, and no
    more bytes than `size` together, as far as those that came before tell. Each has one
    to do in any case.
    """

    def __init__(self, workers: int, items: int | None, size: int) -> None:
        self._workers = workers
        self._size = size
        self._items = (items or READY) * workers
        self._bytes = 0.0
        self.most = workers
        """The number of items."""

    def learn(self, reply: Reply) -> None:
        """Take note of what the items of a reply took."""
        if reply.items:
            size = reply.size / len(reply.items)
            # The largest item of a mix decides, and is forgotten only slowly.
            self._bytes = max(size, _MEMORY * self._bytes + (1 - _MEMORY) * size)
            room = int(self._size / max(self._bytes, 1.0))
            self.most = max(self._workers, min(self._items, room))


@dataclass(slots=True)
class _Lane:
    """What is known of a lane.

    `taken` is its state after what was taken, `read` the one after what came; `waiting`
    what lies between, each item with the state after it and what it is made of. `came`
    counts what came, `owed` what else was asked for, and `left` what may still be.
    `end` is the state after the last item, once that came, and `error` what came
    instead of the next one.
    """

    worker: int
    taken: State | None
    read: State | None
    left: int
    waiting: deque[tuple[Any, State | None, Made]] = field(default_factory=deque)
    came: int = 0
    owed: int = 0
    end: State | None = None
    error: ShippedError | None = None


class WorkerLanes(Generic[T]):
    """Lanes that are read by workers, ahead of what is taken, each by one of them. They
    keep their pool, and not the other way round: workers end with the last reference to
    a loader.

    `states` has their states, in the order in which the lanes are taken in turn. Of an
    indexed dataset `left` items are read in each.
    """

    def __init__(
        self,
        pool: WorkerPool,
        ahead: ReadAhead,
        lanes: LaneSet,
        states: Mapping[int, State | None],
        failures: FailureLog,
        *,
        left: Sequence[int],
    ) -> None:
        self._pool = pool
        self._ahead = ahead
        self._set = lanes
        self._failures = failures
        self.made: Made = NOTHING
        self._lanes = {
            lane: _Lane(
                turn % pool.workers, state, state, left[turn] if left else INFINITE
            )
            for turn, (lane, state) in enumerate(states.items())
        }
        self._outstanding = 0
        pool.lanes = weakref.ref(self)
        pool.run = pool.run + 1
        self._ask()

    def has(self, lane: int, after: int = 0) -> bool:
        known = self._lanes[lane]
        while len(known.waiting) <= after:
            if known.error is not None:
                raise known.error.rebuilt()
            if known.end is not None:
                if not known.waiting:
                    known.taken = known.end
                return False
            if not known.owed:
                self._ask_for(lane, known, 1)
            self._pool.wait()
            self._ask()
        return True

    def take(self, lane: int) -> T:
        if not self.has(lane):
            raise StopIteration
        known = self._lanes[lane]
        item: T
        item, known.taken, self.made = known.waiting.popleft()
        self._lanes[lane] = self._lanes.pop(
            lane
        )  # its turn comes again after all others
        self._outstanding -= 1
        self._ask()
        return item

    def state(self, lane: int) -> State | None:
        return self._lanes[lane].taken

    def close(self) -> None:
        if self._pool.lanes() is self:
            self._pool.lanes = lambda: None

    def owed_by(self, worker: int) -> list[Read]:
        """Return what a worker was asked for and has not given."""
        return [
            self._request(lane, known, known.owed)
            for lane, known in self._lanes.items()
            if known.worker == worker and known.owed
        ]

    def note(self, reply: Reply) -> None:
        """Take in a reply."""
        known = self._lanes.get(-1 if reply.lane is None else reply.lane)
        count = len(reply.items)
        if known is None or count > known.owed:
            raise GarbledError(f"an answer for lane {reply.lane}, which nobody asked")
        made = reply.made or [NOTHING] * count
        states: Sequence[State | None] = reply.states or [None] * count
        known.waiting.extend(zip(reply.items, states, made, strict=True))
        known.read = states[-1] if states else known.read
        known.end = reply.end
        known.error = reply.error
        over = reply.end is not None or reply.error is not None
        known.came = known.came + count
        known.owed = 0 if over else known.owed - count
        self._outstanding = sum(
            len(each.waiting) + each.owed for each in self._lanes.values()
        )
        self._ahead.learn(reply)
        self.note_failures(reply)

    def note_failures(self, reply: Reply) -> None:
        """Count what failed in a reply, also in one whose items are no longer
        wanted.
        """
        self._failures.add_all(reply.failures, reply.left_out)
        for line in reply.lines:
            said_once(*line)

    def _ask(self) -> None:
        """Keep the workers busy, first with the lanes that are taken next."""
        if 4 * self._outstanding > 3 * self._ahead.most:
            return
        self._pool.look()
        most = self._ahead.most
        idle = {
            lane: known
            for lane, known in self._lanes.items()
            if known.left and known.end is None and known.error is None
        }
        share = max(1, most // max(1, len(idle)))
        for lane, known in idle.items():
            has = len(known.waiting) + known.owed
            items = min(share - has, most - self._outstanding, known.left)
            if items > 0 and 2 * has <= share:
                self._ask_for(lane, known, items)

    def _ask_for(self, lane: int, known: _Lane, items: int) -> None:
        request = self._request(lane, known, items)
        known.owed = known.owed + items
        known.left = known.left - items
        self._outstanding += items
        self._pool.ask(known.worker, request)

    def _request(self, lane: int, known: _Lane, items: int) -> Read:
        return Read(self._pool.run, self._set, lane, known.came, known.read, items)


Lanes = HereLanes[T] | WorkerLanes[T]
"""The lanes of a rank, each read from its front to the end of the epoch."""

"""Readers of the lanes of a rank: in this process, or by its workers.

Both read ahead into a queue. A feed takes the items of the lanes in turn, whoever reads
them.
"""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeVar

from energize.core import tree
from energize.core.ignored import log_once
from energize.core.node import Origin
from energize.core.reader import (
    NOTHING,
    QUICK_SECONDS,
    DatasetReader,
    ItemOrigin,
    Reader,
)
from energize.core.stream import State
from energize.core.trace import (
    READY,
    ReadContext,
)
from energize.loader.failures import FailureLog
from energize.loader.pool import WorkerPool
from energize.loader.shipping import (
    GarbledError,
    LaneSet,
    Read,
    Reply,
    ShippedError,
)

T = TypeVar("T")

_SIZE_DECAY = 0.7
"""Share of the former estimate of an item's bytes that is kept with each reply."""


QueuedItem = tuple[Any, State | None, ItemOrigin]
"""An item that was read ahead, the state of the lane after it (None for an indexed
dataset), and what the item is made of."""


class QueuedReader(Reader[T]):
    """Reads a lane ahead into a queue.

    Args:
        state: The state of the lane, None for its beginning or for an indexed dataset.
        queue: The queue.

    Attributes:
        made: The origin of the last item.
    """

    def __init__(self, state: State | None, queue: deque[QueuedItem]) -> None:
        self._state = state
        self._queue = queue
        self.made: ItemOrigin = NOTHING

    @abstractmethod
    def _fill(self) -> bool:
        """Read at least one further item into the queue.

        Return False at the end of the epoch. If the queue is empty, the state of the
        reader is then that of the next epoch.
        """

    def has_next(self, count: int = 0) -> bool:
        """Return whether another item follows the next `count` items.

        Reads on until this is known.
        """
        while len(self._queue) <= count:
            if not self._fill():
                return False
        return True

    def __next__(self) -> T:
        if not self._queue and not self._fill():
            raise StopIteration
        item: T
        item, self._state, self.made = self._queue.popleft()
        return item

    def state(self) -> State | None:
        """Return the state after the last item; None before the first item, and for an
        indexed dataset.
        """
        return self._state

    @property
    def origin(self) -> tuple[Origin, ...]:
        numbers = self.made
        if isinstance(numbers, int):
            return (Origin(0, numbers),)
        return tuple(Origin(*numbers[n : n + 4]) for n in range(0, len(numbers), 4))


class LocalReader(QueuedReader[T]):
    """Reads a lane in this process.

    Items are read several at once while that is quick, so that the costs of a read,
    above all the check for random draws, are shared.

    Args:
        reader: The reader of the lane.
        state: The state in which it was opened.
    """

    def __init__(self, reader: DatasetReader[T], state: State | None) -> None:
        super().__init__(state, deque())
        self._reader = reader
        self._at_once = 1

    def _fill(self) -> bool:
        many = self._at_once
        began = time.monotonic()
        try:
            items, states, origins = self._reader.several(many, QUICK_SECONDS)
        except StopIteration:
            if not self._queue:
                self._state = self._reader.state()
            return False
        if time.monotonic() - began < QUICK_SECONDS:
            self._at_once = min(2 * many, self._reader.most_at_once)
        self._queue.extend(zip(items, states or repeat(None), origins, strict=False))
        return True

    def close(self) -> None:
        """Release what was read ahead."""
        self._queue.clear()
        self._reader.close()


def local_readers(
    dataset: Any,
    lanes: LaneSet,
    states: Mapping[int, State | None],
    context: ReadContext,
) -> dict[int, QueuedReader[Any]]:
    """Open lanes in this process.

    Args:
        dataset: The dataset, to which the edits of `lanes` were applied.
        lanes: All lanes of the dataset.
        states: The state of each lane to open.
        context: How samples are read.

    Returns:
        A reader for each lane, in the order of `states`.
    """
    return {
        lane: LocalReader(lanes.open(dataset, lane, 0, state, context), state)
        for lane, state in states.items()
    }


class ReadAhead:
    """Limits how many items workers have ready or in work.

    There are `items` for each worker, and together no more bytes than `size`, as far as
    earlier items show. Each worker has one item in work in any case.
    """

    def __init__(self, workers: int, items: int | None, size: int) -> None:
        self._workers = workers
        self._size = size
        self._items = (items or READY) * workers
        self._bytes = 0.0
        self.most = workers
        """The number of items."""

    def learn(self, reply: Reply) -> None:
        """Take note of the size of the items of a reply."""
        if reply.items:
            size = reply.notes.size / len(reply.items)
            # The largest item of a mix decides, and is forgotten only slowly.
            mean = _SIZE_DECAY * self._bytes + (1 - _SIZE_DECAY) * size
            self._bytes = max(size, mean)
            room = int(self._size / max(self._bytes, 1.0))
            self.most = max(self._workers, min(self._items, room))


@dataclass(slots=True)
class _WorkerLane:
    """A lane that a worker reads.

    Attributes:
        worker: The number of the worker.
        read: The state after the last item that arrived.
        left: Number of items that may still be requested.
        queue: Items that arrived and were not taken.
        arrived: Number of items that arrived.
        owed: Number of items that were requested and did not arrive.
        end: The state after the last item of the epoch, once that arrived.
        error: The error that arrived instead of the next item.
    """

    worker: int
    read: State | None
    left: int
    queue: deque[QueuedItem] = field(default_factory=deque)
    arrived: int = 0
    owed: int = 0
    end: State | None = None
    error: ShippedError | None = None


class WorkerRequests:
    """Keeps the workers of a pool busy with the lanes of a rank.

    Each lane is read by one worker. The requests hold the pool, not the other way
    round: workers end with the last reference to a loader.

    Args:
        pool: The workers.
        ahead: How many items are requested ahead.
        lanes: All lanes of the dataset.
        states: The states of the lanes of this rank, in the order in which they are
            taken.
        failures: Counts failed samples.
        dataset: The dataset, which learns the anchors that workers find.
    """

    def __init__(
        self,
        pool: WorkerPool,
        ahead: ReadAhead,
        lanes: LaneSet,
        states: Mapping[int, State | None],
        failures: FailureLog,
        dataset: Any,
    ) -> None:
        self._pool = pool
        self._ahead = ahead
        self._set = lanes
        self._failures = failures
        self._dataset = dataset
        self.lanes = {
            lane: _WorkerLane(turn % pool.workers, state, lanes.turns(lane))
            for turn, (lane, state) in enumerate(states.items())
        }
        # The anchors after the last item of each lane that arrived.
        self._anchored = dict.fromkeys(states, lanes.anchored)
        self._outstanding = 0
        pool.lanes = weakref.ref(self)
        pool.run = pool.run + 1
        self._request_ahead()

    def wait_for(self, lane: int) -> None:
        """Request a further item of a lane, and wait for some reply."""
        if not self.lanes[lane].owed:
            self._request(lane, 1)
        self._pool.wait()
        self._request_ahead()

    def note_consumed(self, lane: int) -> None:
        """Take note that an item of a lane was taken."""
        # The turn of the lane comes again after all others.
        self.lanes[lane] = self.lanes.pop(lane)
        self._outstanding -= 1
        self._request_ahead()

    def end(self) -> None:
        """Receive no further replies."""
        if self._pool.lanes() is self:
            self._pool.lanes = lambda: None

    def owed_by(self, worker: int) -> list[Read]:
        """Return the requests to a worker without a reply."""
        return [
            self._next_read(number, lane.owed)
            for number, lane in self.lanes.items()
            if lane.worker == worker and lane.owed
        ]

    def note(self, reply: Reply) -> None:
        """Take in a reply."""
        number = -1 if reply.lane is None else reply.lane
        lane = self.lanes.get(number)
        count = len(reply.items)
        if lane is None or count > lane.owed:
            raise GarbledError(
                f"a reply for lane {reply.lane}, which was not requested"
            )
        states = reply.states
        lane.queue.extend(
            zip(reply.items, states or repeat(None), reply.origins, strict=False)
        )
        lane.read = states[-1] if states else lane.read
        anchored = reply.notes.anchored
        if anchored is not None:
            self._anchored[number] = anchored
            tree.learn_anchors(self._dataset, anchored)
        lane.end = reply.end
        lane.error = reply.error
        over = reply.end is not None or reply.error is not None
        lane.arrived += count
        lane.owed = 0 if over else lane.owed - count
        self._outstanding = sum(
            len(lane.queue) + lane.owed for lane in self.lanes.values()
        )
        self._ahead.learn(reply)
        self.note_failures(reply)

    def note_failures(self, reply: Reply) -> None:
        """Count the failures of a reply, even if its items are not used."""
        self._failures.add_all(reply.notes.failures, reply.notes.left_out)
        for line in reply.notes.lines:
            log_once(*line)

    def _request_ahead(self) -> None:
        """Keep the workers busy, first with the lanes that are taken next."""
        if 4 * self._outstanding > 3 * self._ahead.most:
            return
        self._pool.look()
        most = self._ahead.most
        idle = {
            number: lane
            for number, lane in self.lanes.items()
            if lane.left and lane.end is None and lane.error is None
        }
        share = max(1, most // max(1, len(idle)))
        for number, lane in idle.items():
            ready = len(lane.queue) + lane.owed
            items = min(share - ready, most - self._outstanding, lane.left)
            if items > 0 and 2 * ready <= share:
                self._request(number, items)

    def _request(self, number: int, items: int) -> None:
        lane = self.lanes[number]
        request = self._next_read(number, items)
        lane.owed += items
        lane.left -= items
        self._outstanding += items
        self._pool.request(lane.worker, request)

    def _next_read(self, number: int, items: int) -> Read:
        lane = self.lanes[number]
        return Read(
            self._pool.run,
            self._set,
            number,
            lane.arrived,
            lane.read,
            items,
            self._anchored[number],
        )


class WorkerReader(QueuedReader[T]):
    """Reads a lane by a worker process.

    Args:
        requests: The requests of all lanes of the rank.
        lane: The number of the lane.
    """

    def __init__(self, requests: WorkerRequests, lane: int) -> None:
        self._requests = requests
        self._number = lane
        self._lane = requests.lanes[lane]
        super().__init__(self._lane.read, self._lane.queue)

    def _fill(self) -> bool:
        lane = self._lane
        waiting = len(lane.queue)
        while len(lane.queue) <= waiting:
            if lane.error is not None:
                raise lane.error.rebuilt()
            if lane.end is not None:
                if not lane.queue:
                    self._state = lane.end
                return False
            self._requests.wait_for(self._number)
        return True

    def __next__(self) -> T:
        item = super().__next__()
        self._requests.note_consumed(self._number)
        return item

    def close(self) -> None:
        """Receive no further items."""
        self._requests.end()

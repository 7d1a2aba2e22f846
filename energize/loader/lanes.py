"""Lanes as they are read: by this process, or for it by a worker.

A rank reads lanes. Those of a stream are parts that are fixed for the run. Of an indexed dataset
a rank's items are dealt out to one lane for each worker, so both are read alike: each lane by one
reader, from front to back, and the items of all lanes are taken in turn.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.blends import NOT_EDITED, Edits
from energize.core.dataset import IndexedDataset
from energize.core.lanes import Lane
from energize.core.stream import INFINITE, State
from energize.core.trace import Ahead, Reading, Trace
from energize.report.levels import NOTHING, Made, flat

T = TypeVar("T")

AnyPosition = TypeVar("AnyPosition", int, Int64Array)

_AT_ONCE_SECONDS = 0.02
"""Items are read together while that takes no longer."""


class Span(NamedTuple):
    """What a rank delivers of an indexed dataset: items from `start` on, in an epoch from `first`
    to before `end`, in so many `steps`, `INFINITE` in an epoch without end.

    In step s it delivers item start + rank + s * world_size. From `end` on an item is missing, and
    a copy takes its place: that at position p of an epoch of n is item p mod n.
    """

    start: int
    first: int
    end: int
    steps: int = INFINITE

    def read_at(self, at: AnyPosition) -> AnyPosition:
        """Return which position a position is a copy of, itself before `end`."""
        return self.first + (at - self.first) % (self.end - self.first)


@dataclass(frozen=True, slots=True)
class LaneSet:
    """What lanes there are: `count` of them, of an epoch of the dataset with `edits`, which never
    ends if it is `endless`; of an indexed dataset those of a `span`.
    """

    count: int
    edits: Edits = NOT_EDITED
    endless: bool = False
    span: Span | None = None

    def open(self, dataset: Any, lane: int, at: int, state: State | None, reading: Reading) -> Any:
        """Return what reads a lane of `dataset`, to which the edits were applied."""
        if self.span is None:
            part = Lane(lane, self.count)
            return dataset._open_lane(part, state, reading, endless=self.endless)
        return PositionLane(dataset, self.span, Lane(lane, self.count), at, reading)


class PositionLane(Generic[T]):
    """A lane of an indexed dataset, after `at` of its items; `left` of them may still be read."""

    origin = ()

    def __init__(
        self, dataset: IndexedDataset[T], span: Span, lane: Lane, at: int, reading: Reading
    ) -> None:
        self._dataset, self._span, self._lane, self._reading = dataset, span, lane, reading
        self._at, self._at_once = at, 1
        self._waiting: deque[T] = deque()
        self._ahead = Ahead(dataset)
        self.left = 0

    def __next__(self) -> T:
        if not self._waiting:
            self._read()
        return self._waiting.popleft()

    def _read(self) -> None:
        began = time.perf_counter()
        many = min(self._at_once, self.left)
        self._ahead(self._at, self._coming)
        turns = np.arange(self._at, self._at + many, dtype=np.int64)
        at = self._span.read_at(self._positions(turns))
        self._waiting.extend(Trace(self._dataset, at).items(self._reading))
        self._at, self.left = self._at + many, self.left - many
        if time.perf_counter() - began < _AT_ONCE_SECONDS:
            self._at_once = min(2 * self._at_once, self._dataset._read_ahead)

    def _positions(self, turns: Int64Array) -> Int64Array:
        return self._span.start + self._lane.index + turns * self._lane.count

    def _coming(self, turns: Int64Array) -> Int64Array:
        """Return the positions of these turns that are no copies."""
        at = self._positions(turns)
        return at[at < self._span.end]

    def __len__(self) -> int:
        """Return how many items were read and not given."""
        return len(self._waiting)

    def close(self) -> None:
        """Let go of what was read ahead."""
        self._waiting.clear()


class HereLanes(Generic[T]):
    """Lanes that are read in this process; of an indexed dataset, `left` items of each.

    `made` is what the last item that was taken is made of, of a stream. `tells_states` says whether
    states are known without asking.
    """

    tells_states = False

    def __init__(
        self,
        dataset: Any,
        lanes: LaneSet,
        states: Mapping[int, State | None],
        reading: Reading,
        left: int = INFINITE,
    ) -> None:
        self._cursors = {
            lane: lanes.open(dataset, lane, 0, state, reading) for lane, state in states.items()
        }
        self._streams = lanes.span is None
        if not self._streams:
            for cursor in self._cursors.values():
                cursor.left = left
        self._peeked: defaultdict[int, deque[tuple[T, Made, State]]] = defaultdict(deque)
        self.made: Made = NOTHING

    def has(self, lane: int, after: int = 0) -> bool:
        """Return whether the lane has another item after so many; read on if that is not known."""
        peeked, cursor = self._peeked[lane], self._cursors[lane]
        while len(peeked) <= after:
            before = cursor.state()
            try:
                peeked.append((next(cursor), flat(cursor.origin), before))
            except StopIteration:
                return False
        return True

    def take(self, lane: int) -> T:
        """Return the lane's next item; raise `StopIteration` at the end of its epoch."""
        if self._peeked and self._peeked[lane]:
            item, self.made, _ = self._peeked[lane].popleft()
            return item
        cursor = self._cursors[lane]
        item = next(cursor)
        if self._streams:
            self.made = flat(cursor.origin)
        return item

    def state(self, lane: int) -> State | None:
        """Return the lane's state after what was taken; None before its first item."""
        if self._peeked[lane]:
            return self._peeked[lane][0][2]
        return cast("State", self._cursors[lane].state())

    def close(self) -> None:
        """Let go of what the lanes hold."""
        for cursor in self._cursors.values():
            cursor.close()

"""Lanes as they are read: by this process, or for it by a worker.

A rank reads lanes. Those of a stream are parts that are fixed for the run. Of an indexed dataset
a rank's items are dealt out to one lane for each worker, so both are read alike: each lane by one
reader, from front to back, and the items of all lanes are taken in turn.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from energize.core.blends import NOT_EDITED, Edits
from energize.core.lanes import Lane
from energize.core.stream import INFINITE, PositionLane, Span, State
from energize.core.trace import Reading
from energize.report.levels import NOTHING, Made, flat

T = TypeVar("T")


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

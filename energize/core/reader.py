"""Readers: the items of one lane of a dataset, in order."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array
from energize.core.lanes import Lane
from energize.core.node import INFINITE, LAST_START, IndexedNode, Node, Origin
from energize.core.padding import with_marks
from energize.core.randomness import read_in_window
from energize.core.stream import (
    WINDOW,
    EpochPlan,
    LaneStream,
    Opening,
    State,
    counter_field,
    ended_early,
    open_stream,
)
from energize.core.trace import (
    READY,
    Ahead,
    ReadContext,
    read_items,
)
from energize.errors import StateError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

QUICK_SECONDS = 0.02
"""Reads that take less time read more items at once. So the first item comes soon, and
large items do not pile up."""

_WINDOW_READS = 16
"""Number of reads, each of the size that the dataset prefers, in one window."""

_MARK_SECONDS = 1.0
"""Seconds of reading after which `StreamReader` saves a state to return to."""


ItemOrigin: TypeAlias = "int | array[int]"
"""The origin of an item: its position in an indexed dataset, or the flattened origins
of an item of a stream."""

NOTHING: ItemOrigin = array("q")
"""An unknown origin."""


def flat(origins: Sequence[Origin]) -> array[int]:
    """Return origins as one flat array, four numbers each."""
    return array("q", chain.from_iterable(origins))


class ReadItems(NamedTuple, Generic[T]):
    """Items that were read together.

    Attributes:
        items: The items.
        states: The state of the lane after each item. Empty for an indexed dataset,
            where the state is a position.
        origins: The origin of each item.
    """

    items: Sequence[T]
    states: Sequence[State]
    origins: Sequence[ItemOrigin]


class Reader(ABC, Iterator[T_co]):
    """One pass over a dataset in one lane, driven by one thread.

    It ends with the epoch. `state()` is exact after any item, whatever was read ahead.
    A dataset that is opened with it continues with the next item. A state taken at the
    end of an epoch opens the next epoch. Samples that are left out are counted by the
    `ReadContext` that the reader was opened with.
    """

    @abstractmethod
    def __next__(self) -> T_co: ...

    @abstractmethod
    def state(self) -> State | None:
        """Return the state to resume from: a small JSON-able dict."""

    @property
    @abstractmethod
    def origin(self) -> tuple[Origin, ...]:
        """The origins of the last item. `Dataset.refs_of` returns their samples."""

    def anchored(self) -> tree.Anchored | None:
        """Return the anchors of the next item; None if the dataset needs none."""
        return None

    def close(self) -> None:
        """Release what the reader holds. Closing it again does nothing."""


class PositionReader(Reader[T]):
    """Reads a lane of an indexed dataset.

    Its state is the number of items that all lanes together have delivered, in step. So
    the state of one lane resumes any number of lanes.

    Args:
        dataset: The indexed dataset.
        plan: The positions that all lanes read.
        lane: The lane. Turn t of lane i of L is position `plan.start + i + t * L`.
        context: How samples are read.
        turn: The first turn to read.
        turns: Number of turns of the lane in the plan.
        watch: Called with the position of each item that is delivered, if not None.
    """

    def __init__(
        self,
        dataset: IndexedNode[T],
        plan: EpochPlan,
        lane: Lane,
        context: ReadContext,
        *,
        turn: int = 0,
        turns: int = INFINITE,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._lane = lane
        self._context = context
        self._turn = turn
        self._turns = turns
        self._watch = watch
        self._at_once = 1
        self._queue: deque[T] = deque()
        self._ahead = Ahead(dataset)
        self.most_at_once = _WINDOW_READS * tree.read_ahead(dataset)
        """Number of items that are worth reading together."""

    def __next__(self) -> T:
        if not self._queue:
            self._queue.extend(self.several(self.most_at_once, 0.0).items)
        item: T = with_marks(self._queue.popleft())[0]
        if self._watch is not None:
            self._watch(self._position(self._delivered - 1))
        return item

    def several(self, most: int, seconds: float) -> ReadItems[T]:
        """Read the next items: few at first, more at once while that is quick.

        Args:
            most: Maximum number of items.
            seconds: Not used: the items are read in one go.

        Returns:
            The items, at least one.

        Raises:
            StopIteration: If no item is left.

        """
        many = min(self._at_once, most, self._turns - self._turn)
        if many <= 0:
            self._end()
            raise StopIteration
        began = time.perf_counter()
        self._ahead(self._turn, self._expected)
        turns = np.arange(self._turn, self._turn + many, dtype=np.int64)
        positions = self._plan.read_at(self._positions(turns))
        items = read_items(self._dataset, positions, self._context)
        self._turn += many
        if time.perf_counter() - began < QUICK_SECONDS:
            self._at_once = min(2 * self._at_once, self.most_at_once)
        return ReadItems(items, (), positions.tolist())

    def _end(self) -> None:
        """Complete the last round, in which some lanes have no item."""
        if not self._queue and self._turns < INFINITE:
            left = self._plan.end - self._plan.start
            self._turn = max(self._turn, -(-left // self._lane.count))

    def _positions(self, turns: Int64Array) -> Int64Array:
        return self._plan.start + self._lane.index + turns * self._lane.count

    def _expected(self, turns: Int64Array) -> Int64Array:
        """Return the positions of these turns that are not copies."""
        positions = self._positions(turns)
        return positions[positions < self._plan.end]

    def _position(self, turn: int) -> int:
        return self._plan.start + self._lane.index + turn * self._lane.count

    @property
    def _delivered(self) -> int:
        return self._turn - len(self._queue)

    @property
    def origin(self) -> tuple[Origin, ...]:
        delivered = self._delivered
        return (Origin(0, self._position(delivered - 1)),) if delivered else ()

    def state(self) -> State:
        return tree.state_at(self._dataset, self._next_position)

    @property
    def _next_position(self) -> int:
        position = self._plan.start + self._delivered * self._lane.count
        return min(position, self._plan.end)

    def anchored(self) -> tree.Anchored | None:
        """Return the anchors of the next item; None if the dataset needs none."""
        return tree.anchored_of(self._dataset, self._next_position)

    def close(self) -> None:
        self._queue.clear()


class StreamReader(Reader[T]):
    """Reads one epoch of a stream in a lane, at the positions of the lane in order.

    Args:
        dataset: The dataset, for messages.
        open_stream: Opens the stream in a state, None for its beginning.
        size: Items in an epoch, `INFINITE`, or None if only reading finds the end.
        lane: The lane.
        state: The state to resume from, None for the beginning.
    """

    most_at_once = READY
    """Number of items that are worth reading together."""

    def __init__(
        self,
        dataset: Node[T],
        open_stream: Callable[[State | None], LaneStream[T]],
        size: int | None,
        lane: Lane,
        state: State | None,
    ) -> None:
        self._dataset = dataset
        self._open_stream = open_stream
        self._size = None if size == INFINITE else size
        self._lane = lane
        self._epoch = counter_field(state, "epoch")
        self._taken = counter_field(state, "taken")
        if self._position(self._taken) >= LAST_START:
            raise StateError(
                f"the saved position (epoch {self._epoch}, item {self._taken}) is out "
                "of range"
            )
        self._announced = self._taken
        self._over = False
        self._mark: State | None = None if state is None else state.get("input")
        self._marked = self._taken
        self._marked_at = time.monotonic()
        self._failure: Exception | None = None
        self.stream = open_stream(self._mark)

    def __next__(self) -> T:
        self._save_mark()
        return read_in_window(self._advance, partial(self._return_to, self._taken))

    def several(self, most: int, seconds: float) -> ReadItems[T]:
        """Read the next items.

        Args:
            most: Maximum number of items. There are fewer at the end of the epoch.
            seconds: Time limit in seconds, checked after each item.

        Returns:
            The items, at least one.

        Raises:
            StopIteration: If no item is left.
            Exception: An error of reading the first item. An error of a later item is
                raised by the next call.
        """
        if self._failure is not None:
            raise self._failure
        self._save_mark()
        read = partial(self._several, most, seconds)
        return read_in_window(read, partial(self._return_to, self._taken))

    def _several(self, most: int, seconds: float) -> ReadItems[T]:
        until = time.monotonic() + seconds
        items: list[T] = []
        states: list[State] = []
        origins: list[ItemOrigin] = []
        while len(items) < most and not (items and time.monotonic() > until):
            try:
                item = self._advance()
            except StopIteration:
                if not items:
                    raise
                break
            except Exception as error:
                if not items:
                    raise
                self._failure = error
                break
            items.append(item)
            states.append(self.state())
            origins.append(flat(self.stream.origin))
        return ReadItems(items, states, origins)

    def _save_mark(self) -> None:
        """Save a state now and then: later items may have to be read again."""
        since = self._taken - self._marked
        if since and (
            since >= WINDOW or time.monotonic() - self._marked_at > _MARK_SECONDS
        ):
            self._mark = self.stream.state()
            self._marked = self._taken
            self._marked_at = time.monotonic()

    def _return_to(self, count: int) -> None:
        """Open the stream again, and read it up to item `count` of the epoch."""
        if self._over:
            self._over = False
            self._epoch -= 1
        self.stream.close()
        self.stream = self._open_stream(self._mark)
        self._failure = None
        self._taken = self._marked
        self._announced = self._marked
        try:
            while self._taken < count:
                self._advance()
        except StopIteration:
            raise ended_early(self._dataset) from None
        self._mark = self.stream.state()
        self._marked = self._taken

    def _advance(self) -> T:
        """Return the next item, read in the current window."""
        if self._over or self._is_complete:
            self._end()
            raise StopIteration
        if self._announced == self._taken:
            self._announce()
        try:
            item = self.stream.at(self._position(self._taken))
        except StopIteration:
            self._end()
            raise
        self._taken += 1
        return item

    def _position(self, count: int) -> int:
        first = 0 if self._size is None else self._epoch * self._size
        return first + self._lane.index + count * self._lane.count

    def _announce(self) -> None:
        counts = np.arange(self._taken, self._taken + WINDOW, dtype=np.int64)
        if self._size is not None:
            turns = len(range(self._lane.index, self._size, self._lane.count))
            counts = counts[counts < turns]
        self.stream.ahead(self._position(0) + counts * self._lane.count)
        self._announced = self._taken + len(counts)

    def _end(self) -> None:
        if not self._over:
            self._epoch += 1
            self._taken = 0
            self._over = True

    @property
    def _is_complete(self) -> bool:
        """Whether the epoch is known to have ended; reading may find out more."""
        if self._over or self._size is None:
            return self._over
        return self._lane.index + self._taken * self._lane.count >= self._size

    @property
    def origin(self) -> tuple[Origin, ...]:
        return self.stream.origin

    def state(self) -> State:
        over = self._is_complete and not self._over
        return {
            "epoch": self._epoch + over,
            "taken": 0 if over else self._taken,
            "input": self.stream.state(),
        }

    def close(self) -> None:
        self.stream.close()

    def __del__(self) -> None:
        # Generators of users end here, with the last reference. The garbage collector
        # would end them in any thread, even while it starts another thread.
        if not sys.is_finalizing() and hasattr(self, "stream"):
            self.close()


DatasetReader: TypeAlias = PositionReader[T] | StreamReader[T]
"""The readers of a dataset in this process."""


def open_lane(
    dataset: Node[T],
    lane: Lane,
    state: State | None,
    reading: ReadContext,
    *,
    endless: bool = False,
) -> StreamReader[T]:
    """Open a reader of one lane of a stream.

    Args:
        dataset: The stream. An indexed dataset is read as one, too.
        lane: The lane.
        state: The state to resume from; None to start at the beginning.
        reading: How samples are read.
        endless: Whether the epoch never ends. By default it ends after `size` items, or
            with the pass if the size is unknown.
    """
    size = dataset.size if dataset.sized else None
    if endless:
        size = INFINITE
    follows = size is not None

    def open_from(inner: State | None) -> LaneStream[T]:
        return open_stream(dataset, Opening(lane, inner, reading, follows))

    return StreamReader(dataset, open_from, size, lane, state)

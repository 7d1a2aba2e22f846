"""Streams: datasets whose items can only be found one after another, read in lanes.

What a stream is made of is asked for by position, as everything is, and positions only go up. Lane
i of L is asked for the positions i, i + L, ... of each epoch; a mix leads them to positions of its
inputs, a batch to those of its members, by the same arithmetic as if all were indexed. Where items
have to be found by reading, by a filter say, the position is no help: the filter gives the next
item that it finds in its lane's own part of its input. So limits, epochs, shares and stop rules
are those of the one stream, and lanes need not know of each other.

A lane's part of an input (`energize.parts`) is one position of every L in a row, another one each
time, and in every pass other ones: the parts of all lanes together are every position of a pass
once, and a lane that reads more than others, or alone, comes round to all of them.

A stream that cannot be divided, an iterable or a mix that must see its inputs' ends, is read from
the front in each lane, and what is not the lane's is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import (
    INFINITE,
    LAST_START,
    Cursor,
    Origin,
    State,
    check_agrees,
    counter_field,
    state_field,
)
from energize.errors import EmptyDatasetError, StateError
from energize.reading import MAX_ATTEMPTS, Fetches, Reading, read_items
from energize.topology import Lane

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_WINDOW = 256
"""Positions that are announced together."""

_PASSES_PER_LANE = 100
"""How many empty passes for each lane are an error: fewer may be chance, where lanes are many and
items few."""


class Stream(ABC, Generic[T_co]):
    """A dataset as it is read in one lane, at positions that go up.

    Opened as endless it goes on from pass to pass; else it raises `StopIteration` at the end of a
    pass of unknown length, and its state is then that of the next pass.
    """

    origin: tuple[Origin, ...] = ()
    """What the last item is made of."""

    @abstractmethod
    def at(self, position: int, attempt: int = 0) -> T_co:
        """The lane's next item, which has this position.

        With `attempt` above 0, another item in place of the last one, which was left out.
        """

    @abstractmethod
    def state(self) -> State:
        """What it goes on from; JSON-able, of constant shape."""

    def ahead(self, positions: Int64Array) -> None:
        """These positions will be asked for next; a hint, so that they can be read together."""

    def check_after(self, last: int | None, *, exact: bool) -> None:
        """Raise `StateError` when it was opened with a state that cannot be the one after the item
        at position `last` (None: none of the pass); unless `exact`, after others in its place.
        """

    def close(self) -> None:
        """Let go of what it holds."""


def check_count(found: int, last: int | None, *, exact: bool, what: str) -> None:
    """Raise `StateError` unless so many items are those up to position `last`."""
    asked = 0 if last is None else last + 1
    agrees = found == asked or (found > asked and not exact)
    check_agrees(agrees, f"{found} {what}, and {asked} were asked for")


class Indexed(Fetches[T], Protocol[T]):
    """What `IndexedStream` reads: an indexed dataset."""

    @property
    def read_ahead(self) -> int: ...


class IndexedStream(Stream[T]):
    """An indexed dataset among streams: it has no state of its own."""

    def __init__(self, dataset: Indexed[T], reading: Reading) -> None:
        self._dataset = dataset
        self._reading = reading
        self._at_once = dataset.read_ahead
        self._coming: deque[int] = deque()
        self._read: deque[tuple[int, T]] = deque()

    def ahead(self, positions: Int64Array) -> None:
        self._coming.extend(positions.tolist())

    def at(self, position: int, attempt: int = 0) -> T:
        self.origin = (Origin(0, position, attempt=attempt * MAX_ATTEMPTS),)
        if attempt:
            reading = self._reading.again(attempt * MAX_ATTEMPTS)
            return read_items(self._dataset, np.array([position], dtype=np.int64), reading)[0]
        while self._read or self._coming:
            if not self._read:
                self._fetch()
            found, item = self._read.popleft()
            if found == position:
                return item
        return read_items(self._dataset, np.array([position], dtype=np.int64), self._reading)[0]

    def _fetch(self) -> None:
        some = [self._coming.popleft() for _ in range(min(len(self._coming), self._at_once))]
        items = read_items(self._dataset, np.array(some, dtype=np.int64), self._reading)
        self._read.extend(zip(some, items, strict=True))

    def state(self) -> State:
        return {}


class EndlessStream(Stream[T]):
    """Pass after pass of a stream whose passes end.

    Raises `EmptyDatasetError` naming `owner` when passes bring nothing.
    """

    def __init__(
        self,
        open_pass: Callable[[State | None], Stream[T]],
        state: State | None,
        lane: Lane,
        owner: str,
    ) -> None:
        self._open = open_pass
        self._stream = open_pass(state)
        self._lane = lane
        self._owner = owner

    def ahead(self, positions: Int64Array) -> None:
        self._stream.ahead(positions)

    def at(self, position: int, attempt: int = 0) -> T:
        for _ in range(empty_passes(self._lane)):
            try:
                item = self._stream.at(position, attempt)
            except StopIteration:
                state = self._stream.state()
                self._stream.close()
                self._stream = self._open(state)
            else:
                self.origin = self._stream.origin
                return item
        raise EmptyDatasetError(nothing_comes(self._owner, self._lane))

    def state(self) -> State:
        return self._stream.state()

    def close(self) -> None:
        self._stream.close()


def empty_passes(lane: Lane) -> int:
    """How many passes without an item for a lane are an error."""
    return 2 if lane.count == 1 else _PASSES_PER_LANE * lane.count


def nothing_comes(owner: str, lane: Lane) -> str:
    """What to say when passes of `owner` brought nothing for a lane."""
    if lane.count == 1:
        return f"{owner} gave no item in a whole epoch"
    return (
        f"{owner} gave no item to lane {lane.index} of {lane.count} in {empty_passes(lane)} "
        "epochs: there are too few for so many lanes. Give get_loader fewer lanes=, or leave this "
        "dataset out"
    )


class TakenStream(Stream[T]):
    """The items of a stream that is read as a whole, at the positions asked for; others are left
    out. `whole` is read in a single lane, and counts its items from 0 in every pass.
    """

    def __init__(self, whole: Stream[T], next_position: int) -> None:
        self.whole = whole
        self._next = next_position

    def at(self, position: int, attempt: int = 0) -> T:
        try:
            while self._next < position:
                self.whole.at(self._next)
                self._next += 1
            item = self.whole.at(position)
        except StopIteration:
            self._next = 0
            raise
        self._next += 1
        self.origin = self.whole.origin
        return item

    def state(self) -> State:
        return {"next": self._next, "input": self.whole.state()}

    def check_after(self, last: int | None, *, exact: bool) -> None:
        check_count(self._next, last, exact=exact, what="items of a stream were read")
        self.whole.check_after(self._next - 1 if self._next else None, exact=True)

    def close(self) -> None:
        self.whole.close()


class LaneCursor(Cursor[T]):
    """One epoch of a stream in a lane: asks for the lane's positions, one after another.

    `size` is the number of items in an epoch, `INFINITE`, or None where only reading tells.
    """

    stream: Stream[T]

    def __init__(
        self,
        open_stream: Callable[[State | None], Stream[T]],
        size: int | None,
        lane: Lane,
        state: State | None,
    ) -> None:
        self._size = size
        self._lane = lane
        self._epoch = counter_field(state, "epoch")
        self._taken = counter_field(state, "taken")
        self.stream = open_stream(None if state is None else state_field(state, "input", dict))
        if self._position(self._taken) >= LAST_START:
            raise StateError(
                f"the saved state is in epoch {self._epoch}, after {self._taken} items: no stream "
                "is read so far"
            )
        self._announced = self._taken
        self._over = False
        if state is not None:
            self.stream.check_after(self._last(), exact=True)

    def _last(self) -> int | None:
        """The position of the lane's last item; None before the first, or where passes count anew
        before the first of the pass.
        """
        if self._taken:
            return self._position(self._taken - 1)
        if self._size in (None, INFINITE) or not self._epoch:
            return None
        size = int(self._size or 0)
        turns = range(self._lane.index, size, self._lane.count)
        return (self._epoch - 1) * size + turns[-1] if turns else None

    def __next__(self) -> T:
        if self._over or self.ended:
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

    def _position(self, taken: int) -> int:
        first = 0 if self._size in (None, INFINITE) else self._epoch * int(self._size or 0)
        return first + self._lane.index + taken * self._lane.count

    def _announce(self) -> None:
        taken = np.arange(self._taken, self._taken + _WINDOW, dtype=np.int64)
        if self._size not in (None, INFINITE):
            taken = taken[
                taken < len(range(self._lane.index, int(self._size or 0), self._lane.count))
            ]
        self.stream.ahead(self._position(0) + taken * self._lane.count)
        self._announced = self._taken + len(taken)

    def _end(self) -> None:
        if not self._over:
            self._epoch, self._taken, self._over = self._epoch + 1, 0, True

    @property
    def origin(self) -> tuple[Origin, ...]:
        return self.stream.origin

    @property
    def ended(self) -> bool:
        if self._over or self._size in (None, INFINITE):
            return self._over
        return self._lane.index + self._taken * self._lane.count >= int(self._size or 0)

    def state(self) -> State:
        over = self.ended and not self._over
        return {
            "epoch": self._epoch + over,
            "taken": 0 if over else self._taken,
            "input": self.stream.state(),
        }

    def close(self) -> None:
        self.stream.close()

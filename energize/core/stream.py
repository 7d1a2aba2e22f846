"""Cursors: the moving side of a dataset."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from energize.core.arrays import Int64Array, rows_by_value
from energize.core.lanes import Lane
from energize.core.reading import MAX_ATTEMPTS, Fetches, Reading, read_items
from energize.core.rng import derive, hash_positions
from energize.errors import EmptyDatasetError, StateError

if TYPE_CHECKING:
    from energize.core.dataset import Dataset


State = dict[str, Any]
"""A plain JSON-able dict: the whole of what a cursor remembers."""

INFINITE = 2**63 - 1
"""The `size` of a dataset whose first epoch never ends."""

LAST_START = 2**62
"""Below it positions of one epoch and what is computed from them fit in int64."""

MOST_COUNTED = 2**45
"""No run counts so far (35 trillion items or passes), and such a number times the
samples of a batch, or lanes, fits in int64."""

_AT_ONCE_SECONDS = 0.01
"""Items are fetched together while that takes no longer, so that the first one comes soon and large
ones do not pile up."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Origin(NamedTuple):
    """Where an item, or a part of one, comes from: an item of one of `dataset.parts`.

    `part` is the number of that part, `position` the position there, counted over all its epochs,
    or in a part without random access in the pass `epoch`. `attempt` is that of the reading, where
    it is a substitute for an item that was left out.
    """

    part: int
    position: int
    epoch: int = 0
    attempt: int = 0


class Cursor(ABC, Iterator[T_co]):
    """One pass over a dataset in one lane, driven by one thread.

    It ends with the epoch. `state()` is exact after any item; opening the dataset with it goes on
    with the next item, and a state taken at the end of an epoch opens the next epoch.
    """

    @abstractmethod
    def __next__(self) -> T_co: ...

    @abstractmethod
    def state(self) -> State:
        """A small JSON-able dict, from which `Dataset.open` continues with the next item."""

    @property
    def origin(self) -> tuple[Origin, ...]:
        """What the last item is made of; `Dataset.refs_of` names the samples."""
        return ()

    @property
    def ended(self) -> bool:
        """Whether the epoch is known to have ended. A stream may learn it by asking for more."""
        return False

    def close(self) -> None:
        """Let go of what the cursor holds. It may be called more than once."""

    def __iter__(self) -> Self:
        return self


class Counted(Fetches[T], Protocol[T]):
    """What a counting cursor reads: the part of `IndexedDataset` it needs."""

    @property
    def size(self) -> int: ...

    @property
    def read_ahead(self) -> int: ...

    def state_at(self, position: int) -> State: ...

    def watcher(self, lane: Lane) -> Callable[[int], None] | None: ...


def state_field(state: State, name: str, kind: type[T]) -> T:
    """Field `name` of a saved state; `StateError` when it is missing or of another type."""
    value = state.get(name) if isinstance(state, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateError(
            f"the saved state has no usable {name!r}: expected {kind.__name__}, found "
            f"{_shortened(value)}"
        )
    return value


def counter_field(state: State | None, name: str) -> int:
    """Field `name` of a saved state, a number of items, passes or the like; 0 without a state.

    Raises `StateError` for what is no such number.
    """
    if state is None:
        return 0
    value = state_field(state, name, int)
    if not 0 <= value < MOST_COUNTED:
        raise StateError(
            f"the saved state has {name} {_shortened(value)}; it lies in 0 .. 2**45 - 1"
        )
    return value


def check_agrees(agrees: bool, what: str) -> None:
    """Raise `StateError` for a saved state that says `what`, unless that `agrees`."""
    if not agrees:
        raise StateError(f"the saved state contradicts itself: {what}")


def _shortened(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of more than 256 bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


class CountingCursor(Cursor[T]):
    """The cursor of every indexed dataset: it counts.

    Its state is the number of items that all lanes together have delivered, in step; so one lane's
    state resumes any number of lanes.
    """

    def __init__(self, dataset: Counted[T], lane: Lane, start: int, reading: Reading) -> None:
        if dataset.size == 0:
            raise EmptyDatasetError(f"{type(dataset).__name__} has no items to read")
        self._dataset = dataset
        self._most_at_once = dataset.read_ahead  # of a wide mix it is not cheap to ask for
        self._at_once = 1
        self._lane = lane
        self._reading = reading
        self._start = start
        self._end = epoch_end(start, dataset.size)
        self._positions = range(start + lane.index, self._end, lane.count)
        self._taken = 0
        self._fetched = 0
        self._waiting: deque[T] = deque()
        self._watch = dataset.watcher(lane)

    def __next__(self) -> T:
        if not self._waiting:
            self._fetch()
        item = self._waiting.popleft()
        if self._watch is not None:
            self._watch(self._positions[self._taken])
        self._taken += 1
        return item

    def _fetch(self) -> None:
        chunk = self._positions[self._fetched : self._fetched + self._at_once]
        if not chunk:
            # In an uneven last round some lanes have no item; the epoch has ended for them all.
            self._taken = -(-(self._end - self._start) // self._lane.count)
            raise StopIteration
        positions = np.arange(chunk.start, chunk.stop, chunk.step, dtype=np.int64)
        began = time.perf_counter()
        self._waiting.extend(read_items(self._dataset, positions, self._reading))
        self._fetched += len(chunk)
        if time.perf_counter() - began < _AT_ONCE_SECONDS:
            self._at_once = min(2 * self._at_once, self._most_at_once)

    @property
    def origin(self) -> tuple[Origin, ...]:
        return (Origin(0, self._positions[self._taken - 1]),) if self._taken else ()

    @property
    def ended(self) -> bool:
        return self._start + self._lane.index + self._taken * self._lane.count >= self._end

    def state(self) -> State:
        position = min(self._start + self._taken * self._lane.count, self._end)
        return self._dataset.state_at(position)


def epoch_end(position: int, size: int) -> int:
    """The end of the epoch of `size` items in which `position` lies."""
    return min((position // size + 1) * size, INFINITE)


# Streams: datasets whose items can only be found one after another, read in lanes.

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


# A lane's own part of what a stream reads on in until it finds something.

_SCATTER = derive("scatter")


class Opens(Protocol[T_co]):
    """What is opened as an input: a dataset."""

    @property
    def sized(self) -> bool: ...

    @property
    def size(self) -> int: ...

    def addressed(
        self, lane: Lane, state: State | None, reading: Reading, *, endless: bool
    ) -> Stream[T_co]: ...


class Part:
    """A lane's own part of the positions of an input, pass after pass: one of every L in a row.

    It is the lane's own place in them, with `rotating` the next one in every pass, so that lanes
    share inputs of fewer items than lanes; and with `scattered` a random place each time, so that
    no condition on items goes by lanes. `size` is the number of positions in a pass, `INFINITE`, or
    None where only the input knows: positions then go on until `end_pass` is called, and are
    counted anew in the next.
    """

    def __init__(
        self,
        size: int | None,
        lane: Lane,
        state: State | None,
        *,
        rotating: bool,
        scattered: bool = False,
    ) -> None:
        self.lane = lane
        self._size = size
        self._rotating = rotating
        self._scattered = scattered and lane.count > 1
        self._pass = counter_field(state, "pass")
        self._round = counter_field(state, "round")
        self._coming: deque[tuple[int, int]] = deque()
        self._check()

    def _check(self) -> None:
        """Raise `StateError` for a place that no lane comes to."""
        size, count = self._size, self.lane.count
        endless = size is None or size == INFINITE
        rounds = INFINITE if endless else -(-int(size or 0) // count)
        far = self._pass * (0 if endless else int(size or 0)) + self._round * count
        check_agrees(
            self._round <= rounds and far < LAST_START and not (self._pass and size == INFINITE),
            f"lane {self.lane.index} of {count} is in round {self._round} of pass {self._pass} of "
            f"{'what has no end' if endless else f'{size} items'}",
        )

    @property
    def place(self) -> tuple[int, int]:
        """The pass, and the round that comes next in it."""
        return self._pass, self._round

    @property
    def last(self) -> int | None:
        """The position that came last in the pass; None at its beginning."""
        if not self._round:
            return None
        position = int(self._places(np.array([self._round - 1]))[0])
        endless = self._size is None or self._size == INFINITE
        return position if endless else position + self._pass * int(self._size or 0)

    def next(self, announce: Callable[[Int64Array], None]) -> int:
        """The next position; `StopIteration` at the end of a pass whose size is known.

        `announce` is told of several that come next.
        """
        if not self._coming:
            places = self._look_ahead()
            if not len(places):
                raise StopIteration
            announce(places)
        self._round, position = self._coming.popleft()
        return position

    def _look_ahead(self) -> Int64Array:
        """Rounds of a pass, each of as many positions as there are lanes, one for each lane."""
        rounds = np.arange(self._round, self._round + _WINDOW)
        places = self._places(rounds)
        if self._size is not None and self._size != INFINITE:
            kept = places < self._size
            places, rounds = places[kept] + self._pass * self._size, rounds[kept]
        self._coming.extend(zip((rounds + 1).tolist(), places.tolist(), strict=True))
        return places

    def _places(self, rounds: Int64Array) -> Int64Array:
        """The lane's place in rounds of this pass."""
        count = self.lane.count
        turns = np.full(1, self._pass if self._rotating else 0)
        if self._scattered:
            turns = turns + (hash_positions(_SCATTER, rounds) % np.uint64(count)).astype(np.int64)
        return (self.lane.index + turns) % count + rounds * count

    def end_pass(self) -> None:
        """Go on with the next pass."""
        self._pass, self._round = self._pass + 1, 0
        self._coming.clear()

    def state(self) -> State:
        """What it goes on from."""
        return {"pass": self._pass, "round": self._round}


class PartReader(Generic[T]):
    """A lane's own part of an input, for a stream that reads on until it finds something.

    `endless` readers go on from pass to pass, others raise `StopIteration` at the end of one. With
    `rotating`, or where they are endless or scattered, the lane has another place in every pass.
    """

    def __init__(
        self,
        dataset: Opens[T],
        lane: Lane,
        state: State | None,
        reading: Reading,
        *,
        endless: bool,
        rotating: bool = False,
        scattered: bool = False,
    ) -> None:
        self._sized = dataset.sized
        size = dataset.size if self._sized else None
        rotating = rotating or endless or scattered
        self.part = Part(size, lane, state, rotating=rotating, scattered=scattered)
        self._open = partial(dataset.addressed, lane, reading=reading, endless=self._sized)
        self._input = self._open(None if state is None else state_field(state, "input", dict))
        if state is not None and (self.part.last is not None or not self._sized):
            self._input.check_after(self.part.last, exact=True)
        self._endless = endless
        self._owner = type(dataset).__name__
        self._empty_passes = 0

    def read(self) -> T:
        """The next item of the part; `StopIteration` at the end of the pass."""
        while True:
            try:
                item = self._input.at(self.part.next(self._input.ahead))
            except StopIteration:
                self._end_pass()
                if not self._endless:
                    raise
            else:
                self._empty_passes = 0
                return item

    @property
    def origin(self) -> tuple[Origin, ...]:
        """What the last item is made of."""
        return self._input.origin

    def _end_pass(self) -> None:
        self.part.end_pass()
        if not self._sized:
            state = self._input.state()
            self._input.close()
            self._input = self._open(state)
        self._empty_passes += 1
        if self._endless and self._empty_passes > empty_passes(self.part.lane):
            raise EmptyDatasetError(nothing_comes(self._owner, self.part.lane))

    def state(self) -> State:
        """What it goes on from."""
        return {**self.part.state(), "input": self._input.state()}

    def close(self) -> None:
        """Let go of the input."""
        self._input.close()


class PartStream(Stream[T]):
    """What a part reader reads, whatever positions are asked for."""

    def __init__(self, reader: PartReader[T]) -> None:
        self._reader = reader

    def at(self, position: int, attempt: int = 0) -> T:
        item = self._reader.read()
        self.origin = self._reader.origin
        return item

    def state(self) -> State:
        return self._reader.state()

    def close(self) -> None:
        self._reader.close()


# Mixes of streams, as they are read in one lane.


class RoutedStream(Stream[T]):
    """Positions of a mix lead to positions of its inputs, which go on from epoch to epoch."""

    def __init__(
        self,
        route: Callable[[Int64Array], tuple[Int64Array, Int64Array]],
        inputs: Sequence[Dataset[Any]],
        lane: Lane,
        state: State | None,
        reading: Reading,
    ) -> None:
        self._route = route
        self._inputs = [
            each.stream(lane, at, reading, endless=True)
            for each, at in zip(inputs, states_of(state, len(inputs)), strict=True)
        ]
        self._parts_before = np.cumsum([0, *(len(each.parts) for each in inputs)]).tolist()
        self._coming: deque[tuple[int, int, int]] = deque()
        self._last = (0, 0)

    def ahead(self, positions: Int64Array) -> None:
        which, inner = self._route(positions)
        planned = zip(positions.tolist(), which.tolist(), inner.tolist(), strict=True)
        self._coming.extend(planned)
        for number, rows in rows_by_value(which):
            self._inputs[number].ahead(inner[rows])

    def at(self, position: int, attempt: int = 0) -> T:
        if not attempt:
            self._last = self._led_to(position)
        number, inner = self._last
        item: T = self._inputs[number].at(inner, attempt)
        before = self._parts_before[number]
        self.origin = tuple(
            each._replace(part=each.part + before) for each in self._inputs[number].origin
        )
        return item

    def _led_to(self, position: int) -> tuple[int, int]:
        while self._coming:
            planned, number, inner = self._coming.popleft()
            if planned == position:
                return number, inner
        which, where = self._route(np.array([position], dtype=np.int64))
        return int(which[0]), int(where[0])

    def state(self) -> State:
        return {"inputs": [each.state() for each in self._inputs]}

    def close(self) -> None:
        for each in self._inputs:
            each.close()


def states_of(state: State | None, inputs: int) -> list[Any]:
    """The states of so many inputs in that of a mix; `StateError` when they are others."""
    if state is None:
        return [None] * inputs
    states = state_field(state, "inputs", list)
    if len(states) != inputs:
        raise StateError(
            f"the saved state is of a mix of {len(states)} inputs, this one has {inputs}"
        )
    if not all(isinstance(each, dict | None) for each in states):
        raise StateError(f"the saved state's 'inputs' are no states: {str(states)[:80]}")
    return states

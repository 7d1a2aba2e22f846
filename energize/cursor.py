"""Cursors: the moving side of a dataset."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from energize.errors import EmptyDatasetError, StateError
from energize.reading import Fetches, Reading, read_items
from energize.topology import Lane

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

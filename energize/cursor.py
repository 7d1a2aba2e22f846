"""Cursors: the moving side of a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from energize.errors import EmptyDatasetError, StateError
from energize.fetching import Attempt, Fetches, resolve
from energize.topology import Lane

__all__ = ["INFINITE", "Counted", "CountingCursor", "Cursor", "State", "state_field"]

State = dict[str, Any]
"""A plain JSON-able dict: the whole of what a cursor remembers."""

INFINITE = 2**63 - 1
"""The `size` of a dataset whose first epoch never ends."""

_LAST_START = 2**62
"""Below it positions of one epoch and what is computed from them fit in int64."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
    def ended(self) -> bool:
        """Whether the epoch is known to be over. A stream may learn it only by asking for more."""
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


def state_field(state: State, name: str, kind: type[T]) -> T:
    """Field `name` of a saved state; `StateError` when it is missing or of another type."""
    value = state.get(name) if isinstance(state, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateError(
            f"the saved state has no usable {name!r}: expected {kind.__name__}, found {value!r}"
        )
    return value


class CountingCursor(Cursor[T]):
    """The cursor of every indexed dataset: it counts.

    Its state is the number of items that all lanes together have delivered, in step; so one lane's
    state resumes any number of lanes.
    """

    def __init__(self, dataset: Counted[T], lane: Lane, start: int, attempt: Attempt) -> None:
        if dataset.size == 0:
            raise EmptyDatasetError(f"{type(dataset).__name__} has no items to read")
        if not 0 <= start < _LAST_START:
            raise StateError(
                f"the saved state has position {start}; positions lie in 0 .. 2**62 - 1"
            )
        self._dataset = dataset
        self._read_ahead = dataset.read_ahead  # of a wide mix it is not cheap to ask for
        self._lane = lane
        self._attempt = attempt
        self._start = start
        self._end = epoch_end(start, dataset.size)
        self._positions = epoch_positions(start, dataset.size, lane)
        self._taken = 0
        self._fetched = 0
        self._waiting: deque[T] = deque()

    def __next__(self) -> T:
        if not self._waiting:
            self._fetch()
        item = self._waiting.popleft()
        self._taken += 1
        return item

    def _fetch(self) -> None:
        chunk = self._positions[self._fetched : self._fetched + self._read_ahead]
        if not chunk:
            # In an uneven last round some lanes have no item; the epoch is over for them all.
            self._taken = -(-(self._end - self._start) // self._lane.count)
            raise StopIteration
        positions = np.arange(chunk.start, chunk.stop, chunk.step, dtype=np.int64)
        self._waiting.extend(resolve(self._dataset, positions, self._attempt))
        self._fetched += len(chunk)

    @property
    def ended(self) -> bool:
        return self._start + self._lane.index + self._taken * self._lane.count >= self._end

    def state(self) -> State:
        return {"position": min(self._start + self._taken * self._lane.count, self._end)}


def epoch_end(position: int, size: int) -> int:
    """The end of the epoch of `size` items in which `position` lies."""
    return min((position // size + 1) * size, INFINITE)


def epoch_positions(start: int, size: int, lane: Lane) -> range:
    """The positions that a lane delivers from `start` to the end of the epoch."""
    return range(start + lane.index, epoch_end(start, size), lane.count)

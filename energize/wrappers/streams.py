"""Cursors over streaming inputs, shared by the wrappers that can follow a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from energize.cursor import Cursor, State, state_field
from energize.dataset import Dataset, Int64Array, OnFailure
from energize.errors import EmptyDatasetError, StateError
from energize.fetching import Failed
from energize.rng import hash_positions
from energize.topology import Lane
from energize.wrappers.calling import call, keyed_generators, keys_of

__all__ = ["CallingCursor", "EndlessCursor", "RoutedCursor", "RunCursor"]

T = TypeVar("T")

_ROUTED_AT_ONCE = 256


class CallingCursor(Cursor[T]):
    """A function of what `take` takes from a stream; what fails or is skipped is left out."""

    def __init__(
        self,
        dataset: Dataset[T],
        function: Callable[[Any], T],
        lane: Lane,
        state: State | None,
        on_failure: OnFailure,
        *,
        seed_key: int,
        take: Callable[[Cursor[Any]], Any],
        seeded: bool = True,
    ) -> None:
        self._key = seed_key
        self._function = function
        self._take = take
        self._seeded = seeded
        self._on_failure = on_failure
        self._read = 0 if state is None else state_field(state, "read", int)
        inner = None if state is None else state_field(state, "input", dict)
        self._cursor: Cursor[Any] = dataset.inputs[0].open(lane, inner, on_failure)

    def __next__(self) -> T:
        while True:
            taken = self._take(self._cursor)
            word = hash_positions(self._key, np.array([self._read]))
            self._read += 1
            with keyed_generators(self._seeded) as seed:
                seed(int(word[0]))
                made = call(self._function, taken, partial(keys_of, taken))
            if not isinstance(made, Failed):
                return made
            if not made.skipped:
                self._on_failure(made)

    def state(self) -> State:
        return {"read": self._read, "input": self._cursor.state()}

    @property
    def ended(self) -> bool:
        return self._cursor.ended

    def close(self) -> None:
        self._cursor.close()


class EndlessCursor(Cursor[T]):
    """Epoch after epoch of a dataset; never ends. Raises `EmptyDatasetError` on an empty epoch."""

    def __init__(
        self, dataset: Dataset[T], lane: Lane, state: State | None, on_failure: OnFailure
    ) -> None:
        self._open: Callable[[State | None], Cursor[T]] = lambda at: dataset.open(
            lane, at, on_failure
        )
        self._name = type(dataset).__name__
        self._cursor = self._open(state)

    def __next__(self) -> T:
        for _ in range(2):
            try:
                return next(self._cursor)
            except StopIteration:
                state = self._cursor.state()
                self._cursor.close()
                self._cursor = self._open(state)
        raise EmptyDatasetError(f"{self._name} gave no item in a whole epoch")

    def state(self) -> State:
        return self._cursor.state()

    def close(self) -> None:
        self._cursor.close()


class RoutedCursor(Cursor[T]):
    """Follows a route that takes every input's items one after another, over endless inputs."""

    def __init__(
        self,
        route: Callable[[Int64Array], tuple[Int64Array, Int64Array]],
        inputs: tuple[Dataset[Any], ...],
        lane: Lane,
        state: State | None,
        on_failure: OnFailure,
    ) -> None:
        self._route = route
        self._position = 0 if state is None else state_field(state, "position", int)
        states = [None] * len(inputs) if state is None else state_field(state, "inputs", list)
        if len(states) != len(inputs):
            raise StateError(
                f"the saved state is of a mix of {len(states)} inputs, this one has {len(inputs)}"
            )
        self._cursors = [
            EndlessCursor(each, lane, at, on_failure)
            for each, at in zip(inputs, states, strict=True)
        ]
        self._plan: list[int] = []

    def __next__(self) -> T:
        if not self._plan:
            ahead = np.arange(self._position, self._position + _ROUTED_AT_ONCE, dtype=np.int64)
            self._plan = self._route(ahead)[0].tolist()[::-1]
        item: T = next(self._cursors[self._plan[-1]])
        self._plan.pop()
        self._position += 1
        return item

    def state(self) -> State:
        return {"position": self._position, "inputs": [each.state() for each in self._cursors]}

    def close(self) -> None:
        for each in self._cursors:
            each.close()


class RunCursor(Cursor[T]):
    """At most `length` items of a cursor; a run that is over has taken all of them."""

    def __init__(self, cursor: Cursor[T], length: int, taken: int) -> None:
        self._cursor = cursor
        self._length = length
        self._taken = taken

    def __next__(self) -> T:
        if self._taken >= self._length:
            raise StopIteration
        try:
            item = next(self._cursor)
        except StopIteration:
            self._taken = self._length
            raise
        self._taken += 1
        return item

    @property
    def ended(self) -> bool:
        return self._taken >= self._length or self._cursor.ended

    def state(self) -> State:
        taken = self._length if self.ended else self._taken
        return {"taken": taken, "input": self._cursor.state()}

    def close(self) -> None:
        self._cursor.close()

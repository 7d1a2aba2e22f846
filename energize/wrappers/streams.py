"""Cursors over streaming inputs, shared by the wrappers that can follow a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from energize.cursor import Cursor, State, state_field
from energize.dataset import Dataset, Int64Array, OnFailure
from energize.errors import EmptyDatasetError, StateError
from energize.topology import Lane

__all__ = ["EndlessCursor", "RoutedCursor", "RunCursor"]

T = TypeVar("T")

_ROUTED_AT_ONCE = 256


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

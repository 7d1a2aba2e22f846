"""Mixes of streams, as they are read in one lane."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from energize.arrays import Int64Array, rows_by_value
from energize.cursor import State, state_field
from energize.errors import StateError
from energize.reading import Reading
from energize.streaming import Stream
from energize.topology import Lane

if TYPE_CHECKING:
    from energize.dataset import Dataset

T = TypeVar("T")


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

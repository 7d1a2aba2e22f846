"""Orders of sources that are followed slot after slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from energize.cursor import State, state_field
from energize.describing import described
from energize.order.scheduled import mixing_scheme
from energize.order.schemes import Scheme
from energize.order.varying import Weight

__all__ = ["GivenSlots", "SchemeSlots"]

_AT_ONCE = 256


@dataclass(frozen=True)
class SchemeSlots:
    """The slots of the scheme called `scheme`, with weights that may be schedules; sources that are
    over hand theirs to the others, by weight.
    """

    scheme: str
    weights: tuple[Weight, ...]
    key: int
    options: dict[str, Any] = field(default_factory=dict)

    def begin(self, state: State | None, over: frozenset[int]) -> _SchemeSlotCursor:
        return _SchemeSlotCursor(self, state, over)

    def without(self, over: frozenset[int]) -> Scheme:
        """The scheme over the sources that are not over."""
        left = [0.0 if i in over else weight for i, weight in enumerate(self.weights)]
        return mixing_scheme(self.scheme, left, key=self.key, **self.options)

    def describe(self) -> dict[str, Any]:
        return {"scheme": self.scheme, "weights": described(self.weights), **self.options}


@dataclass(frozen=True)
class GivenSlots:
    """The slots of a scheme object; those of sources that are over are left out."""

    scheme: Scheme

    def begin(self, state: State | None, over: frozenset[int]) -> _SchemeSlotCursor:
        return _SchemeSlotCursor(self, state, over)

    def without(self, over: frozenset[int]) -> Scheme:
        """The scheme as it is: its weights are its own."""
        return self.scheme

    def describe(self) -> dict[str, Any]:
        return self.scheme.describe()


class _SchemeSlotCursor:
    """A source that is over is asked again in its next pass, for the same slot."""

    def __init__(
        self, slots: SchemeSlots | GivenSlots, state: State | None, over: frozenset[int]
    ) -> None:
        self._slots = slots
        self._position = 0 if state is None else state_field(state, "position", int)
        self._over = over
        self._scheme = slots.without(over)
        self._plan: list[int] = []

    def current(self) -> int:
        while not self._plan or self._plan[-1] in self._over:
            if self._plan:
                self.advance()
                continue
            ahead = np.arange(self._position, self._position + _AT_ONCE, dtype=np.int64)
            self._plan = self._scheme.locate(ahead)[0].tolist()[::-1]
        return self._plan[-1]

    def advance(self) -> None:
        self._plan.pop()
        self._position += 1

    def ended(self, over: frozenset[int]) -> None:
        if over != self._over:
            self._over = over
            self._scheme = self._slots.without(over)
            self._plan = []

    def state(self) -> State:
        return {"position": self._position}

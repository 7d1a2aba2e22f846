"""Orders of sources that are followed slot after slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from energize.cursor import State, state_field
from energize.describing import described
from energize.order.protocol import Scheme
from energize.order.scheduled import mixing_scheme
from energize.order.varying import Weight
from energize.rng import derive

__all__ = ["GivenSlots", "SchemeSlots", "Turns"]

_AT_ONCE = 256


@dataclass(frozen=True)
class SchemeSlots:
    """The slots of the scheme called `scheme`, with weights that may be schedules.

    When a source is left out, a scheme over the others begins at that slot, also of the schedules;
    where none of the others has a weight, they share the slots evenly.
    """

    scheme: str
    weights: tuple[Weight, ...]
    key: int
    options: dict[str, Any] = field(default_factory=dict)

    def begin(self, state: State | None, over: frozenset[int]) -> _SchemeSlotCursor:
        left = [each for each in range(len(self.weights)) if each not in over]
        return _SchemeSlotCursor(self._among, left, state)

    def _among(self, left: Sequence[int], start: int) -> Scheme:
        key = derive(self.key, start) if start else self.key
        weights = [self.weights[each] for each in left]
        return mixing_scheme(self.scheme, weights, key=key, start=start, **self.options)

    def describe(self) -> dict[str, Any]:
        return {"scheme": self.scheme, "weights": described(self.weights), **self.options}


@dataclass(frozen=True)
class GivenSlots:
    """The slots of a scheme object over `sources`, none of which is ever left out."""

    scheme: Scheme
    sources: int

    def begin(self, state: State | None, over: frozenset[int]) -> _SchemeSlotCursor:
        return _SchemeSlotCursor(lambda *_: self.scheme, list(range(self.sources)), state)

    def describe(self) -> dict[str, Any]:
        return self.scheme.describe()


class _SchemeSlotCursor:
    """Looks some slots ahead. `start` is the slot at which the scheme of those left began."""

    def __init__(
        self, among: Callable[[Sequence[int], int], Scheme], left: list[int], state: State | None
    ) -> None:
        self._among = among
        self._left = left
        self._position = 0 if state is None else state_field(state, "position", int)
        self._start = 0 if state is None else state_field(state, "start", int)
        self._scheme: Scheme | None = None
        self._ahead: list[int] = []

    def current(self) -> int:
        if not self._ahead:
            if self._scheme is None:
                self._scheme = self._among(self._left, self._start)
            first = self._position - self._start
            chosen, _ = self._scheme.locate(np.arange(first, first + _AT_ONCE, dtype=np.int64))
            self._ahead = chosen[::-1].tolist()
        return self._left[self._ahead[-1]]

    def advance(self) -> None:
        self._ahead.pop()
        self._position += 1

    def ended(self, *, left_out: bool) -> None:
        if left_out:
            self._left.remove(self.current())
            self._start, self._scheme, self._ahead = self._position, None, []

    def state(self) -> State:
        return {"position": self._position, "start": self._start}


@dataclass(frozen=True)
class Turns:
    """One source after another. When one is left out the next one follows, or the first that is
    left if `from_first`.
    """

    sources: int
    from_first: bool = False

    def begin(self, state: State | None, over: frozenset[int]) -> _TurnCursor:
        left = [each for each in range(self.sources) if each not in over]
        return _TurnCursor(left, self.from_first, state)

    def describe(self) -> dict[str, Any]:
        return {"turns": self.sources, "from_first": self.from_first}


class _TurnCursor:
    def __init__(self, left: list[int], from_first: bool, state: State | None) -> None:
        self._left = left
        self._from_first = from_first
        self._turn = 0 if state is None else state_field(state, "turn", int)

    def current(self) -> int:
        return self._left[self._turn]

    def advance(self) -> None:
        self._turn = (self._turn + 1) % len(self._left)

    def ended(self, *, left_out: bool) -> None:
        if left_out:
            del self._left[self._turn]
            if self._from_first or self._turn == len(self._left):
                self._turn = 0

    def state(self) -> State:
        return {"turn": self._turn}

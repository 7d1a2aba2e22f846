"""Orders of sources that are followed slot after slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from energize.arrays import FloatArray
from energize.cursor import State, counter_field, state_field
from energize.describing import described
from energize.errors import StateError
from energize.order.ends.capped import enough_over
from energize.order.protocol import Scheme
from energize.order.schedules.scheduled import mixing_scheme
from energize.order.schedules.varying import Weight, final_weights
from energize.rng import derive

__all__ = ["GivenSlots", "SchemeSlots", "Turns"]


_AT_ONCE = 256


@dataclass(frozen=True)
class SchemeSlots:
    """The slots of the scheme called `scheme`, with weights that may be schedules.

    The slots of sources that are left out go to the others. When a quarter of the sources, or
    sources with a quarter of the weight, are left out, a scheme over the others begins at that
    slot; while there are schedules it does so, also for them, at each source that is left out.
    Where none of the others has a weight, they share the slots evenly.
    """

    scheme: str
    weights: tuple[Weight, ...]
    key: int
    options: dict[str, Any] = field(default_factory=dict)

    def begin(self, state: State | None, left_out: frozenset[int]) -> _SchemeSlotCursor:
        return _SchemeSlotCursor(self._among, *final_weights(self.weights), state, left_out)

    def _among(self, left: Sequence[int], start: int) -> Scheme:
        key = derive(self.key, "from", start) if start else self.key
        weights = [self.weights[each] for each in left]
        return mixing_scheme(self.scheme, weights, key=key, start=start, **self.options)

    def describe(self) -> dict[str, Any]:
        return {"scheme": self.scheme, "weights": described(self.weights), **self.options}


@dataclass(frozen=True)
class GivenSlots:
    """The slots of a scheme object over `sources`, none of which is ever left out."""

    scheme: Scheme
    sources: int

    def begin(self, state: State | None, left_out: frozenset[int]) -> _SchemeSlotCursor:
        among, weights = lambda *_: self.scheme, np.ones(self.sources)
        return _SchemeSlotCursor(among, 0, weights, state, frozenset())

    def describe(self) -> dict[str, Any]:
        return self.scheme.describe()


class _SchemeSlotCursor:
    """Looks some slots ahead. The scheme that runs began at slot `start`, over the sources that
    were `among` those left then; its slot `next` is the one at hand. The slots of those of its
    sources that have been left out since are passed over.
    """

    def __init__(
        self,
        among: Callable[[Sequence[int], int], Scheme],
        settled_at: int,
        final: FloatArray,
        state: State | None,
        left_out: frozenset[int],
    ) -> None:
        self._among = among
        self._settled_at, self._final = settled_at, final
        self._position = counter_field(state, "position")
        self._start = counter_field(state, "start")
        self._next = counter_field(state, "next")
        self._gone = np.isin(np.arange(len(final)), list(left_out))
        mixed = ~self._gone
        if state is not None:
            mixed = np.array(state_field(state, "among", list), dtype=np.bool_)
            if mixed.shape != self._gone.shape:
                raise StateError(
                    f"the saved state is of a mix of {len(mixed)} sources, this one has "
                    f"{len(final)}"
                )
        self._members = np.flatnonzero(mixed)
        self._scheme: Scheme | None = None
        self._seen = self._next
        self._ahead: list[tuple[int, int]] = []

    def current(self) -> int:
        while not self._ahead:
            if self._scheme is None:
                self._scheme = self._among(self._members.tolist(), self._start)
            slots = np.arange(self._seen, self._seen + _AT_ONCE, dtype=np.int64)
            source = self._members[self._scheme.locate(slots)[0]]
            left = ~self._gone[source]
            self._ahead = list(zip(slots[left], source[left].tolist(), strict=True))[::-1]
            self._seen += _AT_ONCE
        return self._ahead[-1][1]

    def advance(self) -> None:
        slot, _ = self._ahead.pop()
        self._next = int(slot) + 1
        self._position += 1

    def exhausted(self, *, left_out: bool) -> None:
        if not left_out:
            return
        source = self.current()
        self._gone[source] = True
        gone = self._gone[self._members]
        if self._start < self._settled_at or enough_over(gone, self._final[self._members]):
            self._begin_anew()
        else:
            self._ahead = [each for each in self._ahead if each[1] != source]

    def _begin_anew(self) -> None:
        """A scheme over the sources that are left; over all, for the next epoch, if none is."""
        if self._gone.all():
            self._gone[:] = False
        self._members = np.flatnonzero(~self._gone)
        self._start, self._scheme = self._position, None
        self._next, self._seen, self._ahead = 0, 0, []

    def state(self) -> State:
        among = np.isin(np.arange(len(self._gone)), self._members)
        return {
            "position": self._position,
            "start": self._start,
            "next": self._next,
            "among": among.tolist(),
        }


@dataclass(frozen=True)
class Turns:
    """One source after another. When one is left out the next one follows, or the first that is
    left if `from_first`.
    """

    sources: int
    from_first: bool = False

    def begin(self, state: State | None, left_out: frozenset[int]) -> _TurnCursor:
        left = [each for each in range(self.sources) if each not in left_out]
        return _TurnCursor(left, self.from_first, state)

    def describe(self) -> dict[str, Any]:
        return {"turns": self.sources, "from_first": self.from_first}


class _TurnCursor:
    def __init__(self, left: list[int], from_first: bool, state: State | None) -> None:
        self._left = left
        self._from_first = from_first
        self._turn = counter_field(state, "turn")
        if self._turn >= max(len(left), 1):
            raise StateError(f"the saved state has turn {self._turn} of {len(left)} sources")

    def current(self) -> int:
        return self._left[self._turn]

    def advance(self) -> None:
        self._turn = (self._turn + 1) % len(self._left)

    def exhausted(self, *, left_out: bool) -> None:
        if left_out:
            del self._left[self._turn]
            if self._from_first or self._turn == len(self._left):
                self._turn = 0

    def state(self) -> State:
        return {"turn": self._turn}

"""Orders of sources that are followed slot after slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.cursor import State, check_agrees, counter_field, state_field
from energize.errors import StateError
from energize.order.making import MixingScheme
from energize.order.protocol import Scheme

_AT_ONCE = 256
_STAYS = -1


@dataclass(frozen=True)
class SchemeSlots:
    """The slots of a `scheme`. From the slot on at which a source is left out, its slots go to the
    others by weight; all slots before stay where they are. Of a scheme object that was not made by
    `make_scheme` no source can be left out.
    """

    scheme: Scheme

    def begin(self, state: State | None, left_out: frozenset[int]) -> _SchemeSlotCursor:
        sources, position = len(self.scheme.counts(0)), counter_field(state, "position")
        gone = [0 if each in left_out else _STAYS for each in range(sources)]
        if state is not None:
            gone = state_field(state, "left_out_at", list)
        if len(gone) != sources or not all(
            type(slot) is int and _STAYS <= slot <= position for slot in gone
        ):
            raise StateError(
                f"the saved state's 'left_out_at' names a slot up to {position} for each of "
                f"{sources} sources, or {_STAYS}; it has {gone[:20]}"
            )
        named = {source for source, slot in enumerate(gone) if slot != _STAYS}
        check_agrees(
            named == left_out, f"sources {sorted(named)} have no slots, {sorted(left_out)} are over"
        )
        return _SchemeSlotCursor(self.scheme, position, gone)

    def describe(self) -> dict[str, Any]:
        return self.scheme.describe()


class _SchemeSlotCursor:
    """Looks some slots ahead. `gone` has the slot at which each source was left out."""

    def __init__(self, scheme: Scheme, position: int, gone: Sequence[int]) -> None:
        self._scheme = scheme
        self._timeline = scheme.timeline() if isinstance(scheme, MixingScheme) else None
        self._position, self._gone = position, [_STAYS] * len(gone)
        self._ahead: list[int] = []
        for slot, source in sorted((slot, source) for source, slot in enumerate(gone)):
            if slot != _STAYS:
                self._leave_out(slot, source)

    def _leave_out(self, slot: int, source: int) -> None:
        self._gone[source] = slot
        self._ahead = []
        if self._timeline is not None and _STAYS in self._gone:
            self._timeline = self._timeline.without(source, slot)

    def current(self) -> int:
        if not self._ahead:
            slots = np.arange(self._position, self._position + _AT_ONCE)
            source, _ = (self._timeline or self._scheme).locate(slots)
            self._ahead = source.tolist()[::-1]
        return self._ahead[-1]

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        self._ahead.pop()
        self._position += 1

    def exhausted(self, *, left_out: bool) -> None:
        if left_out:
            self._leave_out(self._position, self.current())

    def check_given(self, given: Sequence[int], *, anew: bool) -> None:
        came = sum(given)
        check_agrees(
            self._position == came or (self._position > came and not anew),
            f"{self._position} slots of a mix are over, and {came} items came",
        )
        if anew:
            counts = (self._timeline or self._scheme).counts(self._position).tolist()
            check_agrees(
                counts == list(given),
                f"{str(list(given))[:80]} items of each source came, in slots of which they have "
                f"{str(counts)[:80]}",
            )

    def state(self) -> State:
        """When all sources are left out, the next epoch goes on with all."""
        stay = [_STAYS] * len(self._gone)
        return {
            "position": self._position,
            "left_out_at": list(self._gone) if _STAYS in self._gone else stay,
        }


@dataclass(frozen=True)
class TurnSlots:
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

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        self._turn = (self._turn + 1) % len(self._left)

    def exhausted(self, *, left_out: bool) -> None:
        if left_out:
            del self._left[self._turn]
            if self._from_first or self._turn == len(self._left):
                self._turn = 0

    def check_given(self, given: Sequence[int], *, anew: bool) -> None:
        """Turns say nothing of how many came."""

    def state(self) -> State:
        return {"turn": self._turn}

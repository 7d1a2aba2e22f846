"""The exact draws of squirrel-core 0.20, for runs that have to repeat one of its."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.cursor import State, state_field
from energize.errors import StateError

_AT_ONCE = 256
_WORDS = 624


@dataclass(frozen=True)
class LegacyDraws:
    """Independent draws from numpy's legacy generator over a Mersenne twister.

    A draw that meets the end of a source is lost: the next one decides, which favours long sources.
    `probas` need not sum to 1; without them all `sources` are equally likely.
    """

    sources: int
    probas: tuple[float, ...] | None
    seed: int

    def begin(self, state: State | None, left_out: frozenset[int]) -> _DrawCursor:
        return _DrawCursor(self, state)

    def describe(self) -> dict[str, Any]:
        probas = None if self.probas is None else list(self.probas)
        return {"order": "squirrel", "draws": probas, "seed": self.seed}


class _DrawCursor:
    """Draws many at once; its state is the generator's before them, and how many are used."""

    def __init__(self, draws: LegacyDraws, state: State | None) -> None:
        self._sources = draws.sources
        self._bits = np.random.MT19937(draws.seed)
        self._generator = np.random.RandomState(self._bits)
        self._used = 0
        total = sum(draws.probas or ())
        self._shares = draws.probas and [each / total for each in draws.probas]
        if state is not None:
            self._used, place = (state_field(state, name, int) for name in ("used", "place"))
            words = np.array(state_field(state, "key", list))
            inside = 0 <= place <= _WORDS and 0 <= self._used <= _AT_ONCE
            if words.shape != (_WORDS,) or words.dtype.kind != "i" or not inside:
                raise StateError(f"the saved state is not a place in {_WORDS} words of a twister")
            twister: Any = {"key": words.astype(np.uint32), "pos": place}
            self._bits.state = {"bit_generator": "MT19937", "state": twister}
        self._draw()

    def current(self) -> int:
        if self._used == _AT_ONCE:
            self._draw()
            self._used = 0
        return self._drawn[self._used]

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        self._used += 1

    def exhausted(self, *, left_out: bool) -> None:
        self._used += 1

    def check_given(self, given: Sequence[int], *, anew: bool) -> None:
        """Draws say nothing of how many came."""

    def state(self) -> State:
        return {**self._before, "used": self._used}

    def _draw(self) -> None:
        twister: Any = self._bits.state["state"]
        self._before = {"key": twister["key"].tolist(), "place": twister["pos"]}
        drawn = self._generator.choice(self._sources, _AT_ONCE, p=self._shares)
        self._drawn: list[int] = drawn.tolist()

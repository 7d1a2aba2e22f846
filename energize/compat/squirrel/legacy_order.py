"""The exact draws of squirrel-core 0.20, for runs that have to repeat one of its."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.cursor import State, state_field
from energize.errors import StateError

__all__ = ["LegacyDraws"]

_AT_ONCE = 256


@dataclass(frozen=True)
class LegacyDraws:
    """Independent draws from numpy's legacy generator over a Mersenne twister.

    A draw that meets the end of a source is lost: the next one decides, which favours long sources.
    `probas` sum to 1; without them all `sources` are equally likely. `seed` None draws one, so that
    only a state can repeat the order.
    """

    sources: int
    probas: tuple[float, ...] | None
    seed: int | None

    def begin(self, state: State | None, left_out: frozenset[int]) -> _DrawCursor:
        return _DrawCursor(self, state)

    def describe(self) -> dict[str, Any]:
        probas = None if self.probas is None else list(self.probas)
        return {"order": "squirrel", "draws": probas, "seed": self.seed}


class _DrawCursor:
    """Draws many at once; its state is the generator's before them, and how many are used."""

    def __init__(self, draws: LegacyDraws, state: State | None) -> None:
        self._draws = draws
        self._generator = np.random.RandomState(np.random.MT19937(draws.seed))
        used = 0
        if state is not None:
            used = state_field(state, "used", int)
            self._generator.set_state(_unpacked(state_field(state, "generator", str)))
        self._draw()
        self._used = used

    def current(self) -> int:
        if self._used == _AT_ONCE:
            self._draw()
        return self._drawn[self._used]

    def advance(self) -> None:
        self._used += 1

    def exhausted(self, *, left_out: bool) -> None:
        self.advance()

    def state(self) -> State:
        return {"generator": self._before, "used": self._used}

    def _draw(self) -> None:
        self._before = _packed(self._generator.get_state(legacy=False))
        drawn = self._generator.choice(self._draws.sources, _AT_ONCE, p=self._draws.probas)
        self._drawn: list[int] = drawn.tolist()
        self._used = 0


def _packed(state: Any) -> str:
    """A Mersenne twister as text: its 624 words and its place in them."""
    words = np.append(state["state"]["key"], state["state"]["pos"]).astype("<u4")
    return base64.b64encode(words.tobytes()).decode()


def _unpacked(text: str) -> dict[str, Any]:
    words = np.frombuffer(base64.b64decode(text), dtype="<u4")
    if len(words) != 625 or words[-1] > 624:
        raise StateError("the saved state's 'generator' is not a Mersenne twister of 624 words")
    return {
        "bit_generator": "MT19937",
        "state": {"key": words[:-1].astype(np.uint32), "pos": int(words[-1])},
        "has_gauss": 0,
        "gauss": 0.0,
    }

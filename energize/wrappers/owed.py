"""Shares in what items cost, where that is known when they have been read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.arrays import FloatArray
from energize.cursor import State, check_agrees, counter_field, state_field
from energize.errors import SkipSample, StateError
from energize.order.making import make_scheme
from energize.order.weighted import WeightedScheme
from energize.packing.lengths import named
from energize.reading import Failed, Reading
from energize.rng import derive, hash_positions
from energize.topology import Lane
from energize.wrappers.calling import Seeding, keyed_calls
from energize.wrappers.item_cost import ItemCost

_STARTS = 2**20

_ROUNDED = 1e-6
"""Of what items have cost, what may be lost in rounding."""


@dataclass(frozen=True)
class OwedSlots:
    """The next item comes from the source that is owed most; of several the first.

    Sources are due their shares of what all items of the lane have cost, and owed what they are due
    and have not had; all that is owed sums to 0. With items of a cost up to c, no source ever has
    had c more than it was due: it was owed something or nothing when it was chosen. And none of n
    is ever owed more than c (1 + 1/2 + ... + 1/(n - 1)): the k that are owed most are owed on
    average no more than before if one of them was chosen, and else c / k more than the k + 1 that
    were owed most before, as the one that was chosen was among these. Shares are those that
    `scheme` asks for at the item's place among those of all lanes.

    Lanes begin as if they stood at different places of one long mix, or their n-th items would all
    be of the same source: what each source would be owed there, in items of the mean cost, it is
    owed from the start.
    """

    scheme: WeightedScheme
    unit: ItemCost
    lane: Lane
    reading: Reading
    key: int

    def begin(self, state: State | None, left_out: frozenset[int]) -> _OwedCursor:
        return _OwedCursor(self, state, left_out)

    def describe(self) -> dict[str, Any]:
        return {"owed": self.scheme.describe()}

    def offsets(self) -> FloatArray:
        """What each source is owed in this lane from the start, in items; sums to 0."""
        shares = np.array(self.scheme.shares())
        if self.lane.count == 1:
            return np.zeros(len(shares))
        word = hash_positions(derive(self.key, "lane"), np.array([self.lane.index]))
        start = int(word[0] % np.uint64(_STARTS))
        counts = make_scheme("exact", shares.tolist()).counts(start)
        return np.asarray(shares * start - counts, dtype=np.float64)


class _OwedCursor:
    """What each source is `owed`, and has `cost`, in the lane after so many `items`."""

    def __init__(self, slots: OwedSlots, state: State | None, left_out: frozenset[int]) -> None:
        self._slots, self._offsets = slots, slots.offsets()
        self._items = counter_field(state, "items")
        sources = len(self._offsets)
        self._owed = _numbers(state, "owed", sources, -math.inf)
        self._costs = _numbers(state, "costs", sources, 0.0)
        self._left = np.array([each not in left_out for each in range(sources)])
        self._shares = self._asked()
        self._current: int | None = None

    def current(self) -> int:
        if self._current is None:
            mean = float(self._costs.sum()) / self._items if self._items else 1.0
            owed = np.where(self._shares > 0, self._owed + self._offsets * mean, -math.inf)
            self._current = int(owed.argmax())
        return self._current

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        source, cost = self.current(), self._cost(item, where)
        self._owed += self._shares * cost
        self._owed[source] -= cost
        self._costs[source] += cost
        self._items += 1
        self._current = None
        if self._slots.scheme.varies:
            self._shares = self._asked()

    def _cost(self, item: Any, where: Callable[[], str]) -> float:
        """What an item costs; `SkipSample` for one that is left out."""
        reading = self._slots.reading
        with keyed_calls(self._slots.unit.of, reading, Seeding.NONE) as call:
            cost = call(item, 0, lambda: named(item, where()))
        if isinstance(cost, Failed):
            if not cost.skipped:
                reading.report(cost)
            raise SkipSample(str(cost))
        return float(cost)

    def exhausted(self, *, left_out: bool) -> None:
        """The others are owed what a source was that is left out."""
        source, self._current = self.current(), None
        if left_out:
            self._left[source] = False
            if not self._left.any():
                return
            self._shares = self._asked()
            self._owed += self._shares * self._owed[source]
            self._owed[source] = 0.0

    def check_given(self, given: Sequence[int], *, anew: bool) -> None:
        total = float(self._costs.sum())
        check_agrees(
            self._items == sum(given) or (self._items > sum(given) and not anew),
            f"{self._items} items have cost something, and {sum(given)} came",
        )
        check_agrees(
            abs(float(self._owed.sum())) <= _ROUNDED * total
            and bool((np.abs(self._owed) <= total * (1 + _ROUNDED)).all()),
            "what is owed to sources is not what others had",
        )

    def state(self) -> State:
        return {
            "items": self._items,
            "owed": self._owed.tolist(),
            "costs": self._costs.tolist(),
        }

    def _asked(self) -> FloatArray:
        """The shares of those that are left, at the next item's place; equal where all are 0."""
        lane = self._slots.lane
        asked = np.array(self._slots.scheme.shares(lane.index + self._items * lane.count))
        asked = np.where(self._left, asked, 0.0)
        if not asked.any():
            asked = self._left.astype(np.float64)
        return np.asarray(asked / max(asked.sum(), 1e-300))


def _numbers(state: State | None, name: str, count: int, least: float) -> FloatArray:
    if state is None:
        return np.zeros(count)
    numbers = state_field(state, name, list)
    if len(numbers) != count or not all(
        isinstance(each, int | float) and math.isfinite(each) and each >= least for each in numbers
    ):
        raise StateError(
            f"the saved state's {name!r} has a finite number for each of {count} sources"
            f"{'' if least else ', 0 or more'}; it has {str(numbers)[:80]}"
        )
    return np.array(numbers, dtype=np.float64)

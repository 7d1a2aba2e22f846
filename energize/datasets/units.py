"""What a blend counts its shares in: samples, or what samples or items cost."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.blends import ContinuedDataset
from energize.core.call import Call
from energize.core.costs import ColumnCost, Cost, ItemCost, named
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import digest
from energize.core.lanes import Lane
from energize.core.rng import derive, hash_positions
from energize.core.stream import INFINITE, State, counter_field, state_field
from energize.core.trace import Failed, Reading
from energize.data.source import Source
from energize.errors import ConfigError, NotIndexedError, SkipSample, StateError
from energize.order.cost import CostLine, Cycle, Line, OffsetLine
from energize.order.timeline import WeightedScheme, make_scheme

Unit: TypeAlias = ColumnCost | ItemCost
"""What items cost, known from the index or when they have been read."""

GivenUnit: TypeAlias = Cost | ColumnCost | ItemCost
"""The same as it may be given: a column's name, or a function of columns, is a `ColumnCost`."""

SAMPLES = "samples"
"""The unit of a blend that has no other: each item counts 1."""

COSTS = "cost"
"""What the scheme of a blend in another unit is called."""

_AT_ONCE = 2**20


def checked_unit(unit: GivenUnit | None) -> Unit | None:
    """The unit that was given; None for samples."""
    if unit is None or unit == SAMPLES:
        return None
    if isinstance(unit, ColumnCost | ItemCost):
        return unit
    if isinstance(unit, str) or (callable(unit) and not isinstance(unit, type)):
        return ColumnCost(unit)
    raise ConfigError(
        "unit is 'samples', the name of a column of the sources, a function of columns, or an "
        f"ItemCost of items as they are read; got {str(unit)[:80]!r}"
    )


def scheme_in(unit: Unit, scheme: object, options: Mapping[str, Any]) -> str:
    """What `scheme` a blend in a unit has; `ConfigError` where one was given."""
    given = ["scheme"] if scheme is not None else list(options)
    if given:
        raise ConfigError(
            f"{given[0]} says whose slot comes when slots are counted, and unit={_called(unit)} "
            "decides it by what items cost; leave either out"
        )
    return COSTS


def check_ends(unit: Unit | None, stop: str, max_epochs: object) -> None:
    """Raise `ConfigError` for a blend by a column that is to end."""
    if isinstance(unit, ColumnCost) and (stop != "restart" or max_epochs is not None):
        what = f"stop={stop!r}" if stop != "restart" else f"max_epochs={max_epochs!r}"
        raise ConfigError(
            f"{what} ends a blend, and with unit={_called(unit)} none does, as each epoch would "
            "have another number of items; leave it out, and say how many steps to read, or give "
            "an ItemCost as the unit, with which a blend ends as it is read"
        )


class Measured(NamedTuple):
    """What the samples of a source cost together, and a digest of what each costs."""

    cost: float
    digest: str


class MeasuredInputs:
    """The inputs of a blend by what their samples cost; every column is looked at once.

    Raises `NotIndexedError` for an input that is a stream, and what `ColumnCost` raises.
    """

    def __init__(self, unit: ColumnCost, inputs: Sequence[Dataset[Any]]) -> None:
        self._unit = unit
        for number, each in enumerate(inputs):
            if not (isinstance(each, IndexedDataset) and each.indexed):
                raise NotIndexedError(
                    f"unit={_called(unit)} is what the index says of samples, and dataset {number} "
                    f"({type(each).__name__}) is read as a stream, so nothing says which samples "
                    "its items are made of before they are read; give unit=ItemCost(...), a field "
                    "or a function of the items"
                )
        self._inputs = cast("Sequence[IndexedDataset[Any]]", inputs)
        self._found = {s.key: _measured(s, unit) for each in inputs for s in each.sources}

    def digests(self) -> list[str]:
        """For each input what its samples cost together, and a digest of what each costs."""
        found = [[self._found[s.key] for s in each.sources] for each in self._inputs]
        return [
            f"{sum(m.cost for m in each):.15g} together, {digest([m.digest for m in each])[:12]}"
            for each in found
        ]

    def lines(self) -> list[Line]:
        """What the items of each input cost in the order in which they are read."""
        return [self._line(each) for each in self._inputs]

    def _line(self, dataset: IndexedDataset[Any]) -> Line:
        later: Any = dataset
        while later._passes_on:
            later = later.inputs[0]
        continued = isinstance(later, ContinuedDataset)
        whole = later.inputs[0] if continued else dataset
        key = derive(dataset.key, "cost")
        line = CostLine(
            partial(self._unit.of, whole), self._cycle(whole), key, among=len(self._inputs)
        )
        return OffsetLine(line, later.since, later.read) if continued else line

    def _cycle(self, dataset: IndexedDataset[Any]) -> Cycle | None:
        """After how many items, from the first one on, all samples have had their turn equally
        often, again and again, and what these cost; None where that is not known.
        """
        if isinstance(dataset, Source):
            return Cycle(dataset.count, self._found[dataset.key].cost) if dataset.count else None
        below = [self._cycle(each) for each in dataset._children]
        if dataset.size == INFINITE:
            [first], taken = below if len(below) == 1 else [None], dataset.taken(1)
            if first is None or taken is None:
                return None
            together = math.lcm(first.items, taken[0])
            return Cycle(together // taken[0], together // first.items * first.cost)
        spans, covered = dataset._spans(dataset.size)
        cost = 0.0
        for child, start, stop, times in spans:
            cycle = below[child]
            if cycle is None or start % cycle.items or stop % cycle.items:
                return None
            cost += (stop - start) // cycle.items * cycle.cost * times
        return Cycle(dataset.size, cost) if covered == dataset.size else None


def _measured(source: Source[Any], unit: ColumnCost) -> Measured:
    total, seen = 0.0, hashlib.blake2b(digest_size=16)
    for start in range(0, source.count, _AT_ONCE):
        index = np.arange(start, min(start + _AT_ONCE, source.count), dtype=np.int64)
        costs = np.ascontiguousarray(unit.of_samples(source, index))
        total += float(costs.sum())
        seen.update(costs.data)
    return Measured(total, seen.hexdigest())


def _called(unit: Unit) -> str:
    if isinstance(unit, ItemCost):
        return f"ItemCost({unit.cost!r})" if isinstance(unit.cost, str) else "ItemCost(...)"
    return repr(unit.cost) if isinstance(unit.cost, str) else "a function of columns"


# Shares in what items cost, where that is known when they have been read.

_STARTS = 2**20


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
        self._call = Call(slots.unit.of, 0, seeded=False)
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
        cost = self._call.one(item, 0, self._items, reading, lambda _: named(item, where()))
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

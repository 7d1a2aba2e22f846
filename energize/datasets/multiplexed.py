"""Mixing streams whose lengths are not known: what to do when one is exhausted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.blends import ContinuedDataset
from energize.core.call import Call
from energize.core.costs import ColumnCost, Cost, ItemCost, named
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import described, digest
from energize.core.lanes import Lane
from energize.core.rng import derive, hash_positions
from energize.core.stream import (
    INFINITE,
    LaneReader,
    Opening,
    State,
    Stream,
    counter_field,
    parts_before,
    shifted,
    state_field,
)
from energize.core.trace import MAX_ATTEMPTS, Failed, Reading, refs_of
from energize.data.source import Source
from energize.errors import (
    ConfigError,
    EmptyDatasetError,
    NotIndexedError,
    SkipSample,
    StateError,
    SubstitutionError,
)
from energize.order.cost import CostLine, Cycle, Line, OffsetLine
from energize.order.timeline import MixingScheme, Scheme, WeightedScheme, make_scheme

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SlotCursor(Protocol):
    """Which source each slot belongs to, slot after slot."""

    def current(self) -> int:
        """The source of the slot at hand."""

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        """Go on to the next slot; the one at hand has got `item`, and `where` says where that comes
        from. `SkipSample` leaves the item out, and the slot is still at hand.
        """

    def exhausted(self, *, left_out: bool) -> None:
        """The source of the slot at hand had no item; if it is left out it is not asked again."""

    def state(self) -> State:
        """What `Slots.begin` goes on from; of constant shape."""


class Slots(Protocol):
    """An order of sources."""

    def begin(self, state: State | None, left_out: frozenset[int]) -> SlotCursor:
        """Start, or go on from `state`, in which these sources were left out."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON."""


@dataclass(frozen=True, slots=True)
class End:
    """What happens when a source is exhausted, and what the next epoch begins with.

    `rule`: "leave_out": a source that has been passed through `passes` times (None: any number)
    has no more slots, and the mix ends when no source is left; "first": the mix ends instead;
    "all_seen": it ends when each source has been exhausted once, or one of them `passes` times.
    A source that stays starts its next pass.

    `slots_anew`: whether the next epoch begins with the first slot, in sources that go on where
    they are, or goes on with other slots, over the first items of the sources.
    """

    rule: str
    passes: tuple[int | None, ...]
    slots_anew: bool = True


class MultiplexedDataset(Dataset[T_co]):
    """Items of several datasets in the order of `slots`, streams among them.

    A dataset is known to be exhausted when it is asked for one more item; `end` says what happens
    then. It is read as a whole in every lane.

    Raises `EmptyDatasetError` naming a dataset that is to start again and has no items.
    """

    names: tuple[str, ...]
    slots: Slots
    end: End

    def __init__(
        self, datasets: Sequence[Dataset[T_co]], names: Sequence[str], slots: Slots, end: End
    ) -> None:
        self._freeze(inputs=datasets, names=tuple(names), slots=slots, end=end)

    @cached_property
    def indexed(self) -> bool:
        return False

    @cached_property
    def sized(self) -> bool:
        return False

    _divisible = False

    def _open_pass(self, opening: Opening) -> Stream[T_co]:
        return MultiplexedStream(self.inputs, self.names, opening, self.slots, self.end)


class MultiplexedStream(Stream[T]):
    """One epoch. `given` and `passes` count, for each source, its items and passes in it.

    It is read in a single lane, or, where no source is left out and so it never ends, in any: each
    lane then has its own part of every source.
    """

    def __init__(
        self,
        inputs: Sequence[Dataset[Any]],
        names: Sequence[str],
        opening: Opening,
        slots: Slots,
        end: End,
    ) -> None:
        # Alone a lane sees the ends of the sources; among others none do.
        self._opening = opening._replace(endless=opening.lane.count > 1)
        self._datasets, self._names, self._end = inputs, names, end
        state = opening.state
        self.given = _counted(state, "given", len(inputs))
        self.passes = _counted(state, "passes", len(inputs))
        at = None if state is None else state_field(state, "slots", dict)
        self._begin = slots.begin
        self._slots = slots.begin(at, self._left_out())
        self._inputs: list[LaneReader[Any]] = [
            LaneReader(each, at)
            for each, at in zip(inputs, self._opening.each(len(inputs)), strict=True)
        ]
        self._fresh = [state is None] * len(inputs)
        self._parts_before = parts_before(inputs)
        self._over = len(self._left_out()) == len(inputs)
        self._in_vain = 0

    def at(self, position: int, attempt: int = 0) -> T:
        while not self._over:
            source = self._slots.current()
            reader = self._inputs[source]
            try:
                item: T = reader.read()
            except StopIteration:
                self._exhausted(source)
            else:
                self._fresh[source] = False
                if not self._kept(item, source):
                    continue
                self.given[source] += 1
                self.origin = shifted(reader.origin, self._parts_before[source])
                return item
        raise StopIteration

    def _kept(self, item: T, source: int) -> bool:
        """Whether an item has the slot at hand, or is left out."""
        try:
            self._slots.advance(item, partial(self._where, source))
        except SkipSample as reason:
            self._in_vain += 1
            if self._in_vain >= MAX_ATTEMPTS:
                raise SubstitutionError(
                    f"{self._names[source]}: {self._in_vain} items in a row were left out, the "
                    f"last one as {reason}"
                ) from None
            return False
        self._in_vain = 0
        return True

    def _where(self, source: int) -> str:
        """Where the last item of a source comes from."""
        refs = refs_of(self._datasets[source], self._inputs[source].origin)
        if not len(refs):
            return f"an item of {self._names[source]}"
        return self._datasets[source].sources[int(refs.source[0])].where(int(refs.index[0]))

    def _exhausted(self, source: int) -> None:
        self.passes[source] += 1
        rule, most = self._end.rule, self._end.passes[source]
        enough = most is not None and self.passes[source] >= most
        left_out = rule == "leave_out" and enough
        if rule == "first":
            self._over = enough
        if not left_out and not self._over and self._fresh[source]:
            raise EmptyDatasetError(
                f"{self._names[source]!r} has no items, so it cannot be started again; "
                "remove it from the mix, or give it weight 0"
            )
        if rule == "all_seen":
            self._over = enough or all(self.passes)
        self._slots.exhausted(left_out=left_out)
        self._over = self._over or len(self._left_out()) == len(self._datasets)
        self._fresh[source] = True

    def _left_out(self) -> frozenset[int]:
        if self._end.rule != "leave_out":
            return frozenset()
        pairs = enumerate(zip(self.passes, self._end.passes, strict=True))
        return frozenset(i for i, (passes, most) in pairs if most is not None and passes >= most)

    def state(self) -> State:
        if not self._over:
            inputs = [each.state() for each in self._inputs]
            slots, given, passes = self._slots.state(), list(self.given), list(self.passes)
        else:
            given, passes = [0] * len(self.given), [0] * len(self.passes)
            anew = self._end.slots_anew
            left_out = frozenset(i for i, most in enumerate(self._end.passes) if most == 0)
            slots = (self._begin(None, left_out) if anew else self._slots).state()
            begun = self._opening._replace(state=None)
            inputs = [
                (each if anew or fresh else LaneReader(dataset, begun)).state()
                for each, fresh, dataset in zip(
                    self._inputs, self._fresh, self._datasets, strict=True
                )
            ]
        return {"slots": slots, "given": given, "passes": passes, "inputs": inputs}


def _counted(state: State | None, name: str, sources: int) -> list[int]:
    if state is None:
        return [0] * sources
    counts = state_field(state, name, list)
    if len(counts) != sources:
        raise StateError(
            f"the saved state is of a mix of {len(counts)} datasets, this one has {sources}"
        )
    if not all(isinstance(each, int) and each >= 0 for each in counts):
        raise StateError(f"the saved state's {name!r} counts from 0; it has {counts[:20]}")
    return list(counts)


# Orders of sources that are followed slot after slot.

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
        return _SchemeSlotCursor(self.scheme, position, gone)

    def describe(self) -> dict[str, Any]:
        tree: dict[str, Any] = described(self.scheme)
        return tree


class _SchemeSlotCursor:
    """Looks some slots ahead. `gone` has the slot at which each source was left out."""

    def __init__(self, scheme: Scheme, position: int, gone: Sequence[int]) -> None:
        self._scheme = scheme
        self._timeline = scheme if isinstance(scheme, MixingScheme) else None
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

    def state(self) -> State:
        """When all sources are left out, the next epoch goes on with all."""
        stay = [_STAYS] * len(self._gone)
        return {
            "position": self._position,
            "left_out_at": list(self._gone) if _STAYS in self._gone else stay,
        }


@dataclass(frozen=True)
class TurnSlots:
    """One source after another; when one is left out the next one follows."""

    sources: int

    def begin(self, state: State | None, left_out: frozenset[int]) -> _TurnCursor:
        left = [each for each in range(self.sources) if each not in left_out]
        return _TurnCursor(left, state)

    def describe(self) -> dict[str, Any]:
        return {"turns": self.sources}


class _TurnCursor:
    def __init__(self, left: list[int], state: State | None) -> None:
        self._left = left
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
            if self._turn == len(self._left):
                self._turn = 0

    def state(self) -> State:
        return {"turn": self._turn}


Unit: TypeAlias = ColumnCost | ItemCost
"""What items cost, known from the index or when they have been read."""

GivenUnit: TypeAlias = Cost | ColumnCost | ItemCost
"""The same as it may be given: a column's name, or a function of columns, is a `ColumnCost`."""

SAMPLES = "samples"
"""The unit of a blend that has no other: each item counts 1."""

COSTS = "cost"
"""What the scheme of a blend in another unit is called."""

_LOOKED_UP = 2**20


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
    for start in range(0, source.count, _LOOKED_UP):
        index = np.arange(start, min(start + _LOOKED_UP, source.count), dtype=np.int64)
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

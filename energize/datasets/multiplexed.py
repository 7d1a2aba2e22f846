"""Mixing streams whose lengths are not known: what to do when one is exhausted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.blends import ContinuedDataset
from energize.core.call import Call
from energize.core.costs import ColumnCost, Cost, ItemCost, named
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import digest
from energize.core.lanes import Lane
from energize.core.rng import derive, hash_positions
from energize.core.stream import (
    INFINITE,
    LaneReader,
    Opening,
    State,
    Stream,
    counter_field,
    numbers_field,
    parts_before,
    shifted,
    state_field,
)
from energize.core.trace import MAX_ATTEMPTS, Failed, refs_of
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


class Slots(Protocol):
    """Which source each slot belongs to, slot after slot."""

    def current(self) -> int:
        """Return the source of the slot at hand."""

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        """Go on to the next slot; the one at hand has got `item`, and `where` says where that comes
        from. `SkipSample` leaves the item out, and the slot is still at hand.
        """

    def exhausted(self, *, left_out: bool) -> None:
        """The source of the slot at hand had no item; if it is left out it is not asked again."""

    def state(self) -> State:
        """Return what others go on from; of constant shape."""


Begin: TypeAlias = Callable[[State | None, frozenset[int]], Slots]
"""Starts slots, or goes on with them from a state in which some sources were left out."""


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
    """Items of several datasets in the order of the scheme `slots`, streams among them.

    A dataset is known to be exhausted when it is asked for one more item; `end` says what happens
    then. With `unit`, shares are those of the scheme in what items cost. It is read as a whole in
    every lane.

    Raises `EmptyDatasetError` naming a dataset that is to start again and has no items.
    """

    names: tuple[str, ...]
    slots: Scheme
    end: End
    unit: ItemCost | None = None

    def __init__(
        self,
        datasets: Sequence[Dataset[T_co]],
        names: Sequence[str],
        slots: Scheme,
        end: End,
        unit: ItemCost | None = None,
    ) -> None:
        costs: dict[str, Any] = {} if unit is None else {"unit": unit}
        self._freeze(datasets, names=tuple(names), slots=slots, end=end, **costs)

    indexed = sized = _divisible = False  # whatever its inputs are

    def _open_pass(self, opening: Opening) -> Stream[T_co]:
        begin: Begin = partial(SchemeSlots, self.slots)
        if self.unit is not None:
            scheme = cast("WeightedScheme", self.slots)
            begin = partial(OwedSlots, scheme, self.unit, opening, key=self.key)
        return MultiplexedStream(self.inputs, self.names, opening, begin, self.end)


class MultiplexedStream(Stream[T]):
    """One epoch. `given` and `passes` count, for each source, its items and passes in it; a state
    after its end has those of the epoch as `ended`.

    It is read in a single lane, or, where no source is left out and so it never ends, in any: each
    lane then has its own part of every source.
    """

    def __init__(
        self,
        inputs: Sequence[Dataset[Any]],
        names: Sequence[str],
        opening: Opening,
        begin: Begin,
        end: End,
    ) -> None:
        # Alone a lane sees the ends of the sources; among others none do.
        self._opening = opening._replace(endless=opening.lane.count > 1)
        self._datasets, self._names, self._begin, self._end = inputs, names, begin, end
        state = opening.state
        self.given = numbers_field(state, "given", len(inputs))
        self.passes = numbers_field(state, "passes", len(inputs))
        at = None if state is None else state_field(state, "slots", dict)
        self._slots = begin(at, self._left_out())
        openings = self._opening.each(len(inputs))
        self._inputs: list[LaneReader[Any]] = list(map(LaneReader, inputs, openings))
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
        """Return whether an item has the slot at hand, or is left out."""
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
        """Return where the last item of a source comes from."""
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
        inputs, slots, given, passes = self._inputs, self._slots, self.given, self.passes
        ended: State = {}
        if self._over:
            ended = {"ended": {"given": list(given), "passes": list(passes)}}
            given = passes = [0] * len(given)
            begun = self._opening._replace(state=None)
            if self._end.slots_anew:
                never = frozenset(i for i, most in enumerate(self._end.passes) if most == 0)
                slots = self._begin(None, never)
            else:
                rows = zip(inputs, self._fresh, self._datasets, strict=True)
                inputs = [each if fresh else LaneReader(of, begun) for each, fresh, of in rows]
        return {
            "slots": slots.state(),
            "given": list(given),
            "passes": list(passes),
            "inputs": [each.state() for each in inputs],
            **ended,
        }


# Orders of sources that are followed slot after slot.

_AT_ONCE = 256
_STAYS = -1


class SchemeSlots:
    """The slots of a `scheme`, some of which are looked up ahead. From the slot on at which a
    source is left out (`gone`), its slots go to the others by weight; all slots before stay where
    they are. Of a scheme object that was not made by `make_scheme` no source can be left out.
    """

    def __init__(self, scheme: Scheme, state: State | None, left_out: frozenset[int]) -> None:
        self._scheme = self._left = scheme
        self._position, sources = counter_field(state, "position"), len(scheme.counts(0))
        self._gone = [_STAYS] * sources
        self._ahead: list[int] = []
        gone = [0 if each in left_out else _STAYS for each in range(sources)]
        if state is not None:
            gone = numbers_field(state, "left_out_at", sources, least=_STAYS)
        if max(gone) > self._position:
            raise StateError(f"the saved state's 'left_out_at' names slots to come: {gone[:20]}")
        for slot, source in sorted((slot, source) for source, slot in enumerate(gone)):
            if slot != _STAYS:
                self._leave_out(slot, source)

    def _leave_out(self, slot: int, source: int) -> None:
        self._gone[source] = slot
        self._ahead = []
        if isinstance(self._left, MixingScheme) and _STAYS in self._gone:
            self._left = self._left.without(source, slot)

    def current(self) -> int:
        if not self._ahead:
            slots = np.arange(self._position, self._position + _AT_ONCE)
            self._ahead = self._left.locate(slots)[0].tolist()[::-1]
        return self._ahead[-1]

    def advance(self, item: Any, where: Callable[[], str]) -> None:
        self._ahead.pop()
        self._position += 1

    def exhausted(self, *, left_out: bool) -> None:
        if left_out:
            self._leave_out(self._position, self.current())
        elif getattr(self._scheme, "loses_draws", False):
            self.advance(None, str)

    def state(self) -> State:
        """When all sources are left out, the next epoch goes on with all."""
        gone = self._gone if _STAYS in self._gone else [_STAYS] * len(self._gone)
        return {"position": self._position, "left_out_at": list(gone)}


Unit: TypeAlias = ColumnCost | ItemCost
"""What items cost, known from the index or when they have been read."""

GivenUnit: TypeAlias = Cost | ColumnCost | ItemCost
"""The same as it may be given: a column's name, or a function of columns, is a `ColumnCost`."""

SAMPLES = "samples"
"""The unit of a blend that has no other: each item counts 1."""

COSTS = "cost"
"""What the scheme of a blend in another unit is called."""

_LOOKED_UP = 2**20


def checked_unit(given: GivenUnit | None, others: Mapping[str, Any]) -> Unit | None:
    """Return the unit that was given; None for samples. Raise `ConfigError` for those of the
    `others` that contradict it: options of schemes, and ends, of which a blend by a column has
    none.
    """
    if given is None or given == SAMPLES:
        return None
    unit: Unit
    if isinstance(given, ColumnCost | ItemCost):
        unit = given
    elif isinstance(given, str) or (callable(given) and not isinstance(given, type)):
        unit = ColumnCost(given)
    else:
        raise ConfigError(
            "unit is 'samples', the name of a column of the sources, a function of columns, or an "
            f"ItemCost of items as they are read; got {str(given)[:80]!r}"
        )
    plain = {"stop": "restart", "max_epochs": None, "scheme": None}
    for name, value in others.items():
        if name in plain and value == plain[name]:
            continue
        if name not in {"stop", "max_epochs"}:
            raise ConfigError(
                f"{name} says whose slot comes when slots are counted, and unit={_called(unit)} "
                "decides it by what items cost; leave either out"
            )
        if isinstance(unit, ColumnCost):
            raise ConfigError(
                f"{name}={value!r} ends a blend, and with unit={_called(unit)} none does, as each "
                "epoch would have another number of items; say how many steps to read, or give an "
                "ItemCost as the unit, with which a blend ends as it is read"
            )
    return unit


class MeasuredInputs:
    """The inputs of a blend by what their samples cost; every column is looked at once.

    Raises `NotIndexedError` for an input that is a stream, and what `ColumnCost` raises.
    """

    def __init__(self, unit: ColumnCost, inputs: Sequence[Dataset[Any]]) -> None:
        self._unit = unit
        for number, each in enumerate(inputs):
            if not each.indexed:
                raise NotIndexedError(
                    f"unit={_called(unit)} is what the index says of samples, and dataset {number} "
                    f"({type(each).__name__}) is read as a stream; give unit=ItemCost(...)"
                )
        self._inputs = cast("Sequence[IndexedDataset[Any]]", inputs)
        self._found = {s.key: _measured(s, unit) for each in inputs for s in each.sources}

    def digests(self) -> list[str]:
        """For each input what its samples cost together, and a digest of what each costs."""
        found = [[self._found[s.key] for s in each.sources] for each in self._inputs]
        return [
            f"{sum(cost for cost, _ in each):.15g} together, {digest([d for _, d in each])[:12]}"
            for each in found
        ]

    def lines(self) -> list[Line]:
        """Return what the items of each input cost in the order in which they are read."""
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
        if not continued:
            return line
        return OffsetLine(line, later.since, later.read, afresh=later.afresh)

    def _cycle(self, dataset: IndexedDataset[Any]) -> Cycle | None:
        """After how many items, from the first one on, all samples have had their turn equally
        often, again and again, and what these cost; None where that is not known.
        """
        if isinstance(dataset, Source):
            return Cycle(dataset.count, self._found[dataset.key][0]) if dataset.count else None
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


def _measured(source: Source[Any], unit: ColumnCost) -> tuple[float, str]:
    """Return what the samples of a source cost together, and a digest of what each costs."""
    total, seen = 0.0, hashlib.blake2b(digest_size=16)
    for start in range(0, source.count, _LOOKED_UP):
        index = np.arange(start, min(start + _LOOKED_UP, source.count), dtype=np.int64)
        costs = np.ascontiguousarray(unit.of_samples(source, index))
        total += float(costs.sum())
        seen.update(costs.data)
    return total, seen.hexdigest()


def _called(unit: Unit) -> str:
    shown = repr(unit.cost) if isinstance(unit.cost, str) else "a function"
    return f"ItemCost({shown})" if isinstance(unit, ItemCost) else shown


# Shares in what items cost, where that is known when they have been read.

_STARTS = 2**20


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
    owed from the start (`offsets`).
    """

    def __init__(
        self,
        scheme: WeightedScheme,
        unit: ItemCost,
        opening: Opening,
        state: State | None,
        left_out: frozenset[int],
        *,
        key: int,
    ) -> None:
        self._scheme, self._lane, self._reading = scheme, opening.lane, opening.reading
        self._offsets = _offsets(scheme, opening.lane, key)
        self._call = Call(unit.of, 0, seeded=False)
        sources = len(self._offsets)
        self._items = counter_field(state, "items")
        numbers = partial(numbers_field, state, count=sources, kind=float)
        self._owed = np.array(numbers("owed", least=-math.inf), dtype=np.float64)
        self._costs = np.array(numbers("costs"), dtype=np.float64)
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
        if self._scheme.varies:
            self._shares = self._asked()

    def _cost(self, item: Any, where: Callable[[], str]) -> float:
        """Return what an item costs; `SkipSample` for one that is left out."""
        reading = self._reading
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
        return {"items": self._items, "owed": self._owed.tolist(), "costs": self._costs.tolist()}

    def _asked(self) -> FloatArray:
        """Return the shares of those that are left, at the next item's place; equal where all are
        0.
        """
        place = self._lane.index + self._items * self._lane.count
        asked = np.array(self._scheme.shares(place))
        asked = np.where(self._left, asked, 0.0)
        if not asked.any():
            asked = self._left.astype(np.float64)
        return np.asarray(asked / max(asked.sum(), 1e-300))


def _offsets(scheme: WeightedScheme, lane: Lane, key: int) -> FloatArray:
    """Return what each source is owed in a lane from the start, in items; sums to 0."""
    shares = np.array(scheme.shares())
    if lane.count == 1:
        return np.zeros(len(shares))
    word = hash_positions(derive(key, "lane"), np.array([lane.index]))
    start = int(word[0] % np.uint64(_STARTS))
    counts = make_scheme("exact", shares.tolist()).counts(start)
    return np.asarray(shares * start - counts, dtype=np.float64)

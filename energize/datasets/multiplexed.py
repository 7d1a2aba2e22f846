"""Mixing streams whose lengths are not known: what to do when one is exhausted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np

from energize.core.dataset import Dataset
from energize.core.description import described
from energize.core.stream import (
    LaneReader,
    Opening,
    State,
    Stream,
    counter_field,
    parts_before,
    shifted,
    state_field,
)
from energize.core.trace import MAX_ATTEMPTS, refs_of
from energize.errors import EmptyDatasetError, SkipSample, StateError, SubstitutionError
from energize.order.timeline import MixingScheme, Scheme

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

"""Mixes of streams with lengths that are unknown until they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.call import Call
from energize.core.costs import ItemCost, named
from energize.core.dataset import Dataset
from energize.core.description import label_of
from energize.core.failures import Failed
from energize.core.lanes import Lane
from energize.core.padding import with_marks
from energize.core.rng import derive, hash_positions
from energize.core.stream import (
    LaneReader,
    LaneStream,
    Opening,
    State,
    counter_field,
    numbers_field,
    parts_before,
    shifted,
    state_field,
)
from energize.core.trace import MAX_ATTEMPTS, refs_of
from energize.errors import (
    EmptyDatasetError,
    SkipSample,
    StateError,
    SubstitutionError,
)
from energize.order.scheme import Scheme
from energize.order.timeline import MixingScheme, WeightedScheme, make_scheme

T = TypeVar("T")


BeginSlots: TypeAlias = Callable[[State | None, frozenset[int]], "Slots"]
"""Makes slots from a state, and the sources that are left out from the first slot."""


@dataclass(frozen=True, slots=True)
class PassLimits:
    """How many passes each source of a mix is read for, and what follows.

    Attributes:
        passes: The limit of each source; None for no limit. A source with a limit of 0
            is never read.
        leaves_out: Whether a source is left out after its last pass. Else the mix ends.
    """

    passes: tuple[int | None, ...]
    leaves_out: bool

    def reached(self, passes: Sequence[int]) -> frozenset[int]:
        """Return the sources that have no pass left after `passes` over each."""
        pairs = enumerate(zip(passes, self.passes, strict=True))
        return frozenset(
            source
            for source, (count, limit) in pairs
            if limit is not None and count >= limit
        )

    def left_out(self, passes: Sequence[int]) -> frozenset[int]:
        """Return the sources that are left out after `passes` over each."""
        return self.reached(passes) if self.leaves_out else frozenset()


class EpochStart(NamedTuple):
    """The slots, inputs and flags at the start of an epoch of a mix of streams."""

    slots: Slots
    inputs: Sequence[LaneReader[Any]]
    seen: Sequence[int]


class MixedStream(LaneStream[T]):
    """One epoch of a mix of streams.

    A source is exhausted when it has no item for its slot. In a single lane the mix
    then follows its `PassLimits`. In several lanes each lane reads its own part of
    every source, and no source ends.

    Attributes:
        mix: The dataset.
        opening: How the sources are opened.
        slots: The sources of the slots to come.
        delivered: Items of each source in this epoch.
        passes: Passes over each source in this epoch.
        limits: The rule after the last pass over a source.
        seen: Whether the current pass over each source has given an item, as 0 or 1.
    """

    may_be_empty = False
    """Whether a source that is left out may have given no item."""

    def __init__(
        self,
        mix: Any,
        begin: BeginSlots,
        limits: PassLimits,
        opening: Opening,
    ) -> None:
        # Alone a lane sees the ends of the sources; among others none do.
        self.opening = opening._replace(endless=opening.lane.count > 1)
        self.mix = mix
        self._datasets: tuple[Dataset[Any], ...] = mix.inputs
        self._begin = begin
        self.limits = limits
        inputs = len(self._datasets)
        state = opening.state
        self.delivered = numbers_field(state, "given", inputs)
        self.passes = numbers_field(state, "passes", inputs)
        position = None if state is None else state_field(state, "slots", dict)
        left_out = limits.left_out(self.passes)
        self.slots = begin(position, left_out)
        openings = self.opening.of_inputs(inputs)
        self._inputs: list[LaneReader[Any]] = list(
            map(LaneReader, self._datasets, openings)
        )
        self.seen = numbers_field(state, "seen", inputs)
        self._parts_before = parts_before(self._datasets)
        self._over = len(left_out) == inputs
        self._rejected = 0
        """Items in a row that were left out."""

    def at(self, position: int, attempt: int = 0) -> T:
        while not self._over:
            source = self.slots.current()
            if source is None:
                self._over = True
                break
            reader = self._inputs[source]
            try:
                item: T = reader.read()
            except StopIteration:
                self._exhausted(source)
            else:
                self.seen[source] = 1
                if not self._accepts(item, source):
                    continue
                self.delivered[source] += 1
                self.origin = shifted(reader.origin, self._parts_before[source])
                return item
        raise StopIteration

    def _accepts(self, item: T, source: int) -> bool:
        """Return whether an item gets the current slot, or is left out."""
        try:
            self.slots.advance(item, partial(self._locate, source))
        except SkipSample as reason:
            self._rejected += 1
            if self._rejected >= MAX_ATTEMPTS:
                raise SubstitutionError(
                    f"{label_of(self._datasets[source])}: {self._rejected} "
                    f"consecutive items were left out, the last one because {reason}"
                ) from None
            return False
        self._rejected = 0
        return True

    def _locate(self, source: int) -> str:
        """Return where the last item of a source comes from."""
        dataset = self._datasets[source]
        refs = refs_of(dataset, self._inputs[source].origin)
        if not len(refs):
            return f"an item of {self.mix.names[source]}"
        return dataset.sources[int(refs.source[0])].where(int(refs.index[0]))

    def _exhausted(self, source: int) -> None:
        self.passes[source] += 1
        dataset = self._datasets[source]
        all_left_out = self.limits.left_out(self.passes)
        left_out = source in all_left_out
        tolerated = left_out and (self.may_be_empty or dataset.sized)
        if not self.seen[source] and not tolerated:
            raise EmptyDatasetError(
                f"{self.mix.names[source]!r} has no items: {label_of(dataset)} "
                "returned none in a whole pass. Remove it from the mix, or set its "
                "weight to 0"
            )
        self.slots.exhausted(left_out=left_out)
        self._over = len(all_left_out) == len(self._datasets) or self.ends_after(source)
        self.seen[source] = 0

    def ends_after(self, source: int) -> bool:
        """Return whether the mix ends after a pass over a source."""
        limits = self.limits
        return not limits.leaves_out and source in limits.reached(self.passes)

    def next_epoch(self) -> EpochStart:
        """Return what the next epoch begins with: the first slot, and sources that
        continue where they are.
        """
        never_read = self.limits.reached([0] * len(self._datasets))
        slots = self._begin(None, never_read)
        return EpochStart(slots, self._inputs, self.seen)

    def state(self) -> State:
        """Return the state; after the end that of the next epoch, and the counts of
        this one as `ended`.
        """
        counts = {"given": list(self.delivered), "passes": list(self.passes)}
        start = EpochStart(self.slots, self._inputs, self.seen)
        ended: State = {}
        if self._over:
            ended = {"ended": counts}
            counts = {name: [0] * len(self.delivered) for name in counts}
            start = self.next_epoch()
        return {
            "slots": start.slots.state(),
            **counts,
            "inputs": [reader.state() for reader in start.inputs],
            "seen": list(start.seen),
            **ended,
        }


_LOOKED_UP = 256
"""Slots that are located in one call."""

_STAYS = -1
"""In a state, the slot from which a source is left out, if it is not."""


class SchemeSlots:
    """Slots in the order of a scheme.

    From the slot at which a source is left out, the other sources share its slots by
    weight. All slots before it stay as they are. No source of a scheme object that
    `make_scheme` did not make can be left out.
    """

    def __init__(
        self, scheme: Scheme, state: State | None, left_out: frozenset[int]
    ) -> None:
        self._remaining = scheme
        self._position = counter_field(state, "position")
        sources = len(scheme.counts(0))
        self._left_out_at = [_STAYS] * sources
        self._ahead: list[int] = []
        slots = [0 if source in left_out else _STAYS for source in range(sources)]
        if state is not None:
            slots = numbers_field(state, "left_out_at", sources, least=_STAYS)
        if max(slots) > self._position:
            raise StateError(
                "the saved state's 'left_out_at' has slots after its position: "
                f"{slots[:20]}"
            )
        for slot, source in sorted((slot, i) for i, slot in enumerate(slots)):
            if slot != _STAYS:
                self._leave_out(slot, source)

    def _leave_out(self, slot: int, source: int) -> None:
        self._left_out_at[source] = slot
        self._ahead = []
        if isinstance(self._remaining, MixingScheme) and _STAYS in self._left_out_at:
            self._remaining = self._remaining.without(source, slot)

    def current(self) -> int | None:
        """Return the source of the current slot; None if no source has a weight."""
        if not self._ahead:
            end = self._position + _LOOKED_UP
            if isinstance(self._remaining, MixingScheme):
                end = self._remaining.reach(end)
            slots = np.arange(self._position, end)
            self._ahead = self._remaining.locate(slots)[0].tolist()[::-1]
        return self._ahead[-1] if self._ahead else None

    def advance(self, item: Any, locate: Callable[[], str]) -> None:
        """Move to the next slot, after an item was read for the current one.

        Args:
            item: The item.
            locate: Returns the location of the item, for messages.

        Raises:
            SkipSample: If the item is left out. The slot stays the current one.
        """
        self._ahead.pop()
        self._position += 1

    def exhausted(self, *, left_out: bool) -> None:
        """Note that the source of the current slot had no item.

        Args:
            left_out: Whether the source gets no further slots.
        """
        if left_out:
            self._leave_out(self._position, self._ahead[-1])

    def state(self) -> State:
        """Return the position, and where sources were left out.

        If all sources are left out, the state is that of the next epoch, with all.
        """
        slots = self._left_out_at
        if _STAYS not in slots:
            slots = [_STAYS] * len(slots)
        return {"position": self._position, "left_out_at": list(slots)}


_LANE_STARTS = 2**20
"""Slots of the mix at which lanes begin, as far as their orders are concerned."""


class OwedSlots:
    """Slots in the order of what sources are owed, in what items cost as they are read.

    The next item comes from the source that is owed most; of several the first. Sources
    are due their shares of what all items of the lane have cost, and owed what they are
    due and have not had; all that is owed sums to 0. With items of a cost up to c, no
    source ever has had c more than it was due: it was owed something or nothing when it
    was chosen. And none of n is ever owed more than c (1 + 1/2 + ... + 1/(n - 1)): the
    k that are owed most are owed on average no more than before if one of them was
    chosen, and else c / k more than the k + 1 that were owed most before, as the one
    that was chosen was among these. Shares are those of the scheme at the item's
    position among the items of all lanes.

    Lanes begin as if at different positions of one long mix, or their n-th items would
    all be of the same source: what each source would be owed there, in items of the
    mean cost, it is owed from the start (`offsets`).
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
        self._scheme = scheme
        self._lane = opening.lane
        self._reading = opening.reading
        self._offsets = _offsets(scheme, opening.lane, key)
        self._call = Call(unit.of, 0)
        self._key = key
        sources = len(self._offsets)
        self._items = counter_field(state, "items")
        self._position = self._lane.index + self._items * self._lane.count
        """The position of the next item among the items of all lanes."""
        numbers = partial(numbers_field, state, count=sources, kind=float)
        self._owed = np.array(numbers("owed", least=-math.inf), dtype=np.float64)
        self._costs = np.array(numbers("costs"), dtype=np.float64)
        self._remaining = np.array([i not in left_out for i in range(sources)])
        self._shares = self._current_shares()
        self._current: int | None = None

    def current(self) -> int | None:
        """Return the source that is owed most; None if no source has a weight."""
        if self._current is None and self._shares.any():
            mean = float(self._costs.sum()) / self._items if self._items else 1.0
            owed = np.where(
                self._shares > 0, self._owed + self._offsets * mean, -math.inf
            )
            self._current = int(owed.argmax())
        return self._current

    def advance(self, item: Any, locate: Callable[[], str]) -> None:
        """Charge the current source what an item costs."""
        source = cast("int", self._current)
        cost = self._cost(item, locate)
        self._owed += self._shares * cost
        self._owed[source] -= cost
        self._costs[source] += cost
        self._items += 1
        self._position += self._lane.count
        self._current = None
        if self._scheme.varies:
            self._shares = self._current_shares()

    def _cost(self, item: Any, locate: Callable[[], str]) -> float:
        """Return what an item costs; raise `SkipSample` if the item is left out."""
        item, _ = with_marks(item)
        position = self._position
        word = partial(_word_of_cost, self._key, position)
        cost = self._call.one(
            item, word, position, self._reading, lambda _: named(item, locate())
        )
        if isinstance(cost, Failed):
            self._reading.leave_out(cost, None, None)
            raise SkipSample(str(cost))
        return float(cost)

    def exhausted(self, *, left_out: bool) -> None:
        """Note that the current source had no item.

        The others are owed what a source was that is left out.
        """
        source = cast("int", self._current)
        self._current = None
        if left_out:
            self._remaining[source] = False
            self._shares = self._current_shares()
            self._owed += self._shares * self._owed[source]
            self._owed[source] = 0.0

    def state(self) -> State:
        """Return the number of items, and what each source cost and is owed."""
        return {
            "items": self._items,
            "owed": self._owed.tolist(),
            "costs": self._costs.tolist(),
        }

    def _current_shares(self) -> FloatArray:
        """Return the shares of the remaining sources at the next item; all 0 if none
        of them has a weight.
        """
        shares = np.array(self._scheme.shares(self._position))
        remaining = np.where(self._remaining, shares, 0.0)
        return np.asarray(remaining / max(remaining.sum(), 1e-300))


def _word_of_cost(key: int, position: int) -> int:
    return derive("cost", key, position) % 2**64


def _offsets(scheme: WeightedScheme, lane: Lane, key: int) -> FloatArray:
    """Return what each source is owed in a lane from the start, in items; sums to 0."""
    shares = np.array(scheme.shares())
    if lane.count == 1:
        return np.zeros(len(shares))
    word = hash_positions(derive(key, "lane"), np.array([lane.index]))
    start = int(word[0] % np.uint64(_LANE_STARTS))
    counts = make_scheme("exact", shares.tolist()).counts(start)
    return np.asarray(shares * start - counts, dtype=np.float64)


Slots: TypeAlias = SchemeSlots | OwedSlots
"""The sources of slots, one slot after another."""

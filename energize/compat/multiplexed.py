"""Mixing streams whose lengths are not known: what to do when one is over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

from energize.cursor import Cursor, State, state_field
from energize.dataset import Dataset, IndexedDataset, OnFailure, log_failure
from energize.errors import ConfigError, EmptyDatasetError, StateError, nearest
from energize.topology import SINGLE_LANE, Lane

__all__ = ["STOP_RULES", "MultiplexedCursor", "MultiplexedDataset", "SlotCursor", "Slots"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

STOP_RULES = ("restart", "first_exhausted", "all_exhausted", "all_seen")


class SlotCursor(Protocol):
    """Which source each slot belongs to, slot after slot."""

    def current(self) -> int:
        """The source of the slot at hand."""

    def advance(self) -> None:
        """Go on to the next slot."""

    def ended(self, *, left_out: bool) -> None:
        """The source of the slot at hand had no item; if it is left out it is not asked again."""

    def state(self) -> State:
        """What `Slots.begin` goes on from; of constant shape."""


class Slots(Protocol):
    """An order of sources."""

    def begin(self, state: State | None, over: frozenset[int]) -> SlotCursor:
        """Start, or go on from `state`, in which the sources in `over` were over."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON."""


class MultiplexedDataset(Dataset[T_co]):
    """Items of several datasets in the order of `slots`, streams among them.

    A dataset is known to be over when it is asked for one more item. Then, by `stop`:
    - "restart": it starts its next pass, and the item comes from there; the mix never ends.
    - "first_exhausted": the mix ends.
    - "all_exhausted": it is left out from then on; the mix ends when all are over.
    - "all_seen": as "restart", but the mix ends when every dataset has been over once, or one of
      them `max_passes` times.
    The next epoch of a mix that has ended starts its datasets anew, in another order of slots.

    It is read as a whole in every lane; lane i of n gives the items i, i + n, ...

    Raises `EmptyDatasetError` naming a dataset that is to start again and has no items.
    """

    names: tuple[str, ...]
    slots: Slots
    stop: str
    max_passes: int | None

    def __init__(
        self,
        datasets: Sequence[Dataset[T_co]],
        names: Sequence[str],
        slots: Slots,
        *,
        stop: str,
        max_passes: int | None = None,
    ) -> None:
        if stop not in STOP_RULES:
            raise ConfigError(
                f"unknown stop rule {stop!r}{nearest(stop, STOP_RULES) or '.'} "
                f"Known: {', '.join(STOP_RULES)}"
            )
        self._freeze(
            inputs=datasets, names=tuple(names), slots=slots, stop=stop, max_passes=max_passes
        )

    @cached_property
    def indexed(self) -> bool:
        return False

    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        on_failure: OnFailure = log_failure,
    ) -> MultiplexedCursor[T_co]:
        return MultiplexedCursor(self, lane, state, on_failure)


class MultiplexedCursor(Cursor[T]):
    """`given` and `passes` count, for each source, the items it gave and how often it was over."""

    def __init__(
        self,
        dataset: MultiplexedDataset[T],
        lane: Lane,
        state: State | None,
        on_failure: OnFailure,
    ) -> None:
        self._dataset = dataset
        self._lane = lane
        self._on_failure = on_failure
        self._ended = False
        sources = len(dataset.inputs)
        self.given = _counted(state, "given", sources)
        self.passes = _counted(state, "passes", sources)
        states = [None] * sources if state is None else _entries(state, "inputs", sources)
        self._read = sum(self.given)
        self._never_over = self.passes.count(0)
        slots = None if state is None else state_field(state, "slots", dict)
        self._slots = dataset.slots.begin(slots, self._over())
        ended = [False] * sources if state is None else _entries(state, "ended", sources)
        self._cursors = [
            _OverCursor(at) if over and at is not None else self._opened(number, at)
            for number, (at, over) in enumerate(zip(states, ended, strict=True))
        ]
        self._fresh = [state is None] * sources

    def __next__(self) -> T:
        left_out = (self._lane.index - self._read) % self._lane.count
        for _ in range(left_out):
            self._next()
        return self._next()

    def _next(self) -> T:
        while not self._ended:
            source = self._slots.current()
            try:
                item: T = next(self._cursors[source])
            except StopIteration:
                self._source_is_over(source)
            else:
                self._slots.advance()
                self.given[source] += 1
                self._read += 1
                self._fresh[source] = False
                return item
        raise StopIteration

    def _source_is_over(self, source: int) -> None:
        self.passes[source] += 1
        self._never_over -= self.passes[source] == 1
        stop = self._dataset.stop
        if stop == "first_exhausted":
            self._ended = True
        elif stop == "all_exhausted":
            self._ended = not self._never_over
        elif self._fresh[source]:
            raise EmptyDatasetError(
                f"{self._dataset.names[source]!r} has no items, so it cannot be started again; "
                "remove it from the mix, or give it weight 0"
            )
        elif stop == "all_seen":
            most = self.passes[source] == self._dataset.max_passes
            self._ended = most or not self._never_over
        self._slots.ended(left_out=stop == "all_exhausted")
        if stop != "all_exhausted" and not self._ended:
            self._start_again(source)

    def _start_again(self, source: int) -> None:
        state = self._cursors[source].state()
        self._cursors[source].close()
        self._cursors[source] = self._opened(source, state)
        self._fresh[source] = True

    def _opened(self, source: int, state: State | None) -> Cursor[Any]:
        dataset = self._dataset.inputs[source]
        if isinstance(dataset, IndexedDataset) and dataset.indexed and dataset.size == 0:
            return _OverCursor({"position": 0})
        return dataset.open(state=state, on_failure=self._on_failure)

    def _over(self) -> frozenset[int]:
        if self._dataset.stop != "all_exhausted":
            return frozenset()
        return frozenset(i for i, passes in enumerate(self.passes) if passes)

    @property
    def ended(self) -> bool:
        return self._ended

    def state(self) -> State:
        inputs, given, passes = self._cursors, self.given, self.passes
        if self._ended:
            given = passes = [0] * len(inputs)
            if self._dataset.stop != "all_exhausted":
                inputs = [self._opened(number, None) for number in range(len(inputs))]
        return {
            "slots": self._slots.state(),
            "given": list(given),
            "passes": list(passes),
            "inputs": [each.state() for each in inputs],
            "ended": [each.ended and not self._ended for each in inputs],
        }

    def close(self) -> None:
        for each in self._cursors:
            each.close()


class _OverCursor(Cursor[Any]):
    """A pass that is over, as that of a stream without items is at once. Its state opens the next
    one.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def __next__(self) -> Any:
        raise StopIteration

    @property
    def ended(self) -> bool:
        return True

    def state(self) -> State:
        return self._state


def _counted(state: State | None, name: str, sources: int) -> list[int]:
    if state is None:
        return [0] * sources
    counts = _entries(state, name, sources)
    if not all(isinstance(each, int) and each >= 0 for each in counts):
        raise StateError(f"the saved state's {name!r} counts from 0; it has {counts}")
    return list(counts)


def _entries(state: State, name: str, sources: int) -> list[Any]:
    entries = state_field(state, name, list)
    if len(entries) != sources:
        raise StateError(
            f"the saved state is of a mix of {len(entries)} datasets, this one has {sources}"
        )
    return entries

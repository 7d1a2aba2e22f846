"""Leaving items out by a condition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeVar

from energize.cursor import State, check_agrees, counter_field, state_field
from energize.dataset import INFINITE, Dataset
from energize.errors import ConfigError, EmptyDatasetError
from energize.ignored import accepted
from energize.numbers import checked_whole
from energize.parts import PartReader
from energize.reading import Failed, Reading
from energize.streaming import Stream, empty_passes, nothing_comes
from energize.topology import Lane, WorkerConfig
from energize.wrappers.calling import (
    Seeding,
    function_name,
    keyed_calls,
    sample_keys_of,
    seeding_of,
)
from energize.wrappers.rounds import FoundDataset, keyed_by

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FilterDataset(FoundDataset[T_co]):
    """The items for which `filter_fn(item)` is true.

    How many come out depends on the data, so this is a stream: it has no length and no random
    access, and neither has what is built on it. In a loader each lane filters its own part of the
    input, so ranks and workers share the work. Where a substitute may take the place of a bad
    sample, raising `SkipSample` in an encoder keeps the dataset indexed. A condition with a
    parameter `rng` is given a `numpy.random.Generator` keyed by what the item is made of.

    `EmptyDatasetError` is raised when `max_rejected_in_a_row` items are left out one after another,
    instead of searching for ever.

    >>> from energize import ListSource
    >>> list(FilterDataset(ListSource(range(6)), lambda x: x % 2 == 0))
    [0, 2, 4]
    """

    changes_no_sample = ("max_rejected_in_a_row",)

    filter_fn: Callable[[Any], bool]
    max_rejected_in_a_row: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        filter_fn: Callable[[T_co], bool],
        *,
        max_rejected_in_a_row: int = 1_000_000,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        accepted("FilterDataset", **ignored)
        if not callable(filter_fn):
            raise ConfigError(
                f"FilterDataset: filter_fn is a function of an item; got {filter_fn!r}"
            )
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            filter_fn=filter_fn,
            max_rejected_in_a_row=checked_whole(
                max_rejected_in_a_row, "FilterDataset: max_rejected_in_a_row", 1
            ),
        )

    @cached_property
    def seeding(self) -> Seeding:
        """Where `filter_fn` draws its random numbers from, if it asks for them."""
        return seeding_of(self.filter_fn, seeded=False)

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        return _FilterStream(self, lane, state, reading, endless)


class _FilterStream(Stream[T]):
    def __init__(
        self,
        dataset: FilterDataset[T],
        lane: Lane,
        state: State | None,
        reading: Reading,
        endless: bool,
    ) -> None:
        self._dataset = dataset
        self._reading = reading
        self._lane = lane
        self._rejected = counter_field(state, "rejected")
        inner = None if state is None else state_field(state, "input", dict)
        self._input: PartReader[T] = PartReader(
            dataset.inputs[0], lane, inner, reading, endless=endless, scattered=True
        )
        passes, read = self._input.part.place
        check_agrees(
            passes > 0 or self._rejected <= read, f"{self._rejected} of {read} items were left out"
        )

    @cached_property
    def _enough(self) -> int:
        """So many rejected in a row are some passes over an input of known length."""
        input_ = self._dataset.inputs[0]
        if not input_.sized or input_.size == INFINITE:
            return INFINITE
        return -(-input_.size // self._lane.count) * empty_passes(self._lane)

    def at(self, position: int, attempt: int = 0) -> T:
        dataset = self._dataset
        most = min(self._enough, dataset.max_rejected_in_a_row)
        while self._rejected < most:
            item = self._input.read()
            own = dataset.seeding is Seeding.OWN
            word = keyed_by(dataset, "filter", *self._input.origin) if own else 0
            with keyed_calls(dataset.filter_fn, self._reading, dataset.seeding) as call:
                kept = call(item, word, partial(sample_keys_of, item))
            if isinstance(kept, Failed):
                self._reading.leave_out(kept, dataset, self._input.origin)
            elif kept:
                self._rejected = 0
                self.origin = self._input.origin
                return item
            self._rejected += 1
        if most == self._enough:
            raise EmptyDatasetError(
                nothing_comes(f"FilterDataset ({function_name(dataset.filter_fn)})", self._lane)
            )
        raise EmptyDatasetError(
            f"FilterDataset: {function_name(dataset.filter_fn)} left out {self._rejected} items in "
            "a row; check the condition, or raise max_rejected_in_a_row"
        )

    def state(self) -> State:
        return {"rejected": self._rejected, "input": self._input.state()}

    def close(self) -> None:
        self._input.close()

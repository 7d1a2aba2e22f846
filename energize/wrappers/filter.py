"""Leaving items out by a condition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeVar

from energize.cursor import Cursor, State, state_field
from energize.dataset import Dataset, OnFailure, log_failure
from energize.errors import ConfigError, EmptyDatasetError
from energize.fetching import Failed
from energize.topology import SINGLE_LANE, Lane, WorkerConfig
from energize.wrappers.calling import call, function_name, keys_of
from energize.wrappers.checks import checked_count

__all__ = ["FilterDataset"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FilterDataset(Dataset[T_co]):
    """The items for which `filter_fn(item)` is true.

    How many come out depends on the data, so this is a stream: it has no length and no random
    access, and neither has what is built on it. Where a substitute may take the place of a bad
    sample, raising `SkipSample` in an encoder keeps the dataset indexed.

    `EmptyDatasetError` is raised when `max_rejected_in_a_row` items are left out one after another,
    instead of searching for ever.

    >>> from energize import ListSource
    >>> list(FilterDataset(ListSource(range(6)), lambda x: x % 2 == 0))
    [0, 2, 4]
    """

    filter_fn: Callable[[Any], bool]
    max_rejected_in_a_row: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        filter_fn: Callable[[T_co], bool],
        *,
        max_rejected_in_a_row: int = 1_000_000,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if not callable(filter_fn):
            raise ConfigError(
                f"FilterDataset: filter_fn is a function of an item; got {filter_fn!r}"
            )
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            filter_fn=filter_fn,
            max_rejected_in_a_row=checked_count(
                max_rejected_in_a_row, "max_rejected_in_a_row", "FilterDataset"
            ),
        )

    @cached_property
    def indexed(self) -> bool:
        return False

    def open(
        self,
        lane: Lane = SINGLE_LANE,
        state: State | None = None,
        on_failure: OnFailure = log_failure,
    ) -> Cursor[T_co]:
        return _FilterCursor(self, lane, state, on_failure)


class _FilterCursor(Cursor[T]):
    def __init__(
        self, dataset: FilterDataset[T], lane: Lane, state: State | None, on_failure: OnFailure
    ) -> None:
        self._dataset = dataset
        self._on_failure = on_failure
        inner = None if state is None else state_field(state, "input", dict)
        self._cursor: Cursor[T] = dataset.inputs[0].open(lane, inner, on_failure)

    def __next__(self) -> T:
        for _ in range(self._dataset.max_rejected_in_a_row):
            item = next(self._cursor)
            kept = call(self._dataset.filter_fn, item, partial(keys_of, item))
            if isinstance(kept, Failed):
                if not kept.skipped:
                    self._on_failure(kept)
            elif kept:
                return item
        raise EmptyDatasetError(
            f"FilterDataset: {function_name(self._dataset.filter_fn)} left out "
            f"{self._dataset.max_rejected_in_a_row} items in a row; check the condition, or raise "
            "max_rejected_in_a_row"
        )

    def state(self) -> State:
        return {"input": self._cursor.state()}

    @property
    def ended(self) -> bool:
        return self._cursor.ended

    def close(self) -> None:
        self._cursor.close()

"""Only the first items of every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

import numpy as np

from energize.cursor import Cursor, State, state_field
from energize.dataset import INFINITE, Dataset, Int64Array, OnFailure
from energize.topology import Lane, WorkerConfig
from energize.wrappers.checks import checked_count
from energize.wrappers.routed import RoutedDataset, indexed_inputs, stretches_of_epochs
from energize.wrappers.streams import RunCursor

__all__ = ["LimitDataset"]

T_co = TypeVar("T_co", covariant=True)


class LimitDataset(RoutedDataset[T_co]):
    """The first `length` items of each epoch of a dataset, or all of them when it has fewer.

    Unlike `EpochizeDataset`, the next epoch does not go on behind the limit: it takes the first
    items of the input's next epoch, and those of its only epoch again when the input never ends or
    is a stream.

    Raises `ConfigError` for a length below 1.

    >>> from energize import ListSource
    >>> list(LimitDataset(ListSource("abc"), 2))
    ['a', 'b']
    """

    length: int

    def __init__(
        self, dataset: Dataset[T_co], length: int, *, worker_config: WorkerConfig | None = None
    ) -> None:
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            length=checked_count(length, "length", "LimitDataset"),
        )

    @cached_property
    def size(self) -> int:
        return min(self.length, indexed_inputs(self)[0].size)

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        whole = indexed_inputs(self)[0].size
        inner = at if whole == INFINITE else epoch * whole + at
        return np.zeros_like(positions), inner

    def stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        whole = indexed_inputs(self)[0].size
        return stretches_of_epochs(start, stop, self.size, 0 if whole == INFINITE else whole)

    def _open_stream(self, lane: Lane, state: State | None, on_failure: OnFailure) -> Cursor[T_co]:
        taken = 0 if state is None else state_field(state, "taken", int)
        over = taken >= self.length
        inner = None if state is None or over else state_field(state, "input", dict)
        cursor = self.inputs[0].open(lane, inner, on_failure)
        return RunCursor(cursor, self.length, 0 if over else taken)

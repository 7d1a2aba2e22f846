"""One dataset after another: what validation reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from energize.cursor import Cursor, State, state_field
from energize.dataset import INFINITE, Dataset, Int64Array, OnFailure
from energize.errors import ConfigError
from energize.topology import Lane, WorkerConfig
from energize.wrappers.routed import RoutedDataset, indexed_inputs

__all__ = ["ConcatDataset"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ConcatDataset(RoutedDataset[T_co]):
    """All items of the first dataset, then all of the second, ...: the same in every run.

    It resumes at any item, and delivers in the same order on any number of ranks and workers. Only
    the last dataset may be endless. Raises `ConfigError` without datasets, or when one that never
    ends has others behind it.

    >>> from energize import ListSource
    >>> list(ConcatDataset(ListSource("ab"), ListSource("c")))
    ['a', 'b', 'c']
    """

    def __init__(self, *datasets: Dataset[T_co], worker_config: WorkerConfig | None = None) -> None:
        if not datasets:
            raise ConfigError("ConcatDataset: there are no datasets to concatenate")
        self._freeze(inputs=datasets, worker_config=worker_config)
        if self.indexed:
            for number, (each, _) in enumerate(pairwise(indexed_inputs(self))):
                if each.size == INFINITE:
                    raise ConfigError(
                        f"ConcatDataset: dataset {number} ({type(each).__name__}) never ends, so "
                        "the ones behind it are never reached; pass repeat=False, or cut it with "
                        "LimitDataset"
                    )

    @cached_property
    def _ends(self) -> Int64Array:
        sizes = [each.size for each in indexed_inputs(self)]
        ends = [min(sum(sizes[: i + 1]), INFINITE) for i in range(len(sizes))]
        return np.array(ends, dtype=np.int64)

    @cached_property
    def size(self) -> int:
        return int(self._ends[-1])

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        which = np.searchsorted(self._ends, at, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])[which]
        return which, epoch * (self._ends[which] - starts) + at - starts

    @property
    def in_turn(self) -> bool:
        return True

    def taken(self, n: int) -> Sequence[int]:
        epochs, rest = divmod(n, max(self.size, 1))
        lengths = np.diff(self._ends, prepend=0)
        behind = np.clip(rest - (self._ends - lengths), 0, lengths)
        return [int(count) for count in epochs * lengths + behind]

    def _open_stream(self, lane: Lane, state: State | None, on_failure: OnFailure) -> Cursor[T_co]:
        return _ConcatCursor(self.inputs, lane, state, on_failure)


class _ConcatCursor(Cursor[T]):
    """Reads streams one after another; those passed already are left at their next epoch."""

    def __init__(
        self,
        inputs: Sequence[Dataset[Any]],
        lane: Lane,
        state: State | None,
        on_failure: OnFailure,
    ) -> None:
        self._current = 0 if state is None else state_field(state, "current", int)
        states = [None] * len(inputs) if state is None else state_field(state, "inputs", list)
        self._cursors: list[Cursor[Any]] = [
            each.open(lane, at, on_failure) for each, at in zip(inputs, states, strict=True)
        ]

    def __next__(self) -> T:
        while self._current < len(self._cursors):
            cursor = self._cursors[self._current]
            try:
                item: T = next(cursor)
            except StopIteration:
                self._current += 1
            else:
                self._current += cursor.ended
                return item
        raise StopIteration

    @property
    def ended(self) -> bool:
        return self._current == len(self._cursors)

    def state(self) -> State:
        return {
            "current": self._current % len(self._cursors),
            "inputs": [each.state() for each in self._cursors],
        }

    def close(self) -> None:
        for each in self._cursors:
            each.close()

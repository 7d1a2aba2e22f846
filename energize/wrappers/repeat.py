"""Several passes in one epoch, or passes without end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import numpy as np

from energize.cursor import Cursor, State
from energize.dataset import INFINITE, Dataset, Int64Array, OnFailure
from energize.errors import ConfigError, NotIndexedError
from energize.topology import Lane, WorkerConfig
from energize.wrappers.routed import RoutedDataset, indexed_inputs, stretches_of_epochs
from energize.wrappers.streams import EndlessCursor

__all__ = ["RepeatDataset"]

T_co = TypeVar("T_co", covariant=True)


class RepeatDataset(RoutedDataset[T_co]):
    """`repeats` passes over a dataset in every epoch, 2.5 say; without end when it is None.

    Every epoch has round(repeats * size) items and visits each sample floor(repeats) or
    ceil(repeats) times. Each pass over a shuffled input is in a new order; so the samples that a
    fractional pass takes, the first of its order, are others in every epoch.

    A stream, whose length is not known, can be repeated without end only. Raises `ConfigError` for
    `repeats` that are not a number above 0, or that leave no item.

    >>> from energize import ListSource
    >>> list(RepeatDataset(ListSource("abcd"), 1.5))
    ['a', 'b', 'c', 'd', 'a', 'b']
    """

    repeats: float | None

    def __init__(
        self,
        dataset: Dataset[T_co],
        repeats: float | None = None,
        *,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        number = isinstance(repeats, int | float) and not isinstance(repeats, bool)
        if repeats is not None and not (number and math.isfinite(repeats) and repeats > 0):
            raise ConfigError(
                f"RepeatDataset: repeats is a number above 0, or None for ever; got {repeats!r}"
            )
        self._freeze(inputs=[dataset], worker_config=worker_config, repeats=repeats)
        if not dataset.indexed and repeats is not None:
            raise NotIndexedError(
                f"RepeatDataset: {repeats} passes over a stream of unknown length cannot be "
                "counted; leave repeats out to repeat it for ever"
            )
        if dataset.indexed and self.size == 0:
            raise ConfigError(
                f"RepeatDataset: {repeats} passes over {indexed_inputs(self)[0].size} items leave "
                "no item"
            )

    @cached_property
    def size(self) -> int:
        inner = indexed_inputs(self)[0].size
        if self.repeats is None or inner == INFINITE:
            return INFINITE
        return math.floor(Fraction(repr(self.repeats)) * inner + Fraction(1, 2))

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self.size == INFINITE:
            return np.zeros_like(positions), positions
        epoch, at = np.divmod(positions, self.size)
        passes = math.ceil(self.size / indexed_inputs(self)[0].size)
        return np.zeros_like(positions), epoch * passes * indexed_inputs(self)[0].size + at

    @property
    def in_turn(self) -> bool:
        return self.size == INFINITE or self.size % indexed_inputs(self)[0].size == 0

    def stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        inner = indexed_inputs(self)[0].size
        stride = INFINITE if self.size == INFINITE else math.ceil(self.size / inner) * inner
        return stretches_of_epochs(start, stop, self.size, stride)

    def _open_stream(self, lane: Lane, state: State | None, on_failure: OnFailure) -> Cursor[T_co]:
        return EndlessCursor(self.inputs[0], lane, state, on_failure)

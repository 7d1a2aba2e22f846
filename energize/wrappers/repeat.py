"""Several passes in one epoch, or passes without end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import State, check_agrees, counter_field, state_field
from energize.dataset import INFINITE, Dataset
from energize.errors import ConfigError, NotIndexedError
from energize.ignored import accepted
from energize.parts import PartReader
from energize.reading import Reading
from energize.streaming import EndlessStream, Stream
from energize.topology import Lane, WorkerConfig
from energize.wrappers.routed import RoutedDataset, consumed_in_epochs, indexed_inputs

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class RepeatDataset(RoutedDataset[T_co]):
    """`repeats` passes over a dataset in every epoch, 2.5 say; without end when it is None.

    Every epoch has round(repeats * size) items and visits each sample floor(repeats) or
    ceil(repeats) times. Each pass over a shuffled input is in a new order; so the samples that a
    fractional pass takes, the first of its order, are others in every epoch.

    A stream is repeated as a whole: `repeats` is a whole number, or None. Raises `ConfigError` for
    `repeats` that are not a number above 0, or that leave no item, and `NotIndexedError` for a
    fraction of a stream.

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
        **ignored: Any,
    ) -> None:
        accepted("RepeatDataset", **ignored)
        number = isinstance(repeats, int | float) and not isinstance(repeats, bool)
        if repeats is not None and not (number and math.isfinite(repeats) and repeats > 0):
            raise ConfigError(
                f"RepeatDataset: repeats is a number above 0, or None for ever; got {repeats!r}"
            )
        self._freeze(inputs=[dataset], worker_config=worker_config, repeats=repeats)
        if not dataset.indexed and repeats is not None and repeats != int(repeats):
            raise NotIndexedError(
                f"RepeatDataset: {repeats} passes over a stream end within a pass, whose length is "
                "not known; give a whole number of passes, or none to repeat it for ever"
            )
        if dataset.indexed and self.size == 0:
            raise ConfigError(
                f"RepeatDataset: {repeats} passes over {indexed_inputs(self)[0].size} items leave "
                "no item"
            )

    @cached_property
    def sized(self) -> bool:
        return self.repeats is None or self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        if self.repeats is None or self.inputs[0].size == INFINITE:
            return INFINITE
        inner = self.inputs[0].size
        return math.floor(Fraction(repr(self.repeats)) * inner + Fraction(1, 2))

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        if self.size == INFINITE:
            return np.zeros_like(positions), positions
        epoch, at = np.divmod(positions, self.size)
        inner = self.inputs[0].size
        return np.zeros_like(positions), epoch * math.ceil(self.size / inner) * inner + at

    def taken(self, n: int) -> Sequence[int] | None:
        whole = self.size == INFINITE or self.size % indexed_inputs(self)[0].size == 0
        return [n] if whole else None

    def consumed(self, n: int) -> Int64Array:
        if self.taken(n) is not None:
            return super().consumed(n)
        inner = indexed_inputs(self)[0]
        stride = math.ceil(self.size / inner.size) * inner.size
        return consumed_in_epochs(inner, n, self.size, stride)

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized:
            return super()._stream(lane, state, reading, endless)

        def open_epoch(at: State | None) -> Stream[T_co]:
            return _RepeatStream(self, lane, at, reading)

        if not endless:
            return open_epoch(state)
        return EndlessStream(open_epoch, state, lane, type(self).__name__)


class _RepeatStream(Stream[T]):
    """Some passes over a lane's part of a stream of unknown length."""

    def __init__(
        self, dataset: RepeatDataset[T], lane: Lane, state: State | None, reading: Reading
    ) -> None:
        self._repeats = int(dataset.repeats or 1)
        self._passed = counter_field(state, "passed")
        inner = None if state is None else state_field(state, "input", dict)
        self._input: PartReader[T] = PartReader(
            dataset.inputs[0], lane, inner, reading, endless=False
        )
        passes, _ = self._input.part.place
        check_agrees(
            self._passed == passes % self._repeats,
            f"{self._passed} of {self._repeats} passes are over, and {passes} of all",
        )

    def at(self, position: int, attempt: int = 0) -> T:
        while self._passed < self._repeats:
            try:
                item = self._input.read()
            except StopIteration:
                self._passed += 1
            else:
                self.origin = self._input.origin
                return item
        self._passed = 0
        raise StopIteration

    def state(self) -> State:
        return {"passed": self._passed, "input": self._input.state()}

    def close(self) -> None:
        self._input.close()

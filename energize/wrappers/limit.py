"""Only the first items of every epoch."""

from __future__ import annotations

from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import State, check_agrees, counter_field, state_field
from energize.dataset import INFINITE, Dataset
from energize.ignored import accepted
from energize.numbers import checked_whole
from energize.reading import Reading
from energize.streaming import EndlessStream, Stream, check_count
from energize.topology import Lane, WorkerConfig
from energize.wrappers.routed import RoutedDataset, consumed_in_epochs, indexed_inputs

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LimitDataset(RoutedDataset[T_co]):
    """The first `length` items of each epoch of a dataset, or all of them when it has fewer.

    The limit says what is read: it counts the items of all ranks together. Unlike that of
    `EpochizeDataset`, the next epoch does not go on after the limit: it takes the first items of
    the input's next epoch, and those of its only epoch again when the input never ends or is a
    stream. A stream of unknown length is read from the front in each lane, up to the limit.

    Raises `ConfigError` for a length below 1.

    >>> from energize import ListSource
    >>> list(LimitDataset(ListSource("abc"), 2))
    ['a', 'b']
    """

    length: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        length: int,
        *,
        worker_config: WorkerConfig | None = None,
        **ignored: Any,
    ) -> None:
        accepted("LimitDataset", **ignored)
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            length=checked_whole(length, "LimitDataset: length", 1),
        )

    @cached_property
    def sized(self) -> bool:
        return self.inputs[0].sized

    @cached_property
    def size(self) -> int:
        return min(self.length, self.inputs[0].size)

    @property
    def divisible(self) -> bool:
        """Only where the length of the input is known: else its end may come before the limit."""
        return self.sized

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch, at = np.divmod(positions, self.size)
        whole = indexed_inputs(self)[0].size
        inner = at if whole == INFINITE else epoch * whole + at
        return np.zeros_like(positions), inner

    def consumed(self, n: int) -> Int64Array:
        inner = indexed_inputs(self)[0]
        return consumed_in_epochs(inner, n, self.size, 0 if inner.size == INFINITE else inner.size)

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if self.sized:
            return _LimitStream(self, lane, state, reading)

        def open_pass(at: State | None) -> Stream[T_co]:
            return _FirstItems(self, lane, at, reading)

        if not endless:
            return open_pass(state)
        return EndlessStream(open_pass, state, lane, type(self).__name__)


class _LimitStream(Stream[T]):
    """Reads a stream anew in every epoch; where each ends is known."""

    def __init__(
        self, dataset: LimitDataset[T], lane: Lane, state: State | None, reading: Reading
    ) -> None:
        self._size = dataset.size
        self._input = dataset.inputs[0]
        self._lane, self._reading = lane, reading
        self._epoch = counter_field(state, "epoch")
        self._open(None if state is None else state_field(state, "input", dict))

    def _open(self, state: State | None) -> None:
        self._stream: Stream[T] = self._input.stream(self._lane, state, self._reading, endless=True)

    def at(self, position: int, attempt: int = 0) -> T:
        epoch, place = divmod(position, self._size)
        if epoch != self._epoch:
            self._stream.close()
            self._epoch = epoch
            self._open(None)
        item = self._stream.at(place, attempt)
        self.origin = self._stream.origin
        return item

    def ahead(self, positions: Int64Array) -> None:
        places = positions - self._epoch * self._size
        self._stream.ahead(places[places < self._size])

    def state(self) -> State:
        return {"epoch": self._epoch, "input": self._stream.state()}

    def check_after(self, last: int | None, *, exact: bool) -> None:
        epoch, place = divmod(0 if last is None else last, self._size)
        check_agrees(
            epoch == self._epoch, f"it is in epoch {self._epoch} of a limit, and was in {epoch}"
        )
        self._stream.check_after(None if last is None else place, exact=exact)

    def close(self) -> None:
        self._stream.close()


class _FirstItems(Stream[T]):
    """The first items of one pass of a stream that is read as a whole."""

    def __init__(
        self, dataset: LimitDataset[T], lane: Lane, state: State | None, reading: Reading
    ) -> None:
        self._length = dataset.length
        self._taken = counter_field(state, "taken")
        check_agrees(
            self._taken <= self._length, f"{self._taken} of the first {self._length} items came"
        )
        inner = None if state is None or not self._taken else state_field(state, "input", dict)
        self._input = dataset.inputs[0].stream(lane, inner, reading, endless=False)

    def at(self, position: int, attempt: int = 0) -> T:
        try:
            if self._taken == self._length:
                raise StopIteration
            item: T = self._input.at(self._taken, attempt)
        except StopIteration:
            self._taken = 0  # the next pass reads the same items again
            raise
        self._taken += 1
        self.origin = self._input.origin
        return item

    def state(self) -> State:
        return {"taken": self._taken, "input": self._input.state()}

    def check_after(self, last: int | None, *, exact: bool) -> None:
        check_count(self._taken, last, exact=exact, what="items of a limit came")
        self._input.check_after(self._taken - 1 if self._taken else None, exact=exact)

    def close(self) -> None:
        self._input.close()

"""The datasets that decide order: each is a route from positions to positions of its inputs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np

from energize.arrays import Int64Array
from energize.cursor import State
from energize.dataset import IndexedDataset
from energize.reading import Failed, Reading
from energize.refs import Refs
from energize.streaming import Stream
from energize.topology import Lane
from energize.wrappers.streams import RoutedStream

__all__ = ["RoutedDataset", "indexed_inputs", "stretches_of_epochs"]

T_co = TypeVar("T_co", covariant=True)


def indexed_inputs(dataset: IndexedDataset[Any]) -> tuple[IndexedDataset[Any], ...]:
    """The inputs of an indexed dataset, which are indexed too."""
    return cast("tuple[IndexedDataset[Any], ...]", dataset.inputs)


def stretches_of_epochs(
    start: int, stop: int, size: int, stride: int, each: int = 1
) -> Iterator[tuple[int, int, int]]:
    """The stretches of the only input when epochs of `size` items, `each` made of so many of its
    items, begin at every `stride`-th of them.
    """
    if stride == size * each:
        size = max(stop, 1)
    while start < stop:
        epoch, at = divmod(start, size)
        end = min(stop - epoch * size, size)
        yield 0, epoch * stride + at * each, epoch * stride + end * each
        start = epoch * size + end


class RoutedDataset(IndexedDataset[T_co]):
    """Items pass through unchanged; `route` says which item of which input comes at a position."""

    @abstractmethod
    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each position the number of an input and a position in it; a pure function."""

    @property
    def routed_to(self) -> tuple[IndexedDataset[Any], ...]:
        """What `route` leads to, one for each of `inputs`."""
        return indexed_inputs(self)

    def taken(self, n: int) -> Sequence[int] | None:
        return [n] if len(self.inputs) == 1 else None

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        inputs = self.routed_to
        which, inner = self.route(positions)
        if len(inputs) == 1:
            return inputs[0].fetch(inner, reading)
        items: list[Any] = [None] * len(positions)
        for number, rows in _by_input(which):
            fetched = inputs[number].fetch(inner[rows], reading)
            for row, item in zip(rows.tolist(), fetched, strict=True):
                items[row] = item
        return items

    def refs(self, positions: Int64Array, attempt: int = 0) -> Refs:
        inputs = self.routed_to
        which, inner = self.route(positions)
        if len(inputs) == 1:
            return inputs[0].refs(inner, attempt)
        return Refs.merged(
            [
                (inputs[number].refs(inner[rows], attempt), rows, self._sources_before[number])
                for number, rows in _by_input(which)
            ]
        )

    def _stream(
        self, lane: Lane, state: State | None, reading: Reading, endless: bool
    ) -> Stream[T_co]:
        if not self.sized:
            return super()._stream(lane, state, reading, endless)
        return RoutedStream(self.route, self.inputs, lane, state, reading)

    @cached_property
    def _sources_before(self) -> list[int]:
        """How many sources stand before those of each input."""
        counts = [len(each.sources) for each in self.inputs]
        return list(accumulate(counts, initial=0))


def _by_input(which: Int64Array) -> list[tuple[int, Int64Array]]:
    """The rows that go to each input that gets any."""
    order = np.argsort(which, kind="stable")
    numbers, starts = np.unique(which[order], return_index=True)
    ends = [*starts[1:], len(order)]
    return [
        (number, order[start:end])
        for number, start, end in zip(numbers.tolist(), starts, ends, strict=False)
    ]

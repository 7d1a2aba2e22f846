"""The datasets that decide order: each is a route from positions to positions of its inputs."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np

from energize.arrays import Int64Array, rows_by_value
from energize.cursor import State
from energize.dataset import IndexedDataset
from energize.reading import Failed, Reading
from energize.refs import Refs
from energize.streaming import Stream
from energize.topology import Lane
from energize.wrappers.streams import RoutedStream

T_co = TypeVar("T_co", covariant=True)


def indexed_inputs(dataset: IndexedDataset[Any]) -> tuple[IndexedDataset[Any], ...]:
    """The inputs of an indexed dataset, which are indexed too."""
    return cast("tuple[IndexedDataset[Any], ...]", dataset.inputs)


def consumed_in_epochs(dataset: IndexedDataset[Any], n: int, size: int, stride: int) -> Int64Array:
    """What the first `n` items of epochs consume that are the first `size` of every `stride` items
    of a dataset; with a stride of 0, all of them its first.
    """
    if dataset.one_each:
        return np.array([n], dtype=np.int64)

    def read(epoch: int, items: int) -> Int64Array:
        start = epoch * stride
        return dataset.consumed(start + items) - dataset.consumed(start)

    epochs, rest = divmod(n, max(size, 1))
    if not stride:
        return epochs * read(0, size) + read(0, rest)
    return sum((read(epoch, size) for epoch in range(epochs)), start=read(epochs, rest))


class RoutedDataset(IndexedDataset[T_co]):
    """Items pass through unchanged; `route` says which item of which input comes at a position."""

    @abstractmethod
    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each position the number of an input and a position in it; a pure function."""

    @property
    def routed_to(self) -> tuple[IndexedDataset[Any], ...]:
        """What `route` leads to, one for each of `inputs`."""
        return indexed_inputs(self)

    @cached_property
    def one_each(self) -> bool:
        return len(self.inputs) == 1 and indexed_inputs(self)[0].one_each

    def fetch(self, positions: Int64Array, reading: Reading) -> list[T_co | Failed]:
        inputs = self.routed_to
        which, inner = self.route(positions)
        if len(inputs) == 1:
            return inputs[0].fetch(inner, reading)
        items: list[Any] = [None] * len(positions)
        for number, rows in rows_by_value(which):
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
                for number, rows in rows_by_value(which)
            ]
        )

    def passes(self, positions: Int64Array) -> Refs:
        inputs = self.routed_to
        if type(self).refs is not RoutedDataset.refs:
            return super().passes(positions)
        which, inner = self.route(positions)
        if len(inputs) == 1:
            return inputs[0].passes(inner)
        parts = [
            (inputs[number].passes(inner[rows]), rows, self._sources_before[number])
            for number, rows in rows_by_value(which)
        ]
        if any(len(refs) != len(rows) for refs, rows, _ in parts):
            return Refs.merged(parts)
        source, epoch = np.empty_like(which), np.empty_like(positions)
        for refs, rows, before in parts:  # one sample each
            at = rows[refs.item]
            source[at], epoch[at] = refs.source + before, refs.epoch
        nobody = np.full(len(positions), -1, dtype=np.int64)
        return Refs(np.arange(len(positions)), source, nobody, epoch)

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

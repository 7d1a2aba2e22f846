"""Visiting a finite dataset in random order."""

from __future__ import annotations

import reprlib
from functools import cached_property
from typing import TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.dataset import INFINITE, Dataset
from energize.errors import ConfigError, NotIndexedError
from energize.numbers import checked_whole
from energize.order.epochs.shuffle import ShuffleOrder
from energize.refs import Refs
from energize.wrappers.routed import RoutedDataset, indexed_inputs

T_co = TypeVar("T_co", covariant=True)


class ShuffleDataset(RoutedDataset[T_co]):
    """Every epoch of a finite indexed dataset in a random order of its own, without a buffer.

    Each epoch visits every item exactly once. The order is keyed by the seed and the sources, so
    two datasets of equal size are visited in different orders.

    `max_samples_per_sequence` and `shuffle_buffer_size` keep reading local, as in loaders that read
    shards in sequence: runs of at most the former many neighbours are put in random order, then
    items are shuffled within windows of the latter. Both unset: a full permutation. With only the
    buffer size set, runs are as long as the source's shards.

    `over_epochs` epochs may be shuffled together: each sample comes that many times in them, and
    may come twice in one. -1 draws samples independently, with replacement.

    Raises `ConfigError` for numbers below 1 and for an input that never ends, `NotIndexedError` for
    a stream.

    >>> from energize import ListSource
    >>> letters = ShuffleDataset(ListSource("abcd"))
    >>> sorted(letters)
    ['a', 'b', 'c', 'd']
    """

    shuffle_buffer_size: int | None
    max_samples_per_sequence: int | None
    over_epochs: int

    def __init__(
        self,
        dataset: Dataset[T_co],
        *,
        shuffle_buffer_size: int | None = None,
        max_samples_per_sequence: int | None = None,
        over_epochs: int = 1,
    ) -> None:
        for name, value in (
            ("shuffle_buffer_size", shuffle_buffer_size),
            ("max_samples_per_sequence", max_samples_per_sequence),
        ):
            if value is not None:
                checked_whole(value, f"ShuffleDataset: {name}", 1)
        self._freeze(
            inputs=[dataset],
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            over_epochs=(
                -1
                if over_epochs == -1
                else checked_whole(over_epochs, "ShuffleDataset: over_epochs", 1)
            ),
        )
        if not dataset.indexed:
            raise NotIndexedError(
                f"ShuffleDataset needs random access to its input, and {self._streaming_input()} "
                "can only be read as a stream; shuffle what it reads instead"
            )
        if self.size == INFINITE:
            raise ConfigError(
                "ShuffleDataset: the input never ends, and an endless dataset cannot be permuted; "
                "shuffle its finite parts before they are repeated or blended"
            )
        if self.size * max(over_epochs, 1) >= INFINITE // 2:
            raise ConfigError(
                f"ShuffleDataset: over_epochs={reprlib.repr(over_epochs)} of {self.size} samples "
                "are more than can be counted; shuffle fewer epochs together"
            )

    @cached_property
    def size(self) -> int:
        return indexed_inputs(self)[0].size

    @cached_property
    def _order(self) -> ShuffleOrder:
        run = self.max_samples_per_sequence
        if run is None and self.shuffle_buffer_size is not None:
            lengths = [each.run_length or self.size for each in self.sources]
            run = max(1, min(lengths))
        return ShuffleOrder(self.size, self.key, run, self.shuffle_buffer_size, self.over_epochs)

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        epoch = positions // self.size
        return np.zeros_like(positions), epoch * self.size + self._order.locate(positions)

    def passes(self, positions: Int64Array) -> Refs:
        if not self.one_each or self.over_epochs != 1:
            return super().passes(positions)
        nobody = np.full(len(positions), -1, dtype=np.int64)
        return Refs.of_source(nobody, positions // self.size)

    def consumed(self, n: int) -> Int64Array:
        if self.one_each or self.over_epochs != 1:
            return super().consumed(n)
        whole = n - n % max(self.size, 1)
        return indexed_inputs(self)[0].consumed(whole) + self._counted(whole, n)

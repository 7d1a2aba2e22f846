"""Cutting a dataset into epochs of a chosen length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.numbers import checked_whole
from energize.topology import WorkerConfig
from energize.wrappers.routed import RoutedDataset

T_co = TypeVar("T_co", covariant=True)


class EpochizeDataset(RoutedDataset[T_co]):
    """Epochs of `length` items each, without end: an epoch goes on where the last one stopped.

    A finite input starts its next pass when one has ended, so every epoch is full. As the outermost
    dataset of a loader it says where a loop ends, not what is read: `length` counts the steps that
    each rank makes, as in Energon (see `Loader`). `LimitDataset` says what is read.

    Instead of a length, `num_epochs` makes one epoch of that many passes, over all ranks: of an
    endless dataset, passes as `len` of it counts them.

    Raises `ConfigError` unless exactly one of the two is given, or for a number below 1, and
    `NotIndexedError` for `num_epochs` of a stream of unknown length.

    >>> from energize import ListSource
    >>> epochs = EpochizeDataset(ListSource("abc"), 2)
    >>> cursor = epochs.open()
    >>> list(cursor), list(epochs.open(state=cursor.state()))
    (['a', 'b'], ['c', 'a'])
    """

    ends_loops = True

    length: int
    num_epochs: int | None

    def __init__(
        self,
        dataset: Dataset[T_co],
        length: int | None = None,
        *,
        num_epochs: int | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        if (length is None) == (num_epochs is None):
            raise ConfigError(
                "EpochizeDataset: give either length (items per epoch) or num_epochs (passes over "
                f"the dataset); got length={length!r}, num_epochs={num_epochs!r}"
            )
        if num_epochs is not None:
            length = len(dataset) * checked_whole(num_epochs, "EpochizeDataset: num_epochs", 1)
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            length=checked_whole(length, "EpochizeDataset: length", 1),
            num_epochs=num_epochs,
        )

    @cached_property
    def key(self) -> int:
        """That of the input: where epochs end changes no order."""
        return self.inputs[0].key

    @cached_property
    def sized(self) -> bool:
        return True

    @cached_property
    def size(self) -> int:
        return self.length

    @property
    def steps_per_epoch(self) -> int | None:
        return self.length if self.num_epochs is None else None

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return np.zeros_like(positions), positions

    def taken(self, n: int) -> Sequence[int]:
        return [n]

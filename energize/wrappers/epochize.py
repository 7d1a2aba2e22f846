"""Cutting a dataset into epochs of a chosen length."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import numpy as np

from energize.cursor import Cursor, State, state_field
from energize.dataset import INFINITE, Dataset, IndexedDataset, Int64Array, OnFailure
from energize.errors import ConfigError
from energize.topology import Lane, WorkerConfig
from energize.wrappers.checks import checked_count
from energize.wrappers.routed import RoutedDataset
from energize.wrappers.streams import EndlessCursor, RunCursor

__all__ = ["EpochizeDataset"]

T_co = TypeVar("T_co", covariant=True)


class EpochizeDataset(RoutedDataset[T_co]):
    """Epochs of `length` items each, without end: an epoch goes on where the last one stopped.

    A finite input starts its next pass when one is over, so every epoch is full. Instead of a
    length, `num_epochs` makes one epoch of that many passes over a finite dataset.

    Raises `ConfigError` unless exactly one of the two is given, or when `num_epochs` is asked of a
    dataset that never ends.

    >>> from energize import ListSource
    >>> epochs = EpochizeDataset(ListSource("abc"), 2)
    >>> cursor = epochs.open()
    >>> list(cursor), list(epochs.open(state=cursor.state()))
    (['a', 'b'], ['c', 'a'])
    """

    length: int

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
                f"a finite dataset); got length={length!r}, num_epochs={num_epochs!r}"
            )
        if num_epochs is not None:
            length = _passes(dataset, checked_count(num_epochs, "num_epochs", "EpochizeDataset"))
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            length=checked_count(length, "length", "EpochizeDataset"),
        )

    @cached_property
    def size(self) -> int:
        return self.length

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return np.zeros_like(positions), positions

    @property
    def in_turn(self) -> bool:
        return True

    def _open_stream(self, lane: Lane, state: State | None, on_failure: OnFailure) -> Cursor[T_co]:
        taken = 0 if state is None else state_field(state, "taken", int)
        inner = None if state is None else state_field(state, "input", dict)
        endless = EndlessCursor(self.inputs[0], lane, inner, on_failure)
        return RunCursor(endless, self.length, taken % self.length)


def _passes(dataset: Dataset[T_co], num_epochs: int) -> int:
    if isinstance(dataset, IndexedDataset) and dataset.indexed and dataset.size != INFINITE:
        return num_epochs * dataset.size
    raise ConfigError(
        f"EpochizeDataset: num_epochs={num_epochs} counts passes over a finite dataset, and "
        f"{type(dataset).__name__} has no end to count; give length, the items per epoch"
    )

"""Batches of a stream that cost the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np

from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.numbers import checked_batch_size, checked_whole
from energize.order.epochs.levelling import levelled
from energize.reading import Failed, Reading
from energize.topology import WorkerConfig
from energize.wrappers.calling import Seeding, keyed_calls, sample_keys_of
from energize.wrappers.item_cost import ItemCost
from energize.wrappers.rounds import RoundsDataset, Step, Taken, alone

T_co = TypeVar("T_co", covariant=True)


class LevelBufferDataset(RoundsDataset[T_co]):
    """The items of each `size` in a row in another order, so that every `batch_size` of them in a
    row cost about the same: for streams, of packs for example.

    `cost` is a function of an item, or the name of its field that says it, see `ItemCost`. A
    `BatchDataset` of `batch_size` on top then has batches that cost about `batch_size` times the
    mean of the `size` items that they were chosen among. In a loader each lane levels its own part
    of the input, so the batches that ranks have in one step differ as such means do: the less, the
    larger `size` is. What has random access is better levelled by `LevelDataset`, in whole global
    batches.

    A state holds where the buffer began and how many of its items were given; they are read again.
    At the end of a pass what fills no batch stays last. An item is left out for which `cost` raises
    `SkipSample`.

    Raises `ConfigError` for sizes below 1 and a `size` that is not a whole number of batches;
    reading raises `EncoderError`, with the key of the sample, for a cost that is not above 0 and
    finite.

    >>> from energize import ListSource
    >>> list(LevelBufferDataset(ListSource(["aaaaaa", "bbbbb", "c", "dd"]), 4, 2, len))
    ['aaaaaa', 'c', 'bbbbb', 'dd']
    """

    buffer_size: int
    batch_size: int
    cost: ItemCost

    def __init__(
        self,
        dataset: Dataset[T_co],
        size: int,
        batch_size: int,
        cost: str | Callable[[T_co], Any] | ItemCost,
        *,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        whole = checked_whole(size, "LevelBufferDataset: size", 1)
        group = checked_batch_size(batch_size, "LevelBufferDataset: batch_size")
        if whole % group:
            raise ConfigError(
                f"LevelBufferDataset: {whole} items are not a whole number of batches of {group}; "
                f"use a size of {max(whole // group, 1) * group}, for example"
            )
        self._freeze(
            inputs=[dataset],
            worker_config=worker_config,
            buffer_size=whole,
            batch_size=group,
            cost=cost if isinstance(cost, ItemCost) else ItemCost(cost),
        )

    def round(self, items: Iterator[Taken], reading: Reading) -> Iterator[Step[T_co]]:
        buffer: list[Taken] = []
        costs: list[float] = []
        with keyed_calls(self.cost.of, reading, Seeding.NONE) as call:
            for taken in items:
                cost = call(taken.item, 0, partial(sample_keys_of, taken.item))
                if not isinstance(cost, Failed):
                    buffer.append(taken)
                    costs.append(cost)
                    if len(buffer) == self.buffer_size:
                        break
                elif not cost.skipped:
                    reading.report(cost)
        for place in levelled(np.array(costs), self.batch_size).tolist():
            yield partial(alone, buffer[place])

"""Batches that cost about the same, whose ranks wait for nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from energize.core import tree
from energize.core.arrays import Int64Array, rows_by_value
from energize.core.call import Call
from energize.core.checks import checked_batch_size, checked_whole
from energize.core.costs import ColumnCost, Cost, ItemCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import described
from energize.core.failures import Failed
from energize.core.lanes import WorkerConfig
from energize.core.node import INFINITE, NodeTraits, Routes, Span, StreamTraits
from energize.core.stream import (
    sample_keys_of,
)
from energize.core.trace import (
    ReadContext,
)
from energize.datasets.rounds import RoundsDataset, Step, Taken, alone, keyed_by
from energize.errors import ConfigError, NotIndexedError
from energize.order.cost import levelled

T_co = TypeVar("T_co", covariant=True)

_KEPT = 8
"""Global batches whose order is kept: micro batches of one are mostly read one after
another."""

_MOST = 2**24
"""Samples of a global batch."""


class LevelBufferDataset(RoundsDataset[T_co]):
    """The items of each `size` in a row in another order, so that every `batch_size` of
    them in a row cost about the same: for streams, of packs for example.

    `cost` is a function of an item, or the name of its field that says it, see
    `ItemCost`. A `BatchDataset` of `batch_size` on top then has batches that cost about
    `batch_size` times the mean of the `size` items that they were chosen among. In a
    loader each lane levels its own part of the input, so the batches that ranks have in
    one step differ as such means do: the less, the larger `size` is. What has random
    access is better levelled by `LevelDataset`, in whole global batches.

    A state holds where the buffer began and how many of its items were given; they are
    read again. At the end of a pass what fills no batch stays last. An item is left out
    for which `cost` raises `SkipSample`.

    Raises `ConfigError` for sizes below 1 and a `size` that is not a whole number of
    batches; reading raises `EncoderError`, with the key of the sample, for a cost that
    is not above 0 and finite.

    >>> from energize import ListSource
    >>> list(LevelBufferDataset(ListSource(["aaaaaa", "bbbbb", "c", "dd"]), 4, 2, len))
    ['aaaaaa', 'c', 'bbbbb', 'dd']
    """

    order_name = "LevelBufferDataset"

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
                f"LevelBufferDataset: {whole} items are not a whole number of batches "
                f"of {group}; use a size of {max(whole // group, 1) * group}, for "
                "example"
            )
        self.freeze(
            [dataset],
            worker_config,
            buffer_size=whole,
            batch_size=group,
            cost=cost if isinstance(cost, ItemCost) else ItemCost(cost),
        )

    @cached_property
    def traits(self) -> NodeTraits:
        return NodeTraits(
            stream=StreamTraits(by_reading=True, buffered=self.buffer_size)
        )

    @cached_property
    def _call(self) -> Call:
        return Call(self.cost.of, 0)

    def round(
        self, items: Iterator[Taken], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        buffer: list[Taken] = []
        costs: list[float] = []
        call = self._call
        for taken in items:
            word = partial(keyed_by, self, "cost", *taken.origin)
            cost = call.one(
                taken.item, word, taken.number, reading, partial(_key_of, taken.item)
            )
            if not isinstance(cost, Failed):
                buffer.append(taken)
                costs.append(cost)
                if len(buffer) == self.buffer_size:
                    break
            else:
                reading.leave_out(cost, self, taken.origin)
        for place in levelled(np.array(costs), self.batch_size).tolist():
            yield partial(alone, buffer[place])


def _key_of(item: Any, _: int) -> str:
    return sample_keys_of(item)


class LevelDataset(IndexedDataset[T_co]):
    """The same items in another order: of each `global_batch_size` in a row, so that
    every `batch_size` in a row cost about the same.

    Batched by `batch_size`, the ranks' micro batches of one global batch are then of
    level cost, and no rank waits for the one that drew the large images or the long
    texts. Which samples a global batch holds does not change, nor what functions below
    make of them, so training is the same but for rounding. What is delivered depends on
    no rank or worker. See `BatchDataset`, whose `level` puts this below it.

    `cost` is the name of a column of the sources, such as "tokens", or a function of
    columns, see `ColumnCost`: `lambda width, height: width * height / 196`, or
    `attention_cost`. A parameter with a default is a column that a source may lack.
    Nothing is read. Each sample, the dearest first, goes to the cheapest micro batch
    that has room. A micro batch costs at least what its dearest sample does, so one
    that alone is dearer than the others together stays so.

    A global batch that an epoch's end makes short is levelled as it is. The samples
    that then fill no micro batch stay the last ones, whatever they cost: they are those
    of the plain order.

    After a state that was saved between two global batches `cost` may be another one;
    inside of one it may not, nor may the columns be measured anew, as samples would
    come twice.

    Raises `ConfigError` for sizes that do not divide, `ColumnError` for columns that a
    source does not have, and `NotIndexedError` for a stream, which `LevelBufferDataset`
    levels.

    >>> from energize import ListSource
    >>> texts = ListSource(
    ...     ["aaaaaa", "bbbbb", "c", "dd"], columns={"tokens": [6, 5, 1, 2]}
    ... )
    >>> list(LevelDataset(texts, 2, global_batch_size=4, cost="tokens"))
    ['aaaaaa', 'c', 'bbbbb', 'dd']
    """

    order_name = "LevelDataset"

    batch_size: int
    global_batch_size: int
    cost: ColumnCost

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int,
        *,
        global_batch_size: int,
        cost: Cost | ColumnCost,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        micro = checked_batch_size(batch_size, "LevelDataset: batch_size")
        whole = checked_batch_size(global_batch_size, "LevelDataset: global_batch_size")
        if whole > _MOST:
            raise ConfigError(
                "LevelDataset: a global batch is ordered as a whole, so it has at "
                f"most {_MOST} samples; got global_batch_size={whole}"
            )
        if whole % micro:
            raise ConfigError(
                f"LevelDataset: a global batch of {whole} samples is not a whole "
                f"number of micro batches of {micro}; change global_batch_size or "
                "batch_size"
            )
        self.freeze(
            [dataset],
            worker_config,
            batch_size=micro,
            global_batch_size=whole,
            cost=cost if isinstance(cost, ColumnCost) else ColumnCost(cost),
        )
        if not dataset.indexed:
            raise NotIndexedError(
                f"LevelDataset: {tree.first_stream(dataset)} is read as a stream, and "
                "what its items cost is not known before they are read; "
                "LevelBufferDataset levels streams, some items at a time, and so does "
                "get_train_dataset(level=ItemCost(...))"
            )
        for source in self.sources:
            self.cost.check(source)

    def route(self, positions: Int64Array) -> Routes:
        inside = positions if self.size == INFINITE else positions % self.size
        inside = inside % self.global_batch_size
        located = np.empty_like(positions)
        for start, rows in rows_by_value(positions - inside):
            located[rows] = start + self._order(start)[inside[rows]]
        return Routes(located)

    @cached_property
    def _order(self) -> Callable[[int], Int64Array]:
        """The places of a global batch's items, by its first position, in the order of
        delivery.
        """
        return lru_cache(_KEPT)(self._levelled)

    def _levelled(self, start: int) -> Int64Array:
        positions = np.arange(start, self._end(start), dtype=np.int64)
        return levelled(self.cost.of(self.children[0], positions), self.batch_size)

    def _end(self, start: int) -> int:
        """Return the end of the global batch that begins at a position."""
        if self.size == INFINITE:
            return start + self.global_batch_size
        return start + min(self.global_batch_size, self.size - start % self.size)

    def _begun(self, n: int) -> int:
        """Return the beginning of the global batch of item `n`."""
        inside = n if self.size == INFINITE else n % max(self.size, 1)
        return n - inside % self.global_batch_size

    def reached(self, n: int) -> list[int]:
        """To the end of the global batch that is begun: what it holds is settled."""
        begun = self._begun(n)
        return [n if begun == n else self._end(begun)]

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        begun = self._begun(n)
        return [Span(0, 0, begun)], begun

    def settings(self) -> dict[str, Any]:
        """With the name of a function that says the cost: it decides which samples come
        when.
        """
        told = super().settings()
        cost = self.cost.cost
        if not isinstance(cost, str):
            told["cost"] = {**told["cost"], "function": described(cost)}
        return told

    def settled(
        self, saved: dict[str, Any], now: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Another cost changes nothing after whole global batches."""
        whole = self._begun(n) == n
        return ({**saved, "cost": now["cost"]} if whole else saved), now

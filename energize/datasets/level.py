"""Distribute samples so that the batches of all ranks cost about the same.

`LevelDataset` levels whole global batches by costs in the index; `LevelBufferDataset`
levels streams within a buffer, by costs of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from energize.core import tree
from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.call import Call
from energize.core.checks import checked_batch_size, checked_whole
from energize.core.costs import (
    ColumnCost,
    ColumnCosts,
    ItemCost,
    LevelCost,
    level_costs,
)
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import Failed
from energize.core.lanes import WorkerConfig
from energize.core.node import (
    INFINITE,
    NodeTraits,
    Routes,
    SourceNode,
    Span,
    StreamTraits,
)
from energize.core.stream import (
    sample_keys_of,
)
from energize.core.trace import (
    ReadContext,
)
from energize.datasets.rounds import RoundItem, RoundsDataset, Step, alone, keyed_by
from energize.errors import ConfigError, NotIndexedError
from energize.order.level import levelled, levelled_by_several

T_co = TypeVar("T_co", covariant=True)

_KEPT = 8
"""Cached orders of global batches; micro batches of one are mostly read in a row."""

MOST_LEVELLED = 2**24
"""The maximum number of samples of a global batch."""


class LevelBufferDataset(RoundsDataset[T_co]):
    """Reorder a stream so that consecutive batches cost about the same.

    Within each block of `size` items, items are reordered so that every `batch_size`
    consecutive items cost about `batch_size` times the mean of the block. Put a
    `BatchDataset` with the same `batch_size` on top. In a loader, each lane levels its
    own part of the input, so batches of different ranks differ as the means of their
    blocks: less for larger blocks. For a dataset with random access, use
        `LevelDataset`.

    The state has a constant size; on resume, the block is read again. Items that fill
    no batch at the end of a pass stay last. If `cost` raises `SkipSample`, the item is
    left out.

    Args:
        dataset: The dataset to read, for example of packs.
        size: Items of a block; a multiple of `batch_size`.
        batch_size: Items of a batch.
        cost: The name of a field, a function of an item, or an `ItemCost`.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        ConfigError: If a size is below 1, or `size` is not a multiple of `batch_size`.
        EncoderError: While reading, if a cost is not finite and above 0.

    Example:
        >>> from energize import ListSource
        >>> texts = ListSource(["aaaaaa", "bbbbb", "c", "dd"])
        >>> list(LevelBufferDataset(texts, 4, 2, len))
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
                f"LevelBufferDataset: {whole} items are not a multiple of the "
                f"batches of {group}. Use a size of "
                f"{max(whole // group, 1) * group}, for example"
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
        self, items: Iterator[RoundItem], reading: ReadContext
    ) -> Iterator[Step[T_co]]:
        buffer: list[RoundItem] = []
        costs: list[float] = []
        call = self._call
        for entry in items:
            word = partial(keyed_by, self, "cost", *entry.origin)
            cost = call.one(
                entry.item, word, entry.number, reading, partial(_key_of, entry.item)
            )
            if not isinstance(cost, Failed):
                buffer.append(entry)
                costs.append(cost)
                if len(buffer) == self.buffer_size:
                    break
            else:
                reading.leave_out(cost, self, entry.origin)
        for number in levelled(np.array(costs), self.batch_size).tolist():
            yield partial(alone, buffer[number])


def _key_of(item: Any, _: int) -> str:
    return sample_keys_of(item)


class LevelDataset(IndexedDataset[T_co]):
    """Reorder each global batch so that its micro batches cost about the same.

    No rank then waits for the rank with the largest images or the longest texts. The
    samples of a global batch stay the same, and so do the results of the functions
    below, so training is equal up to rounding. The order does not depend on ranks or
    workers. `BatchDataset(level=...)` adds this node.

    Samples are assigned in descending order of cost, each to the cheapest micro batch
    with room (the LPT rule). A sample that costs more than all others together still
    dominates its micro batch. A short global batch at the end of an epoch is levelled,
    too; its samples that fill no micro batch stay last.

    With several costs, such as those of an encoder and a language model, the maximum of
    each is brought close to its mean, see `levelled_by_several`. A sample may cost 0 by
    some of them.

    `cost` can be changed when a run resumes between two global batches. Within a global
    batch, neither `cost` nor the columns may change, as samples would be repeated.

    Args:
        dataset: The dataset to read; only its index is used.
        batch_size: Samples of a micro batch.
        global_batch_size: Samples of a global batch; a multiple of `batch_size`.
        cost: The name of a column of the sources, such as "tokens", or a function of
            columns, such as `lambda width, height: width * height / 196` or
            `attention_cost`. A parameter with a default is an optional column. Several
            costs are a list, or a dict with the importance of each, above 0:
            `{"tokens": 1, "patches": 0.3}`. A cost of half the importance may deviate
            twice as far from its mean.
        worker_config: Seeds the order by its `seed_offset`; passed to `get_loader`.

    Raises:
        ConfigError: If the sizes do not divide, for an empty or repeated cost, or an
            importance that is not above 0.
        ColumnError: If a source lacks a column, or one of several costs is always 0.
        NotIndexedError: If the dataset is a stream.

    Example:
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
    cost: ColumnCost | ColumnCosts

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int,
        *,
        global_batch_size: int,
        cost: LevelCost,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        micro, whole = checked_global_batch(
            "LevelDataset", batch_size, global_batch_size
        )
        self.freeze(
            [dataset],
            worker_config,
            batch_size=micro,
            global_batch_size=whole,
            cost=level_costs(cost, "LevelDataset"),
        )
        if not dataset.indexed:
            raise NotIndexedError(
                f"LevelDataset: {tree.first_stream(dataset)} is a stream, so the "
                "costs of its items are unknown before they are read. Use "
                "LevelBufferDataset or get_train_dataset(level=ItemCost(...))"
            )
        check_costs(self.cost, self.sources)

    def route(self, positions: Int64Array) -> Routes:
        inside = positions if self.size == INFINITE else positions % self.size
        inside = inside % self.global_batch_size
        located = np.empty_like(positions)
        for start, rows in rows_by_value(positions - inside):
            located[rows] = start + self._order(start)[inside[rows]]
        return Routes(located)

    @cached_property
    def _order(self) -> Callable[[int], Int64Array]:
        """Return the input positions of a global batch in the order of delivery."""
        return lru_cache(_KEPT)(self._levelled)

    def _levelled(self, start: int) -> Int64Array:
        positions = np.arange(start, self._end(start), dtype=np.int64)
        costs, importance = costs_at(self.cost, self.children[0], positions)
        return levelled_by_several(costs, self.batch_size, importance)

    def _end(self, start: int) -> int:
        """Return the end of the global batch that begins at a position."""
        if self.size == INFINITE:
            return start + self.global_batch_size
        return start + min(self.global_batch_size, self.size - start % self.size)

    def _begun(self, n: int) -> int:
        """Return the start of the global batch of item `n`."""
        inside = n if self.size == INFINITE else n % max(self.size, 1)
        return n - inside % self.global_batch_size

    def reached(self, n: int) -> list[int]:
        """Return the end of the started global batch: its content is fixed."""
        begun = self._begun(n)
        return [n if begun == n else self._end(begun)]

    def spans(self, n: int) -> tuple[Sequence[Span], int]:
        begun = self._begun(n)
        return [Span(0, 0, begun)], begun

    def settings(self) -> dict[str, Any]:
        """Return the parameters, with the names of cost functions."""
        return {**super().settings(), "cost": self.cost.identify()}

    def settled(
        self, saved: dict[str, Any], now: dict[str, Any], n: int
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ignore another cost after whole global batches."""
        whole = self._begun(n) == n
        return ({**saved, "cost": now["cost"]} if whole else saved), now


def check_costs(
    cost: ColumnCost | ColumnCosts, sources: Sequence[SourceNode[Any]]
) -> None:
    """Raise `ColumnError` if a source lacks a column of a cost, or has words in it."""
    if isinstance(cost, ColumnCosts):
        cost.check(sources)
    else:
        for source in sources:
            cost.check(source)


def costs_at(
    cost: ColumnCost | ColumnCosts, dataset: IndexedDataset[Any], positions: Int64Array
) -> tuple[FloatArray, FloatArray]:
    """Return the costs of items, shape (num_costs, num_items), and their importance."""
    if isinstance(cost, ColumnCosts):
        return cost.of(dataset, positions), np.array(cost.importance)
    return cost.of(dataset, positions)[None], np.ones(1)


def checked_global_batch(owner: str, batch_size: Any, whole: Any) -> tuple[int, int]:
    """Return the numbers of samples of a micro batch and of a global batch.

    Raises:
        ConfigError: Unless one divides the other.
    """
    micro = checked_batch_size(batch_size, f"{owner}: batch_size")
    size = checked_batch_size(whole, f"{owner}: global_batch_size")
    if size > MOST_LEVELLED:
        raise ConfigError(
            f"{owner}: global_batch_size must be at most {MOST_LEVELLED}, got {size}"
        )
    if size % micro:
        raise ConfigError(
            f"{owner}: a global batch of {size} samples is not a multiple of the micro "
            f"batch of {micro}. Change global_batch_size or batch_size"
        )
    return micro, size

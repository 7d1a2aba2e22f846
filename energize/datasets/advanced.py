"""Going on in a source after what was read of it before, in another dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.dataset import IndexedDataset, RoutedDataset, indexed_inputs
from energize.core.description import digest
from energize.core.rng import derive
from energize.datasets.batch import LevelDataset

T_co = TypeVar("T_co", covariant=True)


class AdvancedDataset(RoutedDataset[T_co]):
    """Another dataset from item `offset` on; epochs are counted from there."""

    offset: int

    def __init__(self, dataset: IndexedDataset[T_co], offset: int) -> None:
        self._freeze(inputs=[dataset], offset=offset)

    @cached_property
    def key(self) -> int:
        """With the offset in it, so that random functions of items draw anew after it."""
        return derive(type(self).__name__, self.inputs[0].key, self.offset)

    @cached_property
    def size(self) -> int:
        return indexed_inputs(self)[0].size

    def route(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        return np.zeros_like(positions), positions + self.offset

    def consumed(self, n: int) -> Int64Array:
        if self.one_each:
            return super().consumed(n)
        inner = indexed_inputs(self)[0]
        return inner.consumed(self.offset + n) - inner.consumed(self.offset)


def carried_over(
    datasets: Sequence[IndexedDataset[Any]], items: Sequence[int]
) -> list[tuple[IndexedDataset[Any], int]]:
    """For each of several datasets read one after another, `items` of each, what to read instead,
    and from which item on, so that each of their parts goes on where those before it left it.

    A part is a source with what orders it: a shuffle, a limit, a number of repeats. It is found
    again by its description, below whatever batches, mixes or maps it. A dataset that follows one
    of the same description goes on as a whole, so that cutting one in two changes nothing.
    """
    read: Counter[str] = Counter()
    carried: list[tuple[IndexedDataset[Any], int]] = []
    read_before, alike, first = Counter(read), "", 0
    for dataset, count in zip(datasets, items, strict=True):
        if _identity(dataset) != alike:
            read_before, alike, first = Counter(read), _identity(dataset), 0
        tree = _advanced(dataset, read_before)
        carried.append((tree, first))
        read.subtract(_positions(tree, first))
        first += count
        read.update(_positions(tree, first))
    return carried


def _advanced(dataset: IndexedDataset[Any], read: Mapping[str, int]) -> IndexedDataset[Any]:
    """The same description with each part after what was `read` of it."""
    if _taken(dataset, 0) is not None:
        return dataset.with_inputs([_advanced(each, read) for each in indexed_inputs(dataset)])
    offset = read.get(_identity(dataset), 0)
    return AdvancedDataset(dataset, offset) if offset else dataset


def _positions(dataset: IndexedDataset[Any], n: int) -> Counter[str]:
    """How many items of each part the first `n` items take."""
    taken = _taken(dataset, n)
    if taken is None:
        part = dataset.inputs[0] if type(dataset) is AdvancedDataset else dataset
        return Counter({_identity(part): n})
    total: Counter[str] = Counter()
    for each, count in zip(indexed_inputs(dataset), taken, strict=True):
        total.update(_positions(each, count))
    return total


def _taken(dataset: IndexedDataset[Any], n: int) -> Sequence[int] | None:
    """How many items of each input are taken; a global batch that is begun, as a whole."""
    return dataset.reached(n) if isinstance(dataset, LevelDataset) else dataset.taken(n)


def _identity(part: Any) -> str:
    return digest(part.describe())

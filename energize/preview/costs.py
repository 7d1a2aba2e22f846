"""What the samples of a run cost, where the weights of its mix count that."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.costs import ColumnCost
from energize.core.dataset import IndexedDataset
from energize.data.source import Source
from energize.datasets.blend import BlendDataset
from energize.datasets.stages import StagedDataset

_AT_ONCE = 2**20


class Spending:
    """What the first items of `dataset` cost by `measure`, of each of its sources.

    It is exact where each dataset of a blend in that unit reads one source. Several below one of
    them share what that one costs by the mean cost of their samples; elsewhere the mean is all that
    is looked at.
    """

    def __init__(self, dataset: IndexedDataset[Any], measure: ColumnCost) -> None:
        self._dataset, self._measure = dataset, measure
        self._means: dict[int, float] = {}

    def until(self, items: int) -> FloatArray:
        """What the first `items` cost: float64, one for each source."""
        return self._spent(self._dataset, items)

    def _spent(self, dataset: IndexedDataset[Any], items: int) -> FloatArray:
        if isinstance(dataset, StagedDataset):
            return self._spent_by_stages(dataset, items)
        taken = dataset.taken(items)
        if taken is None or isinstance(dataset, Source):
            return self._by_means(dataset, items)
        parts = [
            self._spent(each, count) for each, count in zip(dataset._children, taken, strict=True)
        ]
        if isinstance(dataset, BlendDataset) and dataset.unit == self._measure:
            costs = zip(parts, dataset.spent(items), strict=True)
            parts = [part * (cost / max(part.sum(), 1e-300)) for part, cost in costs]
        return np.concatenate(parts)

    def _spent_by_stages(self, dataset: StagedDataset[Any], items: int) -> FloatArray:
        total = np.zeros(len(dataset.sources))
        firsts = [first for first in dataset.plan.first_items if first < items]
        for stage, (start, stop) in enumerate(pairwise([*firsts, items])):
            read = dataset._children[stage]
            first = int(dataset.route(np.array([start], dtype=np.int64)).position[0])
            spent = self._spent(read, first + stop - start) - self._spent(read, first)
            np.add.at(total, dataset.numbers_of(stage), spent)
        return total

    def _by_means(self, dataset: IndexedDataset[Any], items: int) -> FloatArray:
        means = [self._mean(source) for source in dataset.sources]
        return np.asarray(dataset.consumed(items) * means, dtype=np.float64)

    def _mean(self, source: Source[Any]) -> float:
        if source.key not in self._means:
            total = 0.0
            for start in range(0, source.count, _AT_ONCE):
                index = np.arange(start, min(start + _AT_ONCE, source.count), dtype=np.int64)
                total += float(self._measure.of_samples(source, index).sum())
            self._means[source.key] = total / max(source.count, 1)
        return self._means[source.key]

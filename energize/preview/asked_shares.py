"""The shares that weights ask for along a run, whatever stages, schedules and blends they stand in.

They come from the datasets themselves, so what is asked for and what is drawn cannot be of two
different mixes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.blends import ContinuedDataset
from energize.core.costs import ColumnCost
from energize.core.dataset import IndexedDataset
from energize.core.trace import one_each
from energize.datasets.blend import BlendDataset
from energize.datasets.quota import QuotaDataset
from energize.datasets.stages import StagedDataset
from energize.preview.units import measure_of

_ITEMS = 64
"""Of batches, over which their mean size is taken."""


def asked_between(dataset: IndexedDataset[Any], points: Int64Array) -> FloatArray:
    """The shares that are asked for from each of `points` to the next (rows), for each source
    (columns): float64, 0 to 1, in the unit that the mix is measured in.

    NaN stands for a source that nothing asks a share of, such as one that is read after another, or
    one whose share counts something else. Weights of whole batches are shares of their samples
    here. Stop rules are not looked at.

    >>> from energize import BatchDataset, BlendDataset, ListSource, Schedule
    >>> glide = Schedule([(0, 3), (8, 1)], "linear")
    >>> blend = BlendDataset((ListSource("a"), glide), (ListSource("b"), 1))
    >>> asked_between(BatchDataset(blend, 2, list), np.array([0, 4, 8])).round(2).tolist()
    [[0.65, 0.35], [0.5, 0.5]]
    """
    measure = measure_of(dataset)
    rows = [_asked(dataset, a, b, measure) / (b - a) for a, b in pairwise(points.tolist())]
    return np.array(rows)


def _asked(
    dataset: IndexedDataset[Any], start: int, stop: int, measure: ColumnCost | None
) -> FloatArray:
    """How many of the items from `start` to before `stop` are asked for of each source: they sum to
    the number of these items.
    """
    if len(dataset.sources) == 1:
        return np.array([float(stop - start)])
    if isinstance(dataset, StagedDataset):
        return _asked_by_stages(dataset, start, stop, measure)
    if isinstance(dataset, BlendDataset | QuotaDataset):
        return _asked_of_inputs(dataset, start, stop, measure)
    inputs = dataset._children
    if len(inputs) > 1:
        return np.full(len(dataset.sources), np.nan)
    below = _asked(inputs[0], *_below(dataset, start, stop), measure)
    asked: FloatArray = below * ((stop - start) / below.sum())
    return asked


def _below(dataset: IndexedDataset[Any], start: int, stop: int) -> tuple[int, int]:
    """The items of the only input that are read; of several epochs, those of the first."""
    before, after = dataset.taken(start), dataset.taken(stop)
    if before is not None and after is not None:
        return before[0], max(after[0], before[0] + 1)
    if isinstance(dataset, ContinuedDataset):
        return dataset.read + start, dataset.read + stop
    epoch, first = divmod(start, dataset.size)
    one = stop <= (epoch + 1) * dataset.size
    return (first, first + stop - start) if one else (0, dataset.size)


def _asked_by_stages(
    dataset: StagedDataset[Any], start: int, stop: int, measure: ColumnCost | None
) -> FloatArray:
    total = np.zeros(len(dataset.sources))
    firsts = dataset.plan.first_items
    for stage, (first, end) in enumerate(pairwise([*firsts, max(stop, firsts[-1])])):
        begin, length = max(first, start), min(end, stop) - max(first, start)
        if length > 0:
            at = int(dataset.route(np.array([begin], dtype=np.int64)).position[0])
            asked = _asked(dataset._children[stage], at, at + length, measure)
            np.add.at(total, dataset.numbers_of(stage), asked)
    return total


def _asked_of_inputs(
    dataset: BlendDataset[Any] | QuotaDataset[Any],
    start: int,
    stop: int,
    measure: ColumnCost | None,
) -> FloatArray:
    inputs = dataset._children
    before, after = dataset._asked(start), dataset._asked(stop)
    if before is None or after is None or getattr(dataset, "unit", None) != measure:
        return np.full(len(dataset.sources), np.nan)
    asked = after - before
    asked *= (stop - start) / max(asked.sum(), 1e-300)  # costs, where weights of them have changed
    if measure is None and not all(one_each(each) for each in inputs):
        asked = asked * [_samples_per_item(each) for each in inputs]
        asked *= (stop - start) / asked.sum()
    begun = dataset.taken(start) or [0] * len(inputs)
    ended = dataset.taken(stop) or [each.size for each in inputs]
    parts = []
    for each, count, first, end in zip(inputs, asked.tolist(), begun, ended, strict=True):
        below = _asked(each, first, max(end, first + 1), measure)
        parts.append(below * (count / below.sum()) if count else np.zeros(len(below)))
    return np.concatenate(parts)


def _samples_per_item(dataset: IndexedDataset[Any]) -> float:
    if one_each(dataset):
        return 1.0
    items = min(_ITEMS, dataset.size)
    return float(dataset.consumed(items).sum()) / max(items, 1)

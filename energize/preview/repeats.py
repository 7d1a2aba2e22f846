"""After how many samples of a source the first one comes again."""

from __future__ import annotations

from typing import Any

import numpy as np

from energize.dataset import IndexedDataset, Int64Array
from energize.sources.base import Source
from energize.wrappers.routed import indexed_inputs
from energize.wrappers.shuffle import ShuffleDataset

__all__ = ["samples_before_repeat"]

_LOOKED_AT_FIRST = 2**12


def samples_before_repeat(dataset: IndexedDataset[Any]) -> list[int | None]:
    """For each of `dataset.sources`, how many samples come before the first that came already.

    None where that is not known: when something above the source leaves samples out, limits for
    example, or shuffles several sources together.

    >>> from energize import BlendDataset, ListSource, ShuffleDataset
    >>> once = ShuffleDataset(ListSource(range(100)))
    >>> drawn = ShuffleDataset(ListSource("ab"), over_epochs=-1)
    >>> before = samples_before_repeat(BlendDataset((once, 1), (drawn, 1)))
    >>> before[0], before[1] in (1, 2)
    (100, True)
    """
    if isinstance(dataset, Source):
        return [dataset.count]
    inputs = indexed_inputs(dataset)
    if isinstance(dataset, ShuffleDataset) and isinstance(inputs[0], Source):
        return [_of_shuffle(dataset)]
    if not dataset.in_turn:
        return [None] * len(dataset.sources)
    return [before for each in inputs for before in samples_before_repeat(each)]


def _of_shuffle(dataset: ShuffleDataset[Any]) -> int:
    """A permutation repeats nothing; else the first repeat is found, long before a pass is over."""
    if dataset.over_epochs == 1:
        return dataset.size
    looked_at = _LOOKED_AT_FIRST
    while looked_at <= dataset.size:
        repeat = _first_repeat(dataset, looked_at)
        if repeat is not None:
            return repeat
        looked_at *= 4
    repeat = _first_repeat(dataset, dataset.size + 1)
    return dataset.size if repeat is None else repeat


def _first_repeat(dataset: ShuffleDataset[Any], looked_at: int) -> int | None:
    """The first of the positions up to `looked_at` whose sample came before it."""
    index: Int64Array = dataset.refs(np.arange(looked_at, dtype=np.int64)).index
    order = np.argsort(index, kind="stable")
    again = order[1:][index[order][1:] == index[order][:-1]]
    return int(again.min()) if again.size else None

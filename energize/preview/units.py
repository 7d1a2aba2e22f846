"""What the weights of a mix count: samples, whole batches, or what samples cost."""

from __future__ import annotations

from typing import Any

from energize.core.costs import ColumnCost
from energize.core.dataset import Dataset
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset

SAMPLES, BATCHES = "samples", "whole batches"


def weighed_in(dataset: Dataset[Any]) -> str:
    """What the weights of the outermost blends of a dataset count: "samples"; "whole batches" where
    each entry has batches of its own, as with one task encoder for each type of samples; or what
    samples cost, the name of a column. Joined by "and" where stages differ in that.

    >>> from energize import BatchDataset, BlendDataset, ListSource
    >>> web, code = ListSource("ab"), ListSource("12")
    >>> weighed_in(BatchDataset(BlendDataset((web, 1), (code, 1)), 2, list))
    'samples'
    >>> weighed_in(BlendDataset((BatchDataset(web, 2, list), 1), (BatchDataset(code, 2, list), 1)))
    'whole batches'
    """
    return " and ".join(dict.fromkeys(_told(each) for each in _outermost(dataset))) or SAMPLES


def measure_of(dataset: Dataset[Any]) -> ColumnCost | None:
    """What samples cost in the unit of the outermost blends; None where these count samples or
    batches, or differ in what they count.

    >>> from energize import BlendDataset, ListSource
    >>> words = ListSource(["a b", "c"], columns={"words": [2, 1]})
    >>> measure_of(BlendDataset((words, 1), unit="words"))
    ColumnCost(cost='words')
    """
    units = [getattr(each, "unit", None) for each in _outermost(dataset)]
    alike = bool(units) and all(each == units[0] for each in units)
    return units[0] if alike and isinstance(units[0], ColumnCost) else None


def _outermost(dataset: Dataset[Any]) -> list[BlendDataset[Any]]:
    """The blends that no other blend is above."""
    if isinstance(dataset, BlendDataset):
        return [dataset]
    return [blend for each in dataset.inputs for blend in _outermost(each)]


def _told(blend: BlendDataset[Any]) -> str:
    unit = getattr(blend, "unit", None)
    if unit is None:
        return BATCHES if any(map(_batched, blend.inputs)) else SAMPLES
    cost = getattr(unit, "cost", unit)
    if isinstance(cost, str):
        return cost
    return f"a cost of {', '.join(unit.columns)}" if isinstance(unit, ColumnCost) else "a cost"


def _batched(dataset: Dataset[Any]) -> bool:
    return isinstance(dataset, BatchDataset) or any(map(_batched, dataset.inputs))

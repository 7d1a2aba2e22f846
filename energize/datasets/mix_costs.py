"""Units of mixes: costs of items from the index, or measured while reading."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np

from energize.core import tree
from energize.core.blends import ContinuedDataset
from energize.core.costs import ColumnCost, Cost, ItemCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import digest
from energize.core.node import INFINITE, SourceNode
from energize.core.rng import derive
from energize.data.source import Source
from energize.datasets.order import ShuffleDataset
from energize.errors import ConfigError, NotIndexedError
from energize.order.cost import CostLine, Cycle, Line, OffsetLine

Unit: TypeAlias = ColumnCost | ItemCost
"""Costs of items, from the index or measured while reading."""

UnitArgument: TypeAlias = Cost | ColumnCost | ItemCost
"""A unit as an argument. The name of a column, or a function of columns, stands for a
`ColumnCost`."""

SAMPLES = "samples"
"""The default unit: the cost of each item is 1."""

COST_SCHEME = "cost"
"""The scheme of a blend with another unit."""

_BLOCK = 2**20
"""Samples of one call of a cost function."""


def checked_unit(unit: UnitArgument | None, options: Mapping[str, Any]) -> Unit | None:
    """Check the unit of a blend.

    Args:
        unit: The argument.
        options: The other arguments that could contradict the unit: those of schemes,
            and those that end a blend.

    Returns:
        The unit; None for samples.

    Raises:
        ConfigError: For another value, and for options that the unit does not allow.

    Example:
        >>> checked_unit("tokens", {"stop": "restart"})
        ColumnCost(cost='tokens')
    """
    if unit is None or unit == SAMPLES:
        return None
    if not isinstance(unit, ColumnCost | ItemCost):
        is_function = callable(unit) and not isinstance(unit, type)
        if not isinstance(unit, str) and not is_function:
            raise ConfigError(
                "unit must be 'samples', the name of a column, a function of "
                f"columns, or an ItemCost, got {str(unit)[:80]!r}"
            )
        unit = ColumnCost(unit)
    _check_options(unit, options)
    return unit


_DEFAULTS: Mapping[str, Any] = {"stop": "restart", "max_epochs": None, "scheme": None}


def _check_options(unit: Unit, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name in _DEFAULTS and value == _DEFAULTS[name]:
            continue
        if name not in {"stop", "max_epochs"}:
            raise ConfigError(
                f"{name} cannot be combined with unit={_unit_name(unit)}, which "
                "assigns slots by cost. Remove one of them"
            )
        if isinstance(unit, ColumnCost):
            raise ConfigError(
                f"{name}={value!r} ends a blend, but a blend with "
                f"unit={_unit_name(unit)} never ends. Limit the steps of the run, or "
                "use unit=ItemCost(...)"
            )


def _unit_name(unit: Unit) -> str:
    cost = repr(unit.cost) if isinstance(unit.cost, str) else "a function"
    return f"ItemCost({cost})" if isinstance(unit, ItemCost) else cost


class MeasuredInputs:
    """The inputs of a blend by what their samples cost. Each column is read once.

    Raises:
        NotIndexedError: For an input that is a stream.
        ColumnError: For a column that is missing, or costs that are not valid.
    """

    def __init__(self, unit: ColumnCost, inputs: Sequence[Dataset[Any]]) -> None:
        self._unit = unit
        for number, dataset in enumerate(inputs):
            if not dataset.indexed:
                raise NotIndexedError(
                    f"unit={_unit_name(unit)} needs an indexed dataset, and dataset "
                    f"{number} ({type(dataset).__name__}) is a stream. Use "
                    "unit=ItemCost(...)"
                )
        self._inputs = cast("Sequence[IndexedDataset[Any]]", inputs)
        self._totals = {
            source.key: _total_cost(source, unit)
            for dataset in inputs
            for source in dataset.sources
        }

    def digests(self) -> list[str]:
        """Return for each input the cost of all its samples, and a digest of the single
        costs.
        """
        digests = []
        for dataset in self._inputs:
            totals = [self._totals[source.key] for source in dataset.sources]
            cost = sum(cost for cost, _ in totals)
            short = digest([costs for _, costs in totals])[:12]
            digests.append(f"{cost:.15g} together, {short}")
        return digests

    def lines(self) -> list[Line]:
        """Return what the items of each input cost, in their order."""
        return [self._line(dataset) for dataset in self._inputs]

    def _line(self, dataset: IndexedDataset[Any]) -> Line:
        below: Any = tree.unwrap(dataset, tree.CONTENT_ONLY)
        continued = isinstance(below, ContinuedDataset)
        whole = below.inputs[0] if continued else dataset
        key = derive(dataset.key, "cost")
        line = CostLine(
            partial(self._unit.of, whole),
            self._cycle(whole),
            key,
            among=len(self._inputs),
        )
        if not continued:
            return line
        return OffsetLine(line, below.since, below.read, afresh=below.afresh)

    def _cycle(self, dataset: IndexedDataset[Any]) -> Cycle | None:
        """Return after how many items every sample was read equally often, and what
        these items cost; None if unknown.
        """
        if isinstance(dataset, Source):
            if not dataset.count:
                return None
            return Cycle(dataset.count, self._totals[dataset.key][0])
        if isinstance(dataset, ShuffleDataset) and dataset.over_epochs > 1:
            source = tree.unwrap(dataset.inputs[0], tree.CONTENT_ONLY)
            cycle = self._cycle(source) if isinstance(source, Source) else None
            times = dataset.over_epochs
            return cycle and Cycle(cycle.items * times, cycle.cost * times)
        cycles = [self._cycle(child) for child in dataset.children]
        if dataset.size == INFINITE:
            return _endless_cycle(dataset, cycles)
        spans, covered = dataset.spans(dataset.size)
        cost = 0.0
        for child, start, stop, times in spans:
            cycle = cycles[child]
            if cycle is None or start % cycle.items or stop % cycle.items:
                return None
            cost += (stop - start) // cycle.items * cycle.cost * times
        return Cycle(dataset.size, cost) if covered == dataset.size else None


def _endless_cycle(
    dataset: IndexedDataset[Any], cycles: Sequence[Cycle | None]
) -> Cycle | None:
    """Return the cycle of an endless dataset with one input."""
    cycle = cycles[0] if len(cycles) == 1 else None
    counts = dataset.taken(1)
    if cycle is None or counts is None:
        return None
    together = math.lcm(cycle.items, counts[0])
    return Cycle(together // counts[0], together // cycle.items * cycle.cost)


def _total_cost(source: SourceNode[Any], unit: ColumnCost) -> tuple[float, str]:
    """Return the total cost of the samples of a source, and a digest of the costs."""
    total = 0.0
    seen = hashlib.blake2b(digest_size=16)
    for start in range(0, source.count, _BLOCK):
        index = np.arange(start, min(start + _BLOCK, source.count), dtype=np.int64)
        costs = np.ascontiguousarray(unit.of_samples(source, index))
        total += float(costs.sum())
        seen.update(costs.data)
    return total, seen.hexdigest()

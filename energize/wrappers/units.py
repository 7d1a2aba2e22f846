"""What a blend counts its shares in: samples, or what samples or items cost."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from energize.costs import ColumnCost, Cost
from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.describing import digest
from energize.errors import ConfigError, NotIndexedError
from energize.moved import MovedDataset
from energize.order.costs.line import CostLine, Cycle, LaterLine, Line
from energize.order.costs.moved_line import MovedLine
from energize.rng import derive
from energize.sources.base import Source
from energize.wrappers.advanced import AdvancedDataset
from energize.wrappers.batch import BatchDataset
from energize.wrappers.concat import ConcatDataset
from energize.wrappers.item_cost import ItemCost
from energize.wrappers.repeat import RepeatDataset
from energize.wrappers.shuffle import ShuffleDataset

Unit: TypeAlias = ColumnCost | ItemCost
"""What items cost, known from the index or when they have been read."""

GivenUnit: TypeAlias = Cost | ColumnCost | ItemCost
"""The same as it may be given: a column's name, or a function of columns, is a `ColumnCost`."""

SAMPLES = "samples"
"""The unit of a blend that has no other: each item counts 1."""

COSTS = "cost"
"""What the scheme of a blend in another unit is called."""

_AT_ONCE = 2**20


def checked_unit(unit: GivenUnit | None) -> Unit | None:
    """The unit that was given; None for samples."""
    if unit is None or unit == SAMPLES:
        return None
    if isinstance(unit, ColumnCost | ItemCost):
        return unit
    if isinstance(unit, str) or (callable(unit) and not isinstance(unit, type)):
        return ColumnCost(unit)
    raise ConfigError(
        "unit is 'samples', the name of a column of the sources, a function of columns, or an "
        f"ItemCost of items as they are read; got {str(unit)[:80]!r}"
    )


def scheme_in(unit: Unit, scheme: object, options: Mapping[str, Any]) -> str:
    """What `scheme` a blend in a unit has; `ConfigError` where one was given."""
    given = ["scheme"] if scheme is not None else list(options)
    if given:
        raise ConfigError(
            f"{given[0]} says whose slot comes when slots are counted, and unit={_called(unit)} "
            "decides it by what items cost; leave either out"
        )
    return COSTS


def check_ends(unit: Unit | None, stop: str, max_epochs: object) -> None:
    """Raise `ConfigError` for a blend by a column that is to end."""
    if isinstance(unit, ColumnCost) and (stop != "restart" or max_epochs is not None):
        what = f"stop={stop!r}" if stop != "restart" else f"max_epochs={max_epochs!r}"
        raise ConfigError(
            f"{what} ends a blend, and with unit={_called(unit)} none does, as each epoch would "
            "have another number of items; leave it out, and say how many steps to read, or give "
            "an ItemCost as the unit, with which a blend ends as it is read"
        )


class Measured(NamedTuple):
    """What the samples of a source cost together, and a digest of what each costs."""

    cost: float
    digest: str


class MeasuredInputs:
    """The inputs of a blend by what their samples cost; every column is looked at once.

    Raises `NotIndexedError` for an input that is a stream, and what `ColumnCost` raises.
    """

    def __init__(self, unit: ColumnCost, inputs: Sequence[Dataset[Any]]) -> None:
        self._unit = unit
        for number, each in enumerate(inputs):
            if not (isinstance(each, IndexedDataset) and each.indexed):
                raise NotIndexedError(
                    f"unit={_called(unit)} is what the index says of samples, and dataset {number} "
                    f"({type(each).__name__}) is read as a stream, so nothing says which samples "
                    "its items are made of before they are read; give unit=ItemCost(...), a field "
                    "or a function of the items"
                )
        self._inputs = cast("Sequence[IndexedDataset[Any]]", inputs)
        self._found = {s.key: _measured(s, unit) for each in inputs for s in each.sources}

    def digests(self) -> list[str]:
        """For each input what its samples cost together, and a digest of what each costs."""
        found = [[self._found[s.key] for s in each.sources] for each in self._inputs]
        return [
            f"{sum(m.cost for m in each):.15g} together, {digest([m.digest for m in each])[:12]}"
            for each in found
        ]

    def lines(self) -> list[Line]:
        """What the items of each input cost in the order in which they are read."""
        return [self._line(each) for each in self._inputs]

    def _line(self, dataset: IndexedDataset[Any]) -> Line:
        later: Any = dataset
        while later.passes_on:
            later = later.inputs[0]
        # A part that goes on after an earlier stage begins within a pass.
        first = later.offset if isinstance(later, AdvancedDataset) else 0
        moved = isinstance(later, MovedDataset)
        whole = later.inputs[0] if first or moved else dataset
        key = derive(dataset.key, "cost")
        among = len(self._inputs)
        line = CostLine(partial(self._unit.of, whole), self._cycle(whole), key, among=among)
        if moved:
            return MovedLine(line, later.since, later.read)
        return LaterLine(line, first) if first else line

    def _cycle(self, dataset: IndexedDataset[Any]) -> Cycle | None:
        """After how many items, from the first one on, all samples have had their turn equally
        often, again and again, and what these cost; None where that is not known.
        """
        if isinstance(dataset, Source):
            return Cycle(dataset.count, self._found[dataset.key].cost) if dataset.count else None
        below = [self._cycle(cast("IndexedDataset[Any]", each)) for each in dataset.inputs]
        found = [each for each in below if each is not None]
        if not found or len(found) < len(below):
            return None
        if isinstance(dataset, BatchDataset):
            return _of_batches(dataset, found[0])
        if isinstance(dataset, RepeatDataset | ShuffleDataset | ConcatDataset):
            return _of_passes(dataset, found)
        return found[0] if dataset.passes_on else None


def _of_batches(dataset: BatchDataset[Any], cycle: Cycle) -> Cycle | None:
    items, size = dataset.inputs[0].size, dataset.batch_size
    if items == INFINITE:
        together = math.lcm(cycle.items, size)
        return Cycle(together // size, together // cycle.items * cycle.cost)
    if items % cycle.items or (dataset.drop_last and items % size):
        return None
    return Cycle(dataset.size, items // cycle.items * cycle.cost)


def _of_passes(
    dataset: RepeatDataset[Any] | ShuffleDataset[Any] | ConcatDataset[Any], below: Sequence[Cycle]
) -> Cycle | None:
    """The cycle of a dataset whose epochs are whole epochs of its inputs."""
    if isinstance(dataset, RepeatDataset) and dataset.size == INFINITE:
        return below[0]
    sizes = [each.size for each in dataset.inputs]
    drawn = isinstance(dataset, ShuffleDataset) and dataset.over_epochs != 1
    cut = isinstance(dataset, RepeatDataset) and dataset.size % sizes[0] != 0
    pairs = list(zip(sizes, below, strict=True))
    if drawn or cut or any(size == INFINITE or size % cycle.items for size, cycle in pairs):
        return None
    passes = dataset.size // sum(sizes)
    return Cycle(dataset.size, passes * sum(s // cycle.items * cycle.cost for s, cycle in pairs))


def _measured(source: Source[Any], unit: ColumnCost) -> Measured:
    total, seen = 0.0, hashlib.blake2b(digest_size=16)
    for start in range(0, source.count, _AT_ONCE):
        index = np.arange(start, min(start + _AT_ONCE, source.count), dtype=np.int64)
        costs = np.ascontiguousarray(unit.of_samples(source, index))
        total += float(costs.sum())
        seen.update(costs.data)
    return Measured(total, seen.hexdigest())


def _called(unit: Unit) -> str:
    if isinstance(unit, ItemCost):
        return f"ItemCost({unit.cost!r})" if isinstance(unit.cost, str) else "ItemCost(...)"
    return repr(unit.cost) if isinstance(unit.cost, str) else "a function of columns"

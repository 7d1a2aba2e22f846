"""Fill of packs, padding of batches, fillers and cost of ranks, without reading.

All measures follow from routes and columns, so they are the same on every rank. They
are those of the plan: samples that are skipped, damaged or of another length when
encoded do not change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from energize.core import tree
from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import checked_whole
from energize.core.costs import ColumnCost, ColumnCosts, Cost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import function_name
from energize.core.node import INFINITE
from energize.core.progress import counted
from energize.datasets.align import AlignDataset, AlignedBudgetDataset
from energize.datasets.level import LevelDataset
from energize.datasets.planned import PackDataset, PlannedDataset
from energize.errors import ColumnError

_PARTS = 16
"""Maximum number of parts of a range that are measured."""

_PARTS_OF_REPORT = 8
"""The same for the reports of a run, which plan windows of the past again."""

_SAMPLES_OF_PART = 4096
"""Samples of a part; a part has at least one step."""

Tally = dict["Quantity", tuple[float, float, float]]
"""Total, weight and worst value of each quantity of a part."""


class Quantity(NamedTuple):
    """A measured quantity.

    Attributes:
        kind: The key of `_KINDS`.
        of: The label of the length or cost; empty if there is none.
        capacity: Capacity of a pack; None for other quantities.
    """

    kind: str
    of: str = ""
    capacity: int | None = None


class _QuantityKind(NamedTuple):
    """How a kind of quantity is shown.

    Attributes:
        label: The label in tables.
        number: The format of its values.
        worst: The function that selects the worst value; None if no value is better.
    """

    label: str
    number: str
    worst: Any = None


_KINDS = {
    "fill": _QuantityKind("fill of packs", ".3%", np.min),
    "padding": _QuantityKind("padded share of batches", ".3%", np.max),
    "fillers_per_step": _QuantityKind("fillers in a step", ",.2f", np.max),
    "rank_cost": _QuantityKind("most expensive rank / mean", ".4f", np.max),
    "dropped": _QuantityKind("samples left out as too long", ".3%", np.max),
    "packs_per_window": _QuantityKind("packs in a window", ",.1f"),
    "batches_per_window": _QuantityKind("batches in a window", ",.1f"),
    "packs_per_epoch": _QuantityKind("packs in an epoch", ",.0f"),
    "batches_per_epoch": _QuantityKind("batches in an epoch", ",.0f"),
    "steps_per_epoch": _QuantityKind("steps in an epoch", ",.0f"),
}
"""All kinds, in the order of tables."""

_UNITS = "units_per_step"
"""Kind of the packs or samples of a step, which is not shown but gives the steps."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity over some steps of a run.

    Args:
        kind: "fill", "padding", "fillers_per_step", "rank_cost", "dropped", or a
            number in a window or epoch, such as "packs_per_window".
        of: The length or cost, such as "tokens"; empty without one.
        mean: The value over all measured steps. Shares are 0 to 1.
        worst: The value of the worst pack, batch or step. None without one.
        capacity: Capacity of a pack, for "fill".
        is_estimate: Whether the value follows from means, as an epoch has no end.
        values: The value of each measured part of the run, NaN if it has none.
    """

    kind: str
    of: str
    mean: float
    worst: float | None = None
    capacity: int | None = None
    is_estimate: bool = False
    values: tuple[float, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """The key in logs, such as "fill_tokens"."""
        return f"{self.kind}_{self.of}" if self.of else self.kind

    @property
    def label(self) -> str:
        """The text in tables and plots."""
        label = _KINDS[self.kind].label
        capacity = "" if self.capacity is None else f" of {self.capacity:,}"
        return f"{label}, {self.of}{capacity}" if self.of else label

    def text(self, value: float | None) -> str:
        """Return a value as text."""
        if value is None:
            return ""
        about = "about " if self.is_estimate else ""
        return about + format(value, _KINDS[self.kind].number)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers but those of single parts."""
        names = ("kind", "of", "mean", "worst", "capacity", "is_estimate")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How well packs, batches and ranks are used in a range of steps.

    A step has one batch of each rank, times the micro batches that a rank accumulates.

    Args:
        ranks: Number of ranks.
        micro_batches: Batches of a rank in a step.
        steps: Number of steps of the range.
        measured: Number of these steps that were measured.
        measures: The measures that apply to the dataset.
        points: The first item of each measured part.
    """

    ranks: int
    micro_batches: int
    steps: int
    measured: int
    measures: tuple[Measure, ...]
    points: tuple[int, ...] = field(default=(), repr=False)

    def __getitem__(self, name: str) -> Measure:
        """Return a measure by its name: `efficiency["fill_tokens"]`.

        Raises:
            KeyError: If it was not measured; lists the names.
        """
        for measure in self.measures:
            if measure.name == name:
                return measure
        names = ", ".join(measure.name for measure in self.measures)
        raise KeyError(f"{name!r} was not measured. The measures are {names}")

    @property
    def title(self) -> str:
        """The measured steps and ranks."""
        of = counted(self.ranks, "rank")
        if self.micro_batches > 1:
            of += f" with {self.micro_batches:,} micro batches each"
        measured = f", {self.measured:,} of them measured"
        return (
            f"{counted(self.steps, 'step')} of {of}"
            f"{measured if self.measured < self.steps else ''}"
        )

    def to_dict(self) -> dict[str, float]:
        """Return the mean and the worst value of each measure by name."""
        numbers = {}
        for measure in self.measures:
            numbers[measure.name] = measure.mean
            if measure.worst is not None:
                numbers[f"{measure.name}_worst"] = measure.worst
        return numbers

    def as_json(self) -> dict[str, Any]:
        """Return the efficiency as a tree that JSON can encode."""
        names = ("ranks", "micro_batches", "steps", "measured")
        numbers = {name: getattr(self, name) for name in names}
        return {**numbers, "measures": [entry.as_json() for entry in self.measures]}

    def table(self) -> Table:
        """Return a table with a row for each measure."""
        result = Table(
            title=Text(self.title),
            title_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        result.add_column("efficiency", overflow="fold")
        result.add_column("mean", justify="right", no_wrap=True)
        result.add_column("worst", justify="right", no_wrap=True)
        for measure in self.measures:
            mean, worst = measure.text(measure.mean), measure.text(measure.worst)
            result.add_row(Text(measure.label), mean, worst)
        return result


def measure_efficiency(
    dataset: Dataset[Any],
    start: int,
    stop: int,
    *,
    ranks: int = 1,
    micro_batches: int = 1,
    costs: Sequence[Cost | ColumnCost] = (),
    length: Cost | ColumnCost | None = None,
) -> Efficiency | None:
    """Return how well packs, batches and ranks are used, without reading data.

    The range is extended to whole steps. Long ranges are measured in at most 16 equally
    spaced parts of about 4,096 samples each, and at least one step.

    - "fill": sum of the lengths in packs, divided by their capacity.
    - "padding": 1 - sum of lengths / (samples x longest length), of batches.
    - "fillers_per_step": rows of the batches of a step that only fill them, see
      `AlignDataset`. They cost as much as other samples.
    - "rank_cost": cost of the most expensive rank of a step, divided by the mean cost
      of its ranks; the mean and the maximum over steps. Only for several ranks.

    Args:
        dataset: Dataset of batches.
        start: First item, counted over all ranks.
        stop: End of the range, exclusive.
        ranks: Number of ranks.
        micro_batches: Batches of a rank in a step, as for gradient accumulation.
        costs: Costs of samples. By default those of `level`, or else the lengths that
            planned packs and batches use.
        length: Length of a sample, for batches without a planned one.

    Returns:
        The efficiency. None for a stream, and for a dataset without lengths and costs.

    Raises:
        ConfigError: If a number is out of range.
        ColumnError: If a source lacks a column of `costs` or `length`.

    Example:
        >>> from energize import ListSource
        >>> lengths = [7, 5, 3, 4, 1]
        >>> texts = ListSource(range(5), columns={"tokens": lengths})
        >>> packs = PackDataset(texts, "tokens", 12, list)
        >>> used = measure_efficiency(packs, 0, packs.size, ranks=2)
        >>> used["fill_tokens"].mean, used["steps_per_epoch"].mean
        (0.8333333333333334, 1.0)
    """
    first = checked_whole(start, "measure_efficiency: start", 0)
    end = checked_whole(stop, "measure_efficiency: stop", first + 1)
    if not isinstance(dataset, IndexedDataset) or not dataset.indexed:
        return None
    meter = EfficiencyMeter(
        dataset,
        checked_whole(ranks, "measure_efficiency: ranks", 1),
        checked_whole(micro_batches, "measure_efficiency: micro_batches", 1),
        costs,
        length,
    )
    per_step = meter.items_per_step
    inside = first % meter.epoch
    steps = _Steps(first - inside % per_step, per_step, meter.epoch)
    return meter.measure(steps, steps.begun(end))


class _Steps:
    """The items of steps, which begin anew with each epoch.

    Args:
        start: First item of the first step.
        items: Items of a step.
        epoch: Items of an epoch; INFINITE without an end.
    """

    def __init__(self, start: int, items: int, epoch: int) -> None:
        self.start = start
        self._items = items
        self._epoch = epoch
        self._head = epoch if epoch == INFINITE else epoch - start % epoch
        self._in_head = -(-self._head // items)
        self._in_epoch = -(-epoch // items)

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first item of a step, and its end."""
        if step < self._in_head:
            first = self.start + step * self._items
            return first, min(first + self._items, self.start + self._head)
        epochs, inside = divmod(step - self._in_head, self._in_epoch)
        begin = self.start + self._head + epochs * self._epoch
        first = begin + inside * self._items
        return first, min(first + self._items, begin + self._epoch)

    def completed(self, stop: int) -> int:
        """Return the number of steps that end before item `stop`."""
        steps = self.begun(stop)
        return steps - (steps > 0 and self.bounds(steps - 1)[1] > stop)

    def begun(self, stop: int) -> int:
        """Return the number of steps that begin before item `stop`."""
        count = stop - self.start
        if count <= self._head:
            return max(-(-count // self._items), 0)
        epochs, rest = divmod(count - self._head, self._epoch)
        return self._in_head + epochs * self._in_epoch + -(-rest // self._items)


class EfficiencyMeter:
    """Measures the efficiency of parts of a run, see `measure_efficiency`.

    Args:
        dataset: An indexed dataset.
        ranks: Number of ranks.
        micro_batches: Batches of a rank in a step.
        costs: Costs of samples, see `measure_efficiency`.
        length: Length of a sample, see `measure_efficiency`.
        measured: Parts that were measured before, by their items; new ones are added.
    """

    def __init__(
        self,
        dataset: IndexedDataset[Any],
        ranks: int,
        micro_batches: int = 1,
        costs: Sequence[Cost | ColumnCost] = (),
        length: Cost | ColumnCost | None = None,
        measured: dict[tuple[int, int], Tally] | None = None,
    ) -> None:
        self._dataset = dataset
        self._ranks = ranks
        self._micro_batches = micro_batches
        self._costs = [_checked(cost, dataset) for cost in costs] or _costs_of(dataset)
        self._length = None if length is None else _checked(length, dataset)
        self._measured = {} if measured is None else measured

    @property
    def items_per_step(self) -> int:
        """Items of all ranks in a step."""
        return self._ranks * self._micro_batches

    @property
    def epoch(self) -> int:
        """Items after which steps begin anew; INFINITE without an end."""
        return INFINITE if tree.never_ends(self._dataset) else self._dataset.size

    @property
    def applies(self) -> bool:
        """Whether anything but the number of steps can be measured."""
        by_cost = bool(self._costs) and self._ranks > 1
        return by_cost or any(
            isinstance(node, PlannedDataset | AlignDataset)
            or (self._length is not None and node.traits.gives_batches is True)
            for node in _nodes(self._dataset)
        )

    def delivered(self, start: int, stop: int) -> Efficiency | None:
        """Return the efficiency of the whole steps from item `start` to before `stop`.

        At most 8 parts are measured, at distances that double as the range grows, so
        later reports measure few new ones.

        None if there are none, or if nothing can be measured.
        """
        steps = _Steps(start, self.items_per_step, self.epoch)
        count = steps.completed(stop) if stop > start else 0
        return self.measure(steps, count, _PARTS_OF_REPORT) if count else None

    def measure(
        self, steps: _Steps, count: int, most: int = _PARTS
    ) -> Efficiency | None:
        """Return the efficiency of the first steps; None if it does not apply.

        Args:
            steps: The steps.
            count: Number of steps of the range.
            most: Maximum number of equally spaced parts that are measured.
        """
        if not self.applies or not self._dataset.size:
            return None
        refs = self._dataset.refs(np.array([steps.start], dtype=np.int64))
        per_step = max(len(refs), 1) * self.items_per_step
        length = max(1, _SAMPLES_OF_PART // per_step)
        spacing = length
        while -(-count // spacing) > most:
            spacing *= 2
        firsts = range(0, count, spacing)
        parts = [range(first, min(first + length, count)) for first in firsts]
        if most < _PARTS and spacing > length > len(parts[-1]):
            del parts[-1]  # the next report would measure it again
        return Efficiency(
            self._ranks,
            self._micro_batches,
            count,
            sum(map(len, parts)),
            self._measures([self._tally(steps, part) for part in parts]),
            tuple(steps.bounds(part[0])[0] for part in parts),
        )

    def _tally(self, steps: _Steps, part: range) -> Tally:
        items = (steps.bounds(part[0])[0], steps.bounds(part[-1])[1])
        if items not in self._measured:
            bounds = [steps.bounds(step) for step in part]
            measured = _MeasuredSteps(bounds, self._costs, self._length)
            self._measured[items] = measured.measure(self._dataset, self._ranks)
        return self._measured[items]

    def _measures(self, tallies: Sequence[Tally]) -> tuple[Measure, ...]:
        """Return all measures, in the order of kinds."""
        quantities = dict.fromkeys(quantity for tally in tallies for quantity in tally)
        by_kind = {name: list[Measure]() for name in [*_KINDS, _UNITS]}
        for quantity in quantities:
            by_kind[quantity.kind].append(_measure(quantity, tallies))
        [per_step] = by_kind.pop(_UNITS)
        total = float(_samples(self._dataset))
        planned = [
            node for node in _nodes(self._dataset) if isinstance(node, PlannedDataset)
        ]
        for kind in ("packs", "batches"):
            of_window = by_kind[f"{kind}_per_window"]
            if of_window and len(planned) == 1:
                [node] = planned
                is_endless = node.size == INFINITE
                total = of_window[0].mean * _samples(node) / node.window
                groups = total if is_endless else float(node.size)
                name = f"{kind}_per_epoch"
                by_kind[name] = [Measure(name, "", groups, is_estimate=is_endless)]
        steps = total / max(per_step.mean, 1e-300)
        loop = tree.steps_per_loop(self._dataset)
        if loop is not None:
            steps = float(-(-loop // self._micro_batches))
        elif self.epoch != INFINITE:
            steps = float(-(-self.epoch // self.items_per_step))
        is_estimate = loop is None and self.epoch == INFINITE
        name = "steps_per_epoch"
        by_kind[name] = [Measure(name, "", steps, is_estimate=is_estimate)]
        return tuple(chain.from_iterable(by_kind.values()))


def _measure(quantity: Quantity, tallies: Sequence[Tally]) -> Measure:
    rows = [tally.get(quantity, (0.0, 0.0, np.nan)) for tally in tallies]
    totals, weights, worst = np.array(rows).T
    values = np.divide(
        totals, weights, out=np.full(len(rows), np.nan), where=weights > 0
    )
    select = _KINDS[quantity.kind].worst if quantity.kind in _KINDS else None
    return Measure(
        quantity.kind,
        quantity.of,
        float(totals.sum() / weights.sum()),
        None if select is None else float(select(worst[weights > 0])),
        quantity.capacity,
        values=tuple(values.tolist()),
    )


class _MeasuredSteps:
    """The measured quantities of consecutive steps.

    Args:
        steps: First item and end of each step.
        costs: Costs of samples.
        length: Length of a sample, for batches without a planned one.
    """

    def __init__(
        self,
        steps: Sequence[tuple[int, int]],
        costs: Sequence[ColumnCost],
        length: ColumnCost | None,
    ) -> None:
        self._tally: Tally = {}
        self._costs = costs
        self._length = length
        self._positions = np.concatenate([np.arange(*bounds) for bounds in steps])
        self._sizes = np.array([end - first for first, end in steps])
        self._costs_of_items = np.zeros((len(costs), len(self._positions)))
        self._samples = np.zeros(len(self._positions))
        self._groups = np.zeros(len(self._positions))
        self._fillers: FloatArray | None = None

    def measure(self, dataset: IndexedDataset[Any], ranks: int) -> Tally:
        """Return the quantities of the steps."""
        count = len(self._sizes)
        self._visit(dataset, self._positions, np.arange(len(self._positions)))
        step_of = np.repeat(np.arange(count), self._sizes)
        units = self._groups if self._groups.any() else self._samples
        self._add(Quantity(_UNITS), np.bincount(step_of, units, count), 1)
        if self._fillers is not None:
            fillers = np.bincount(step_of, self._fillers, count)
            self._add(Quantity("fillers_per_step"), fillers, 1)
        full = self._sizes == self._sizes.max()
        if ranks == 1 or self._sizes.max() % ranks:  # else the rest of an epoch
            return self._tally
        for label, costs in zip(
            _labels(self._costs), self._costs_of_items, strict=True
        ):
            of_steps = costs[full[step_of]].reshape(int(full.sum()), -1, ranks)
            of_ranks = of_steps.sum(axis=1)
            means = of_ranks.mean(axis=1)
            is_used = means > 0
            ratios = of_ranks.max(axis=1)[is_used] / means[is_used]
            self._add(Quantity("rank_cost", label), ratios, 1)
        return self._tally

    def _add(self, quantity: Quantity, totals: Any, weights: Any) -> None:
        """Add totals and their weights; the ratio is the quantity."""
        totals, weights = np.broadcast_arrays(np.atleast_1d(totals), weights)
        if not len(totals):
            return
        total, weight, *worst = self._tally.get(quantity, (0.0, 0.0))
        select = _KINDS[quantity.kind].worst if quantity.kind in _KINDS else None
        extreme = np.nan
        if select is not None:
            extreme = float(select([*worst, select(totals / weights)]))
        self._tally[quantity] = (
            total + float(totals.sum()),
            weight + float(weights.sum()),
            extreme,
        )

    def _visit(
        self, node: IndexedDataset[Any], positions: Int64Array, item: Int64Array
    ) -> FloatArray | None:
        """Measure a node and all nodes below.

        Args:
            node: The node.
            positions: Positions in the node.
            item: The number of the item of the part that a position belongs to.

        Returns:
            The lengths of the items at the positions. None if they are unknown.
        """
        if not node.inputs:
            return self._visit_source(node, positions, item)
        routes = node.route(positions)
        size = len(self._positions)
        owner = np.arange(len(positions)) if routes.owner is None else routes.owner
        if routes.padding is not None:
            if self._fillers is None:
                self._fillers = np.zeros(size)
            self._fillers += np.bincount(item[owner[routes.padding]], minlength=size)
        lengths = np.zeros(len(owner))
        known = True
        for number in range(len(node.inputs)):
            rows = np.arange(len(owner))
            if routes.child is not None:
                rows = np.flatnonzero(routes.child == number)
            if len(rows):
                child = node.children[number]
                below = self._visit(child, routes.position[rows], item[owner[rows]])
                known = known and below is not None
                lengths[rows] = 0 if below is None else below
        if isinstance(node, PlannedDataset):
            self._groups += np.bincount(item, minlength=size)
            planned = node.samples_at(routes.position).lengths
            known = True
            lengths = planned[:, 0].astype(np.float64)
            if isinstance(node, PackDataset):
                lengths = self._visit_packs(node, planned, owner)
            self._add_windows(node, positions)
        if routes.owner is None:
            return lengths if known else None
        if known and node.traits.gives_batches is True:
            self._add_padding(node, lengths, owner)
        sums = np.bincount(owner, lengths, len(positions)).astype(np.float64)
        return sums if known else None

    def _visit_source(
        self, source: Any, positions: Int64Array, item: Int64Array
    ) -> FloatArray | None:
        samples = source.samples_at(positions, 0)
        size = len(self._positions)
        self._samples += np.bincount(item, minlength=size)
        for row, cost in enumerate(self._costs):
            costs = cost.of_samples(source, samples, allow_zero=True)
            self._costs_of_items[row] += np.bincount(item, costs, size)
        if self._length is None:
            return None
        return self._length.of_samples(source, samples, allow_zero=True)

    def _visit_packs(
        self, node: PackDataset[Any], lengths: Int64Array, owner: Int64Array
    ) -> FloatArray:
        """Add the fill of packs, and return the first length of each sample."""
        used = np.minimum(lengths, node.capacities).astype(np.float64)
        columns = zip(_labels(node.lengths), node.capacities, used.T, strict=True)
        for label, capacity, values in columns:
            packed = np.bincount(owner, values)
            self._add(Quantity("fill", label, capacity), packed, capacity)
        return used[:, 0]

    def _add_padding(self, node: Any, lengths: FloatArray, owner: Int64Array) -> None:
        """Add the padded share of batches, by the first length of planned nodes."""
        planned = [inner for inner in _nodes(node) if isinstance(inner, PlannedDataset)]
        measures = planned[0].lengths[:1] if planned else (self._length,)
        counts = np.bincount(owner)
        longest = np.zeros(len(counts))
        np.maximum.at(longest, owner, lengths)
        padded = counts * longest
        missing = padded - np.bincount(owner, lengths)
        is_used = padded > 0
        quantity = Quantity("padding", _labels(measures)[0])
        self._add(quantity, missing[is_used], padded[is_used])

    def _add_windows(self, node: PlannedDataset[Any], positions: Int64Array) -> None:
        """Add the numbers of groups of the windows that items belong to."""
        kind = "packs" if isinstance(node, PackDataset) else "batches"
        ordered = np.sort(positions)
        row = 0
        while row < len(ordered):
            position = int(ordered[row])
            _, plan, group, _ = node.group_at(position)
            self._add(Quantity(f"{kind}_per_window"), plan.count, 1)
            dropped = len(plan.dropped)
            if dropped:
                self._add(Quantity("dropped"), dropped, dropped + len(plan.order))
            row = int(np.searchsorted(ordered, position - group + plan.count))


def _checked(cost: Cost | ColumnCost, dataset: Dataset[Any]) -> ColumnCost:
    """Return a cost; raise `ColumnError` if a source lacks a column of it."""
    column_cost = cost if isinstance(cost, ColumnCost) else ColumnCost(cost)
    for source in dataset.sources:
        column_cost.check(source)
    return column_cost


def _labels(costs: Sequence[Any]) -> list[str]:
    """Return the label of each cost, without duplicates."""
    labels: list[str] = []
    for cost in costs:
        label = cost.cost if isinstance(cost.cost, str) else function_name(cost.cost)
        if label in labels or label.endswith("<lambda>"):
            label = "_".join([*cost.columns, *(["2"] if label in labels else [])])
        labels.append(label)
    return labels


def _nodes(dataset: Dataset[Any]) -> Iterator[Any]:
    """Yield all nodes of a tree."""
    yield dataset
    for child in dataset.inputs:
        yield from _nodes(child)


def _samples(dataset: Dataset[Any]) -> int:
    """Return the number of samples of all sources."""
    return sum(source.count for source in dataset.sources)


def _costs_of(dataset: Dataset[Any]) -> list[ColumnCost]:
    """Return the costs of `level`, or else the lengths of planned packs and batches.

    Costs that only some sources have are left out.
    """
    levels: list[ColumnCost] = []
    lengths: list[ColumnCost] = []
    for node in _nodes(dataset):
        cost = None
        if isinstance(node, LevelDataset):
            cost = node.cost
        elif isinstance(node, AlignedBudgetDataset):
            cost = node.level
        if cost is not None:
            levels += cost.costs if isinstance(cost, ColumnCosts) else [cost]
        if isinstance(node, PlannedDataset):
            lengths += node.lengths
    return [
        cost
        for cost in dict.fromkeys(levels or lengths)
        if _is_everywhere(cost, dataset)
    ]


def _is_everywhere(cost: ColumnCost, dataset: Dataset[Any]) -> bool:
    """Return whether all sources have the columns of a cost."""
    try:
        _checked(cost, dataset)
    except ColumnError:
        return False
    return True

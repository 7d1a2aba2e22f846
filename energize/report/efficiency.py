"""Fill of packs, padding of batches, fillers and cost of ranks, without reading.

All measures follow from routes and columns, so they are the same on every rank. They
are those of the plan: samples that are skipped, damaged or of another length when
encoded do not change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from energize.core import tree
from energize.core.arrays import BoolArray, FloatArray, Int64Array, rows_by_value
from energize.core.checks import checked_whole
from energize.core.costs import ColumnCost, ColumnCosts, Cost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import function_name
from energize.core.node import INFINITE, Routes
from energize.core.progress import counted
from energize.datasets.level import LevelDataset
from energize.datasets.planned import BudgetBatchDataset, PackDataset, PlannedDataset
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


class _Kind(NamedTuple):
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
    "fill": _Kind("fill of packs", ".3%", np.min),
    "padding": _Kind("padded share of batches", ".3%", np.max),
    "fillers_per_step": _Kind("fillers in a step", ",.2f", np.max),
    "rank_cost": _Kind("most expensive rank / mean", ".4f", np.max),
    "dropped": _Kind("samples left out as too long", ".3%", np.max),
    "packs_per_window": _Kind("packs in a window", ",.1f"),
    "batches_per_window": _Kind("batches in a window", ",.1f"),
    "packs_per_epoch": _Kind("packs in an epoch", ",.0f"),
    "batches_per_epoch": _Kind("batches in an epoch", ",.0f"),
    "steps_per_epoch": _Kind("steps in an epoch", ",.0f"),
}
"""All kinds, in the order of tables."""

_SAMPLES_PER_STEP = Quantity("samples_per_step")
_GROUPS_PER_STEP = Quantity("groups_per_step")
"""Quantities that are not shown; the number of steps in an epoch follows from them."""


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
        return {
            "kind": self.kind,
            "of": self.of,
            "mean": self.mean,
            "worst": self.worst,
            "capacity": self.capacity,
            "is_estimate": self.is_estimate,
        }


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
        return {
            "ranks": self.ranks,
            "micro_batches": self.micro_batches,
            "steps": self.steps,
            "measured": self.measured,
            "measures": [measure.as_json() for measure in self.measures],
        }

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
    inside = first if meter.never_ends else first % dataset.size
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
        self._costs = list(dict.fromkeys(map(_column_cost, costs)))
        self._length = None if length is None else _column_cost(length)
        self._measured = {} if measured is None else measured
        for cost in (*self._costs, *([self._length] if self._length else [])):
            for source in dataset.sources:
                cost.check(source)
        if not self._costs:
            self._costs = [cost for cost in _costs_of(dataset) if self._has(cost)]

    def _has(self, cost: ColumnCost) -> bool:
        """Return whether all sources have the columns of a cost."""
        try:
            for source in self._dataset.sources:
                cost.check(source)
        except ColumnError:
            return False
        return True

    @property
    def items_per_step(self) -> int:
        """Items of all ranks in a step."""
        return self._ranks * self._micro_batches

    @cached_property
    def never_ends(self) -> bool:
        """Whether steps do not begin anew with each epoch."""
        return tree.never_ends(self._dataset)

    @property
    def epoch(self) -> int:
        """Items after which steps begin anew; INFINITE without an end."""
        return INFINITE if self.never_ends else self._dataset.size

    @cached_property
    def applies(self) -> bool:
        """Whether anything but the number of steps can be measured."""
        by_cost = bool(self._costs) and self._ranks > 1
        by_length = self._length is not None
        return by_cost or any(
            isinstance(node, PlannedDataset) or by_length or _adds_rows(node)
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
        parts = [
            (first, min(first + length, count)) for first in range(0, count, spacing)
        ]
        tallies = [self._tally(steps, *part) for part in parts]
        points = tuple(steps.bounds(first)[0] for first, _ in parts)
        measured = sum(end - first for first, end in parts)
        measures = self._measures(tallies)
        return Efficiency(
            self._ranks, self._micro_batches, count, measured, measures, points
        )

    def _tally(self, steps: _Steps, first: int, end: int) -> Tally:
        bounds = [steps.bounds(step) for step in range(first, end)]
        items = (bounds[0][0], bounds[-1][1])
        if items not in self._measured:
            part = _Part(self._dataset, bounds, self._ranks, self._costs, self._length)
            self._measured[items] = part.tally
        return self._measured[items]

    def _measures(self, tallies: Sequence[Tally]) -> tuple[Measure, ...]:
        """Return all measures, in the order of kinds."""
        quantities = {quantity: None for tally in tallies for quantity in tally}
        measures = [
            _measure(quantity, tallies)
            for quantity in quantities
            if quantity.kind in _KINDS
        ]
        measures += self._per_epoch(measures, tallies)
        order = list(_KINDS)
        return tuple(sorted(measures, key=lambda measure: order.index(measure.kind)))

    def _per_epoch(
        self, measures: Sequence[Measure], tallies: Sequence[Tally]
    ) -> Iterator[Measure]:
        """Yield the numbers of packs, batches and steps in an epoch.

        Without an end, an epoch has as many samples as all sources.
        """
        planned = [
            node for node in _nodes(self._dataset) if isinstance(node, PlannedDataset)
        ]
        of_windows = [item for item in measures if item.kind.endswith("_per_window")]
        total = float(_samples(self._dataset))
        per_step = _measure(_SAMPLES_PER_STEP, tallies).mean
        if len(planned) == len(of_windows) == 1:
            [node] = planned
            kind = of_windows[0].kind.replace("window", "epoch")
            is_endless = node.size == INFINITE
            groups = of_windows[0].mean * _samples(node) / node.window
            total = groups if is_endless else float(node.size)
            per_step = _measure(_GROUPS_PER_STEP, tallies).mean
            yield Measure(kind, "", total, is_estimate=is_endless)
        loop = tree.steps_per_loop(self._dataset)
        if loop is not None:
            yield Measure("steps_per_epoch", "", float(-(-loop // self._micro_batches)))
        elif self._dataset.size != INFINITE:
            number = -(-self._dataset.size // self.items_per_step)
            yield Measure("steps_per_epoch", "", float(number))
        elif per_step:
            yield Measure("steps_per_epoch", "", total / per_step, is_estimate=True)


def _measure(quantity: Quantity, tallies: Sequence[Tally]) -> Measure:
    nothing = (0.0, 0.0, np.nan)
    rows = np.array([tally.get(quantity, nothing) for tally in tallies])
    totals, weights, worst = rows.T
    kind = _KINDS.get(quantity.kind)
    values = np.divide(
        totals, weights, out=np.full(len(rows), np.nan), where=weights > 0
    )
    has_worst = kind is not None and kind.worst is not None and weights.any()
    return Measure(
        quantity.kind,
        quantity.of,
        float(totals.sum() / max(weights.sum(), 1e-300)),
        float(kind.worst(worst[weights > 0])) if kind and has_worst else None,
        quantity.capacity,
        values=tuple(values.tolist()),
    )


class _Part:
    """The measured quantities of consecutive steps.

    Args:
        dataset: An indexed dataset.
        steps: First item and end of each step.
        ranks: Number of ranks.
        costs: Costs of samples.
        length: Length of a sample, for batches without a planned one.
    """

    def __init__(
        self,
        dataset: IndexedDataset[Any],
        steps: Sequence[tuple[int, int]],
        ranks: int,
        costs: Sequence[ColumnCost],
        length: ColumnCost | None,
    ) -> None:
        self.tally: Tally = {}
        self._costs = costs
        self._length = length
        items = np.concatenate([np.arange(*bounds, dtype=np.int64) for bounds in steps])
        sizes = np.array([end - first for first, end in steps])
        self._step_of = np.repeat(np.arange(len(steps)), sizes)
        self._costs_of_items = np.zeros((len(costs), len(items)))
        self._samples = np.zeros(len(items))
        self._groups = np.zeros(len(items))
        self._fillers: FloatArray | None = None
        self._walk(dataset, items, np.arange(len(items)), is_outer=True)
        self._add_steps(sizes, ranks)

    def _add(self, quantity: Quantity, totals: Any, weights: Any) -> None:
        """Add totals and their weights, of which the ratio is the quantity."""
        totals, weights = np.broadcast_arrays(
            np.asarray(totals, dtype=np.float64), np.asarray(weights, dtype=np.float64)
        )
        counted = weights > 0
        if not counted.any():
            return
        kind = _KINDS.get(quantity.kind)
        worst = np.nan
        if kind is not None and kind.worst is not None:
            worst = kind.worst(totals[counted] / weights[counted])
            if quantity in self.tally:
                worst = kind.worst([worst, self.tally[quantity][2]])
        total, weight, _ = self.tally.get(quantity, (0.0, 0.0, np.nan))
        self.tally[quantity] = (
            total + float(totals.sum()),
            weight + float(weights.sum()),
            float(worst),
        )

    def _add_steps(self, sizes: Int64Array, ranks: int) -> None:
        """Add the quantities of whole steps."""
        count = len(sizes)
        samples = np.bincount(self._step_of, self._samples, count)
        self._add(_SAMPLES_PER_STEP, samples, np.ones(count))
        groups = np.bincount(self._step_of, self._groups, count)
        self._add(_GROUPS_PER_STEP, groups, np.ones(count))
        if self._fillers is not None:
            fillers = np.bincount(self._step_of, self._fillers, count)
            self._add(Quantity("fillers_per_step"), fillers, np.ones(count))
        if ranks == 1:
            return
        full = sizes == sizes.max()
        is_full = full[self._step_of]
        if sizes.max() % ranks:
            return  # only the rest of an epoch
        labels = _labels(self._costs)
        for label, costs in zip(labels, self._costs_of_items, strict=True):
            of_ranks = costs[is_full].reshape(int(full.sum()), -1, ranks).sum(axis=1)
            means = of_ranks.mean(axis=1)
            ratio = of_ranks.max(axis=1) / np.where(means > 0, means, 1)
            self._add(Quantity("rank_cost", label), ratio, (means > 0) * 1.0)

    def _walk(
        self,
        dataset: IndexedDataset[Any],
        positions: Int64Array,
        item: Int64Array,
        *,
        is_outer: bool,
        in_batch: bool = False,
    ) -> None:
        """Measure the nodes below that gather items.

        Args:
            dataset: The dataset.
            positions: Positions in the dataset.
            item: For each position the number of the item of the part.
            is_outer: Whether no node above gathers items.
            in_batch: Whether a node above makes batches.
        """
        for node, at, rows in _gathering(dataset, positions, np.arange(len(positions))):
            if not node.inputs:
                if is_outer:
                    self._add_costs(node, at, item[rows], None)
                continue
            routes = node.route(at)
            owner = np.arange(len(at)) if routes.owner is None else routes.owner
            routes = routes._replace(owner=owner)
            is_batch = node.traits.gives_batches is True and not in_batch
            self._add_unit(node, at, routes, is_batch=is_batch)
            if isinstance(node, PlannedDataset):
                self._groups += np.bincount(item[rows], minlength=len(self._groups))
            self._add_fillers(routes, item[rows])
            for child, chosen in _by_child(node, routes):
                below = item[rows][owner[chosen]]
                inner = routes.position[chosen]
                if is_outer:
                    padding = None
                    if routes.padding is not None:
                        padding = routes.padding[chosen]
                    self._add_costs(child, inner, below, padding)
                if any(inside.traits.gathers for inside in _nodes(child)):
                    self._walk(
                        child,
                        inner,
                        below,
                        is_outer=False,
                        in_batch=in_batch or is_batch,
                    )

    def _add_costs(
        self,
        node: IndexedDataset[Any],
        positions: Int64Array,
        item: Int64Array,
        padding: BoolArray | None,
    ) -> None:
        """Add the costs and the number of samples of members of items."""
        amounts, samples = _amounts(node, positions, self._costs)
        size = len(self._samples)
        for row, values in enumerate(amounts):
            self._costs_of_items[row] += np.bincount(item, values, size)
        if padding is not None:
            samples = np.where(padding, 0, samples)
        self._samples += np.bincount(item, samples, size)

    def _add_fillers(self, routes: Routes, item: Int64Array) -> None:
        """Add the padding rows of batches."""
        if routes.padding is None or routes.owner is None:
            return
        if self._fillers is None:
            self._fillers = np.zeros(len(self._samples))
        rows = item[routes.owner[routes.padding]]
        self._fillers += np.bincount(rows, minlength=len(self._samples))

    def _add_unit(
        self,
        node: IndexedDataset[Any],
        positions: Int64Array,
        routes: Routes,
        *,
        is_batch: bool,
    ) -> None:
        """Add the quantities of packs or batches."""
        if isinstance(node, PackDataset):
            lengths = _pack_lengths(node, routes, len(positions))
            columns = zip(
                _labels(node.lengths), node.capacities, lengths.T, strict=True
            )
            for label, capacity, totals in columns:
                self._add(Quantity("fill", label, capacity), totals, capacity)
            self._add_windows(node, "packs_per_window", positions)
        if isinstance(node, BudgetBatchDataset):
            lengths = node.samples_at(routes.position).lengths[:, 0]
            self._add_padding(node.lengths[0], lengths, routes.owner)
            self._add_windows(node, "batches_per_window", positions)
        elif is_batch:
            self._add_fixed(node, routes)

    def _add_fixed(self, node: IndexedDataset[Any], routes: Routes) -> None:
        """Add the padding of batches of a fixed number of samples or packs."""
        lengths = np.zeros(len(routes.position))
        measure = self._length
        for child, chosen in _by_child(node, routes):
            inner = routes.position[chosen]
            if self._length is not None:
                lengths[chosen] = _amounts(child, inner, [self._length])[0][0]
                continue
            for unit, at, rows in _gathering(child, inner, np.arange(len(inner))):
                if not isinstance(unit, PackDataset):
                    return
                measure = unit.lengths[0]
                of_packs = _pack_lengths(unit, unit.route(at), len(at))
                lengths[np.flatnonzero(chosen)[rows]] = of_packs[:, 0]
        if measure is not None:
            self._add_padding(measure, lengths, routes.owner)

    def _add_padding(self, measure: ColumnCost, lengths: Any, owner: Any) -> None:
        """Add the padded share of batches."""
        if not len(owner):
            return
        batches = int(owner.max()) + 1
        longest = np.zeros(batches)
        np.maximum.at(longest, owner, lengths)
        padded = np.bincount(owner, minlength=batches) * longest
        missing = padded - np.bincount(owner, lengths, batches)
        self._add(Quantity("padding", _labels([measure])[0]), missing, padded)

    def _add_windows(
        self, node: PlannedDataset[Any], kind: str, positions: Int64Array
    ) -> None:
        """Add the numbers of groups of the windows that items belong to."""
        ordered = np.sort(positions)
        row = 0
        while row < len(ordered):
            position = int(ordered[row])
            _, plan, group, _ = node.group_at(position)
            self._add(Quantity(kind), plan.count, 1)
            if getattr(node, "too_long", "") == "drop":
                dropped = len(plan.dropped)
                samples = dropped + len(plan.order)
                self._add(Quantity("dropped"), dropped, samples)
            row = int(np.searchsorted(ordered, position - group + plan.count))


def _column_cost(cost: Cost | ColumnCost) -> ColumnCost:
    return cost if isinstance(cost, ColumnCost) else ColumnCost(cost)


def _labels(costs: Sequence[ColumnCost]) -> list[str]:
    """Return the label of each cost, without duplicates."""
    labels: list[str] = []
    for cost in costs:
        label = cost.cost if isinstance(cost.cost, str) else function_name(cost.cost)
        if label.endswith("<lambda>"):
            label = "_".join(cost.columns)
        while label in labels:
            label += "_"
        labels.append(label)
    return labels


def _nodes(dataset: Dataset[Any]) -> Iterator[Any]:
    """Yield all nodes of a tree."""
    yield dataset
    for child in dataset.inputs:
        yield from _nodes(child)


def _adds_rows(node: Any) -> bool:
    """Return whether batches of a node may have fillers."""
    traits = node.traits
    return bool(traits.gathers and (traits.loop.pads or traits.substitutes))


def _samples(dataset: Dataset[Any]) -> int:
    """Return the number of samples of all sources."""
    return sum(source.count for source in dataset.sources)


def _costs_of(dataset: Dataset[Any]) -> list[ColumnCost]:
    """Return the costs of `level`, or else the lengths of planned packs and batches."""
    levels: list[ColumnCost] = []
    for node in _nodes(dataset):
        if isinstance(node, LevelDataset):
            cost = node.cost
            levels += cost.costs if isinstance(cost, ColumnCosts) else [cost]
    lengths = [
        length
        for node in _nodes(dataset)
        if isinstance(node, PlannedDataset)
        for length in node.lengths
    ]
    return list(dict.fromkeys(levels or lengths))


def _gathering(
    node: IndexedDataset[Any], positions: Int64Array, rows: Int64Array
) -> Iterator[tuple[IndexedDataset[Any], Int64Array, Int64Array]]:
    """Yield the outermost nodes that gather items, and sources, with their positions.

    Args:
        node: The dataset.
        positions: Positions in the dataset.
        rows: A number for each position, which is yielded for the positions below.
    """
    if node.traits.gathers or not node.inputs:
        yield node, positions, rows
        return
    routes = node.route(positions)
    if routes.owner is not None:
        rows = rows[routes.owner]
    for child, chosen in _by_child(node, routes):
        counts = chosen if routes.padding is None else chosen & ~routes.padding
        yield from _gathering(child, routes.position[counts], rows[counts])


def _by_child(
    node: IndexedDataset[Any], routes: Routes
) -> Iterator[tuple[IndexedDataset[Any], BoolArray]]:
    """Yield each input that routes lead to, and which routes."""
    for number, child in enumerate(node.children):
        chosen = np.ones(len(routes.position), dtype=np.bool_)
        if routes.child is not None:
            chosen = routes.child == number
        if chosen.any():
            yield child, chosen


def _amounts(
    node: IndexedDataset[Any], positions: Int64Array, costs: Sequence[ColumnCost]
) -> tuple[FloatArray, Int64Array]:
    """Return the costs of items, shape (num_costs, num_items), and their samples."""
    refs = node.refs(positions)
    values = np.zeros((len(costs), len(refs)))
    for number, rows in rows_by_value(refs.source):
        source = node.sources[number]
        for row, cost in enumerate(costs):
            values[row, rows] = cost.of_samples(
                source, refs.index[rows], allow_zero=True
            )
    size = len(positions)
    sums = [np.bincount(refs.item, row, size) for row in values]
    amounts = np.array(sums, dtype=np.float64).reshape(len(costs), size)
    return amounts, np.bincount(refs.item, minlength=size)


def _pack_lengths(node: PackDataset[Any], routes: Routes, packs: int) -> Int64Array:
    """Return the lengths of packs, shape (num_packs, num_capacities)."""
    capacities = np.array(node.capacities, dtype=np.int64)
    lengths = np.minimum(node.samples_at(routes.position).lengths, capacities)
    totals = np.zeros((packs, len(capacities)), dtype=np.int64)
    np.add.at(totals, np.asarray(routes.owner), lengths)
    return totals

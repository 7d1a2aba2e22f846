"""Counts of the delivered samples of a loader, by the rows of the levels of its mix.

`Book` notes each item in constant time and evaluates the notes in groups. Other modules
turn its numbers into reports.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple, cast

import numpy as np

from energize.core import tree
from energize.core.arrays import BoolArray, FloatArray, Int64Array, rows_by_value
from energize.core.checks import real_number
from energize.core.costs import ColumnCost, Cost, ItemCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.failures import LeftOut
from energize.core.loss_weights import OWN, WEIGHTS, field_of, weight_of
from energize.core.loss_weights import WEIGHT as OF_SOURCES
from energize.core.padding import UNMARKED, Marks
from energize.core.reader import ItemOrigin
from energize.core.trace import divided
from energize.datasets.planned import PlannedDataset
from energize.errors import ConfigError, nearest, some
from energize.report import levels
from energize.report.efficiency import Efficiency, EfficiencyMeter, Tally
from energize.report.levels import LocatedSamples, Places
from energize.report.table import Outlier

_TOGETHER = 256
"""Items that are evaluated together: enough for numpy, few enough for the cache."""

_LONG = 1.0
"""Seconds after which a check of the shares costs little."""

_MANY = 4096
"""Items after which a check of the shares costs little."""

SAMPLES, ITEMS, REPEATS, COST, WEIGHT, SQUARES, SKIPPED, FAILED = range(8)
LOSSES, LOSS, LATE_LOSSES, LATE_LOSS, NO_NUMBERS = range(8, 13)
"""Columns of the counts of a row.

Items of several rows count as fractions. Repeats are samples drawn in a second pass or
later. Squares are those of loss weights. Late losses decay by `_LATE` at each step.
"""

ROW_COLUMNS = 13

_LATE = 0.99
"""Factor by which late losses decay at each step."""

DELIVERED, PADDING, WAITED, LONGEST, SECONDS, FILLERS = range(6)
"""Columns of the totals of a rank: items, padding, seconds of waiting, the longest
wait, all seconds, and samples that are fillers.
"""

TOTALS = 6


@dataclass(frozen=True)
class Ledger:
    """Options of the ledger of a loader: `get_loader(..., ledger=...)`.

    Args:
        cost: Cost of samples by a column of their sources, such as "tokens", or a
            function of columns (see `energize.costs.ColumnCost`). No data are read; a
            substitute costs as much as the sample that it replaces.
        item_cost: Function that returns the cost of an item: a number for all its
            samples, or one number for each, at least 0. Excludes `cost`.
        name: Name of the cost in reports. By default the name of the column, or "cost".

    Raises:
        ConfigError: If an option is invalid.

    Example:
        >>> from energize import ListSource, get_loader
        >>> words = ListSource(
        ...     ["one two", "three"], name="words", columns={"tokens": [2, 1]}
        ... )
        >>> loader = get_loader(words, ledger=Ledger("tokens"))
        >>> _ = list(loader)
        >>> loader.report()["words"].counts.cost
        3.0
    """

    cost: Cost | None = None
    item_cost: Callable[[Any], Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and self.item_cost is not None:
            raise ConfigError("Ledger: pass cost or item_cost, not both")
        if self.cost is not None:
            ColumnCost(self.cost)
        if self.item_cost is not None and not callable(self.item_cost):
            raise ConfigError(
                f"Ledger: item_cost must be a function of an item, got "
                f"{self.item_cost!r}. The name of a column is a cost: Ledger(cost=...)"
            )


_KEPT = 256
"""Number of last steps with outliers."""

_FAR = 4.0
"""Standard deviations from which a loss is an outlier."""

_ENOUGH = 20
"""Losses of a source from which outliers are determined."""

_SHOWN = 8
"""Number of outliers in a report."""

_NAMED = 3
"""Number of losses without a finite value that are logged."""

_log = logging.getLogger("energize")


class _Note(NamedTuple):
    """A delivered item, with its loss weights and cost for each sample or for all, if
    any.
    """

    origin: ItemOrigin
    weights: Sequence[float] | None
    costs: Sequence[float] | None
    slots: tuple[int, ...] = ()
    """The numbers of samples that were not delivered: padding takes their place."""
    fillers: int = 0
    """Number of samples that are fillers."""


class Book:
    """Counts what a loader delivers of a dataset, by the rows of its levels.

    Counting begins when reading begins; for indexed datasets, the order gives the
    counts before. `note` stores an item; groups of notes are evaluated together, or
    when `counted` is called.
    """

    def __init__(self, dataset: Dataset[Any], settings: Ledger) -> None:
        self.since: int | None = None
        self._settings = settings
        self._begun = False
        self._lock = Lock()  # a report may be asked for by another thread
        self._losses: deque[FloatArray] = deque(maxlen=_KEPT)
        self._named = 0
        self._measured: dict[tuple[int, int], Tally] = {}
        self._open(dataset)

    def _open(self, dataset: Dataset[Any]) -> None:
        """Reset all counts for a dataset."""
        self.levels = levels.levels_of(dataset)
        self.dataset = dataset
        self.names = [leaf.label for leaf in self.levels.leaves]
        self._sources = [cast("Any", leaf.source) for leaf in self.levels.leaves]
        self._places = Places(dataset, self.levels)
        self._column = self._measure()
        self._rows = np.zeros((len(self.names), ROW_COLUMNS))
        self._totals = np.zeros(TOTALS)
        self._waited = self._passed = self._longest = (
            0.0  # adding to an array's cells costs more
        )
        self._waiting: list[_Note] = []
        self._padded = False
        self._looked_at = 0.0

    def _measure(self) -> ColumnCost | None:
        """Return the cost of samples: the configured one, or the unit of a blend."""
        if self._settings.cost is not None:
            return ColumnCost(self._settings.cost)
        if self._settings.item_cost is not None:
            return None
        units = (level.traits.unit for level in self.levels.walk())
        return next(
            (source for source in units if isinstance(source, ColumnCost)), None
        )

    def counts(self, level: levels.MixLevel) -> bool:
        """Return whether the mix of a level weighs the cost that is counted."""
        unit = level.traits.unit
        by_item = isinstance(unit, ItemCost) and self._settings.item_cost is not None
        return unit is not None and (by_item or unit == self._column)

    @property
    def cost_name(self) -> str | None:
        """The name of the cost. None if no cost is counted."""
        cost = self._settings.item_cost if self._column is None else self._column.cost
        if cost is None:
            return None
        return self._settings.name or (cost if isinstance(cost, str) else "cost")

    def begin(self, dataset: Dataset[Any], items: int | None) -> None:
        """Begin counting after `items` items of all ranks.

        Counts are kept if the dataset differs only in its weights, and reset otherwise.
        """
        if dataset is not self.dataset:
            names = self.names
            (rows, totals) = self.counted()
            anchored = tree.anchored_of(self.dataset, self.since or 0)
            self._open(dataset)
            if self.names == names:
                self._rows = rows
                self._totals = totals
                if anchored is not None:
                    tree.learn_anchors(dataset, anchored)
            else:
                self._begun = False
                self._losses.clear()
                self._measured.clear()
        if not self._begun:
            self.since = items
            self._begun = True

    def note(self, origin: ItemOrigin, item: Any, marks: Marks) -> bool:
        """Count a delivered item.

        Returns:
            Whether a check of the shares is due: each time the number of items has
            doubled, after some hundreds.
        """
        item_cost = self._settings.item_cost
        padding = marks.is_padding
        costs = None if padding or item_cost is None else _costs(item_cost(item))
        weights = None if padding else _weights_of(item)
        fillers = set(marks.fillers)
        if fillers:
            costs = _without(costs, fillers)
            weights = _without(weights, fillers)
        with self._lock:
            self._padded = padding
            if padding:
                self._totals[PADDING] += 1
                return False
            due = len(self._waiting) >= _TOGETHER
            if due:
                self._look_up(self._waiting, self._rows, self._totals)
                self._waiting.clear()
                items = self._totals[DELIVERED]
                due = items >= 2 * self._looked_at and (
                    self._passed > _LONG or items >= _MANY
                )
                self._looked_at = items if due else self._looked_at
            note = _Note(origin, weights, costs, marks.slots, len(fillers))
            self._waiting.append(note)
            return due

    def take_back(self, *, is_padding: bool) -> None:
        """Remove the last item from the counts, as it will be delivered again."""
        with self._lock:
            if is_padding:
                self._totals[PADDING] -= 1
            elif self._waiting:
                self._waiting.pop()
            self._padded = False

    def wait(self, waited: float, passed: float) -> None:
        """Add the time of waiting for an item, and the time since the last one."""
        self._waited += waited
        self._passed += passed
        self._longest = max(self._longest, waited)

    def record(
        self,
        origin: ItemOrigin,
        step: int,
        rank: int,
        losses: Any,
        marks: Marks = UNMARKED,
    ) -> list[float | None]:
        """Count the losses of an item.

        Args:
            origin: Origin of the item.
            step: Step of the item.
            rank: Rank of the item.
            losses: Losses of the samples of the item, or by source.
            marks: The padding of the item. Losses of padding are ignored.

        Returns:
            The loss of each sample. None for samples without a loss, and for padded
            ones.

        Raises:
            ConfigError: If the losses do not fit the samples or sources of the item.
        """
        samples_of_item = self.locate(origin)
        caller = f"record_losses (rank {rank}, step {step})"
        if isinstance(losses, Mapping):
            of = _by_row(losses, self.names, caller)
            values_by_sample: list[float | None] = [
                of.get(row) for row in samples_of_item.row.tolist()
            ]
        else:
            row_count = len(samples_of_item.row) + len(marks.fillers)
            values_of_rows = _of_samples(losses, row_count, caller)
            values_by_sample = [
                loss
                for row, loss in enumerate(values_of_rows)
                if row not in marks.fillers
            ]
        for number in marks.slots:
            values_by_sample[number] = None
        at = [
            number for number, loss in enumerate(values_by_sample) if loss is not None
        ]
        rows = samples_of_item.row[at]
        samples = samples_of_item.sample[at]
        values = np.array([values_by_sample[number] for number in at], dtype=np.float64)
        finite = np.isfinite(values)
        size = len(self._rows)
        with self._lock:
            self._rows[:, [LATE_LOSSES, LATE_LOSS]] *= _LATE
            for column, amounts in ((LOSSES, None), (LOSS, values[finite])):
                sums = np.bincount(rows[finite], amounts, size)
                self._rows[:, column] += sums
                self._rows[:, column + LATE_LOSSES - LOSSES] += sums
            self._rows[:, NO_NUMBERS] += np.bincount(rows[~finite], minlength=size)
        steps = np.full(len(at), step, dtype=np.float64)
        self._losses.append(np.stack([steps, rows, samples, values]))
        for number in np.flatnonzero(~finite).tolist():
            self._named += 1
            if self._named <= _NAMED:
                location = self.where(int(rows[number]), int(samples[number]))
                self._warn_of_loss(rank, step, location, values[number])
        return values_by_sample

    def _warn_of_loss(self, rank: int, step: int, location: str, loss: float) -> None:
        """Log a loss that is not finite."""
        more = ""
        if self._named == _NAMED:
            more = ". More are counted in loader.report()"
        text = "rank %d, step %d: the loss of %s is %s%s"
        _log.warning(text, rank, step, location, loss, more)

    def outliers(self, rank: int) -> list[Outlier]:
        """Return the samples of the last steps with extreme losses for their source."""
        if not self._losses:
            return []
        *numbers, values = np.concatenate(self._losses, axis=1)
        steps, rows, samples = (column.astype(np.int64) for column in numbers)
        far = _deviations(rows, values)
        worst = np.argsort(-far, kind="stable")[:_SHOWN].tolist()
        worst = [index for index in worst if far[index] >= _FAR]
        locations = [
            self.where(int(rows[index]), int(samples[index])) for index in worst
        ]
        columns = (steps, rows, values, far)
        of = zip(
            *(column[worst].tolist() for column in columns), locations, strict=True
        )
        return [Outlier(step, rank, self.names[row], *rest) for step, row, *rest in of]

    def last(self) -> list[str]:
        """Return the sources of the samples of the last item; empty for padding."""
        with self._lock:
            if self._padded or not self._waiting:
                return []
            return [
                self.names[row]
                for row in self.locate(self._waiting[-1].origin).row.tolist()
            ]

    def locate(self, origin: ItemOrigin) -> LocatedSamples:
        """Return the samples of an item."""
        return self._places.locate([origin])

    def where(self, row: int, sample: int) -> str:
        """Return the location of a sample of a row, for messages."""
        return self._sources[row].where(sample)  # type: ignore[no-any-return]

    def efficiency(
        self, ranks: int, micro_batches: int, items: int | None
    ) -> Efficiency | None:
        """Return the efficiency of the steps since counting began, over all ranks.

        It is computed from the positions of items, see `EfficiencyMeter`; parts that
        were measured for an earlier report are not measured again.

        Args:
            ranks: Number of ranks.
            micro_batches: Batches of a rank in a step.
            items: Items of all ranks since the run began. None if unknown.
        """
        dataset = self.dataset
        if items is None or not isinstance(dataset, IndexedDataset):
            return None
        if not dataset.indexed:
            return None
        cost = self._settings.cost
        costs = () if cost is None else (cost,)
        meter = EfficiencyMeter(
            dataset, ranks, micro_batches, costs, measured=self._measured
        )
        return meter.delivered(self.since or 0, items)

    def planned(self, items: int | None) -> FloatArray | None:
        """Return the counts of samples and items by the order for the first `items`
        items.

        None for streams, or if `items` is None.
        """
        if items is None or not self.dataset.indexed:
            return None
        rows = np.zeros_like(self._rows)
        samples = self._places.planned(items)
        rows[:, SAMPLES] = samples
        if isinstance(self.dataset, PlannedDataset):
            rows[:, ITEMS] = divided(self.dataset, items, samples)
        else:
            rows[:, ITEMS] = self._places.planned(items, items=True)
        return rows

    def counted(self) -> tuple[FloatArray, FloatArray]:
        """Return copies of the counts of each row and of the totals, float64."""
        with self._lock:
            if len(self._waiting) > 1:
                self._look_up(self._waiting[:-1], self._rows, self._totals)
                del self._waiting[:-1]
            rows = self._rows.copy()
            totals = self._totals.copy()
            totals[WAITED] += self._waited
            totals[SECONDS] += self._passed
            totals[LONGEST] = max(totals[LONGEST], self._longest)
            self._look_up(self._waiting, rows, totals)
            return rows, totals

    def numbers(
        self, rank: int, world_size: int, left_out: LeftOut | None = None
    ) -> FloatArray:
        """Return the counts of this rank; the sum over ranks is the count of all.

        Returns:
            float64: the counts of all rows, then the totals of each rank.
        """
        rows, totals = self.counted()
        row_of = {source.key: row for row, source in [*enumerate(self._sources)][::-1]}
        for (key, skipped), number in (left_out.counts if left_out else {}).items():
            if key in row_of:  # the first of several
                rows[row_of[key], SKIPPED if skipped else FAILED] += number
        of_ranks = np.zeros((world_size, TOTALS))
        of_ranks[rank] = totals
        return np.concatenate([rows.ravel(), of_ranks.ravel()])

    def _look_up(
        self, notes: Sequence[_Note], rows: FloatArray, totals: FloatArray
    ) -> None:
        """Add the counts of notes to `rows` and `totals`."""
        if not notes:
            return
        samples = self._places.locate([note.origin for note in notes])
        counts = np.bincount(samples.item, minlength=len(notes))
        size = len(rows)
        weights = _amounts_of_samples(
            [note.weights for note in notes], counts, samples, default=1.0
        )
        costs = np.zeros(len(weights))
        if self._settings.item_cost is not None:
            costs = _amounts_of_samples(
                [note.costs for note in notes], counts, samples, default=0.0, whole=True
            )
        slots = [note.slots for note in notes]
        if any(slots):
            is_delivered = _delivered(slots, counts)
            samples = LocatedSamples(*(column[is_delivered] for column in samples))
            weights = weights[is_delivered]
            costs = costs[is_delivered]
            counts = np.bincount(samples.item, minlength=len(notes))
        row = samples.row
        rows[:, SAMPLES] += np.bincount(row, minlength=size)
        rows[:, ITEMS] += _items_by_row(samples, counts, size)
        rows[:, REPEATS] += np.bincount(row[samples.epoch > 0], minlength=size)
        rows[:, WEIGHT] += np.bincount(row, weights, size)
        rows[:, SQUARES] += np.bincount(row, weights * weights, size)
        if self._column is not None:
            costs = self._column_costs(self._column, samples)
        rows[:, COST] += np.bincount(row, costs, size)
        totals[DELIVERED] += len(notes)
        totals[FILLERS] += sum(note.fillers for note in notes)

    def _column_costs(self, column: ColumnCost, samples: LocatedSamples) -> FloatArray:
        costs = np.zeros(len(samples.row))
        for number, at in rows_by_value(samples.row):
            source = self._sources[number]
            costs[at] = column.of_samples(source, samples.sample[at])
        return costs


def _delivered(slots: Sequence[tuple[int, ...]], counts: Int64Array) -> BoolArray:
    """Return for each sample of items whether its slot is not padded."""
    is_delivered = np.ones(int(counts.sum()), dtype=np.bool_)
    starts = (np.cumsum(counts) - counts).tolist()
    for start, padded in zip(starts, slots, strict=True):
        is_delivered[[start + slot for slot in padded]] = False
    return is_delivered


def _amounts_of_samples(
    amounts_of_items: Sequence[Sequence[float] | None],
    counts: Int64Array,
    located: LocatedSamples,
    *,
    default: float,
    whole: bool = False,
) -> FloatArray:
    """Return a number for each sample of items.

    If an item has another number of values than samples, their sum is split evenly. A
    single value applies to each sample, or, with `whole`, to the item.
    """
    values = np.full(len(located.item), default)
    starts = np.cumsum(counts) - counts
    for number, amounts in enumerate(amounts_of_items):
        samples = int(counts[number])
        if amounts is None or not samples:
            continue
        numbers: Any = np.asarray(amounts, dtype=np.float64)
        if len(numbers) == 1 and not whole:
            numbers = np.repeat(numbers, samples)
        elif len(numbers) != samples:
            filled = numbers[numbers != 0]  # packs of fewer pieces are filled with 0
            numbers = (
                filled
                if len(filled) == samples
                else np.full(samples, numbers.sum() / samples)
            )
        values[starts[number] : starts[number] + samples] = numbers
    return values


def _weights_of(item: Any) -> Sequence[float] | None:
    """Return the loss weights of a batch or sample, None if it has none."""
    weights = field_of(item, WEIGHTS)
    if weights is not None:
        numbers: Sequence[float] = weights.flatten().tolist()
        return numbers
    silent = field_of(item, OF_SOURCES) is None and field_of(item, OWN) is None
    weight = None if silent else weight_of(item)
    return None if weight is None else (weight,)


def _without(
    amounts: Sequence[float] | None, samples: Collection[int]
) -> Sequence[float] | None:
    """Return the amounts of an item without those of some samples."""
    if amounts is None or len(amounts) <= max(samples):
        return amounts
    return [amount for row, amount in enumerate(amounts) if row not in samples]


def _costs(value: Any) -> Sequence[float]:
    """Return the checked cost that a function returned for an item."""
    amounts = value.flatten().tolist() if hasattr(value, "flatten") else value
    costs = amounts if isinstance(amounts, list | tuple) else [amounts]
    numbers = [real_number(cost) for cost in costs]
    if not all(number is not None and 0 <= number < math.inf for number in numbers):
        raise ConfigError(
            "Ledger(item_cost=...) must return a number >= 0, or one for each "
            f"sample, got {str(value)[:80]!r}"
        )
    return costs


def _of_samples(losses: Any, samples: int, caller: str) -> list[float | None]:
    raw = losses.detach().tolist() if hasattr(losses, "detach") else losses
    try:
        values: Any = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{caller}: losses must be a tensor or a list of numbers, one for each "
            f"sample, or a dict by source, got {str(losses)[:80]!r}"
        ) from None
    if values.size != samples or not values.ndim:
        hint = ". A single number is a mean: compute losses with reduction='none'"
        raise ConfigError(
            f"{caller}: got {values.size} losses for an item of {samples} samples. "
            "Pass one for each sample, in the order of the item"
            f"{'' if values.ndim else hint}"
        )
    numbers: list[float | None] = values.reshape(-1).tolist()
    return numbers


def _by_row(
    losses: Mapping[str, Any], names: Sequence[str], caller: str
) -> dict[int, float]:
    by_row = {}
    for name, loss in losses.items():
        value = real_number(loss)
        if name not in names:
            raise ConfigError(
                f"{caller}: no source is named "
                f"{str(name)[:80]!r}{nearest(str(name), names) or '.'} The sources are "
                f"{some(names)}"
            )
        if value is None:
            raise ConfigError(
                f"{caller}: the loss of {name!r} is not a number: {str(loss)[:80]!r}"
            )
        by_row[names.index(name)] = float(value)
    return by_row


def _deviations(rows: Int64Array, values: FloatArray) -> FloatArray:
    """Return how far losses are from the mean of their row, in standard deviations.

    0 for rows with too few or equal losses, infinity for losses that are not finite.
    """
    deviations: FloatArray = np.where(np.isfinite(values), 0.0, np.inf)
    for _, at in rows_by_value(rows):
        finite = at[np.isfinite(values[at])]
        mean = values[finite].mean()
        spread = values[finite].std()
        if len(finite) >= _ENOUGH and spread > 0:
            deviations[finite] = np.abs(values[finite] - mean) / spread
    return deviations


def _items_by_row(samples: LocatedSamples, counts: Int64Array, size: int) -> FloatArray:
    """Return the items of each row; an item of several samples counts as fractions.

    Args:
        samples: The located samples of all items.
        counts: Number of samples of each item.
        size: Number of rows.
    """
    if not (counts == counts[0]).all():
        weights: FloatArray = 1.0 / counts[samples.item]
        return np.bincount(samples.row, weights, size).astype(np.float64)
    if not counts[0]:
        return np.zeros(size)
    of_rows = np.bincount(samples.row, minlength=size).astype(np.float64)
    return of_rows / int(counts[0])

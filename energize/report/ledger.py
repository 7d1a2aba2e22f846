"""The ledger of a loader: what it counts, noted for next to nothing, and what it tells
of that.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from energize.core.arrays import BoolArray, FloatArray, Int64Array, rows_by_value
from energize.core.blends import ContinuedDataset
from energize.core.checks import real_number
from energize.core.costs import ColumnCost, Cost, ItemCost
from energize.core.dataset import Dataset
from energize.core.failures import LeftOut
from energize.core.loss_weights import OWN, WEIGHTS, field_of, weight_of
from energize.core.loss_weights import WEIGHT as OF_SOURCES
from energize.core.node import INFINITE
from energize.core.padding import Marks
from energize.core.progress import counted
from energize.core.reader import Made
from energize.datasets.quota import QuotaDataset
from energize.errors import ConfigError, nearest, some
from energize.report import levels
from energize.report.levels import LocatedSamples, MixLevel, Places
from energize.report.table import LedgerRow, Outlier, RankTotals, Report

_TOGETHER = 256
"""Items that wait until they are looked up together: many for numpy, few enough that
where their slots lie is still remembered from reading them."""

_LONG = 1.0
_MANY = 4096
"""Seconds, or items, in which a look at what came costs next to nothing."""

SAMPLES, ITEMS, REPEATS, COST, WEIGHT, SQUARES, SKIPPED, FAILED = range(8)
LOSSES, LOSS, LATE_LOSSES, LATE_LOSS, NO_NUMBERS = range(8, 13)
"""What is counted of each row. Items that are made of samples of several rows count for
each by its part of them; repeats are samples that were drawn in a second pass or later;
squares are those of loss weights. Of losses that were reported: how many, their sum,
both of late (each step leaves `_LATE` of them), and how many were no finite number."""

ROW_COLUMNS = 13

_LATE = 0.99

DELIVERED, PADDING, WAITED, LONGEST, SECONDS = range(5)
"""What is counted of a rank: items, and padding beside them; seconds that items were
waited for, the longest of them, and that passed in all."""

TOTALS = 5


@dataclass(frozen=True)
class Ledger:
    """What a loader's ledger counts beside samples and batches: `get_loader(...,
    ledger=...)`.

    `cost`: what samples cost, by a column that their sources have, such as "tokens", or
    a function of columns (see `energize.costs.ColumnCost`); nothing is read for it, and
    samples that took the place of failed ones count as these. `item_cost`: what an item
    costs, by a function of it: a number, which its samples share, or one for each of
    them, 0 or more. One of the two at most. `name`: what the cost is called in reports;
    by default that of the column, or "cost".

    Raises `ConfigError` for what cannot be used.

    >>> from energize import ListSource, get_loader
    >>> words = ListSource(
    ...     ["one two", "three"], name="words", columns={"tokens": [2, 1]}
    ... )
    >>> loader = get_loader(words, ledger=Ledger("tokens"))
    >>> _ = list(loader)
    >>> loader.report()["words"].cost
    3.0
    """

    cost: Cost | None = None
    item_cost: Callable[[Any], Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and self.item_cost is not None:
            raise ConfigError("Ledger: give a cost by columns or item_cost, not both")
        if self.cost is not None:
            ColumnCost(self.cost)
        if self.item_cost is not None and not callable(self.item_cost):
            raise ConfigError(
                f"Ledger: item_cost is a function of an item; got {self.item_cost!r}. "
                "The name of a column is a cost: Ledger(cost=...)"
            )


_KEPT = 256
"""Steps in which outliers are looked for."""

_FAR = 4.0
_ENOUGH = 20
_SHOWN = 8
"""Standard deviations from which on a loss is an outlier, the losses of its source that
it takes to tell, and how many are told."""

_NAMED = 3
"""Losses that are no number and are told in the log."""

_log = logging.getLogger("energize")


class _Note(NamedTuple):
    """An item that was delivered: what it is made of, and its loss weights and cost if
    it says them, one for each sample or one for all.
    """

    made: Made
    weights: Sequence[float] | None
    costs: Sequence[float] | None
    slots: tuple[int, ...] = ()
    """The numbers of samples that were not delivered: padding takes their place."""


class Book:
    """Counts what a loader delivers of a dataset, by the rows of its levels.

    It begins where reading begins; of an indexed dataset, what was delivered before
    that is known by the order. `note` is told of each item, and looks up what it is
    made of some hundred items later, or when `counted` is asked for.
    """

    def __init__(self, dataset: Dataset[Any], settings: Ledger) -> None:
        self.since: int | None = None
        self._settings = settings
        self._begun = False
        self._lock = Lock()  # a report may be asked for by another thread
        self._losses: deque[FloatArray] = deque(maxlen=_KEPT)
        self._named = 0
        self._open(dataset)

    def _open(self, dataset: Dataset[Any]) -> None:
        """Have counted nothing of a dataset."""
        self.levels = levels.levels_of(dataset)
        self.dataset = dataset
        self.names = [each.label for each in self.levels.leaves]
        self._sources = [cast("Any", each.source) for each in self.levels.leaves]
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
        """What samples cost: as it was asked for, else what a blend weighs."""
        if self._settings.cost is not None:
            return ColumnCost(self._settings.cost)
        if self._settings.item_cost is not None:
            return None
        units = (getattr(each.mix, "unit", None) for each in self.levels.walk())
        return next((each for each in units if isinstance(each, ColumnCost)), None)

    def counts(self, mix: Any) -> bool:
        """Whether what a mix weighs is what costs are counted in."""
        unit = getattr(mix, "unit", None)
        by_item = isinstance(unit, ItemCost) and self._settings.item_cost is not None
        return unit is not None and (by_item or unit == self._column)

    @property
    def cost_name(self) -> str | None:
        """What costs are called; None where nothing is counted."""
        cost = self._settings.item_cost if self._column is None else self._column.cost
        if cost is None:
            return None
        return self._settings.name or (cost if isinstance(cost, str) else "cost")

    def begin(self, dataset: Dataset[Any], items: int | None) -> None:
        """Reading begins, after so many items of all ranks; of a dataset that may have
        other weights than before. Where it has other parts, counting begins anew.
        """
        if dataset is not self.dataset:
            names = self.names
            (rows, totals) = self.counted()
            self._open(dataset)
            if self.names == names:
                self._rows = rows
                self._totals = totals
            else:
                self._begun = False
                self._losses.clear()
        if not self._begun:
            self.since = items
            self._begun = True

    def note(self, made: Made, item: Any, marks: Marks) -> bool:
        """One more item was delivered. Return whether it is worth some milliseconds to
        look what came: when twice as many were delivered as last time, in some
        hundreds.
        """
        item_cost = self._settings.item_cost
        padding = marks.is_padding
        costs = None if padding or item_cost is None else _costs(item_cost(item))
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
            self._waiting.append(_Note(made, _weights_of(item), costs, marks.slots))
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
        """An item was waited for, and so many seconds passed since the last one was
        given.
        """
        self._waited += waited
        self._passed += passed
        self._longest = max(self._longest, waited)

    def record(
        self, made: Made, step: int, rank: int, losses: Any, padded: Iterable[int] = ()
    ) -> list[float | None]:
        """Count the losses of an item, and return those of its samples, None for those
        of which nothing is said, and for `padded` ones; `ConfigError` for others than
        it has samples or sources.
        """
        found = self.found(made)
        given = f"record_losses (rank {rank}, step {step})"
        if isinstance(losses, Mapping):
            of = _by_row(losses, self.names, given)
            told: list[float | None] = [of.get(row) for row in found.row.tolist()]
        else:
            told = _of_samples(losses, len(found.row), given)
        for number in padded:
            told[number] = None
        at = [number for number, loss in enumerate(told) if loss is not None]
        rows = found.row[at]
        samples = found.sample[at]
        values = np.array([told[number] for number in at], dtype=np.float64)
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
                where = self.where(int(rows[number]), int(samples[number]))
                self._warn_of_loss(rank, step, where, values[number])
        return told

    def _warn_of_loss(self, rank: int, step: int, where: str, loss: float) -> None:
        """Log a loss that is not finite."""
        more = ""
        if self._named == _NAMED:
            more = "; more are counted in loader.report()"
        text = "rank %d, step %d: the loss of %s is %s%s"
        _log.warning(text, rank, step, where, loss, more)

    def outliers(self, rank: int) -> list[Outlier]:
        """Return the samples of the last steps whose losses stand out of those of their
        source.
        """
        if not self._losses:
            return []
        *numbers, values = np.concatenate(self._losses, axis=1)
        steps, rows, samples = (each.astype(np.int64) for each in numbers)
        far = _deviations(rows, values)
        worst = np.argsort(-far, kind="stable")[:_SHOWN].tolist()
        worst = [each for each in worst if far[each] >= _FAR]
        where = [self.where(int(rows[each]), int(samples[each])) for each in worst]
        columns = (steps, rows, values, far)
        of = zip(*(each[worst].tolist() for each in columns), where, strict=True)
        return [Outlier(step, rank, self.names[row], *rest) for step, row, *rest in of]

    def last(self) -> list[str]:
        """Return the names of the sources of the samples of the last item; none of
        padding.
        """
        with self._lock:
            if self._padded or not self._waiting:
                return []
            return [
                self.names[row]
                for row in self.found(self._waiting[-1].made).row.tolist()
            ]

    def found(self, made: Made) -> LocatedSamples:
        """Return which samples an item is made of."""
        return self._places.found([made])

    def where(self, row: int, sample: int) -> str:
        """Return where a sample of a row is stored, for messages."""
        return self._sources[row].where(sample)  # type: ignore[no-any-return]

    def planned(self, items: int | None) -> FloatArray | None:
        """Return what the first items are made of, as it is counted: samples and items;
        None where nobody knows.
        """
        if items is None or not self.dataset.indexed:
            return None
        rows = np.zeros_like(self._rows)
        rows[:, SAMPLES] = self._places.planned(items)
        rows[:, ITEMS] = self._places.planned(items, items=True)
        return rows

    def counted(self) -> tuple[FloatArray, FloatArray]:
        """Return what was counted of each row, and the totals: float64, copies."""
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
        """Return what this rank has counted, so that the sum over ranks says all:
        float64 in one row, the rows of the levels and the totals of each rank.
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
        """Add what was noted to what is known."""
        if not notes:
            return
        found = self._places.found([each.made for each in notes])
        counts = np.bincount(found.item, minlength=len(notes))
        size = len(rows)
        weights = _shared([each.weights for each in notes], counts, found, default=1.0)
        costs = np.zeros(len(weights))
        if self._settings.item_cost is not None:
            costs = _shared(
                [each.costs for each in notes], counts, found, default=0.0, whole=True
            )
        slots = [each.slots for each in notes]
        if any(slots):
            kept = _delivered(slots, counts)
            found = LocatedSamples(*(each[kept] for each in found))
            weights = weights[kept]
            costs = costs[kept]
            counts = np.bincount(found.item, minlength=len(notes))
        row = found.row
        rows[:, SAMPLES] += np.bincount(row, minlength=size)
        rows[:, ITEMS] += _items_by_row(found, counts, size)
        rows[:, REPEATS] += np.bincount(row[found.epoch > 0], minlength=size)
        rows[:, WEIGHT] += np.bincount(row, weights, size)
        rows[:, SQUARES] += np.bincount(row, weights * weights, size)
        if self._column is not None:
            costs = self._column_costs(self._column, found)
        rows[:, COST] += np.bincount(row, costs, size)
        totals[DELIVERED] += len(notes)

    def _column_costs(self, column: ColumnCost, samples: LocatedSamples) -> FloatArray:
        costs = np.zeros(len(samples.row))
        for number, at in rows_by_value(samples.row):
            source = self._sources[number]
            costs[at] = column.of_samples(source, samples.sample[at])
        return costs


def _delivered(slots: Sequence[tuple[int, ...]], counts: Int64Array) -> BoolArray:
    """Return for each sample of items whether it is none of these slots of its item."""
    kept = np.ones(int(counts.sum()), dtype=np.bool_)
    starts = (np.cumsum(counts) - counts).tolist()
    for start, padded in zip(starts, slots, strict=True):
        kept[[start + slot for slot in padded]] = False
    return kept


def _shared(
    given: Sequence[Sequence[float] | None],
    counts: Int64Array,
    found: LocatedSamples,
    *,
    default: float,
    whole: bool = False,
) -> FloatArray:
    """Return a number for each sample of items: those that the items say, in order.
    Where there are others than samples, the samples have equal parts of their sum; one
    alone is for each sample, unless it is for the `whole` item.
    """
    values = np.full(len(found.item), default)
    starts = np.cumsum(counts) - counts
    for number, each in enumerate(given):
        samples = int(counts[number])
        if each is None or not samples:
            continue
        told: Any = np.asarray(each, dtype=np.float64)
        if len(told) == 1 and not whole:
            told = np.repeat(told, samples)
        elif len(told) != samples:
            filled = told[told != 0]  # packs of fewer pieces are filled with 0
            told = (
                filled
                if len(filled) == samples
                else np.full(samples, told.sum() / samples)
            )
        values[starts[number] : starts[number] + samples] = told
    return values


def _weights_of(item: Any) -> Sequence[float] | None:
    """Return the loss weights that a batch or a sample says, if it says any."""
    weights = field_of(item, WEIGHTS)
    if weights is not None:
        numbers: Sequence[float] = weights.flatten().tolist()
        return numbers
    silent = field_of(item, OF_SOURCES) is None and field_of(item, OWN) is None
    own = None if silent else weight_of(item)
    return None if own is None else (own,)


def _costs(value: Any) -> Sequence[float]:
    """Return what a function says that an item costs, checked."""
    told = value.flatten().tolist() if hasattr(value, "flatten") else value
    costs = told if isinstance(told, list | tuple) else [told]
    numbers = [real_number(each) for each in costs]
    if not all(number is not None and 0 <= number < math.inf for number in numbers):
        raise ConfigError(
            "Ledger(item_cost=...): what an item costs is a number, 0 or more, or one "
            f"for each of its samples; the function returned {str(value)[:80]!r}"
        )
    return costs


def _of_samples(losses: Any, samples: int, given: str) -> list[float | None]:
    told = losses.detach().tolist() if hasattr(losses, "detach") else losses
    try:
        values: Any = np.asarray(told, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{given}: losses are a tensor or a list of numbers, one for each sample, "
            f"or a dict by source; got {str(losses)[:80]!r}"
        ) from None
    if values.size != samples or not values.ndim:
        one = (
            "; one number is a mean over samples: compute losses with reduction='none'"
        )
        raise ConfigError(
            f"{given}: got {values.size} losses for an item that is made of "
            f"{samples} samples; give one for each, in the order of the item"
            f"{'' if values.ndim else one}"
        )
    numbers: list[float | None] = values.reshape(-1).tolist()
    return numbers


def _by_row(
    losses: Mapping[str, Any], names: Sequence[str], given: str
) -> dict[int, float]:
    found = {}
    for name, loss in losses.items():
        value = real_number(loss)
        if name not in names:
            raise ConfigError(
                f"{given}: no source is called "
                f"{str(name)[:80]!r}{nearest(str(name), names)}; sources are "
                f"{some(names)}"
            )
        if value is None:
            raise ConfigError(
                f"{given}: the loss of {name!r} is no number: {str(loss)[:80]!r}"
            )
        found[names.index(name)] = float(value)
    return found


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


# Reports.


def kish(weights: float, squares: float) -> float:
    """Kish's effective sample size of loss weights, by their sum and that of their
    squares.

    (sum of w)^2 / (sum of w^2): as many samples of equal weight tell as much (Kish,
    Survey Sampling, 1965). 0 where nothing has a weight.

    >>> kish(4.0, 4.0), kish(10.0, 100.0)
    (4.0, 1.0)
    """
    return weights * weights / squares if squares > 0 else 0.0


_ROUNDING = 4.0
"""Slots by which the orders of mixes round at most: 3.36, and one more for those that
are begun."""

_FILTERED = 2.0
"""Tolerance behind a filter, in square roots of the number of items: four standard
deviations of a share of 50 %, as the choice of a filter is not part of the plan."""

_SAME = 1e-3
"""A part of a share that planned and delivered may differ in, where both count the same
items."""


Above: TypeAlias = "tuple[Dataset[Any], ...]"
"""What a level is read through, from the whole on."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a level by their weights: `asked`, `planned` and `delivered` in one
    `unit`. `units` counts the items of the mix that each part received, `lost` the
    samples that were skipped or failed. `comparable` is True if `units` and `asked`
    count the same items.
    """

    level: MixLevel
    above: Above = ()
    unit: str = "samples"
    asked: Any = None
    planned: Any = None
    delivered: Any = None
    units: Any = None
    lost: int = 0
    comparable: bool = False


def _warning(each: _Parts, lanes: int, mean: float) -> Iterator[str]:
    """Yield a line if a share is further from the requested one than the order allows.

    The order is deterministic, so only a reason that follows from the plan or from the
    counts is stated. If there is none, nothing is yielded.

    Args:
        each: The parts of one level.
        lanes: Number of lanes of a stream; each holds its own buffers.
        mean: Mean number of samples in an item of the whole.
    """
    if not each.comparable or each.units.sum() <= 0:
        return
    total = each.units.sum()
    distance = np.abs(each.units - total * each.asked)
    worst = int(distance.argmax())
    buffered = 0.0
    for node in each.above:
        buffered = (
            buffered * (mean if node.traits.gathers else 1.0) + node.traits.buffered
        )
    tolerance = max(_ROUNDING, _block(each.level.mix), buffered * lanes)
    filtering = _leaves_out(each.above)
    if filtering:
        tolerance = max(tolerance, _FILTERED * math.sqrt(total))
    if distance[worst] <= tolerance:
        return
    reasons = list(_reasons(each, filtering, total, tolerance))
    if not reasons:
        return
    part = each.level.parts[worst]
    where = f" of {each.level.label!r}" if each.level.path else ""
    yield (
        f"{part.name!r}{where} has {100 * each.units[worst] / total:.3f} % of "
        f"{total:,.0f} {each.unit}, requested were {100 * each.asked[worst]:.3f} %: "
        f"{'; '.join(reasons)}"
    )


def _block(mix: Any) -> float:
    """Slots within which a scheme keeps shares."""
    if isinstance(mix, QuotaDataset):
        return float(mix.size)  # an epoch has them, in whatever order
    scheme = getattr(mix, "scheme", None)
    options = getattr(mix, "options", {})
    if scheme == "block":
        return float(options.get("block_size", 1000))
    return 65_536.0 if scheme in ("random", "uniform") else 0.0


def _reasons(
    each: _Parts, node: str | None, total: float, tolerance: float
) -> Iterator[str]:
    """Yield the reasons that the plan and the counts prove.

    `node` is the class of a dataset above the mix that leaves out items.
    """
    if node:
        yield (
            f"{node} is above the blend and leaves out items after the blend has "
            "counted them. Put it below the blend to weigh what it returns"
        )
    if each.planned is None:
        if each.lost:
            yield "samples were skipped or failed"
        elif node is None and not getattr(each.level.mix, "_endless", True):
            short = np.flatnonzero(total * each.asked - each.units > tolerance)
            yield from _ended(each, short)
        return
    planned = total * each.planned
    short = np.flatnonzero(total * each.asked - planned > tolerance)
    yield from _ended(each, short)
    if np.abs(each.units - planned).max() <= tolerance:
        return
    if each.lost:
        yield "samples were skipped or failed"
    else:
        yield "the loaded state belongs to another mix (strict=False)"


def _ended(each: _Parts, short: Sequence[int] | Int64Array) -> Iterator[str]:
    """Yield the names of the parts whose share is below the requested one."""
    if len(short):
        names = ", ".join(repr(each.level.parts[part].name) for part in short)
        yield f"{names} ended by the stop rule, and the other sources took its share"


def _leaves_out(above: Above) -> str | None:
    """Return the first dataset above a blend that gives other items than it takes, as
    only reading tells.
    """
    for node in above:
        passes = node.indexed or node.traits.keeps_order or len(node.inputs) > 1
        inner = node.inputs[0] if node.inputs else node
        known = node.sized and inner.sized and node.size in (inner.size, INFINITE)
        if not passes and (inner.indexed or not known):
            return type(node).__name__
    return None


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run stands: `items` that all ranks were given since it began, None where
    that is not known; on `world_size` ranks, of which this is `rank`; of a stream, in
    `lanes`.
    """

    items: int | None
    rank: int
    world_size: int
    lanes: int = 1


class Telling:
    """Makes a report of the `numbers` of a book, which are those of all ranks together,
    or of this one alone: of the `whole` run, or since counting began.

    What the order gave before that is added where the whole is told; then `planned` is
    that of all of it, and else since counting began.
    """

    def __init__(
        self,
        book: Book,
        stand: Stand,
        numbers: FloatArray,
        *,
        all_ranks: bool = True,
        title: str | None = None,
    ) -> None:
        self.book = book
        self.stand = stand
        self.title = title
        self.all_ranks = all_ranks
        of_rows, of_ranks = np.split(numbers, [-stand.world_size * TOTALS])
        self.of_ranks = of_ranks.reshape(-1, TOTALS).tolist()
        self.counted = of_rows.reshape(-1, ROW_COLUMNS)
        self.rows, self.edited = self.counted.copy(), _continued(book.dataset)
        self.run = self.planned = book.planned(stand.items)
        since = book.since or 0
        before = book.planned(since) if since else None
        covers_run = all_ranks and (not self.edited or title is not None)
        self.whole = covers_run and before is not None
        self.start = 0 if self.whole else since
        self.starts = levels.spans(book.levels, self.start)
        self.stops = levels.spans(book.levels, stand.items)
        if before is not None:
            self._account_for(before, since)
        self.totals = self.rows.sum(axis=0)
        self.differing: list[_Parts] = []

    def _add_before(self, samples: FloatArray, since: int) -> None:
        """What the order says beside samples and items of the time before counting
        began.
        """
        counts = np.array([_count(each.source) for each in self.book.levels.leaves])
        self.rows[:, REPEATS] += np.maximum(samples - counts, 0) * (counts > 0)
        of = self.book.levels
        spent = samples.copy()
        reached = levels.spans(of, since)
        known = levels.spend(
            of, spent, self.starts, reached, self.book.counts, costs=False
        )
        self.rows[known, COST] += spent[known]

    def _account_for(self, before: FloatArray, since: int) -> None:
        """Add the plan up to the item `since`, or subtract it from the planned items of
        a report that does not cover the whole run.
        """
        if self.whole:
            self.rows += before
            self._add_before(before[:, SAMPLES], since)
        elif self.run is not None:
            self.planned = self.run - before

    def report(self, left_out: dict[str, int] | None = None) -> Report:
        """Return the report, with the totals of each rank."""
        rank = self.stand.rank
        ranks = [
            RankTotals(
                number,
                round(totals[DELIVERED]),
                round(totals[PADDING]),
                *totals[WAITED : SECONDS + 1],
            )
            for number, totals in enumerate(self.of_ranks)
            if self.all_ranks or number == rank
        ]
        columns = self.counted
        report = Report(
            title=self.title or self._default_title(ranks),
            rows=tuple(
                self._rows_of(self.book.levels, _Parts(self.book.levels), 0, ())
            ),
            ranks=tuple(ranks) if self.title is None else (),
            world_size=self.stand.world_size,
            cost_name=self.book.cost_name,
            left_out=left_out or {},
            weighed=bool((columns[:, WEIGHT] != columns[:, SAMPLES]).any()),
            notes=tuple(self._notes()),
        )
        mean = float(self.totals[SAMPLES] / max(self.totals[ITEMS], 1.0))
        lanes = self.stand.lanes
        warnings = (_warning(each, lanes, mean) for each in self.differing)
        return replace(report, warnings=tuple(chain.from_iterable(warnings)))

    def _notes(self) -> Iterator[str]:
        if self.book.since and self.title is None:
            told = "all of it since then"
            if self.whole:
                told = (
                    "costs, loss weights, failures and waiting since then, the rest "
                    "all along"
                )
            yield f"counting began after {self.book.since:,} items of the run: {told}"
        if self.edited:
            yield "the mix was edited while the run went on: epochs count from there"
        if self.planned is None:
            yield "this is a stream: only reading tells what its order gives"
        if not self.all_ranks:
            yield "report(all_ranks=True), called on all ranks, sums them"

    def _rows_of(
        self, level: MixLevel, among: _Parts, number: int, above: Above
    ) -> list[LedgerRow]:
        above = (*above, *level.above)
        own = self._parts_of(level, above)
        rows = [self._row(level, among, number)]
        for place, part in enumerate(level.parts):
            rows += self._rows_of(part, own, place, above)
        return rows

    def _row(self, level: MixLevel, among: _Parts, number: int) -> LedgerRow:
        counts = self._sum(level)
        costs = self.book.cost_name is not None
        return LedgerRow(
            path=level.path,
            is_source=level.source is not None,
            unit=among.unit,
            asked=_at(among.asked, number),
            planned=_at(among.planned, number),
            delivered=_at(among.delivered, number),
            samples=round(counts[SAMPLES]),
            samples_share=_part(counts[SAMPLES], self.totals[SAMPLES]),
            batches=round(counts[ITEMS], 6),
            batches_share=_part(counts[ITEMS], self.totals[ITEMS]),
            cost=counts[COST] if costs else None,
            cost_share=_part(counts[COST], self.totals[COST]) if costs else None,
            weight=counts[WEIGHT],
            weight_share=_part(counts[WEIGHT], self.totals[WEIGHT]),
            effective=kish(counts[WEIGHT], counts[SQUARES]),
            epochs=self._epochs(level),
            repeats=_part(counts[REPEATS], counts[SAMPLES]),
            skipped=round(counts[SKIPPED]),
            failed=round(counts[FAILED]),
            losses=round(counts[LOSSES]),
            loss=_mean(counts[LOSS], counts[LOSSES]),
            late_loss=_mean(counts[LATE_LOSS], counts[LATE_LOSSES]),
            no_numbers=round(counts[NO_NUMBERS]),
        )

    def _sum(self, level: MixLevel) -> Any:
        return self.rows[level.rows.start : level.rows.stop].sum(axis=0).tolist()

    def _epochs(self, level: MixLevel) -> float | None:
        count = _count(level.source)
        run = self.rows if self.run is None else self.run
        return float(run[level.rows.start, SAMPLES]) / count if count else None

    def _default_title(self, ranks: Sequence[RankTotals]) -> str:
        world = self.stand.world_size
        recipients = f"rank {self.stand.rank} of {world} alone"
        if world == 1:
            recipients = "one rank"
        elif self.all_ranks:
            recipients = f"all {world} ranks"
        items = counted(sum(totals.items for totals in ranks), "item")
        return f"What was delivered: {items} to {recipients}"

    def _parts_by_cost(
        self, level: MixLevel, above: Above, asked: Any, sums: FloatArray
    ) -> _Parts:
        """Return the parts of a level whose weights count a cost."""
        start = self.starts.get(level.path)
        stop = self.stops.get(level.path)
        planned = levels.shares_of(
            levels.spent_by(level, stop) - levels.spent_by(level, start)
        )
        delivered = None
        if self.book.counts(level.mix):
            delivered = levels.shares_of(sums[:, COST])
        unit = self.book.cost_name or "cost"
        return _Parts(level, above, unit, asked, planned, delivered)

    def _parts_of(self, level: MixLevel, above: Above) -> _Parts:
        if not level.parts:
            return _Parts(level)
        start = self.starts.get(level.path)
        stop = self.stops.get(level.path)
        asked = levels.asked_of(level, start, stop)
        sums = np.array([self._sum(part) for part in level.parts])
        if getattr(level.mix, "unit", None) is not None:
            return self._parts_by_cost(level, above, asked, sums)
        units, single, known = self._units(level, above, self.rows)
        of_order = (
            None if self.planned is None else self._units(level, above, self.planned)[0]
        )
        delivered = levels.shares_of(units)
        if not self.all_ranks and of_order is not None:
            units = of_order  # which all ranks have together
        unit = "samples" if single else "batches"
        lost = round(sums[:, [SKIPPED, FAILED]].sum())
        comparable = known and asked is not None
        planned = levels.shares_of(of_order)
        own = _Parts(
            level, above, unit, asked, planned, delivered, units, lost, comparable
        )
        self.differing.append(own)
        return own

    def _units(
        self, level: MixLevel, above: Above, rows: Any
    ) -> tuple[FloatArray, bool, bool]:
        """Return how many items of its mix rows are of, for each part of a level;
        whether these are samples, and whether that is known.
        """
        first = level.rows.start
        own = rows[level.rows.start : level.rows.stop]
        values = own[:, ITEMS]
        sizes = levels.samples_per_item(level)
        known = not any(
            node.traits.gathers for node in above[:-1]
        )  # an item of the mix is one of the whole
        single = bool((sizes == 1).all()) and not (
            known and (values != own[:, 0]).any()
        )
        if not known:
            known = not np.isnan(sizes).any()
            values = own[:, SAMPLES] / (sizes if known else 1.0)
        parts = (
            slice(each.rows.start - first, each.rows.stop - first)
            for each in level.parts
        )
        return np.array([values[each].sum() for each in parts]), single, known


def _continued(node: Dataset[Any]) -> bool:
    """Whether parts go on from places in another mix, in which nobody knows what
    came.
    """
    return isinstance(node, ContinuedDataset) or any(map(_continued, node.inputs))


def _count(source: Any) -> int:
    """Return how many samples a source has; 0 where only reading tells."""
    return int(getattr(source, "count", 0) or 0) if source is not None else 0


def _at(values: FloatArray | None, number: int) -> float | None:
    return None if values is None else round(float(values[number]), 12)


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


def _part(value: float, total: float) -> float:
    return float(value) / float(total) if total else 0.0

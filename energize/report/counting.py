"""Counting what was delivered: noted for next to nothing, and looked up in bulk."""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple, cast

import numpy as np

from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.checks import real_number
from energize.core.costs import ColumnCost, Cost
from energize.core.loss_weights import OWN, WEIGHTS, field_of, weight_of
from energize.core.loss_weights import WEIGHT as OF_SOURCES
from energize.core.trace import Failed, Origin, refs_of
from energize.errors import ConfigError
from energize.report.levels import Found, Level, Made, Places

_TOGETHER = 256
"""Items that wait until they are looked up together: many for numpy, few enough that where their
slots lie is still remembered from reading them."""

_LONG, _MANY = 1.0, 4096
"""Seconds, or items, in which a look at what came costs next to nothing."""

SAMPLES, ITEMS, REPEATS, COST, WEIGHT, SQUARES, SKIPPED, FAILED = range(8)
LOSSES, LOSS, LATE_LOSSES, LATE_LOSS, NO_NUMBERS = range(8, 13)
"""What is counted of each row. Items that are made of samples of several rows count for each by its
part of them; repeats are samples that were drawn in a second pass or later; squares are those of
loss weights. Of losses that were reported: how many, their sum, both of late (each step leaves
`_LATE` of them), and how many were no finite number."""

ROW_COLUMNS = 13

_LATE = 0.99

DELIVERED, PADDING, WAITED, LONGEST, SECONDS, ALL_SKIPPED, ALL_FAILED = range(7)
"""What is counted of a rank: items, and padding beside them; seconds that items were waited for,
the longest of them, and that passed in all; samples that were left out."""

TOTALS = 7


class _Note(NamedTuple):
    """An item that was delivered: what it is made of, and its loss weights and cost if it says
    them, one for each sample or one for all.
    """

    made: Made
    weights: Sequence[float] | None
    costs: Sequence[float] | None


class Counted(NamedTuple):
    """What was counted: of each row its columns, float64; and the totals."""

    rows: FloatArray
    totals: FloatArray


class Counter:
    """Counts the items that a rank is given, by the rows of `levels`.

    `note` is told of each item, and looks up what it is made of some hundred items later, or when
    `counted` is asked for. `column` is what samples cost, or `item_cost` what an item does.
    """

    def __init__(
        self,
        places: Places,
        levels: Level,
        column: ColumnCost | None,
        item_cost: Callable[[Any], Any] | None,
    ) -> None:
        self._places, self._column, self._item_cost = places, column, item_cost
        self._sources = [cast("Any", each.source) for each in levels.leaves]
        self._rows = np.zeros((places.rows, ROW_COLUMNS))
        self._totals = np.zeros(TOTALS)
        self._waited = self._passed = self._longest = 0.0  # adding to an array's cells costs more
        self._waiting: list[_Note] = []
        self._padded, self._looked_at = False, 0.0
        self._lock = Lock()  # a report may be asked for by another thread

    def note(self, made: Made, item: Any, *, padding: bool) -> bool:
        """One more item was delivered. Return whether it is worth some milliseconds to look what
        came: when twice as many were delivered as last time, in some hundreds.
        """
        costs = None if padding or self._item_cost is None else _costs(self._item_cost(item))
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
                due = items >= 2 * self._looked_at and (self._passed > _LONG or items >= _MANY)
                self._looked_at = items if due else self._looked_at
            self._waiting.append(_Note(made, _weights_of(item), costs))
            return due

    def take_back(self) -> None:
        """The last item does not count: it will be delivered again."""
        with self._lock:
            if self._padded:
                self._totals[PADDING] -= 1
            elif self._waiting:
                self._waiting.pop()
            self._padded = False

    def go_on(self, counted: Counted) -> None:
        """Add to what was counted before."""
        self._rows += counted.rows
        self._totals += counted.totals

    def wait(self, waited: float, passed: float) -> None:
        """An item was waited for, and so many seconds passed since the last one was given."""
        self._waited += waited
        self._passed += passed
        self._longest = max(self._longest, waited)

    def count_losses(self, row: Int64Array, losses: FloatArray) -> None:
        """A trainer says the losses of samples of these rows."""
        with self._lock:
            finite, size = np.isfinite(losses), len(self._rows)
            at = row[finite]
            self._rows[:, [LATE_LOSSES, LATE_LOSS]] *= _LATE
            for column, amounts in ((LOSSES, None), (LOSS, losses[finite])):
                sums = np.bincount(at, amounts, size)
                self._rows[:, column] += sums
                self._rows[:, column + LATE_LOSSES - LOSSES] += sums
            self._rows[:, NO_NUMBERS] += np.bincount(row[~finite], minlength=size)

    def rows_of_last(self) -> list[int]:
        """Return the row of each sample of the last item; none of padding."""
        with self._lock:
            if self._padded or not self._waiting:
                return []
            rows: list[int] = self._places.found([self._waiting[-1].made]).row.tolist()
            return rows

    @property
    def counted(self) -> Counted:
        """What was counted, as copies."""
        with self._lock:
            if len(self._waiting) > 1:
                self._look_up(self._waiting[:-1], self._rows, self._totals)
                del self._waiting[:-1]
            rows, totals = self._rows.copy(), self._totals.copy()
            totals[WAITED] += self._waited
            totals[SECONDS] += self._passed
            totals[LONGEST] = max(totals[LONGEST], self._longest)
            self._look_up(self._waiting, rows, totals)
            return Counted(rows, totals)

    def _look_up(self, notes: Sequence[_Note], rows: FloatArray, totals: FloatArray) -> None:
        """Add what was noted to what is known."""
        if not notes:
            return
        found = self._places.found([each.made for each in notes])
        counts = np.bincount(found.item, minlength=len(notes))
        size, row = len(rows), found.row
        samples = np.bincount(row, minlength=size)
        rows[:, SAMPLES] += samples
        if (counts == counts[0]).all():
            rows[:, ITEMS] += samples / counts[0] if counts[0] else 0.0
        else:
            rows[:, ITEMS] += np.bincount(row, 1.0 / counts[found.item], size)
        rows[:, REPEATS] += np.bincount(row[found.epoch > 0], minlength=size)
        weights = _shared([each.weights for each in notes], counts, found, default=1.0)
        rows[:, WEIGHT] += np.bincount(row, weights, size)
        rows[:, SQUARES] += np.bincount(row, weights * weights, size)
        if self._column is not None:
            costs = np.zeros(len(row))
            for number, at in rows_by_value(row):
                costs[at] = self._column.of_samples(self._sources[number], found.sample[at])
            rows[:, COST] += np.bincount(row, costs, size)
        elif self._item_cost is not None:
            costs = _shared([each.costs for each in notes], counts, found, default=0.0, whole=True)
            rows[:, COST] += np.bincount(row, costs, size)
        totals[DELIVERED] += len(notes)


def _shared(
    given: Sequence[Sequence[float] | None],
    counts: Int64Array,
    found: Found,
    *,
    default: float,
    whole: bool = False,
) -> FloatArray:
    """Return a number for each sample of items: those that the items say, in order. Where there are
    others than samples, the samples have equal parts of their sum; one alone is for each sample,
    unless it is for the `whole` item.
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
            told = filled if len(filled) == samples else np.full(samples, told.sum() / samples)
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
            "Ledger(item_cost=...): what an item costs is a number, 0 or more, or one for each of "
            f"its samples; the function returned {str(value)[:80]!r}"
        )
    return costs


_REASONS = 1000
"""How many reasons for skipping are told apart."""

UNKNOWN = -1
"""The key of a source that is not known."""

Key = tuple[int, bool]
"""The key of a source, and whether its samples were skipped or failed."""


@dataclass(slots=True)
class LeftOut:
    """Counts samples that were skipped or failed, by the keys of their sources.

    `of_sources`: how many of each source, skipped ones and failed ones apart. `reasons`: how many
    were skipped for each reason that a `SkipSample` gives. They are looked up in bulk, so `drained`
    has them all, and nothing stays.
    """

    of_sources: Counts[Key] = field(default_factory=Counts)
    reasons: Counts[str] = field(default_factory=Counts)
    _waiting: dict[tuple[int, int, bool], tuple[Any, list[int]]] = field(default_factory=dict)
    """Datasets with positions, by who these are, the attempt, and whether they were skipped."""
    _count: int = 0

    def add(
        self, failed: Failed, dataset: Any, made: int | Sequence[Origin] | None, attempt: int
    ) -> None:
        """One more: the item of `dataset` at a position, read with `attempt`, or with some origins;
        None where that is not known.
        """
        skipped = failed.skipped
        if skipped:
            reason = str(failed.reason) or "SkipSample"
            known = reason in self.reasons or len(self.reasons) < _REASONS
            self.reasons[reason if known else "others"] += 1
        if made is None:
            self.of_sources[UNKNOWN, skipped] += 1
        elif isinstance(made, int):
            key = (id(dataset), attempt, skipped)
            self._waiting.setdefault(key, (dataset, []))[1].append(made)
            self._count += 1
            if self._count >= _TOGETHER:
                self._look_up()
        else:
            parts = [source for part in dataset._parts for source in part.sources]
            self._found([parts[row] for row in refs_of(dataset, made).source.tolist()], skipped)

    def _look_up(self) -> None:
        for (_, attempt, skipped), (dataset, positions) in self._waiting.items():
            at = np.array(positions, dtype=np.int64)
            refs = dataset.refs(at, attempt)
            self._found([dataset.sources[row] for row in refs.source.tolist()], skipped)
        self._waiting.clear()
        self._count = 0

    def _found(self, sources: Iterable[Any], skipped: bool) -> None:
        for source in sources:
            self.of_sources[source.key, skipped] += 1

    def drained(self) -> LeftOut | None:
        """Return what was added since the last time, and nothing stays here; None for nothing."""
        self._look_up()
        if not self.of_sources:
            return None
        gone = LeftOut(self.of_sources, self.reasons)
        self.of_sources, self.reasons = Counts(), Counts()
        return gone

    def take_over(self, other: LeftOut | None) -> None:
        """Add what another has drained."""
        if other is not None:
            self.of_sources.update(other.of_sources)
            self.reasons.update(other.reasons)

    @property
    def counts(self) -> Mapping[Key, int]:
        """How many of each source."""
        self._look_up()
        return self.of_sources

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is copied and pickled: counts, and no dataset."""
        self._look_up()
        return LeftOut, (self.of_sources, self.reasons)


@dataclass(frozen=True)
class Ledger:
    """What a loader's ledger counts beside samples and batches: `get_loader(..., ledger=...)`.

    `cost`: what samples cost, by a column that their sources have, such as "tokens", or a function
    of columns (see `energize.costs.ColumnCost`); nothing is read for it, and samples that took the
    place of failed ones count as these. `item_cost`: what an item costs, by a function of it: a
    number, which its samples share, or one for each of them, 0 or more. One of the two at most.
    `name`: what the cost is called in reports; by default that of the column, or "cost".

    Raises `ConfigError` for what cannot be used.

    >>> from energize import ListSource, get_loader
    >>> words = ListSource(["one two", "three"], name="words", columns={"tokens": [2, 1]})
    >>> loader = get_loader(words, ledger=Ledger("tokens"))
    >>> _ = list(loader)
    >>> loader.report(show=False)["words"].cost
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
                f"Ledger: item_cost is a function of an item; got {self.item_cost!r}. The name of "
                "a column is a cost: Ledger(cost=...)"
            )

    @property
    def cost_name(self) -> str | None:
        """What costs are called; None where nothing is counted."""
        if self.cost is None and self.item_cost is None:
            return None
        return self.name or (self.cost if isinstance(self.cost, str) else "cost")

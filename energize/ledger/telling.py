"""From counts to a report: shares of each level in the unit of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.dataset import IndexedDataset
from energize.core.trace import one_each
from energize.ledger.causes import Differing, warnings_of
from energize.ledger.chance import chance_of, kish
from energize.ledger.counting import (
    COST,
    DELIVERED,
    FAILED,
    ITEMS,
    LONGEST,
    MIXED,
    PADDING,
    PARTED,
    REPEATS,
    SAMPLES,
    SECONDS,
    SKIPPED,
    SQUARES,
    WAITED,
    WEIGHT,
    Counted,
)
from energize.ledger.levels import Level, asked_of, spans
from energize.ledger.report import LedgerRow, RankTotals, Report

_ITEMS_LOOKED_AT = 64
"""Of a dataset of batches, over which their mean size is taken."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run stands: `items` that all ranks were given since it began, None where that is not
    known; on `world_size` ranks, of which this is `rank`.
    """

    items: int | None
    rank: int
    world_size: int


@dataclass(frozen=True)
class Told:
    """What a report is made from.

    `counted` is that of this rank, or of `all_ranks`; `of_ranks` the totals of each. Counting began
    after `since` items of all ranks. `planned`: samples of each row by the order, over the items
    that were counted, and those `before` counting began, where these are reported too; `run` since
    the run began.
    """

    levels: Level
    counted: Counted
    of_ranks: FloatArray
    stand: Stand
    since: int | None
    all_ranks: bool
    planned: Int64Array | None
    before: Int64Array | None
    run: Int64Array | None
    cost_name: str | None
    left_out: Mapping[str, int]
    title: str | None = None
    edited: bool = False


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a level by their weights: `asked`, `planned` and `delivered` in one `unit`, how
    many of it there were, and how likely chance is.
    """

    unit: str
    asked: FloatArray | None
    planned: FloatArray | None
    delivered: FloatArray | None
    chance: float | None


class _Telling:
    """Makes the rows of a report."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.rows = told.counted.rows.copy()
        if told.before is not None:
            self._add_before(told.before.astype(np.float64))
        self.totals = self.rows.sum(axis=0)
        self.start = 0 if told.before is not None else told.since or 0
        self.starts = spans(told.levels, self.start)
        self.stops = spans(told.levels, told.stand.items)
        self.differing: list[Differing] = []

    def _add_before(self, samples: FloatArray) -> None:
        """What the order says of the time before counting began."""
        self.rows[:, SAMPLES] += samples
        in_cost = (each for each in self.told.levels.walk() if _unit_of(each) is not None)
        for level in in_cost:
            for part, spent in zip(level.parts, self._spent_before(level).tolist(), strict=True):
                if part.source is not None:
                    self.rows[part.rows.start, COST] += spent
        top = self._top
        of_parts = [samples[each.rows.start : each.rows.stop].sum() for each in top.parts]
        items = self._items(top, 0, spans(self.told.levels, self.told.since).get(top.path))
        if items is None or not self._pure(top):  # its items are parts of what is delivered
            delivered = 0.0 if self.told.edited else float(self.told.since or 0)
            items = np.array(of_parts) * (delivered / max(sum(of_parts), 1))
        for part, whole, own in zip(top.parts, of_parts, items.tolist(), strict=True):
            at = slice(part.rows.start, part.rows.stop)
            self.rows[at, ITEMS] += samples[at] * (own / whole if whole else 0.0)
        counts = np.array([_count(each.source) for each in _leaves(self.told.levels)])
        self.rows[:, REPEATS] += np.maximum(samples - counts, 0) * (counts > 0)

    @cached_property
    def _top(self) -> Level:
        """The first level with parts."""
        return next((each for each in self.told.levels.walk() if each.parts), self.told.levels)

    def told_rows(self) -> tuple[LedgerRow, ...]:
        whole = _Parts("samples", None, None, None, None)
        return tuple(self._rows_of(self.told.levels, whole, 0))

    def _rows_of(self, level: Level, among: _Parts, number: int) -> list[LedgerRow]:
        own = self._parts_of(level)
        rows = [self._row(level, among, number, own.chance)]
        for place, part in enumerate(level.parts):
            rows += self._rows_of(part, own, place)
        return rows

    def _row(self, level: Level, among: _Parts, number: int, chance: float | None) -> LedgerRow:
        counts = self._sum(level)
        costs = self.told.cost_name is not None
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
            chance=chance,
        )

    def _sum(self, level: Level) -> list[float]:
        summed: list[float] = self.rows[level.rows.start : level.rows.stop].sum(axis=0).tolist()
        return summed

    def _epochs(self, level: Level) -> float | None:
        count = _count(level.source)
        if level.source is None or not count:
            return None
        row = level.rows.start
        run = self.rows[row, SAMPLES] if self.told.run is None else self.told.run[row]
        return float(run) / count

    def _parts_of(self, level: Level) -> _Parts:
        if not level.parts:
            return _Parts("samples", None, None, None, None)
        sizes = self._sizes(level)
        samples, items, costs = (
            np.array([self._sum(part)[column] for part in level.parts])
            for column in (SAMPLES, ITEMS, COST)
        )
        in_cost = _unit_of(level) is not None
        pure = self._pure(level)
        batches = pure and bool((items != samples).any())
        units = items if batches else samples / sizes
        unit = "batches" if batches or (sizes != 1).any() else "samples"
        asked = self._asked(level)
        if in_cost:
            unit, units = self.told.cost_name or "cost", costs
        planned = self._spent(level) if in_cost else self._planned(level, sizes)
        chance = None if asked is None or in_cost else chance_of(units, asked)
        if asked is not None and not in_cost:
            self.differing.append(Differing(level, unit, asked, planned, units, chance))
        return _Parts(unit, asked, planned, _shares(units), chance)

    def _pure(self, level: Level) -> bool:
        totals = self.told.counted.totals
        several = totals[PARTED if level is self._top else MIXED]
        return bool(totals[DELIVERED]) and not several

    def _asked(self, level: Level) -> FloatArray | None:
        return asked_of(level, self.starts.get(level.path), self.stops.get(level.path))

    def _planned(self, level: Level, sizes: FloatArray) -> FloatArray | None:
        planned = self.told.planned
        if planned is None:
            return None
        items = self._items(level, self.starts.get(level.path), self.stops.get(level.path))
        if items is not None:
            return _shares(items)
        of_parts = [planned[each.rows.start : each.rows.stop].sum() for each in level.parts]
        return _shares(np.array(of_parts, dtype=np.float64) / sizes)

    def _items(self, level: Level, start: int | None, stop: int | None) -> FloatArray | None:
        """How many items of its mix from `start` to `stop` are of each part of a level, where its
        order says so.
        """
        if level.mix is None or start is None or stop is None:
            return None
        first, last = level.mix._reached(start), level.mix._reached(stop)
        if first is None or last is None:
            return None
        items = np.array(last, dtype=np.float64) - np.array(first, dtype=np.float64)
        return np.array([items[each.start : each.stop].sum() for each in level.members])

    def _spent(self, level: Level) -> FloatArray | None:
        """The shares of what the parts cost by the order, of a blend that weighs costs."""
        start, stop = self.starts.get(level.path), self.stops.get(level.path)
        return _shares(_spent_by(level, stop) - _spent_by(level, start))

    def _spent_before(self, level: Level) -> FloatArray:
        """What the parts had cost before counting began, where that is reported too."""
        before = spans(self.told.levels, self.told.since if self.told.before is not None else None)
        return _spent_by(level, before.get(level.path))

    def _sizes(self, level: Level) -> FloatArray:
        """How many samples an item of each part is made of, as far as that is known unread."""
        sizes = np.ones(len(level.parts))
        for place, members in enumerate(level.members):
            each = level.mix.inputs[members.start] if level.mix is not None else None
            if each is not None and each.indexed and each.inputs:
                sizes[place] = _samples_per_item(cast("IndexedDataset[Any]", each))
        return sizes


def report_of(told: Told) -> Report:
    """The report of what was counted."""
    telling = _Telling(told)
    rows = telling.told_rows()
    ranks = tuple(_rank(told, number, each) for number, each in enumerate(told.of_ranks.tolist()))
    report = Report(
        title=told.title or _title(told, ranks),
        rows=rows,
        ranks=ranks if told.title is None else (),
        world_size=told.stand.world_size,
        cost_name=told.cost_name,
        left_out=told.left_out,
        weighed=bool((told.counted.rows[:, WEIGHT] != told.counted.rows[:, SAMPLES]).any()),
        notes=tuple(_notes(told)),
    )
    return replace(report, warnings=tuple(warnings_of(telling.differing, report)))


def _rank(told: Told, number: int, totals: Sequence[float]) -> RankTotals:
    return RankTotals(
        rank=number if len(told.of_ranks) > 1 else told.stand.rank,
        items=round(totals[DELIVERED]),
        padding=round(totals[PADDING]),
        waited=totals[WAITED],
        longest=totals[LONGEST],
        seconds=totals[SECONDS],
    )


def _title(told: Told, ranks: Sequence[RankTotals]) -> str:
    items, world = sum(each.items for each in ranks), told.stand.world_size
    if world == 1:
        whose = "one rank"
    elif told.all_ranks:
        whose = f"all {world} ranks"
    else:
        whose = f"rank {told.stand.rank} of {world} alone"
    return f"What was delivered: {items:,} items to {whose}"


def _notes(told: Told) -> list[str]:
    notes = []
    if told.since and told.title is None:
        more = "samples before that are those of the order" if told.before is not None else ""
        what = "items, costs, loss weights, failures and waiting" if more else "all of it"
        notes.append(
            f"counting began after {told.since:,} items of the run: {what} since then"
            + (f"; {more}" if more else "")
        )
    if told.edited:
        notes.append("the mix was edited while the run went on: epochs count from there")
    if told.planned is None:
        notes.append("this is a stream: only reading tells what its order gives")
    if not told.all_ranks:
        notes.append("report(all_ranks=True), called on all ranks, sums them")
    return notes


def _leaves(levels: Level) -> list[Level]:
    return [each for each in levels.walk() if each.source is not None]


def _unit_of(level: Level) -> Any:
    """What a blend weighs other than items; None else."""
    return getattr(level.mix, "unit", None)


def _count(source: Any) -> int:
    """How many samples a source has; 0 where only reading tells."""
    return int(getattr(source, "count", 0) or 0) if source is not None else 0


def _samples_per_item(dataset: IndexedDataset[Any]) -> float:
    if one_each(dataset):
        return 1.0
    items = min(_ITEMS_LOOKED_AT, dataset.size)
    samples = float(dataset.consumed(items).sum()) / max(items, 1)
    return samples or 1.0


def _spent_by(level: Level, items: int | None) -> FloatArray:
    """What the first items of a blend cost that each part gave; zeros where only reading tells."""
    spent = getattr(level.mix, "spent", None)
    if spent is None or items is None or not cast("Any", level.mix).indexed:
        return np.zeros(len(level.parts))
    costs = np.array(spent(items))
    return np.array([costs[each.start : each.stop].sum() for each in level.members])


def _at(values: FloatArray | None, number: int) -> float | None:
    return None if values is None else round(float(values[number]), 12)


def _part(value: float, total: float) -> float:
    return float(value) / float(total) if total else 0.0


def _shares(values: FloatArray) -> FloatArray | None:
    total = values.sum()
    return np.asarray(values / total) if total > 0 else None

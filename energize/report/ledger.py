"""The ledger of a loader: what it counts, since when, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array
from energize.core.blends import ContinuedDataset
from energize.core.costs import ColumnCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lazy import torch
from energize.core.stream import INFINITE
from energize.core.trace import one_each
from energize.report.counting import (
    ALL_FAILED,
    ALL_SKIPPED,
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
    TOTALS,
    UNKNOWN,
    WAITED,
    WEIGHT,
    Counted,
    Counter,
    Ledger,
    LeftOut,
    by_row,
)
from energize.report.levels import Level, Places, asked_of, levels_of, spans
from energize.report.table import LedgerRow, RankTotals, Report

if TYPE_CHECKING:
    from energize.report.table import Report


class Book:
    """Counts what a loader delivers of a dataset.

    It begins where reading begins; of an indexed dataset, what was delivered before that is known
    by the order.
    """

    def __init__(self, dataset: Dataset[Any], settings: Ledger) -> None:
        self.settings = settings
        self._dataset = dataset
        self._since: int | None = None
        self._counter: Counter | None = None

    @cached_property
    def levels(self) -> Level:
        """The levels of the mix."""
        return levels_of(self._dataset)

    @cached_property
    def names(self) -> list[str]:
        """What the source of each row is called."""
        return [each.label for each in self.levels.leaves]

    @cached_property
    def _places(self) -> Places:
        return Places(self._dataset, self.levels)

    @property
    def counter(self) -> Counter:
        """What counts."""
        if self._counter is None:
            column = self._column
            self._counter = Counter(self._places, self.levels, column, self.settings.item_cost)
        return self._counter

    @cached_property
    def _column(self) -> ColumnCost | None:
        """What samples cost: as it was asked for, else what a blend weighs."""
        if self.settings.cost is not None:
            return ColumnCost(self.settings.cost)
        if self.settings.item_cost is not None:
            return None
        units = (getattr(each.mix, "unit", None) for each in self.levels.walk())
        return next((each for each in units if isinstance(each, ColumnCost)), None)

    @property
    def _cost_name(self) -> str | None:
        named = self.settings.cost_name
        if named is not None or self._column is None:
            return named
        return self._column.cost if isinstance(self._column.cost, str) else "cost"

    def begin(self, dataset: Dataset[Any], items: int | None) -> None:
        """Reading begins, after so many items of all ranks; of a dataset that may have other
        weights than before.
        """
        if dataset is not self._dataset:
            self._change(dataset)
        if self._counter is None:
            self._since = items
        _ = self.counter

    @property
    def begun(self) -> bool:
        """Whether it counts already."""
        return self._counter is not None

    def _change(self, dataset: Dataset[Any]) -> None:
        """Go on with an edited dataset; where it has other parts, counting begins anew."""
        before = None if self._counter is None else self._counter.counted
        names = self.names
        for known in ("levels", "names", "_places", "_edited", "_column"):
            self.__dict__.pop(known, None)
        self._dataset, self._counter = dataset, None
        if before is not None and self.names == names:
            self.counter.go_on(before)

    def forget(self) -> None:
        """Counting begins anew, where reading next begins."""
        self._counter = self._since = None

    def report(
        self,
        stand: Stand,
        *,
        summed: FloatArray | None = None,
        left_out: LeftOut | None = None,
        reasons: Mapping[str, int] | None = None,
        title: str | None = None,
    ) -> Report:
        """What there is to say; `summed` are the `numbers` of all ranks together."""
        counted = self._counted(left_out)
        of_ranks = counted.totals[None]
        if summed is not None:
            counted, of_ranks = self._unpacked(summed, stand.world_size)
        all_ranks = summed is not None or stand.world_size == 1
        whole = all_ranks and (not self._edited or title is not None)
        told = Told(
            levels=self.levels,
            counted=counted,
            of_ranks=of_ranks,
            stand=stand,
            since=self._since,
            all_ranks=all_ranks,
            planned=self._planned(stand.items, 0 if whole else self._since or 0),
            before=self._planned(self._since, 0) if whole and self._since else None,
            run=self._planned(stand.items, 0),
            cost_name=self._cost_name,
            left_out=dict(reasons or {}),
            title=title,
            edited=self._edited,
        )
        return report_of(told)

    @cached_property
    def _edited(self) -> bool:
        """Whether its parts go on from places in another mix, in which nobody knows what came."""
        waiting: list[Any] = [self._dataset]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ContinuedDataset):
                return True
            waiting += node.inputs
        return False

    def _planned(self, stop: int | None, start: int) -> Int64Array | None:
        if stop is None:
            return None
        until = self._places.planned(stop)
        if until is None or not start:
            return until
        before = self._places.planned(start)
        return None if before is None else until - before

    def _counted(self, left_out: LeftOut | None) -> Counted:
        """What this rank has counted."""
        rows, totals = self.counter.counted
        if left_out is not None:
            keys = [cast("Any", each.source).key for each in self.levels.leaves]
            for (row, skipped), number in by_row(left_out.counts, keys).items():
                totals[ALL_SKIPPED if skipped else ALL_FAILED] += number
                if row != UNKNOWN:
                    rows[row, SKIPPED if skipped else FAILED] += number
        return Counted(rows, totals)

    def numbers(self, stand: Stand, left_out: LeftOut | None = None) -> FloatArray:
        """What this rank has counted, so that the sum over ranks says all: float64 in one row."""
        counted = self._counted(left_out)
        totals = np.zeros((stand.world_size, TOTALS))
        totals[stand.rank] = counted.totals
        return np.concatenate([counted.rows.ravel(), totals.ravel()])

    def _unpacked(self, summed: FloatArray, world_size: int) -> tuple[Counted, FloatArray]:
        rows, columns = len(self.levels.rows), self.counter.counted.rows.shape[1]
        table = summed[: rows * columns].reshape(rows, columns)
        of_ranks = summed[rows * columns :].reshape(world_size, TOTALS)
        return Counted(table, of_ranks.sum(axis=0)), of_ranks

    def last(self) -> list[str]:
        """The names of the sources of the samples of the last item."""
        return [self.names[row] for row in self.counter.rows_of_last()]


ALPHA = 1e-3
"""A difference that chance brings about less often than this is told as one."""

_EXPECTED = 5.0
"""What each source has to be expected for the chi-square distribution to hold (Cochran 1954)."""

_CELLS, _FEWEST, _MOST = 2_000_000, 1_000, 10_000
"""How many draws are compared with, where that does not hold: by the cells of their table."""


def chance_of(counts: npt.ArrayLike, shares: npt.ArrayLike) -> float | None:
    """How likely independent draws by `shares` differ from them at least as much as `counts` do.

    Pearson's chi-square test: the upper tail of the distribution with one degree of freedom fewer
    than there are shares above 0; or, where one of them is expected fewer than five times, the part
    of some thousand multinomial draws of the same length, always the same ones, that lie as far
    off. 0 where something came that has no share. None where there is nothing to compare.

    The order of a mix is not drawn so: it keeps shares far closer, and the chance is then near 1. A
    small one says that something else than the weights decided.

    >>> round(chance_of([48, 52], [0.5, 0.5]), 3), chance_of([900, 100], [0.5, 0.5]) < 1e-9
    (0.689, True)
    """
    observed = np.asarray(counts, dtype=np.float64)
    asked = np.asarray(shares, dtype=np.float64)
    drawn = asked > 0
    total = float(observed.sum())
    if total <= 0 or drawn.sum() < 1:
        return None
    if observed[~drawn].any():
        return 0.0
    if drawn.sum() < 2:
        return None
    observed, asked = observed[drawn], asked[drawn] / asked[drawn].sum()
    found = _distance(observed, total * asked)
    if float(asked.min()) * total >= _EXPECTED:
        freedom = torch.tensor((len(asked) - 1) / 2, dtype=torch.float64)
        half = torch.tensor(float(found) / 2, dtype=torch.float64)
        return float(torch.special.gammaincc(freedom, half))
    return _among_draws(float(found), round(total), asked)


def _distance(observed: FloatArray, expected: FloatArray) -> FloatArray:
    return np.asarray(((observed - expected) ** 2 / expected).sum(axis=-1))


def _among_draws(found: float, total: int, asked: FloatArray) -> float | None:
    if not total:
        return None
    draws = max(_FEWEST, min(_MOST, _CELLS // len(asked)))
    generator = np.random.Generator(np.random.Philox(total))
    drawn = generator.multinomial(total, asked, size=draws).astype(np.float64)
    as_far = int((_distance(drawn, total * asked) >= found - 1e-9).sum())
    return (1 + as_far) / (1 + draws)


def kish(weights: float, squares: float) -> float:
    """Kish's effective sample size of loss weights, by their sum and that of their squares.

    (sum of w)^2 / (sum of w^2): as many samples of equal weight tell as much (Kish, Survey
    Sampling, 1965). 0 where nothing has a weight.

    >>> kish(4.0, 4.0), kish(10.0, 100.0)
    (4.0, 1.0)
    """
    return weights * weights / squares if squares > 0 else 0.0


_ROUNDING = 4.0
"""Slots by which the orders of mixes round at most: 3.36, and one more for those that are begun."""

_SAME = 1e-3
"""A part of a share that planned and delivered may differ in, where both count the same items."""


class Differing(NamedTuple):
    """The parts of a level: shares that were `asked` for and `planned`, and what came, in units."""

    level: Level
    unit: str
    asked: FloatArray
    planned: FloatArray | None
    units: FloatArray
    chance: float | None


def warnings_of(found: Sequence[Differing], report: Report) -> list[str]:
    """A line for each level whose shares differ by more than chance, with the cause."""
    return [_warning(each, report) for each in found if _differs(each)]


def _differs(each: Differing) -> bool:
    off = np.abs(each.units - each.units.sum() * each.asked).max(initial=0.0)
    if each.chance is None:
        return False
    return each.chance < ALPHA and off > max(_ROUNDING, _block(each.level.mix))


def _block(mix: Any) -> float:
    """Slots within which a scheme keeps shares."""
    scheme, options = getattr(mix, "scheme", None), getattr(mix, "options", {})
    if scheme == "block":
        return float(options.get("block_size", 1000))
    return 65_536.0 if scheme in ("random", "uniform") else 0.0


def _warning(each: Differing, report: Report) -> str:
    total = each.units.sum()
    came = each.units / total
    worst = int(np.abs(came - each.asked).argmax())
    part = each.level.parts[worst]
    where = f" of {each.level.label!r}" if each.level.path else ""
    causes = list(_causes(each, report))
    unknown = "no cause is known: compare the weights and the state with those of the run"
    chance = max(each.chance or 0.0, 1e-9)
    return (
        f"{part.name!r}{where} has {100 * came[worst]:.3f} % of {total:,.0f} {each.unit}, asked "
        f"were {100 * each.asked[worst]:.3f} %, which is no chance (p <= {chance:.1g}): "
        f"{'; '.join(causes) or unknown}"
    )


def _causes(each: Differing, report: Report) -> Iterator[str]:
    mix = each.level.mix
    as_planned = each.planned is not None and np.allclose(
        each.units / each.units.sum(), each.planned, rtol=0.02, atol=_SAME
    )
    if mix is not None and as_planned:
        ended = list(_exhausted(mix, each, report))
        if ended:
            named = ", ".join(ended)
            yield f"{named} came to the end that the stop rule sets, and others took over"
    leaving = _leaves_out(each.level)
    if leaving:
        yield (
            f"{leaving} stands above the blend and leaves out items after their shares were given; "
            "weigh what it gives instead: put it below the blend"
        )
    lost = _lost(each.level, report)
    if lost and not as_planned:
        yield f"{lost} samples were skipped or failed"
    if report.world_size != 1 and len(report.ranks) == 1:
        yield "one rank has its own part of the items; the sum over all ranks tells more"
    if each.planned is not None and not as_planned:
        yield "what came is not what the order gives: another state was loaded (strict=False)"


def _exhausted(mix: Any, each: Differing, report: Report) -> Iterator[str]:
    """The parts of a blend that ends that have given all they may."""
    if getattr(mix, "_endless", True):
        return
    for part, asked, units in zip(each.level.parts, each.asked, each.units, strict=True):
        if units < asked * each.units.sum():
            yield repr(part.name)


def _leaves_out(level: Level) -> str | None:
    """The first dataset above a blend that gives other items than it takes."""
    for node in level.above[:-1]:
        if not node.indexed and not (node._passes_on or node._ends_loops) and _finds(node):
            return type(node).__name__
    return None


def _finds(node: Dataset[Any]) -> bool:
    """Whether a dataset makes of its input what only reading tells."""
    inner = node.inputs[0]
    if inner.indexed:
        return True
    return not node.sized or not (inner.sized and node.size in (inner.size, INFINITE))


def _lost(level: Level, report: Report) -> int:
    for row in report.rows:
        if row.path == level.path:
            return row.skipped + row.failed
    return 0


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
        counts = np.array([_count(each.source) for each in self.told.levels.leaves])
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

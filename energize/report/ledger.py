"""The ledger of a loader: what it counts, since when, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray
from energize.core.blends import ContinuedDataset
from energize.core.costs import ColumnCost, ItemCost
from energize.core.dataset import Dataset
from energize.core.lazy import torch
from energize.core.stream import INFINITE
from energize.datasets.quota import QuotaDataset
from energize.report import counting, levels
from energize.report.levels import Found, Level, Made, Places
from energize.report.table import LedgerRow, RankTotals, Report


class Book:
    """Counts what a loader delivers of a dataset.

    It begins where reading begins; of an indexed dataset, what was delivered before that is known
    by the order.
    """

    def __init__(self, dataset: Dataset[Any], settings: counting.Ledger) -> None:
        self.settings = settings
        self._dataset = dataset
        self.since: int | None = None
        self._counter: counting.Counter | None = None

    @cached_property
    def levels(self) -> Level:
        """The levels of the mix."""
        return levels.levels_of(self._dataset)

    @cached_property
    def names(self) -> list[str]:
        """What the source of each row is called."""
        return [each.label for each in self.levels.leaves]

    @cached_property
    def _places(self) -> Places:
        return Places(self._dataset, self.levels)

    @property
    def counter(self) -> counting.Counter:
        """What counts."""
        if self._counter is None:
            costs = self._column, self.settings.item_cost
            self._counter = counting.Counter(self._places, self.levels, *costs)
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

    def counts(self, mix: Any) -> bool:
        """Whether what a mix weighs is what costs are counted in."""
        unit = getattr(mix, "unit", None)
        by_item = isinstance(unit, ItemCost) and self.settings.item_cost is not None
        return unit is not None and (by_item or unit == self._column)

    @property
    def cost_name(self) -> str | None:
        """What costs are called; None where nothing is counted."""
        column = self._column
        weighed = self.settings if column is None else replace(self.settings, cost=column.cost)
        return weighed.cost_name

    def begin(self, dataset: Dataset[Any], items: int | None) -> None:
        """Reading begins, after so many items of all ranks; of a dataset that may have other
        weights than before.
        """
        if dataset is not self._dataset:
            self._change(dataset)
        if self._counter is None:
            self.since = items
        _ = self.counter

    def _change(self, dataset: Dataset[Any]) -> None:
        """Go on with an edited dataset; where it has other parts, counting begins anew."""
        before = None if self._counter is None else self._counter.counted
        names = self.names
        for known in ("levels", "names", "_places", "edited", "_column"):
            self.__dict__.pop(known, None)
        self._dataset, self._counter = dataset, None
        if before is not None and self.names == names:
            self.counter.go_on(before)

    def report(
        self,
        stand: Stand,
        *,
        summed: FloatArray | None = None,
        left_out: counting.LeftOut | None = None,
        reasons: Mapping[str, int] | None = None,
        title: str | None = None,
    ) -> Report:
        """Return what there is to say; `summed` are the `numbers` of all ranks together."""
        counted = self._counted(left_out)
        of_ranks = counted.totals[None]
        all_ranks = summed is not None or stand.world_size == 1
        if summed is not None:
            of_rows, totals = np.split(summed, [counted.rows.size])
            of_ranks = totals.reshape(stand.world_size, counting.TOTALS)
            counted = counting.Counted(of_rows.reshape(counted.rows.shape), of_ranks.sum(axis=0))
        telling = _Telling(self, stand, counted, whole=all_ranks, title=title)
        return telling.report(of_ranks, dict(reasons or {}), all_ranks=all_ranks)

    @cached_property
    def edited(self) -> bool:
        """Whether its parts go on from places in another mix, in which nobody knows what came."""
        return _continued(self._dataset)

    def planned(self, items: int | None) -> FloatArray | None:
        """Return what the first items are made of, as it is counted: samples and items; None where
        nobody knows.
        """
        if items is None or not self._dataset.indexed:
            return None
        rows = np.zeros((self._places.rows, counting.ROW_COLUMNS))
        rows[:, counting.SAMPLES] = self._places.planned(items)
        rows[:, counting.ITEMS] = self._places.planned(items, items=True)
        return rows

    def _counted(self, left_out: counting.LeftOut | None) -> counting.Counted:
        """Return what this rank has counted."""
        rows, totals = self.counter.counted
        if left_out is not None:
            keys = [cast("Any", leaf.source).key for leaf in self.levels.leaves]
            row_of = dict(zip(keys[::-1], range(len(keys))[::-1], strict=True))  # the first of each
            for (key, skipped), number in left_out.counts.items():
                totals[counting.ALL_SKIPPED if skipped else counting.ALL_FAILED] += number
                if key in row_of:
                    rows[row_of[key], counting.SKIPPED if skipped else counting.FAILED] += number
        return counting.Counted(rows, totals)

    def numbers(self, stand: Stand, left_out: counting.LeftOut | None = None) -> FloatArray:
        """Return what this rank has counted, so that the sum over ranks says all: float64 in one
        row.
        """
        counted = self._counted(left_out)
        totals = np.zeros((stand.world_size, counting.TOTALS))
        totals[stand.rank] = counted.totals
        return np.concatenate([counted.rows.ravel(), totals.ravel()])

    def found(self, made: Made) -> Found:
        """Return which samples an item is made of."""
        return self._places.found([made])

    def where(self, row: int, sample: int) -> str:
        """Return where a sample of a row is stored, for messages."""
        return cast("Any", self.levels.leaves[row].source).where(sample)  # type: ignore[no-any-return]

    def last(self) -> list[str]:
        """Return the names of the sources of the samples of the last item."""
        return [self.names[row] for row in self.counter.rows_of_last()]


def _continued(node: Dataset[Any]) -> bool:
    return isinstance(node, ContinuedDataset) or any(map(_continued, node.inputs))


ALPHA = 1e-3
"""A difference that chance brings about less often than this is told as one."""

_EXPECTED = 5.0
"""What each source has to be expected for the chi-square distribution to hold (Cochran 1954)."""

_CELLS, _FEWEST, _MOST = 2_000_000, 1_000, 10_000
"""How many draws are compared with, where that does not hold: by the cells of their table."""


def chance_of(counts: npt.ArrayLike, shares: npt.ArrayLike) -> float | None:
    """Return how likely independent draws by `shares` differ from them at least as much as `counts`
    do.

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
    if total > 0 and drawn.any() and observed[~drawn].any():
        return 0.0
    if total <= 0.5 or drawn.sum() < 2:
        return None
    observed, asked = observed[drawn], asked[drawn] / asked[drawn].sum()
    found = _distance(observed, total * asked)
    if float(asked.min()) * total >= _EXPECTED:
        freedom = torch.tensor((len(asked) - 1) / 2, dtype=torch.float64, device="cpu")
        half = torch.tensor(float(found) / 2, dtype=torch.float64, device="cpu")
        return float(torch.special.gammaincc(freedom, half))
    draws = max(_FEWEST, min(_MOST, _CELLS // len(asked)))
    generator = np.random.Generator(np.random.Philox(round(total)))
    others = generator.multinomial(round(total), asked, size=draws).astype(np.float64)
    as_far = int((_distance(others, round(total) * asked) >= found - 1e-9).sum())
    return (1 + as_far) / (1 + draws)


def _distance(observed: FloatArray, expected: FloatArray) -> FloatArray:
    return np.asarray(((observed - expected) ** 2 / expected).sum(axis=-1))


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


Above: TypeAlias = "tuple[Dataset[Any], ...]"
"""What a level is read through, from the whole on."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a level by their weights: `asked`, `planned` and `delivered` in one `unit`; of
    what is drawn how many `units` came, how many samples were `lost` (skipped, or failed), and how
    likely chance is.
    """

    level: Level
    above: Above = ()
    unit: str = "samples"
    asked: Any = None
    planned: Any = None
    delivered: Any = None
    units: Any = None
    lost: int = 0
    chance: float | None = None


def _warning(each: _Parts, lanes: int, mean: float, *, alone: bool) -> Iterator[str]:
    """Yield a line where the shares of a level differ by more than chance, and by more than what
    buffers of `lanes` may hold of items of `mean` samples, with the cause. `alone`: of what one of
    several ranks was given, which proves nothing without a cause.
    """
    if each.chance is None or each.chance >= ALPHA:
        return
    total = each.units.sum()
    off = np.abs(each.units - total * each.asked)
    worst = int(off.argmax())
    held = 0.0
    for node in each.above:
        held = held * (mean if node._many else 1.0) + node._holds
    causes = list(_causes(each))
    kept = max(_ROUNDING, _block(each.level.mix), held * lanes)
    if off[worst] <= kept or (alone and not causes):
        return
    part = each.level.parts[worst]
    where = f" of {each.level.label!r}" if each.level.path else ""
    unknown = "no cause is known: compare the weights and the state with those of the run"
    yield (
        f"{part.name!r}{where} has {100 * each.units[worst] / total:.3f} % of {total:,.0f} "
        f"{each.unit}, asked were {100 * each.asked[worst]:.3f} %, which is no chance "
        f"(p <= {max(each.chance, 1e-9):.1g}): {'; '.join(causes) or unknown}"
    )


def _block(mix: Any) -> float:
    """Slots within which a scheme keeps shares."""
    if isinstance(mix, QuotaDataset):
        return float(mix.size)  # an epoch has them, in whatever order
    scheme, options = getattr(mix, "scheme", None), getattr(mix, "options", {})
    if scheme == "block":
        return float(options.get("block_size", 1000))
    return 65_536.0 if scheme in ("random", "uniform") else 0.0


def _causes(each: _Parts) -> Iterator[str]:
    mix = each.level.mix
    came = each.units / each.units.sum()
    as_planned = each.planned is not None and np.allclose(came, each.planned, rtol=0.02, atol=_SAME)
    if (as_planned or each.planned is None) and not getattr(mix, "_endless", True):
        short = np.flatnonzero(came < each.asked)
        named = ", ".join(repr(each.level.parts[part].name) for part in short)
        yield f"{named} came to the end that the stop rule sets, and others took over"
    leaving = _leaves_out(each.above)
    if leaving:
        yield (
            f"{leaving} stands above the blend and leaves out items after their shares were given; "
            "weigh what it gives instead: put it below the blend"
        )
    if each.lost and not as_planned:
        yield "samples were skipped or failed"
    if each.planned is not None and not as_planned:
        yield "what came is not what the order gives: another state was loaded (strict=False)"


def _leaves_out(above: Above) -> str | None:
    """Return the first dataset above a blend that gives other items than it takes, as only reading
    tells.
    """
    for node in above:
        passes = node.indexed or node._passes_on or node._ends_loops or len(node.inputs) > 1
        inner = node.inputs[0] if node.inputs else node
        known = node.sized and inner.sized and node.size in (inner.size, INFINITE)
        if not passes and (inner.indexed or not known):
            return type(node).__name__
    return None


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run stands: `items` that all ranks were given since it began, None where that is not
    known; on `world_size` ranks, of which this is `rank`; of a stream, in `lanes`.
    """

    items: int | None
    rank: int
    world_size: int
    lanes: int = 1


class _Telling:
    """Makes a report of what was counted: of the `whole` run, or since counting began.

    What the order gave before that is added where the whole is told; then `planned` is that of all
    of it, and else since counting began.
    """

    def __init__(
        self, book: Book, stand: Stand, counted: counting.Counted, *, whole: bool, title: str | None
    ) -> None:
        self.book, self.stand, self.counted, self.title = book, stand, counted, title
        self.rows, self.alone = counted.rows.copy(), not whole
        self.run = self.planned = book.planned(stand.items)
        since = book.since or 0
        before = book.planned(since) if since else None
        self.whole = whole and before is not None and (not book.edited or title is not None)
        self.start = 0 if self.whole else since
        if before is not None and not self.whole and self.run is not None:
            self.planned = self.run - before
        self.starts = levels.spans(book.levels, self.start)
        self.stops = levels.spans(book.levels, stand.items)
        if before is not None and self.whole:
            self.rows += before
            self._add_before(before[:, counting.SAMPLES], since)
        self.totals = self.rows.sum(axis=0)
        self.differing: list[_Parts] = []

    def _add_before(self, samples: FloatArray, since: int) -> None:
        """What the order says beside samples and items of the time before counting began."""
        counts = np.array([_count(each.source) for each in self.book.levels.leaves])
        self.rows[:, counting.REPEATS] += np.maximum(samples - counts, 0) * (counts > 0)
        reached = levels.spans(self.book.levels, since)
        spent = samples.copy()  # of several in one part equally, as nobody looks at each
        known = np.zeros(len(spent), dtype=np.bool_)
        for level in self.book.levels.walk()[::-1]:  # parts before what they are parts of
            if self.book.counts(level.mix) and level.path in reached:
                costs = levels.spent_by(level, reached[level.path])
                for part, cost in zip(level.parts, costs.tolist(), strict=True):
                    rows = np.array(part.rows)
                    rest, told = rows[~known[rows]], rows[known[rows]]
                    spent[rest] *= (cost - spent[told].sum()) / max(spent[rest].sum(), 1.0)
                    known[rest] = True
        self.rows[known, counting.COST] += spent[known]

    def report(self, of_ranks: FloatArray, left_out: dict[str, int], *, all_ranks: bool) -> Report:
        """Return the report, with the totals of each rank."""
        rank, world = self.stand.rank, self.stand.world_size
        ranks = [
            RankTotals(
                number if len(of_ranks) > 1 else rank,
                round(totals[counting.DELIVERED]),
                round(totals[counting.PADDING]),
                *totals[counting.WAITED : counting.SECONDS + 1],
            )
            for number, totals in enumerate(of_ranks.tolist())
        ]
        whose = f"all {world} ranks" if all_ranks else f"rank {rank} of {world} alone"
        whose = "one rank" if world == 1 else whose
        items = sum(each.items for each in ranks)
        columns = self.counted.rows
        report = Report(
            title=self.title or f"What was delivered: {items:,} items to {whose}",
            rows=tuple(self._rows_of(self.book.levels, _Parts(self.book.levels), 0, ())),
            ranks=tuple(ranks) if self.title is None else (),
            world_size=world,
            cost_name=self.book.cost_name,
            left_out=left_out,
            weighed=bool((columns[:, counting.WEIGHT] != columns[:, counting.SAMPLES]).any()),
            notes=tuple(self._notes(all_ranks=all_ranks)),
        )
        mean = float(self.totals[counting.SAMPLES] / max(self.totals[counting.ITEMS], 1.0))
        lanes = self.stand.lanes
        told = (_warning(each, lanes, mean, alone=self.alone) for each in self.differing)
        return replace(report, warnings=tuple(chain.from_iterable(told)))

    def _notes(self, *, all_ranks: bool) -> Iterator[str]:
        if self.book.since and self.title is None:
            told = "all of it since then"
            if self.whole:
                told = "costs, loss weights, failures and waiting since then, the rest all along"
            yield f"counting began after {self.book.since:,} items of the run: {told}"
        if self.book.edited:
            yield "the mix was edited while the run went on: epochs count from there"
        if self.planned is None:
            yield "this is a stream: only reading tells what its order gives"
        if not all_ranks:
            yield "report(all_ranks=True), called on all ranks, sums them"

    def _rows_of(self, level: Level, among: _Parts, number: int, above: Above) -> list[LedgerRow]:
        above = (*above, *level.above)
        own = self._parts_of(level, above)
        rows = [self._row(level, among, number, own.chance)]
        for place, part in enumerate(level.parts):
            rows += self._rows_of(part, own, place, above)
        return rows

    def _row(self, level: Level, among: _Parts, number: int, chance: float | None) -> LedgerRow:
        counts = self._sum(level)
        costs = self.book.cost_name is not None
        return LedgerRow(
            path=level.path,
            is_source=level.source is not None,
            unit=among.unit,
            asked=_at(among.asked, number),
            planned=_at(among.planned, number),
            delivered=_at(among.delivered, number),
            samples=round(counts[counting.SAMPLES]),
            samples_share=_part(counts[counting.SAMPLES], self.totals[counting.SAMPLES]),
            batches=round(counts[counting.ITEMS], 6),
            batches_share=_part(counts[counting.ITEMS], self.totals[counting.ITEMS]),
            cost=counts[counting.COST] if costs else None,
            cost_share=_part(counts[counting.COST], self.totals[counting.COST]) if costs else None,
            weight=counts[counting.WEIGHT],
            weight_share=_part(counts[counting.WEIGHT], self.totals[counting.WEIGHT]),
            effective=kish(counts[counting.WEIGHT], counts[counting.SQUARES]),
            epochs=self._epochs(level),
            repeats=_part(counts[counting.REPEATS], counts[counting.SAMPLES]),
            skipped=round(counts[counting.SKIPPED]),
            failed=round(counts[counting.FAILED]),
            losses=round(counts[counting.LOSSES]),
            loss=_mean(counts[counting.LOSS], counts[counting.LOSSES]),
            late_loss=_mean(counts[counting.LATE_LOSS], counts[counting.LATE_LOSSES]),
            no_numbers=round(counts[counting.NO_NUMBERS]),
            chance=chance,
        )

    def _sum(self, level: Level) -> Any:
        return self.rows[level.rows.start : level.rows.stop].sum(axis=0).tolist()

    def _epochs(self, level: Level) -> float | None:
        count, run = _count(level.source), self.rows if self.run is None else self.run
        return float(run[level.rows.start, counting.SAMPLES]) / count if count else None

    def _parts_of(self, level: Level, above: Above) -> _Parts:
        if not level.parts:
            return _Parts(level)
        start, stop = self.starts.get(level.path), self.stops.get(level.path)
        asked = levels.asked_of(level, start, stop)
        sums = np.array([self._sum(part) for part in level.parts])
        if getattr(level.mix, "unit", None) is not None:
            planned = levels.shares_of(levels.spent_by(level, stop) - levels.spent_by(level, start))
            delivered = None
            if self.book.counts(level.mix):
                delivered = levels.shares_of(sums[:, counting.COST])
            unit = self.book.cost_name or "cost"
            return _Parts(level, above, unit, asked, planned, delivered)
        units, single, known = self._units(level, above, self.rows)
        of_order = None if self.planned is None else self._units(level, above, self.planned)[0]
        delivered = levels.shares_of(units)
        if self.alone and of_order is not None:
            units = of_order  # which all ranks have together
        unit = "samples" if single else "batches"
        lost = round(sums[:, [counting.SKIPPED, counting.FAILED]].sum())
        chance = chance_of(units, asked) if known and asked is not None else None
        planned = levels.shares_of(of_order)
        own = _Parts(level, above, unit, asked, planned, delivered, units, lost, chance)
        self.differing.append(own)
        return own

    def _units(self, level: Level, above: Above, rows: Any) -> tuple[FloatArray, bool, bool]:
        """Return how many items of its mix rows are of, for each part of a level; whether these are
        samples, and whether that is known.
        """
        first, own = level.rows.start, rows[level.rows.start : level.rows.stop]
        values, sizes = own[:, counting.ITEMS], levels.samples_per_item(level)
        known = not any(node._many for node in above[:-1])  # an item of the mix is one of the whole
        single = bool((sizes == 1).all()) and not (known and (values != own[:, 0]).any())
        if not known:
            known = not np.isnan(sizes).any()
            values = own[:, counting.SAMPLES] / (sizes if known else 1.0)
        parts = (slice(each.rows.start - first, each.rows.stop - first) for each in level.parts)
        return np.array([values[each].sum() for each in parts]), single, known


def _count(source: Any) -> int:
    """Return how many samples a source has; 0 where only reading tells."""
    return int(getattr(source, "count", 0) or 0) if source is not None else 0


def _at(values: FloatArray | None, number: int) -> float | None:
    return None if values is None else round(float(values[number]), 12)


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


def _part(value: float, total: float) -> float:
    return float(value) / float(total) if total else 0.0

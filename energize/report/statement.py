"""Reports of the counts of a ledger, and the reasons for unexpected shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from energize.core.arrays import FloatArray, Int64Array
from energize.core.blends import ContinuedDataset
from energize.core.dataset import Dataset
from energize.core.node import INFINITE
from energize.core.progress import counted
from energize.datasets.align import AlignDataset
from energize.datasets.level import LevelDataset
from energize.datasets.planned import PlannedDataset
from energize.datasets.quota import QuotaDataset
from energize.report import levels
from energize.report.ledger import (
    COST,
    DELIVERED,
    FAILED,
    FILLERS,
    ITEMS,
    LATE_LOSS,
    LATE_LOSSES,
    LONGEST,
    LOSS,
    LOSSES,
    NO_NUMBERS,
    PADDING,
    REPEATS,
    ROW_COLUMNS,
    SAMPLES,
    SECONDS,
    SKIPPED,
    SQUARES,
    TOTALS,
    WAITED,
    WEIGHT,
    Book,
)
from energize.report.levels import MixLevel
from energize.report.table import (
    LedgerRow,
    LevelShares,
    RankTotals,
    Report,
    ReportScope,
    RowCounts,
    RowFractions,
    RowLosses,
)

# Reports.


def kish(weights: float, squares: float) -> float:
    """Return Kish's effective sample size of loss weights.

    (sum of w)^2 / (sum of w^2): the number of samples of equal weight with the same
    variance (Kish, Survey Sampling, 1965).

    Args:
        weights: Sum of the weights.
        squares: Sum of their squares.

    Returns:
        The effective size; 0 if all weights are 0.

    Example:
        >>> kish(4.0, 4.0), kish(10.0, 100.0)
        (4.0, 1.0)
    """
    return weights * weights / squares if squares > 0 else 0.0


_ROUNDING = 4.0
"""Slots by which the orders of mixes may round: 3.36, and one for partial items."""

_FILTERED = 2.0
"""Tolerance behind a filter, in square roots of the number of items.

Four standard deviations of a share of 50 %, as filters are not part of the plan.
"""

_SAME = 1e-3
"""Tolerated difference of planned and delivered shares that count the same items."""


Above: TypeAlias = "tuple[Dataset[Any], ...]"
"""Datasets from the whole down to a level."""


@dataclass(frozen=True, slots=True)
class _PartShares:
    """`LevelShares` of all parts of a level, as arrays."""

    unit: str = "samples"
    requested: Any = None
    planned: Any = None
    delivered: Any = None


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a level and their shares.

    `units` counts the items of the mix that each part received, `lost` the samples that
    were skipped or failed. `comparable` is True if `units` and the requested shares
    count the same items.
    """

    level: MixLevel
    above: Above = ()
    shares: _PartShares = _PartShares()
    units: Any = None
    lost: int = 0
    comparable: bool = False


def _warning(parts: _Parts, lanes: int, mean: float) -> Iterator[str]:
    """Yield a line if a share is further from the requested one than the order allows.

    The order is deterministic, so only a reason that follows from the plan or from the
    counts is stated. If there is none, nothing is yielded.

    Args:
        parts: The parts of one level.
        lanes: Number of lanes of a stream; each holds its own buffers.
        mean: Mean number of samples in an item of the whole.
    """
    if not parts.comparable or parts.units.sum() <= 0:
        return
    total = parts.units.sum()
    distance = np.abs(parts.units - total * parts.shares.requested)
    worst = int(distance.argmax())
    buffered = 0.0
    for node in parts.above:
        buffered = (
            buffered * (mean if node.traits.gathers else 1.0)
            + node.traits.stream.buffered
        )
    tolerance = max(
        _ROUNDING,
        _block(parts.level.mix),
        buffered * lanes,
        _reordered(parts.above, mean),
    )
    filtering = _leaves_out(parts.above)
    if filtering:
        tolerance = max(tolerance, _FILTERED * math.sqrt(total))
    if distance[worst] <= tolerance:
        return
    reasons = list(_reasons(parts, filtering, total, tolerance))
    if not reasons:
        return
    part = parts.level.parts[worst]
    requested = 100 * parts.shares.requested[worst]
    level_name = f" of {parts.level.label!r}" if parts.level.path else ""
    yield (
        f"{part.name!r}{level_name} has {100 * parts.units[worst] / total:.3f} % of "
        f"{total:,.0f} {parts.shares.unit}, {requested:.3f} % were requested: "
        f"{'; '.join(reasons)}"
    )


def _block(mix: Any) -> float:
    """Return the slots within which a scheme meets its shares."""
    if isinstance(mix, QuotaDataset):
        return float(mix.size)  # an epoch has them, in whatever order
    scheme = getattr(mix, "scheme", None)
    options = getattr(mix, "options", {})
    if scheme == "block":
        return float(options.get("block_size", 1000))
    return 65_536.0 if scheme in ("random", "uniform") else 0.0


def _reordered(above: Above, mean: float) -> float:
    """Return the samples within which datasets above a mix reorder its samples."""
    window = 0.0
    for node in reversed(above):
        if isinstance(node, PlannedDataset):
            window += node.window
        elif isinstance(node, LevelDataset | AlignDataset):
            window += node.global_batch_size * (mean if window else 1.0)
    return window


def _reasons(
    parts: _Parts, node: str | None, total: float, tolerance: float
) -> Iterator[str]:
    """Yield the reasons that the plan and the counts prove.

    `node` is the class of a dataset above the mix that leaves out items.
    """
    if node:
        yield (
            f"{node} is above the blend and leaves out items after the blend has "
            "counted them. Put it below the blend to weigh what it returns"
        )
    if parts.shares.planned is None:
        if parts.lost:
            yield "samples were skipped or failed"
        elif node is None and parts.level.traits.ends_by_weights:
            short = np.flatnonzero(
                total * parts.shares.requested - parts.units > tolerance
            )
            yield from _ended(parts, short)
        return
    planned = total * parts.shares.planned
    short = np.flatnonzero(total * parts.shares.requested - planned > tolerance)
    yield from _ended(parts, short)
    if np.abs(parts.units - planned).max() <= tolerance:
        return
    if parts.lost:
        yield "samples were skipped or failed"
    else:
        yield "the loaded state belongs to another mix (strict=False)"


def _ended(parts: _Parts, short: Sequence[int] | Int64Array) -> Iterator[str]:
    """Yield a reason for parts with less than the requested share."""
    if len(short):
        names = ", ".join(repr(parts.level.parts[part].name) for part in short)
        yield f"{names} ended by the stop rule, and the other sources took its share"


def _leaves_out(above: Above) -> str | None:
    """Return the first dataset above a blend that omits items depending on their
    content.
    """
    for node in above:
        passes = node.indexed or node.traits.keeps_order or len(node.inputs) > 1
        inner = node.inputs[0] if node.inputs else node
        keeps_all = node.sized and inner.sized and node.size in (inner.size, INFINITE)
        if not passes and (inner.indexed or not keeps_all):
            return type(node).__name__
    return None


@dataclass(frozen=True, slots=True)
class ReportPosition:
    """The position of a run.

    Args:
        items: Items of all ranks since the run began. None if unknown.
        rank: This rank.
        world_size: Number of ranks.
        lanes: Lanes of a stream.
    """

    items: int | None
    rank: int
    world_size: int
    lanes: int = 1


class ReportBuilder:
    """Builds a report from the numbers of a book.

    For a report of the whole run, counts from before the book began are reconstructed
    from the order. Otherwise, `planned` covers only the counted part.

    Args:
        book: The counts.
        position: Position of the run.
        numbers: Sum of `Book.numbers` over the ranks.
        all_ranks: Whether `numbers` are those of all ranks.
        title: Heading. By default it is derived from the counts.
    """

    def __init__(
        self,
        book: Book,
        position: ReportPosition,
        numbers: FloatArray,
        *,
        all_ranks: bool = True,
        title: str | None = None,
    ) -> None:
        self.book = book
        self.position = position
        self.title = title
        self.all_ranks = all_ranks
        of_rows, of_ranks = np.split(numbers, [-position.world_size * TOTALS])
        self.of_ranks = of_ranks.reshape(-1, TOTALS).tolist()
        self.counted = of_rows.reshape(-1, ROW_COLUMNS)
        self.rows, self.edited = self.counted.copy(), _continued(book.dataset)
        self.run = self.planned = book.planned(position.items)
        since = book.since or 0
        earlier = book.planned(since) if since else None
        covers_run = all_ranks and (not self.edited or title is not None)
        self.whole = covers_run and earlier is not None
        self.start = 0 if self.whole else since
        self.starts = levels.spans(book.levels, self.start)
        self.stops = levels.spans(book.levels, position.items)
        if earlier is not None:
            self._account_for(earlier, since)
        self.totals = self.rows.sum(axis=0)
        self.differing: list[_Parts] = []

    def _add_before(self, samples: FloatArray, since: int) -> None:
        """Add the repeats and costs of the time before counting began."""
        counts = np.array([_count(leaf.source) for leaf in self.book.levels.leaves])
        self.rows[:, REPEATS] += np.maximum(samples - counts, 0) * (counts > 0)
        of = self.book.levels
        spent = samples.copy()
        reached = levels.spans(of, since)
        is_scaled = levels.spend(
            of, spent, self.starts, reached, self.book.counts, costs=False
        )
        self.rows[is_scaled, COST] += spent[is_scaled]

    def _account_for(self, earlier: FloatArray, since: int) -> None:
        """Add the plan up to item `since`, or subtract it from the planned items."""
        if self.whole:
            self.rows += earlier
            self._add_before(earlier[:, SAMPLES], since)
        elif self.run is not None:
            self.planned = self.run - earlier

    def report(self, left_out: dict[str, int] | None = None) -> Report:
        """Return the report, with the totals of each rank."""
        rank = self.position.rank
        ranks = [
            RankTotals(
                number,
                round(totals[DELIVERED]),
                round(totals[PADDING]),
                waited=totals[WAITED],
                longest=totals[LONGEST],
                seconds=totals[SECONDS],
                fillers=round(totals[FILLERS]),
            )
            for number, totals in enumerate(self.of_ranks)
            if self.all_ranks or number == rank
        ]
        columns = self.counted
        report = Report(
            scope=ReportScope(
                title=self.title or self._default_title(ranks),
                world_size=self.position.world_size,
                cost_name=self.book.cost_name,
                has_weights=bool((columns[:, WEIGHT] != columns[:, SAMPLES]).any()),
            ),
            rows=tuple(
                self._rows_of(self.book.levels, _Parts(self.book.levels), 0, ())
            ),
            ranks=tuple(ranks) if self.title is None else (),
            left_out=left_out or {},
            notes=tuple(self._notes()),
        )
        mean = float(self.totals[SAMPLES] / max(self.totals[ITEMS], 1.0))
        lanes = self.position.lanes
        warnings = (_warning(parts, lanes, mean) for parts in self.differing)
        return replace(report, warnings=tuple(chain.from_iterable(warnings)))

    def _notes(self) -> Iterator[str]:
        if self.book.since and self.title is None:
            coverage = "all numbers since then"
            if self.whole:
                coverage = (
                    "costs, loss weights, failures and waiting since then, all others "
                    "from the start"
                )
            since = f"counting began after {self.book.since:,} items of the run"
            yield f"{since}: {coverage}"
        if self.edited:
            yield "the mix was edited during the run: epochs count from there"
        if self.planned is None:
            yield "this is a stream: its order is known only by reading"
        if not self.all_ranks:
            yield "call report(all_ranks=True) on all ranks for the sum"

    def _rows_of(
        self, level: MixLevel, siblings: _Parts, number: int, above: Above
    ) -> list[LedgerRow]:
        above = (*above, *level.above)
        parts = self._parts_of(level, above)
        rows = [self._row(level, siblings, number)]
        for index, part in enumerate(level.parts):
            rows += self._rows_of(part, parts, index, above)
        return rows

    def _row(self, level: MixLevel, siblings: _Parts, number: int) -> LedgerRow:
        counts = self._sum(level)
        among = siblings.shares
        has_costs = self.book.cost_name is not None
        return LedgerRow(
            path=level.path,
            is_source=level.source is not None,
            shares=LevelShares(
                unit=among.unit,
                requested=_at(among.requested, number),
                planned=_at(among.planned, number),
                delivered=_at(among.delivered, number),
            ),
            counts=RowCounts(
                samples=round(counts[SAMPLES]),
                batches=round(counts[ITEMS], 6),
                cost=counts[COST] if has_costs else None,
                weight=counts[WEIGHT],
                effective=kish(counts[WEIGHT], counts[SQUARES]),
                skipped=round(counts[SKIPPED]),
                failed=round(counts[FAILED]),
            ),
            fractions=RowFractions(
                samples=_part(counts[SAMPLES], self.totals[SAMPLES]),
                batches=_part(counts[ITEMS], self.totals[ITEMS]),
                cost=_part(counts[COST], self.totals[COST]) if has_costs else None,
                weight=_part(counts[WEIGHT], self.totals[WEIGHT]),
                repeats=_part(counts[REPEATS], counts[SAMPLES]),
            ),
            epochs=self._epochs(level),
            losses=RowLosses(
                count=round(counts[LOSSES]),
                mean=_mean(counts[LOSS], counts[LOSSES]),
                late_mean=_mean(counts[LATE_LOSS], counts[LATE_LOSSES]),
                not_finite=round(counts[NO_NUMBERS]),
            ),
        )

    def _sum(self, level: MixLevel) -> Any:
        return self.rows[level.rows.start : level.rows.stop].sum(axis=0).tolist()

    def _epochs(self, level: MixLevel) -> float | None:
        count = _count(level.source)
        run = self.rows if self.run is None else self.run
        return float(run[level.rows.start, SAMPLES]) / count if count else None

    def _default_title(self, ranks: Sequence[RankTotals]) -> str:
        world = self.position.world_size
        recipients = f"rank {self.position.rank} of {world} alone"
        if world == 1:
            recipients = "one rank"
        elif self.all_ranks:
            recipients = f"all {world} ranks"
        items = counted(sum(totals.items for totals in ranks), "item")
        return f"What was delivered: {items} to {recipients}"

    def _parts_by_cost(
        self, level: MixLevel, above: Above, requested: Any, sums: FloatArray
    ) -> _Parts:
        """Return the parts of a level with weights that count a cost."""
        start = self.starts.get(level.path)
        stop = self.stops.get(level.path)
        planned = levels.shares_of(
            levels.spent_by(level, stop) - levels.spent_by(level, start)
        )
        delivered = None
        if self.book.counts(level):
            delivered = levels.shares_of(sums[:, COST])
        unit = self.book.cost_name or "cost"
        return _Parts(level, above, _PartShares(unit, requested, planned, delivered))

    def _parts_of(self, level: MixLevel, above: Above) -> _Parts:
        if not level.parts:
            return _Parts(level)
        start = self.starts.get(level.path)
        stop = self.stops.get(level.path)
        requested = levels.requested_shares(level, start, stop)
        sums = np.array([self._sum(part) for part in level.parts])
        if level.traits.unit is not None:
            return self._parts_by_cost(level, above, requested, sums)
        units, single, is_exact = self._units(level, above, self.rows)
        of_order = (
            None if self.planned is None else self._units(level, above, self.planned)[0]
        )
        delivered = levels.shares_of(units)
        if not self.all_ranks and of_order is not None:
            units = of_order  # which all ranks have together
        unit = "samples" if single else "batches"
        lost = round(sums[:, [SKIPPED, FAILED]].sum())
        comparable = is_exact and requested is not None
        planned = levels.shares_of(of_order)
        shares = _PartShares(unit, requested, planned, delivered)
        parts = _Parts(level, above, shares, units, lost, comparable)
        self.differing.append(parts)
        return parts

    def _units(
        self, level: MixLevel, above: Above, rows: Any
    ) -> tuple[FloatArray, bool, bool]:
        """Return the items of each part of a level, in the unit of its mix.

        Returns:
            The number of items, whether they are samples, and whether it is exact.
        """
        first = level.rows.start
        level_rows = rows[level.rows.start : level.rows.stop]
        values = level_rows[:, ITEMS]
        sizes = levels.samples_per_item(level)
        is_exact = not any(
            node.traits.gathers for node in above[:-1]
        )  # an item of the mix is one of the whole
        single = bool((sizes == 1).all()) and not (
            is_exact and (values != level_rows[:, 0]).any()
        )
        if not is_exact:
            is_exact = not np.isnan(sizes).any()
            values = level_rows[:, SAMPLES] / (sizes if is_exact else 1.0)
        parts = (
            slice(rows_of_part.rows.start - first, rows_of_part.rows.stop - first)
            for rows_of_part in level.parts
        )
        return (
            np.array([values[rows_of_part].sum() for rows_of_part in parts]),
            single,
            is_exact,
        )


def _continued(node: Dataset[Any]) -> bool:
    """Return whether parts continue from another mix with unknown counts."""
    return isinstance(node, ContinuedDataset) or any(map(_continued, node.inputs))


def _count(source: Any) -> int:
    """Return the number of samples of a source; 0 if unknown."""
    return int(getattr(source, "count", 0) or 0) if source is not None else 0


def _at(values: FloatArray | None, number: int) -> float | None:
    return None if values is None else round(float(values[number]), 12)


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


def _part(value: float, total: float) -> float:
    return float(value) / float(total) if total else 0.0

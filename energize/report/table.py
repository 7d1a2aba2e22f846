"""Reports of delivered samples: rows, totals, their tables and their JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from operator import attrgetter
from shutil import get_terminal_size
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from energize.core.progress import counted
from energize.report.efficiency import Efficiency


@dataclass(frozen=True, slots=True)
class LevelShares:
    """The shares of a row among the parts of its level, 0 to 1; they sum to 1.

    Args:
        unit: Unit of the weights: "samples", "batches" or the name of a cost.
        requested: Share by the weights, over the counted items. None if the level has
            no weights.
        planned: Share by the order. None if only reading reveals it.
        delivered: Share of what was delivered. None if it was not counted in `unit`.
    """

    unit: str = "samples"
    requested: float | None = None
    planned: float | None = None
    delivered: float | None = None


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The delivered amounts of a row.

    Args:
        samples: Number of samples.
        batches: Number of items; an item of several sources counts as fractions. Items
            before a resume are divided by the mean composition of an item.
        cost: Cost of the samples, such as tokens. None if the ledger counts no cost.
        weight: Sum of the loss weights.
        effective: Kish's effective sample size of the loss weights.
        skipped: Number of samples that were left out.
        failed: Number of samples that were replaced by substitutes.
    """

    samples: int = 0
    batches: float = 0.0
    cost: float | None = None
    weight: float = 0.0
    effective: float = 0.0
    skipped: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class RowFractions:
    """Fractions of the counts of a row, 0 to 1.

    Args:
        samples: Fraction of all delivered samples.
        batches: Fraction of all delivered items.
        cost: Fraction of the whole cost. None if the ledger counts no cost.
        weight: Fraction of the sum of all loss weights.
        repeats: Fraction of the samples of the row that were drawn in a second pass or
            later.
    """

    samples: float = 0.0
    batches: float = 0.0
    cost: float | None = None
    weight: float = 0.0
    repeats: float = 0.0


@dataclass(frozen=True, slots=True)
class RowLosses:
    """The losses that `Loader.record_losses` received for the samples of a row.

    Args:
        count: Number of finite losses.
        mean: Their mean. None without finite losses.
        late_mean: Mean over about the last 100 steps. None without finite losses.
        not_finite: Number of losses that are NaN or infinite.
    """

    count: int = 0
    mean: float | None = None
    late_mean: float | None = None
    not_finite: int = 0


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """The counts of a source, or of a part of a mix with all its sources.

    Args:
        path: Names of the levels down to the row; empty for the whole.
        is_source: Whether the row is a source.
        shares: Requested, planned and delivered share on its level.
        counts: Delivered amounts.
        fractions: The counts as fractions of the whole.
        epochs: Passes through the source since the run began; for a stream, delivered
            samples divided by its samples. None for several sources, or for a source
            of unknown length.
        losses: Recorded losses.
    """

    path: tuple[str, ...]
    is_source: bool
    shares: LevelShares = field(default_factory=LevelShares)
    counts: RowCounts = field(default_factory=RowCounts)
    fractions: RowFractions = field(default_factory=RowFractions)
    epochs: float | None = None
    losses: RowLosses = field(default_factory=RowLosses)

    @property
    def name(self) -> str:
        """The name on its level; "all" for the whole."""
        return self.path[-1] if self.path else "all"

    @property
    def depth(self) -> int:
        """The number of levels above."""
        return len(self.path)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers in one flat dict."""
        values = {name: get(self) for name, get in _ROW_VALUES.items()}
        return {"path": self.path, "is_source": self.is_source, **values}


_ROW_VALUES: dict[str, Callable[[LedgerRow], Any]] = {
    "unit": attrgetter("shares.unit"),
    "asked": attrgetter("shares.requested"),
    "planned": attrgetter("shares.planned"),
    "delivered": attrgetter("shares.delivered"),
    "samples": attrgetter("counts.samples"),
    "samples_share": attrgetter("fractions.samples"),
    "batches": attrgetter("counts.batches"),
    "batches_share": attrgetter("fractions.batches"),
    "cost": attrgetter("counts.cost"),
    "cost_share": attrgetter("fractions.cost"),
    "weight": attrgetter("counts.weight"),
    "weight_share": attrgetter("fractions.weight"),
    "effective": attrgetter("counts.effective"),
    "epochs": attrgetter("epochs"),
    "repeats": attrgetter("fractions.repeats"),
    "skipped": attrgetter("counts.skipped"),
    "failed": attrgetter("counts.failed"),
    "losses": attrgetter("losses.count"),
    "loss": attrgetter("losses.mean"),
    "late_loss": attrgetter("losses.late_mean"),
    "no_numbers": attrgetter("losses.not_finite"),
}
"""Values of a row by their keys in JSON and in logs."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A sample with an extreme loss.

    Args:
        step: Step of the batch.
        rank: Rank of the batch.
        source: Name of its source.
        loss: The loss; may be NaN or infinite.
        far: Distance from the mean of its source, in standard deviations.
        place: Location of the sample.
    """

    step: int
    rank: int
    source: str
    loss: float
    far: float
    place: str


@dataclass(frozen=True, slots=True)
class RankTotals:
    """Totals of one rank.

    Args:
        rank: The rank.
        items: Delivered items.
        padding: Delivered padding, not counted in `items`.
        waited: Seconds of waiting for items.
        longest: Seconds of the longest wait.
        seconds: Seconds in all.
        fillers: Delivered samples that only fill batches of an `AlignDataset`.
    """

    rank: int
    items: int
    padding: int
    waited: float
    longest: float
    seconds: float
    fillers: int = 0

    @property
    def waiting_share(self) -> float:
        """The fraction of the time that was spent waiting for items, 0 to 1."""
        return self.waited / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class ReportScope:
    """Heading and extent of a report.

    Args:
        title: The heading.
        world_size: Number of ranks of the run.
        cost_name: Name of the counted cost. None if the ledger counts no cost.
        has_weights: Whether any item had a loss weight.
    """

    title: str
    world_size: int
    cost_name: str | None = None
    has_weights: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Requested and delivered samples of a run; printable, and shown by notebooks.

    Args:
        scope: Heading, number of ranks and optional columns.
        rows: The whole first, then every part of the mix, each followed by its parts.
        ranks: Totals of this rank, or of all ranks if all were requested.
        left_out: Number of samples that this rank left out, by reason, including those
            that were only read ahead.
        outliers: Extreme losses of the last 256 steps, the most extreme first.
        notes: Remarks on the counts.
        warnings: Differences from the requested shares that the order does not allow,
            with their reasons.
        efficiency: Fill, padding and cost of ranks of the steps since counting began,
            over all ranks, as planned; of a long run, of up to 8 parts. None if the
            dataset has no lengths and costs.

    Example:
        >>> from energize import BlendDataset, ListSource, get_loader
        >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
        >>> loader = get_loader(BlendDataset(parts, weights={"web": 3, "code": 1}))
        >>> for step, sample in zip(range(40), loader):
        ...     pass
        >>> report = loader.report()
        >>> (
        ...     [(row.name, row.counts.samples) for row in report.rows],
        ...     report.to_dict()["mix/web/asked_share"],
        ... )
        ([('all', 40), ('web', 30), ('code', 10)], 0.75)
    """

    scope: ReportScope
    rows: tuple[LedgerRow, ...]
    ranks: tuple[RankTotals, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    outliers: tuple[Outlier, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    efficiency: Efficiency | None = None

    @property
    def total(self) -> LedgerRow:
        """The row of the whole."""
        return self.rows[0]

    @property
    def sources(self) -> tuple[LedgerRow, ...]:
        """The rows of sources."""
        return tuple(row for row in self.rows if row.is_source)

    def __getitem__(self, name: str) -> LedgerRow:
        """Return the row of a part by its path: `report["web/news"]`.

        Raises:
            KeyError: If the mix has no such part; lists the parts.
        """
        for row in self.rows:
            if "/".join(row.path) == name:
                return row
        names = ", ".join("/".join(row.path) for row in self.rows[1:20])
        raise KeyError(f"{name!r} is not a part of this mix. The parts are {names}")

    def to_dict(self, prefix: str = "mix") -> dict[str, float]:
        """Return flat numbers for a log; unknown numbers are omitted.

        Args:
            prefix: First part of the keys, as in "mix/web/delivered_share" and
                "mix/waiting_share".
        """
        numbers: dict[str, float | None] = {}
        for row in self.rows:
            name = "/".join((prefix, *row.path))
            for key, value in self._numbers(row).items():
                numbers[f"{name}/{key}"] = value
        used = {} if self.efficiency is None else self.efficiency.to_dict()
        for key, value in {**self._rank_numbers(), **used}.items():
            numbers[f"{prefix}/{key}"] = value
        return {
            name: float(value) for name, value in numbers.items() if value is not None
        }

    def _rank_numbers(self) -> dict[str, float]:
        """Return the totals over all ranks in the report."""
        waited = sum(rank.waited for rank in self.ranks)
        seconds = sum(rank.seconds for rank in self.ranks)
        return {
            "items": sum(rank.items for rank in self.ranks),
            "padding": sum(rank.padding for rank in self.ranks),
            "fillers": sum(rank.fillers for rank in self.ranks),
            "waiting_seconds": waited,
            "waiting_share": waited / seconds if seconds else 0.0,
            "longest_wait_seconds": max(
                (rank.longest for rank in self.ranks), default=0.0
            ),
            "warnings": len(self.warnings),
        }

    def _numbers(self, row: LedgerRow) -> dict[str, float | None]:
        names = _LOGGED | _LOGGED_SHARES if row.path else _LOGGED
        values = row.as_json()
        numbers = {logged: values[name] for name, logged in names.items()}
        cost_name = self.scope.cost_name
        if cost_name is not None:
            numbers[cost_name] = row.counts.cost
            numbers[f"{cost_name}_share"] = row.fractions.cost
        return numbers

    def as_json(self) -> dict[str, Any]:
        """Return the report as a tree that JSON can encode."""
        return {
            "title": self.scope.title,
            "rows": tuple(row.as_json() for row in self.rows),
            "ranks": tuple(asdict(rank) for rank in self.ranks),
            "world_size": self.scope.world_size,
            "cost_name": self.scope.cost_name,
            "left_out": dict(self.left_out),
            "weighed": self.scope.has_weights,
            "outliers": tuple(asdict(outlier) for outlier in self.outliers),
            "notes": self.notes,
            "warnings": self.warnings,
            "efficiency": self.efficiency and self.efficiency.as_json(),
        }

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from rendered(self, console.width)

    def _repr_html_(self) -> str:
        from energize.core.html import notebook, text  # which imports Pillow

        shown = self._as_text(_WIDTH)
        return notebook(f"<pre>{text(shown, len(shown))}</pre>")

    def __repr__(self) -> str:
        return f"Report({self.scope.title!r}, {len(self.rows)} rows)"

    def __str__(self) -> str:
        return self._as_text(get_terminal_size((_WIDTH, 0)).columns)

    def _as_text(self, width: int) -> str:
        console = Console(width=width, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


_COUNTS = ("samples", "batches", "weight", "epochs", "skipped", "failed")
_LOGGED = {
    **{name: name for name in _COUNTS},
    "effective": "effective_sample_size",
    "repeats": "repeats_share",
    "loss": "loss",
    "late_loss": "late_loss",
}
"""Names in a log, by the keys of rows."""

_LOGGED_SHARES = {
    "asked": "asked_share",
    "planned": "planned_share",
    "delivered": "delivered_share",
    "weight_share": "weight_share",
}
"""The same for all rows but the whole."""

_WIDTH = 140
"""Characters in a line without a terminal."""

_SHOWN = 60
"""Number of rows in the table; all are in `rows` and `to_dict`."""

_SHOWN_RANKS = 16
"""Number of ranks with their totals in the text."""

_NOTHING = ("", "-", "0", "samples")
"""Cell values without content; a column with no other values is omitted."""


def rendered(report: Report, width: int) -> Iterator[Any]:
    """Yield the rich renderables of a report."""
    yield Text(report.scope.title, style="bold")
    yield from _tables(report, width)
    if report.efficiency is not None:
        yield report.efficiency.table()
    for rank in report.ranks[:_SHOWN_RANKS]:
        yield Text(_rank_line(rank))
    more = len(report.ranks) - _SHOWN_RANKS
    if more > 0:
        yield Text(f"and {more} more ranks")
    reasons = sorted(report.left_out.items(), key=lambda pair: -pair[1])
    for reason, count in reasons[:10]:
        yield Text(f"left out on this rank: {count:,} by {reason}")
    for outlier in report.outliers:
        yield Text(_outlier_line(outlier))
    for note in report.notes:
        yield Text(f"Note: {note}")
    for warning in report.warnings:
        yield Text(f"Warning: {warning}", style="yellow")


def _rank_line(rank: RankTotals) -> str:
    padding = f", {rank.padding:,} of padding" if rank.padding else ""
    if rank.fillers:
        padding += f", {counted(rank.fillers, 'filler')}"
    return (
        f"rank {rank.rank}: {counted(rank.items, 'item')}{padding}"
        f"; waited {rank.waited:.2f} s of {rank.seconds:.2f} s "
        f"({100 * rank.waiting_share:.1f} %), at most {1000 * rank.longest:.1f} ms"
    )


def _outlier_line(outlier: Outlier) -> str:
    distance = ""
    if isfinite(outlier.far):
        distance = f", {outlier.far:.1f} standard deviations from its source"
    return (
        f"step {outlier.step:,}, rank {outlier.rank}: loss {outlier.loss:.4g} of "
        f"{outlier.place}{distance}"
    )


def _tables(report: Report, width: int) -> Iterator[Table]:
    """Yield the rows in as many tables as their columns need in that width."""
    names = ["  " * max(row.depth - 1, 0) + row.name for row in report.rows]
    cells = [_cells(row, report) for row in report.rows]
    widths = _column_widths(cells)
    room = width - max(10, min(max(map(len, names)), 24)) - 2
    for columns in _column_groups(widths, room):
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("source", overflow="fold", min_width=10)
        for column in columns:
            table.add_column(column, justify="right", no_wrap=True)
        for name, row in list(zip(names, cells, strict=True))[:_SHOWN]:
            table.add_row(Text(name), *(row[column] for column in columns))
        if len(names) > _SHOWN:
            table.add_row(Text(f"and {len(names) - _SHOWN} more"))
        yield table


def _column_widths(cells: Sequence[dict[str, str]]) -> dict[str, int]:
    """Return the width of each column that is not empty in all rows."""
    return {
        column: max(len(column), *(len(row[column]) for row in cells))
        for column in cells[0]
        if any(row[column] not in _NOTHING for row in cells)
    }


def _column_groups(widths: dict[str, int], room: int) -> list[list[str]]:
    """Return the columns of each table, as many as fit into `room` characters.

    At least one table, and at least one column in a table if there are columns.
    """
    groups: list[list[str]] = [[]]
    left = room
    for column, width in widths.items():
        if groups[-1] and width + 2 > left:
            groups.append([])
            left = room
        groups[-1].append(column)
        left -= width + 2
    return groups


def _cells(row: LedgerRow, report: Report) -> dict[str, str]:
    counts = row.counts
    shares = row.shares
    losses = row.losses
    fractions = row.fractions
    batches = f"{counts.batches:,.1f}".removesuffix(".0")
    is_weighted = report.scope.has_weights
    return {
        "asked %": _percent(shares.requested),
        "planned %": _percent(shares.planned),
        "delivered %": _percent(shares.delivered),
        "unit": shares.unit if shares.requested is not None else "",
        "samples": f"{counts.samples:,}",
        "batches": "" if round(counts.batches) == counts.samples else batches,
        f"{report.scope.cost_name} %": _percent(fractions.cost),
        "weight %": _percent(fractions.weight) if is_weighted else "",
        "eff. size": f"{counts.effective:,.0f}" if is_weighted else "",
        "epochs": _number(row.epochs, ",.2f"),
        "repeats %": _percent(fractions.repeats if counts.samples else None),
        "skipped": f"{counts.skipped:,}",
        "failed": f"{counts.failed:,}",
        "loss": _number(losses.mean, ".4g"),
        "late loss": _number(losses.late_mean, ".4g"),
        "no numbers": f"{losses.not_finite:,}",
    }


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3f}"

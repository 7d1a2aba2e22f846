"""What a ledger says: asked, planned and delivered, level by level, and why they
differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from shutil import get_terminal_size
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from energize.core.progress import counted


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What was counted of a source, or of a part of a mix with all its sources.

    `path`: the names on the way to it; none for the whole. `depth` is their number,
    `is_source` whether it is a source. Shares are those of its level, 0 to 1: the parts
    of one blend make 1 together. `asked`: by the weights, over the items that were
    counted; `planned`: by the order; both in the `unit` of the weights ("samples",
    "batches", or what a blend weighs), None where nobody asks or only reading tells.
    `delivered`: what came, in that unit.

    `samples`, `batches` (items, by their parts; exact where they are of one source;
    others, before a resume, by the parts that sources have in all of these), `cost`
    (tokens or what the ledger was told to count) and `weight` (the sum of loss weights)
    are counts, `*_share` their shares of all that was delivered. `effective`: Kish's
    effective sample size of the loss weights. `epochs`: how often the source was passed
    through since the run began, None for more than one source or one without a length;
    of a stream, the samples that came of it by those it has. `repeats`: the part of its
    samples that were drawn in a second pass or later. `skipped` and `failed`: samples
    left out, others in their place. `loss`: the mean of the `losses` that
    `Loader.record_losses` was told of its samples, and `late_loss`, that of about the
    last 100 steps; None where nothing was told, or nothing but `no_numbers`, losses
    that are NaN or infinite.
    """

    path: tuple[str, ...]
    is_source: bool
    unit: str = "samples"
    asked: float | None = None
    planned: float | None = None
    delivered: float | None = None
    samples: int = 0
    samples_share: float = 0.0
    batches: float = 0.0
    batches_share: float = 0.0
    cost: float | None = None
    cost_share: float | None = None
    weight: float = 0.0
    weight_share: float = 0.0
    effective: float = 0.0
    epochs: float | None = None
    repeats: float = 0.0
    skipped: int = 0
    failed: int = 0
    losses: int = 0
    loss: float | None = None
    late_loss: float | None = None
    no_numbers: int = 0

    @property
    def name(self) -> str:
        """What it is called on its level."""
        return self.path[-1] if self.path else "all"

    @property
    def depth(self) -> int:
        """How many names lead to it."""
        return len(self.path)


@dataclass(frozen=True, slots=True)
class Outlier:
    """A sample of a `source` whose `loss` at a `step` of a `rank` is no number, or lies
    so many standard deviations (`far`) from the mean of those of its source; `place` is
    where it is stored.
    """

    step: int
    rank: int
    source: str
    loss: float
    far: float
    place: str


@dataclass(frozen=True, slots=True)
class RankTotals:
    """What one rank was delivered: `items`, and `padding` beside them; the seconds that
    `next` was `waited` for, in all and the `longest` time, and those that passed
    (`seconds`).
    """

    rank: int
    items: int
    padding: int
    waited: float
    longest: float
    seconds: float

    @property
    def waiting_share(self) -> float:
        """The part of the time that went by waiting for items, 0 to 1."""
        return self.waited / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What was asked for and what was delivered: `print` it, or let a notebook show it.

    `rows`: the whole first, then every part of the mix, each before its own parts.
    `ranks`: the totals of this rank, or of all where it was asked for them. `title`:
    whose counts these are. `cost_name`: what `cost` counts. `left_out`: how many
    samples were left out for each reason, on this rank, those with it that were only
    read ahead. `weighed`: whether any item had a loss weight. `outliers`: losses of the
    last 256 steps that stand out, the farthest first. `notes`: what to know of the
    counts. `warnings`: differences from the requested shares that the order does not
    allow, with their reasons.

    >>> from energize import BlendDataset, ListSource, get_loader
    >>> parts = {"web": ListSource(range(90)), "code": ListSource(range(9))}
    >>> loader = get_loader(BlendDataset(parts, weights={"web": 3, "code": 1}))
    >>> for step, sample in zip(range(40), loader):
    ...     pass
    >>> report = loader.report()
    >>> (
    ...     [(row.name, row.samples) for row in report.rows],
    ...     report.to_dict()["mix/web/asked_share"],
    ... )
    ([('all', 40), ('web', 30), ('code', 10)], 0.75)
    """

    title: str
    rows: tuple[LedgerRow, ...]
    ranks: tuple[RankTotals, ...]
    world_size: int
    cost_name: str | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    weighed: bool = False
    outliers: tuple[Outlier, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def total(self) -> LedgerRow:
        """The row of the whole."""
        return self.rows[0]

    @property
    def sources(self) -> tuple[LedgerRow, ...]:
        """The rows of sources."""
        return tuple(each for each in self.rows if each.is_source)

    def __getitem__(self, name: str) -> LedgerRow:
        """Return the row of a part, by its names: `report["web/news"]`; `KeyError`
        lists them.
        """
        for each in self.rows:
            if "/".join(each.path) == name:
                return each
        known = ", ".join("/".join(each.path) for each in self.rows[1:20])
        raise KeyError(f"{name!r} is no part of this mix; parts are {known}")

    def to_dict(self, prefix: str = "mix") -> dict[str, float]:
        """Flat numbers for a log, such as "mix/web/delivered_share" and
        "mix/waiting_share"; what is not known is left out.
        """
        numbers: dict[str, float | None] = {}
        for row in self.rows:
            name = "/".join((prefix, *row.path))
            for key, value in self._numbers(row).items():
                numbers[f"{name}/{key}"] = value
        for key, value in self._rank_numbers().items():
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
            "waiting_seconds": waited,
            "waiting_share": waited / seconds if seconds else 0.0,
            "longest_wait_seconds": max(
                (rank.longest for rank in self.ranks), default=0.0
            ),
            "warnings": len(self.warnings),
        }

    def _numbers(self, row: LedgerRow) -> dict[str, float | None]:
        names = (
            _LOGGED | _OF_PARTS | {"weight_share": "weight_share"}
            if row.path
            else _LOGGED
        )
        numbers = {logged: getattr(row, name) for name, logged in names.items()}
        if self.cost_name is not None:
            numbers |= {
                self.cost_name: row.cost,
                f"{self.cost_name}_share": row.cost_share,
            }
        return numbers

    def as_json(self) -> dict[str, Any]:
        """Return all of it as a JSON-able tree."""
        return asdict(self)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from rendered(self, console.width)

    def _repr_html_(self) -> str:
        from energize.core.html import notebook, text  # which imports Pillow

        shown = self._as_text(_WIDTH)
        return notebook(f"<pre>{text(shown, len(shown))}</pre>")

    def __repr__(self) -> str:
        return f"Report({self.title!r}, {len(self.rows)} rows)"

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
"""Names in a log, by what they are called in rows."""

_OF_PARTS = {name: f"{name}_share" for name in ("asked", "planned", "delivered")}
"""The same, of what is a part of something."""

_WIDTH = 140
"""Characters in a line where there is no terminal."""

_SHOWN = 60
"""Rows that are shown; the rest is in `rows` and `to_dict`."""

_NOTHING = ("", "-", "0", "samples")
"""What a column is left out for, where it says nothing else."""


def rendered(report: Report, width: int) -> Iterator[Any]:
    """Yield what rich prints of a report."""
    yield Text(report.title, style="bold")
    yield from _tables(report, width)
    for each in report.ranks[:16]:
        yield Text(
            f"rank {each.rank}: {counted(each.items, 'item')}"
            + (f", {each.padding:,} of padding" if each.padding else "")
            + f"; waited {each.waited:.2f} s of {each.seconds:.2f} s "
            f"({100 * each.waiting_share:.1f} %), at most {1000 * each.longest:.1f} ms"
        )
    if len(report.ranks) > 16:
        yield Text(f"and {len(report.ranks) - 16} more ranks")
    for reason, count in sorted(report.left_out.items(), key=lambda pair: -pair[1])[
        :10
    ]:
        yield Text(f"left out on this rank: {count:,} by {reason}")
    for one in report.outliers:
        far = (
            f", {one.far:.1f} standard deviations from its source"
            if isfinite(one.far)
            else ""
        )
        yield Text(
            f"step {one.step:,}, rank {one.rank}: loss {one.loss:.4g} of "
            f"{one.place}{far}"
        )
    for note in report.notes:
        yield Text(f"Note: {note}")
    for warning in report.warnings:
        yield Text(f"Warning: {warning}", style="yellow")


def _tables(report: Report, width: int) -> Iterator[Table]:
    """Yield the rows, in as many tables as their columns need in that width."""
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
    batches = "" if round(row.batches) == row.samples else f"{row.batches:,.1f}"
    return {
        "asked %": _percent(row.asked),
        "planned %": _percent(row.planned),
        "delivered %": _percent(row.delivered),
        "unit": row.unit if row.asked is not None else "",
        "samples": f"{row.samples:,}",
        "batches": batches.removesuffix(".0"),
        f"{report.cost_name} %": _percent(row.cost_share),
        "weight %": _percent(row.weight_share) if report.weighed else "",
        "eff. size": f"{row.effective:,.0f}" if report.weighed else "",
        "epochs": "-" if row.epochs is None else f"{row.epochs:,.2f}",
        "repeats %": _percent(row.repeats if row.samples else None),
        "skipped": f"{row.skipped:,}",
        "failed": f"{row.failed:,}",
        "loss": "-" if row.loss is None else f"{row.loss:.4g}",
        "late loss": "-" if row.late_loss is None else f"{row.late_loss:.4g}",
        "no numbers": f"{row.no_numbers:,}",
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3f}"

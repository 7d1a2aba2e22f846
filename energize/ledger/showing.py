"""Reports as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from energize.ledger.report import LedgerRow, Report

_SHOWN = 60
"""Rows that are shown; the rest is in `rows` and `to_dict`."""

_LEFT_OUT = ("eff. size", "batches", "chance", "planned %", "repeats %", "weight %", "unit")
"""Columns that narrow terminals go without, the first of them first."""

_NAME_WIDTH, _NUMBER_WIDTH = 24, 8


def rendered(report: Report, width: int) -> Iterator[Any]:
    """What rich prints of a report."""
    yield Text(report.title, style="bold")
    yield _table(report, width)
    for each in report.ranks[:16]:
        yield Text(
            f"rank {each.rank}: {each.items:,} items"
            + (f", {each.padding:,} of padding" if each.padding else "")
            + f"; waited {each.waited:.2f} s of {each.seconds:.2f} s "
            f"({100 * each.waiting_share:.1f} %), at most {1000 * each.longest:.1f} ms"
        )
    if len(report.ranks) > 16:
        yield Text(f"and {len(report.ranks) - 16} more ranks")
    for reason, count in sorted(report.left_out.items(), key=lambda pair: -pair[1])[:10]:
        yield Text(f"left out on this rank: {count:,} by {reason}")
    for note in report.notes:
        yield Text(f"Note: {note}")
    for warning in report.warnings:
        yield Text(f"Warning: {warning}", style="yellow")


def _table(report: Report, width: int) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    table.add_column("source", overflow="fold", min_width=10)
    names = _fitting(_columns(report), report, width)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows[:_SHOWN]:
        cells = _cells(row, report.cost_name)
        table.add_row(Text(_name(row)), *(cells[name] for name in names))
    if len(report.rows) > _SHOWN:
        table.add_row(Text(f"and {len(report.rows) - _SHOWN} more"))
    return table


def _columns(report: Report) -> list[str]:
    """What there is something to say of."""
    if not report.total.samples and all(row.asked is None for row in report.rows):
        return []
    names = ["asked %", "planned %", "delivered %"]
    names += ["unit"] if any(row.unit != "samples" for row in report.rows) else []
    names += ["samples"]
    names += (
        ["batches"] if any(r.batches and round(r.batches) != r.samples for r in report.rows) else []
    )
    names += [f"{report.cost_name} %"] if report.cost_name is not None else []
    names += ["weight %", "eff. size"] if report.weighed else []
    names += ["epochs", "repeats %"]
    names += ["skipped", "failed"] if report.total.skipped or report.total.failed else []
    return [*names, "chance"] if any(row.chance is not None for row in report.rows) else names


def _fitting(names: list[str], report: Report, width: int) -> list[str]:
    """The columns that there is room for beside the names of sources."""
    longest = max(len(_name(row)) for row in report.rows)
    room = width - min(longest, _NAME_WIDTH) - 2
    for each in (*_LEFT_OUT, *names[:0:-1]):
        if sum(1 + max(len(name), _NUMBER_WIDTH) for name in names) <= room:
            break
        names = [name for name in names if name != each or each == "delivered %"]
    return names


def _cells(row: LedgerRow, cost_name: str | None) -> dict[str, str]:
    return {
        "asked %": _percent(row.asked),
        "planned %": _percent(row.planned),
        "delivered %": _percent(row.delivered),
        "unit": row.unit if row.asked is not None else "",
        "samples": f"{row.samples:,}",
        "batches": f"{row.batches:,.1f}".removesuffix(".0"),
        f"{cost_name} %": _percent(row.cost_share),
        "weight %": _percent(row.weight_share),
        "eff. size": f"{row.effective:,.0f}",
        "epochs": "-" if row.epochs is None else f"{row.epochs:,.2f}",
        "repeats %": _percent(row.repeats),
        "skipped": f"{row.skipped:,}",
        "failed": f"{row.failed:,}",
        "chance": "" if row.chance is None else _chance(row.chance),
    }


def _name(row: LedgerRow) -> str:
    return "  " * max(row.depth - 1, 0) + row.name


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3f}"


def _chance(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"

"""Progress and tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from statistics import fmean

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

_BARS = "▁▂▃▄▅▆▇█"
_TENTHS = 10


def progress(console: Console) -> Progress:
    """A bar for steps with their losses. Drawn by hand: no thread may run while workers
    fork.
    """
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[loss]}"),
        console=console,
        auto_refresh=False,
    )


def table(*columns: str, title: str) -> Table:
    """An empty table; the first column is text, the others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", min_width=60)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=True)
    return made


def loss_table(losses: Mapping[str, Sequence[float]]) -> Table:
    """Mean losses in the first and last tenth of the steps, and of all tenths a
    picture.
    """
    shown = table(
        "batches of",
        "steps",
        "first tenth",
        "last tenth",
        "all",
        title="Loss without weights",
    )
    for kind, values in sorted(losses.items()):
        means = tenths(values)
        row = (
            kind,
            str(len(values)),
            f"{means[0]:.3f}",
            f"{means[-1]:.3f}",
            picture(means),
        )
        shown.add_row(*row)
    return shown


def tenths(values: Sequence[float]) -> list[float]:
    """The mean of each tenth of the values; of each value, when they are fewer than
    ten.
    """
    parts = min(_TENTHS, len(values))
    cuts = [len(values) * part // parts for part in range(parts + 1)]
    return [fmean(values[first:last]) for first, last in pairwise(cuts)]


def picture(values: Sequence[float]) -> str:
    """A bar for each value; the highest is that of the largest."""
    top = max(values) or 1.0
    return "".join(
        _BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] for value in values
    )


def share_table(
    asked: Mapping[str, Fraction],
    delivered: Mapping[str, int],
    weights: Mapping[str, float],
    title: str,
) -> Table:
    """Of each folder the share that was asked, what came, and its mean loss weight."""
    total = sum(delivered.values())
    shown = table("folder", "asked", "delivered", "samples", "loss weight", title=title)
    for folder, share in asked.items():
        count = delivered.get(folder, 0)
        weight = weights.get(folder, 0) / max(count, 1)
        row = (
            f"{float(share):.2%}",
            f"{count / total:.2%}",
            str(count),
            f"{weight:.2f}",
        )
        shown.add_row(folder, *row)
    return shown

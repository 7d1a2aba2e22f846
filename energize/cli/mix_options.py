"""The options that say what a run reads, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from energize.numbers import checked_whole


def at_least(least: int) -> Callable[[typer.CallbackParam, int | None], int | None]:
    """What checks the number given for an option: `ConfigError` for one below `least`."""

    def check(option: typer.CallbackParam, value: int | None) -> int | None:
        return None if value is None else checked_whole(value, option.opts[0], least)

    return check


MixPath = Annotated[
    Path, typer.Argument(metavar="MIX", help="A metadataset, a stage file, or a prepared folder.")
]
Steps = Annotated[
    int, typer.Option(callback=at_least(1), help="How many steps: batches of all ranks together.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        callback=at_least(1),
        help="Samples per batch of one rank; by default 1, or the global batch that the mix says.",
    ),
]
SplitPart = Annotated[
    str, typer.Option("--split", "--split-part", help="Which split of the mix is read.")
]
Seed = Annotated[int, typer.Option(help="The seed_offset of the run.")]
ShuffleBufferSize = Annotated[
    int | None, typer.Option(callback=at_least(1), help="As in the run, when it keeps reads local.")
]
MaxSamplesPerSequence = Annotated[
    int | None, typer.Option(callback=at_least(1), help="As in the run, when it keeps reads local.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]

_WIDTH_OF_FILES = 120
_LEAST_WIDTH = 12
"""Of a column of text that may be broken into lines."""


def table_console() -> Console:
    """Where tables go: as wide as the terminal, wider than rich's default when there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_OF_FILES)


def print_table(console: Console, table: Table) -> None:
    """Print all columns of a table; a terminal that is too narrow for them breaks the lines."""
    widths = [
        max(cell_len(str(cell)) for cell in (column.header, *column.cells, column.footer))
        if column.no_wrap
        else (column.min_width or _LEAST_WIDTH)
        for column in table.columns
    ]
    console.width = max(console.width, sum(widths) + 3 * len(widths) + 2)
    console.print(table)


def counted_text(number: int, what: str) -> str:
    """A number of things, for people.

    >>> counted_text(1, "step"), counted_text(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def count_text(number: float, digits: int = 0) -> str:
    """A number for people, short also when it is large.

    >>> count_text(1234567), count_text(2.5, 2), count_text(7.2e12)
    ('1,234,567', '2.50', '7.20T')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= 10 * size or (number >= size and unit != "M"):
            return f"{number / size:,.2f}{unit}"
    return f"{number:,.{digits}f}"

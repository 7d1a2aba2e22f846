"""Console output of commands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import rich.console
import typer
from rich.box import SIMPLE_HEAD
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from energize.errors import visible


class Console(rich.console.Console):
    """A console of rich that escapes control characters in names and texts.

    It is at least 120 columns wide, on a terminal 80: a narrower terminal breaks lines
    itself.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)
        self.width = max(self.width, 80 if self.is_terminal else 120)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments to print, with control characters escaped."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)

    def write_line(self, text: str = "", style: str | None = None) -> None:
        """Print a text unchanged, without breaking its lines."""
        self.print(text, style=style, markup=False, soft_wrap=True)

    def note(self, text: str, label: str = "Note", style: str = "yellow") -> None:
        """Print a note on a possible mistake."""
        self.print(Text.assemble((f"{label}:", style), f" {text}"), soft_wrap=True)


def table(
    *columns: str, rows: Iterable[Iterable[object]] = (), title: str | None = None
) -> Table:
    """Return a table of rows; ">" at the start of a column name marks numbers."""
    heading = None if title is None else Text(title)
    result = Table(title=heading, title_justify="left", box=SIMPLE_HEAD)
    for name in columns:
        number = name.startswith(">")
        justify: Any = "right" if number else "left"
        text = Text(name.removeprefix(">"))
        result.add_column(text, justify=justify, no_wrap=number, overflow="fold")
    for cells in rows:
        result.add_row(*(Text(str(cell)) for cell in cells))
    return result


def print_json(tree: Any, indent: int | None = 2) -> None:
    """Print a tree as JSON, without control characters."""
    text = json.dumps(tree, indent=indent, ensure_ascii=False)
    typer.echo(text if visible(text) == text else json.dumps(tree, indent=indent))


def short(number: float, digits: int = 0) -> str:
    """Return a number as a short text.

    >>> short(1234567), short(2.5, 2), short(7.2e12)
    ('1,234,567', '2.50', '7.20T')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= (10 * size if unit == "M" else size):
            return f"{number / size:,.2f}{unit}"
    return f"{number:,.{digits}f}"

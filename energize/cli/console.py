"""Where commands print."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import rich.console
import typer
from rich.cells import cell_len
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from energize.data.nv_meta import CRUDE, DatasetConfig
from energize.errors import visible
from energize.preparation.fields import FirstLook


class Console(rich.console.Console):
    """A console of rich, on which names and texts of folders cannot steer the terminal: of what is
    printed, only what rich itself makes of styles is not written out.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is to be printed, piece by piece."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)


def print_json(tree: Any, indent: int | None = 2) -> None:
    """Print a tree for programs, in letters that steer no terminal either."""
    text = json.dumps(tree, indent=indent, ensure_ascii=False)
    typer.echo(text if visible(text) == text else json.dumps(tree, indent=indent))


OnProgress = Callable[[int, int], None]
"""Called with how much is done, and how much there is."""

_REDRAW_SECONDS = 0.1


@contextmanager
def progress_bar(console: Console, what: str, *, shown: bool = True) -> Iterator[OnProgress]:
    """A bar called `what` while the block runs, where it is a terminal.

    This thread alone draws it, for worker processes may be forked while it is there.
    """
    bar = Progress(
        TextColumn(what, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not shown or not console.is_terminal,
        auto_refresh=False,
    )
    task = bar.add_task("", total=None)
    drawn = -_REDRAW_SECONDS

    def advance(done: int, total: int) -> None:
        nonlocal drawn
        due = done == total or time.monotonic() - drawn > _REDRAW_SECONDS
        bar.update(task, completed=done, total=total, refresh=due)
        if due:
            drawn = time.monotonic()

    with bar:
        yield advance


def show_samples(console: Console, shard: str, look: FirstLook) -> None:
    """Keys, parts, sizes and the start of texts of the first samples of a shard."""
    table = Table(title=Text(f"First samples of {shard}"), title_justify="left")
    for column in ("key", "part", "size", "content"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for key, parts in look.shown():
        for i, (name, size, start) in enumerate(parts):
            table.add_row(Text(key if i == 0 else ""), Text(name), size_text(size), Text(start))
        table.add_section()
    console.print(table)


def show_splits(
    console: Console, splits: Mapping[str, Sequence[str]], shard_counts: Mapping[str, int]
) -> None:
    """Shards, samples and share of the samples of each split."""
    total = sum(shard_counts.values())
    table = Table("split")
    for column in ("shards", "samples", "share"):
        table.add_column(column, justify="right")
    for part, shards in splits.items():
        samples = sum(shard_counts.get(shard, 0) for shard in shards)
        share = f"{100 * samples / total:.1f} %" if total else "-"
        table.add_row(Text(part), f"{len(shards):,}", f"{samples:,}", share)
    console.print(table)


def show_config(console: Console, config: DatasetConfig) -> None:
    """The sample type, and from which part each field comes."""
    crude = "crude: plain dicts, for a task encoder that takes them"
    console.print(
        "Samples:", crude if config.sample_class == CRUDE else config.sample_class, markup=False
    )
    for name, source in (config.field_map or {}).items():
        console.print(f"  {name} from {source}", markup=False)
    for name, value in config.code.items():
        told = f"{value}, code of the folder" if isinstance(value, str) else ", ".join(value)
        console.print(f"  {name}: {told}", markup=False)


def show_note(console: Console, note: str) -> None:
    """Something that may be a mistake."""
    console.print("Note:", style="yellow", end=" ")
    console.print(note, markup=False)


def show_lines(console: Console, lines: Iterable[str]) -> None:
    """Lines as they are."""
    for line in lines:
        console.print(line, markup=False)


def size_text(size: float) -> str:
    """A number of bytes for people.

    >>> size_text(123456)
    '120.6 KiB'
    """
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


_WIDTH_OF_FILES = 120
_LEAST_WIDTH = 12
"""Of a column of text that may be broken into lines."""


def table_console() -> Console:
    """Where tables go: as wide as the terminal, wider than rich's default when there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_FILES)


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


def waiting(text: str) -> AbstractContextManager[object]:
    """A spinner with `text` while there is nothing to show yet, and gone afterwards.

    It is for people alone: rich takes a pipe for a terminal too when FORCE_COLOR is set.
    """
    return Console(stderr=True).status(text) if sys.stderr.isatty() else nullcontext()

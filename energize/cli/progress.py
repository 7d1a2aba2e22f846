"""A bar that shows how far a command is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from energize.cli.console import Console

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

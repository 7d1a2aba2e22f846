"""The options that say what a run reads, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = [
    "AsJson",
    "BatchSize",
    "MaxSamplesPerSequence",
    "MixPath",
    "Seed",
    "ShuffleBufferSize",
    "SplitPart",
    "Steps",
    "count_text",
    "table_console",
]

MixPath = Annotated[
    Path, typer.Argument(metavar="MIX", help="A metadataset file, or a prepared folder.")
]
Steps = Annotated[int, typer.Option(help="How many steps: batches of all ranks together.")]
BatchSize = Annotated[int, typer.Option(help="Samples per batch of one rank.")]
SplitPart = Annotated[
    str, typer.Option("--split", "--split-part", help="Which split of the mix is read.")
]
Seed = Annotated[int, typer.Option(help="The seed_offset of the run.")]
ShuffleBufferSize = Annotated[
    int | None, typer.Option(help="As in the run, when it keeps reads local.")
]
MaxSamplesPerSequence = Annotated[
    int | None, typer.Option(help="As in the run, when it keeps reads local.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]

_WIDTH_OF_FILES = 120


def table_console() -> Console:
    """Where tables go: as wide as the terminal, wider than rich's default when there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_OF_FILES)


def count_text(number: float, digits: int = 0) -> str:
    """A number for people, short also when it is large.

    >>> count_text(1234567), count_text(2.5, 2), count_text(7.2e12)
    ('1,234,567', '2.50', '7.20T')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= 10 * size or (number >= size and unit != "M"):
            return f"{number / size:,.2f}{unit}"
    return f"{number:,.{digits}f}"

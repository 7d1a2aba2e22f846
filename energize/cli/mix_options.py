"""The options that say what a run reads, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.table import Table

from energize.cli.console import Console
from energize.core.checks import checked_whole
from energize.core.dataset import IndexedDataset
from energize.core.stream import INFINITE
from energize.datasets.stages import StagedDataset
from energize.errors import ConfigError
from energize.preview.asked import AskedMix, read_mix


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
MaybeSteps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        callback=at_least(1),
        help="How many steps: batches of all ranks together; by default all, where the mix ends.",
    ),
]
Validation = Annotated[
    bool | None,
    typer.Option(
        "--validation/--training",
        show_default=False,
        help="Read every sample once, as get_val_dataset, or as get_train_dataset does; by default "
        "the first for splits called val or test.",
    ),
]
EncoderPerType = Annotated[
    bool,
    typer.Option(
        "--encoder-per-type",
        help="The run has a task encoder for each type of samples, and blends whole batches.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]

_WIDTH_OF_FILES = 120
_LEAST_WIDTH = 12
"""Of a column of text that may be broken into lines."""


_VALIDATED = ("val", "test")


def given_mix(
    path: Path,
    split: str,
    validation: bool | None,
    **options: Any,
) -> AskedMix:
    """What options say is read; `ConfigError` for those that do not go together."""
    validates = split in _VALIDATED if validation is None else validation
    for name in ("shuffle_buffer_size", "max_samples_per_sequence"):
        if validates and options[name] is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} keeps the reads of training local, and the split "
                f"{split!r} is read as validation does, in stored order; leave it out, or give "
                "--training"
            )
        if validates:
            options.pop(name)
    return read_mix(path, split_part=split, validates=validates, **options)


def steps_of(dataset: IndexedDataset[Any], asked: int | None) -> int:
    """As many steps as were asked for, else all; `ConfigError` where there is no end."""
    if asked is not None:
        return asked
    if dataset.indexed and dataset.size == INFINITE:
        last = dataset.plan.stages[-1].name if isinstance(dataset, StagedDataset) else None
        what = "this mix never ends" if last is None else f"its last stage, {last!r}, has no end"
        raise ConfigError(f"{what}; say with --steps how many steps to look at")
    return dataset.size


def said_of_types(mix: AskedMix, *, encoder_per_type: bool) -> str | None:
    """What to know of a mix with samples of several types, in which the run may differ."""
    if encoder_per_type or len(mix.types) < 2:
        return None
    return (
        f"the samples are of {len(mix.types)} types, {', '.join(mix.types)}. This is what one task "
        "encoder for all of them is given; for a run with one for each type, which blends whole "
        "batches, give --encoder-per-type"
    )


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

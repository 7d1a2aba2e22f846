"""`energize checkpoint`: what saved states hold, and states for other numbers of ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.prompt import IntPrompt

from energize.cli.console import Console
from energize.cli.mix_options import table_console
from energize.cli.saved_states import (
    SavedState,
    checked_ranks,
    one_of,
    read_states,
    write_state,
)
from energize.cli.state_views import show_states
from energize.core.lanes import Ranks
from energize.data.writing import writing
from energize.errors import ConfigError
from energize.loader.feeds import StreamState, checked_lanes
from energize.loader.state import cursor_of

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look into saved states, and write them for other numbers of ranks.",
)

Inputs = Annotated[
    list[Path], typer.Argument(metavar="IN...", help="Files of states, or folders of such.")
]


@app.command("info")
def info(files: Inputs) -> None:
    """Show what the saved states of a loader hold: where it stood, and over which dataset."""
    states = read_states(files)
    console = table_console()
    groups: dict[Any, list[SavedState]] = {}
    for each in states:
        groups.setdefault(each.decides, []).append(each)
    for alike in groups.values():
        show_states(console, alike)


@app.command("redist")
def redist(
    files: Inputs,
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write to.")],
    *,
    new_world_size: Annotated[
        int | None, typer.Option(help="How many ranks will load the states.")
    ] = None,
    force_overwrite: Annotated[
        bool, typer.Option("--force-overwrite", help="Write over the states given, too.")
    ] = False,
) -> None:
    """Write the states of a run for another number of ranks.

    States of energize need none of this: every rank of any world loads the state of any rank.
    """
    console = Console(soft_wrap=True)
    states = read_states(files)
    found = one_of(states)
    if new_world_size is None:
        new_world_size = _asked()
    _check_fits(found, checked_ranks(new_world_size))
    names = _names([each.file.name for each in states], new_world_size)
    if output.exists() and not output.is_dir():
        raise ConfigError(f"{output} is a file; OUT is the folder to write to")
    own = {each.file.resolve() for each in states}
    there = [name for name in names if (output / name).resolve() in own]
    if there and not force_overwrite:
        raise ConfigError(
            f"{output / there[0]} is one of the states given; write to another folder, or give "
            "--force-overwrite"
        )
    with writing(output, ConfigError):
        output.mkdir(parents=True, exist_ok=True)
    for name in names:
        write_state(found, output / name, new_world_size)
    wrote = f"{len(names)} files, from {names[0]} to {names[-1]}" if names[1:] else names[0]
    console.print(f"Wrote {wrote} to {output}", markup=False)
    console.print(
        "It was not needed: a state of energize resumes any number of ranks and workers, so every "
        "rank can load the one that was there."
    )


def _asked() -> int:
    try:
        return IntPrompt.ask("New world size")
    except EOFError:
        raise ConfigError("please give --new-world-size, the number of ranks") from None


def _check_fits(found: SavedState, ranks: int) -> None:
    """Raises `ConfigError` where so many ranks cannot share out the lanes of a stream."""
    cursor = cursor_of(found.state)
    if "lanes" in cursor:
        checked_lanes(StreamState.loaded(cursor).lanes, Ranks(0, ranks))


def _names(names: Sequence[str], ranks: int) -> list[str]:
    """A file name for each rank, by the number in which those given differ, or that stands after
    the word rank; where there is none, a single one that all ranks load.

    >>> _names(["run2_08.pt", "run2_09.pt"], 3)
    ['run2_08.pt', 'run2_09.pt', 'run2_10.pt']
    >>> _names(["rank0_step100.pt"], 2), _names(["step100.pt"], 2)
    (['rank0_step100.pt', 'rank1_step100.pt'], ['step100.pt'])
    """
    split = [re.split(r"(\d+)", name) for name in dict.fromkeys(names)]
    first = split[0]
    numbers = range(1, len(first), 2)
    telling = [i for i in numbers if len({tuple(each[i : i + 1]) for each in split}) > 1]
    telling = telling or [i for i in numbers if re.search(r"rank[-_=.]?$", first[i - 1], re.I)]
    if not telling:
        return [names[0]]
    at = telling[-1]
    width, start = len(first[at]), int(first[at])
    return [
        "".join([*first[:at], str(start + rank).zfill(width), *first[at + 1 :]])
        for rank in range(ranks)
    ]

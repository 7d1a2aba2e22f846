"""`energize cache`: the node cache of this machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

import numpy as np
import typer
from rich.filesize import decimal

from energize.cli import mixes
from energize.cli.console import Console
from energize.core.arrays import rows_by_value
from energize.core.dataset import IndexedDataset
from energize.core.node import Refs
from energize.core.os_errors import is_url
from energize.core.progress import counted, progress
from energize.core.trace import AHEAD, Ahead
from energize.data.fetching import missing
from energize.data.nodecache import NodeCache, Range
from energize.data.remote import files
from energize.errors import ConfigError
from energize.report.forecast import indexed

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Show, fill or clear the node cache of this machine.",
)


@app.command()
def status() -> int:
    """Show the location, use and limit of the node cache."""
    cache = NodeCache()
    usage = cache.status()
    used, limit, free = (decimal(usage[name]) for name in ("used", "limit", "free"))
    contents = (
        f"{counted(usage['sections'], 'section')} of "
        f"{counted(usage['objects'], 'object')}"
    )
    Console().write_line(
        f"{cache.folder}: {used} of at most {limit}, {contents}; {free} free on "
        "its disk"
    )
    return usage["sections"]


@app.command()
@mixes.takes_run
def warm(
    mix: mixes.MixPath,
    run: mixes.RunOptions,
    *,
    steps: Annotated[
        int,
        typer.Option(
            min=1, help="Number of first batches to fetch, of all ranks together."
        ),
    ],
) -> None:
    """Fetch the data of the first steps of a run in advance; nothing is decoded.

    Exits with 1 if some data are not in the cache afterwards: they exceed the limit, or
    cannot be written.
    """
    dataset = run.read(mix)
    indexed(dataset, "cache warm")
    if not any(source.remote for source in dataset.sources):
        raise ConfigError(f"{mix} is on this machine: nothing to fetch")
    ahead = Ahead(dataset, samples=8 * AHEAD)
    size = max(1, AHEAD // int(dataset.consumed(1).sum()))
    advance = progress("Fetching")
    spans = defaultdict[str, set[Range]](set)
    for start in range(0, steps, size):
        ahead(start, lambda turns: turns[turns < steps])
        refs = dataset.refs(np.arange(start, min(start + size, steps)))
        for path, first, last in _read_ranges(dataset, refs):
            if is_url(path):
                spans[path].add((first, last))
        advance(min(start + size, steps), steps)
    status()
    needed = sum(stop - start for ranges in spans.values() for start, stop in ranges)
    if lost := sum(missing(path, files().stat(path), spans[path]) for path in spans):
        Console().note(
            f"of {decimal(needed)} that these steps read, {decimal(lost)} are not kept"
        )
        raise typer.Exit(1)


def _read_ranges(
    dataset: IndexedDataset[Any], refs: Refs
) -> Iterator[tuple[str, int, int]]:
    """Read samples; yield the file, start and stop of the bytes of each sample."""
    for number, rows in rows_by_value(refs.source):
        source = dataset.sources[number]
        indices = np.unique(refs.index[rows])
        source.read(indices)
        yield from chain.from_iterable(map(source.byte_ranges, indices.tolist()))


@app.command()
def clear() -> None:
    """Clear the node cache; running programs fetch again."""
    sections = status()
    NodeCache().clear()
    if 0 < sections <= status():
        Console().note(
            "nothing could be removed: this user may not, or the disk is read-only"
        )
        raise typer.Exit(1)

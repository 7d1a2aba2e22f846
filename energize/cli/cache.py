"""`energize cache`: the node cache of this machine."""

from __future__ import annotations

import typer
from rich.filesize import decimal

from energize.cli.console import Console, counted
from energize.data.nodecache import NodeCache

app = typer.Typer(no_args_is_help=True, help="Look at the node cache of this machine, empty it.")


@app.command()
def status() -> None:
    """Show where the node cache is, how much it has and may have."""
    cache = NodeCache()
    found = cache.status()
    used, limit, free = (decimal(found[each]) for each in ("used", "limit", "free"))
    what = f"{counted(found['sections'], 'section')} of {counted(found['objects'], 'object')}"
    Console().say(f"{cache.folder}: {used} of at most {limit}, {what}; {free} free on its disk")


@app.command()
def clear() -> None:
    """Remove what the node cache has; programs that use it meanwhile fetch again."""
    NodeCache().clear()
    status()

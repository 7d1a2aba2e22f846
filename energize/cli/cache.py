"""`energize cache`: the node cache of this machine."""

from __future__ import annotations

import typer
from rich.filesize import decimal

from energize.cli.console import Console, counted, print_json
from energize.cli.mixes import AsJson
from energize.data.nodecache import NodeCache

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look at the node cache, in which this machine keeps what it fetched; empty it.",
)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show where the node cache is, how much it has and may have."""
    found = NodeCache().status()
    if as_json:
        print_json(found._asdict())
        return
    parts = f"{counted(found.sections, 'section')} of {counted(found.objects, 'object')}"
    console = Console()
    console.say(f"{found.folder}: {decimal(found.used)} of at most {decimal(found.limit)}, {parts}")
    console.say(f"{decimal(found.free)} are free on its disk")
    for name in found.older:
        console.note(f"{name} is of an older version; `energize cache clear` removes it")


@app.command()
def clear() -> None:
    """Remove all that the node cache has; programs that use it meanwhile fetch again."""
    cache = NodeCache()
    before = cache.status()
    cache.clear()
    left = cache.status()
    console = Console()
    console.say(f"{before.folder}: removed {decimal(max(0, before.used - left.used))}")
    if left.sections or left.older:
        console.note(f"{decimal(left.used)} are left: of another user, or fetched meanwhile")

"""`energize`: the commands, and how errors are shown."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from energize.cli.info import info
from energize.cli.plan import plan
from energize.cli.prepare import prepare
from energize.cli.schema import schema
from energize.cli.simulate import simulate
from energize.errors import EnergizeError


class _Commands(TyperGroup):
    """Errors of energize are one message, without the traceback that means nothing to a user."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EnergizeError as reason:
            if ctx.params.get("debug"):
                raise
            errors = Console(stderr=True, highlight=False, soft_wrap=True)
            errors.print("Error:", style="bold red", end=" ")
            errors.print(str(reason), markup=False)
            sys.exit(1)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Prepare data sets for energize, and see what a run will read of them.",
)
app.command("prepare")(prepare)
app.command("info")(info)
app.command("plan")(plan)
app.command("simulate")(simulate)
app.command("schema")(schema)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"energize {version('energize')}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    show_version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Show the version.", callback=_print_version),
    ] = False,
) -> None:
    """Options before the command; `debug` is read where errors are shown."""
    del debug, show_version

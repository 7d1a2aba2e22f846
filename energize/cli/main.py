"""`energize`: the commands, and how errors are shown."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from energize.cli import checkpoint, elsewhere, state
from energize.cli.console import Console
from energize.cli.imports import imported
from energize.cli.info import info
from energize.cli.lint import lint
from energize.cli.plan import plan
from energize.cli.prepare import prepare
from energize.cli.prepare_media import prepare_media
from energize.cli.preview import preview
from energize.cli.replay import replay
from energize.cli.report import report
from energize.cli.schema import schema
from energize.cli.simulate import simulate
from energize.data.files import os_errors_as
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EnergizeError,
    MetadatasetError,
    UntrustedCodeError,
)

_FAULTS, _USAGE = 1, 2
"""How commands end: 0 when all is well, 1 when something is wrong with the data, 2 when the command
was given something that cannot be used.
"""

_HELP = {"help_option_names": ["-h", "--help"]}


class _Commands(TyperGroup):
    """Errors of energize are one message, without the traceback that means nothing to a user."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with os_errors_as(DatasetError, what="cannot be used"):
                return super().invoke(ctx)
        except EnergizeError as reason:
            if ctx.params.get("debug"):
                raise
            errors = Console(stderr=True, soft_wrap=True)
            errors.print("Error:", style="bold red", end=" ")
            errors.print(str(reason), markup=False)
            if isinstance(reason, UntrustedCodeError):
                errors.print(
                    "Here: energize --import MODULE COMMAND, or COMMAND --trust-code FOLDER"
                )
            sys.exit(_exit_code(reason))


def _exit_code(reason: EnergizeError) -> int:
    """That of a command that ended with this error."""
    given = isinstance(reason, ConfigError) and not isinstance(reason, MetadatasetError)
    return _USAGE if given or isinstance(reason, DatasetNotFoundError) else _FAULTS


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
    help="Prepare data sets for energize, look into them, and see what a run will read.",
)
app.command("prepare")(prepare)
app.command("prepare-media")(prepare_media)
app.command("info")(info)
app.command("lint")(lint)
app.command("preview")(preview)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(state.app, name="state")
app.command("plan")(plan)
app.command("simulate")(simulate)
app.command("report")(report)
app.command("replay")(replay)
app.command("schema")(schema)
elsewhere.add_to(app)


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
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            help="A module, or FILE.py, of the program whose sample types and joiners data name.",
        ),
    ] = None,
) -> None:
    """Options before the command; `debug` is read where errors are shown."""
    del debug, show_version
    for name in modules or ():
        imported(name, "--import")

"""`energize`: the commands, and the display of errors.

The module of a command is imported when the command is run: `energize --help` imports
none of them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from energize.cli.console import Console
from energize.core.os_errors import os_errors_as
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EnergizeError,
    MetadatasetError,
    UntrustedCodeError,
)

_FAULTS = 1
_USAGE = 2
"""Exit code of wrong arguments."""


class _CommandEntry(NamedTuple):
    """A command that is imported when it is used.

    Attributes:
        module: The module, in `energize.cli`.
        name: The function or group in the module.
        summary: The first sentence of its help.
    """

    module: str
    name: str
    summary: str


COMMANDS: Mapping[str, _CommandEntry] = {
    "init": _CommandEntry(
        "init",
        "init",
        "Write the inferred settings of data as a metadataset, with comments.",
    ),
    "prepare": _CommandEntry(
        "prepare",
        "prepare",
        "Index a folder of tar shards, and write its splits and its sample type.",
    ),
    "prepare-media": _CommandEntry(
        "prepare",
        "prepare_media",
        "Store width, height, duration and other metadata of all media, for stores.",
    ),
    "convert": _CommandEntry(
        "prepare",
        "convert",
        "Convert loose files to a prepared folder of tar shards, with the same order.",
    ),
    "convert-recipe": _CommandEntry(
        "recipes",
        "convert_recipe",
        "Print the metadataset that a mixture file of another project stands for.",
    ),
    "info": _CommandEntry(
        "look",
        "info",
        "Show samples, shards, splits and fields of a folder, or the parts of a mix.",
    ),
    "lint": _CommandEntry(
        "lint",
        "lint",
        "Read, decode and type every sample of every split; exit with 1 for any fault.",
    ),
    "preview": _CommandEntry(
        "look",
        "preview",
        "Show stored samples field by field, or with --html, batches of a run.",
    ),
    "serve": _CommandEntry(
        "pages",
        "serve",
        "Show the batches of any step of a run in a local browser, until Ctrl-C.",
    ),
    "plan": _CommandEntry(
        "look",
        "plan",
        "Show the samples and sources of the batches of some steps, and their "
        "efficiency.",
    ),
    "simulate": _CommandEntry(
        "look",
        "simulate",
        "Show what a long run reads of each source, and when sources begin to repeat.",
    ),
    "report": _CommandEntry(
        "state",
        "report",
        "Show the progress of a run at a saved state, and the samples of each source.",
    ),
    "replay": _CommandEntry(
        "look",
        "replay",
        "Show one sample or batch of a run again: its fields, and its source files.",
    ),
    "blame": _CommandEntry(
        "blame", "blame", "Show the samples of the batches of a step, and their losses."
    ),
    "profile": _CommandEntry(
        "profile",
        "profile",
        "Measure the stage that limits a run, and how many workers it needs.",
    ),
    "schema": _CommandEntry(
        "files", "schema", "Print the JSON schema of metadataset files."
    ),
    "manifest": _CommandEntry(
        "files",
        "manifest",
        "Write the small files of all folders of a mix into one file beside it.",
    ),
    "trust": _CommandEntry(
        "files",
        "trust",
        "Trust the present code of a prepared folder: sample loaders and part filters.",
    ),
    "state": _CommandEntry(
        "state",
        "app",
        "Inspect saved states, compare them with a mix, or move them to an edited mix.",
    ),
    "cache": _CommandEntry(
        "cache", "app", "Show, fill or clear the node cache of this machine."
    ),
    "checkpoint": _CommandEntry(
        "state", "checkpoint", "Same as `state`, with the names of Megatron-Energon."
    ),
}
"""The commands by name, in the order of the help."""


def load_command(name: str) -> Any:
    """Import a command of `COMMANDS`.

    Args:
        name: The name of the command.

    Returns:
        The command, or the group of commands.

    Example:
        >>> load_command("plan").name
        'plan'
    """
    entry = COMMANDS[name]
    target = getattr(import_module(f"energize.cli.{entry.module}"), entry.name)
    command: Any
    if isinstance(target, typer.Typer):
        command = typer.main.get_group(target)
    else:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command()(target)
        command = typer.main.get_command(app)
    command.name = name
    return command


class _Commands(TyperGroup):
    """Imports commands when they are run, and prints errors of energize as one message.

    For the help, a command is its summary.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(
                name, help=entry.summary, short_help=entry.summary
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of a command, the imported command, and its arguments."""
        name, _, arguments = super().resolve_command(ctx, args)
        return name, None if name is None else load_command(name), arguments

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command; characters that the terminal lacks are escaped."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with os_errors_as(DatasetError, fault="cannot be used"):
                return super().invoke(ctx)
        except EnergizeError as reason:
            if ctx.params.get("debug"):
                raise
            errors = Console(stderr=True)
            errors.note(str(reason), "Error", "bold red")
            if isinstance(reason, UntrustedCodeError):
                errors.write_line(
                    "Here: energize --import MODULE COMMAND, COMMAND --trust-code "
                    "FOLDER, or once and for all programs: energize trust FOLDER"
                )
            is_usage = isinstance(reason, ConfigError) and not isinstance(
                reason, MetadatasetError
            )
            missing = isinstance(reason, DatasetNotFoundError)
            sys.exit(_USAGE if is_usage or missing else _FAULTS)


app = typer.Typer(
    cls=_Commands,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=("Prepare datasets, inspect them, and show what a run reads."),
)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"energize {version('energize')}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors.")
    ] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Show the version.", callback=_print_version
        ),
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            help=(
                "Module, or FILE.py, with sample types and joiners that the data use."
            ),
        ),
    ] = None,
) -> None:
    """Read the options before the command."""
    del debug, show_version
    for name in modules or ():
        import_module("energize.cli.mixes").imported(name, "--import")

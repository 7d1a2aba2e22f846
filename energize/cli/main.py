"""`energize`: the commands, and the display of errors."""

from __future__ import annotations

import io
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from energize.cli import cache, mixes, state
from energize.cli.blame import blame
from energize.cli.console import Console
from energize.cli.init import init
from energize.cli.lint import lint
from energize.cli.look import info, plan, preview, replay, simulate
from energize.cli.mixes import imported
from energize.cli.pages import serve
from energize.cli.prepare import convert, prepare, prepare_media
from energize.cli.profile import profile
from energize.core.os_errors import os_errors_as
from energize.data import trust as trusting
from energize.data.files import Documents, manifest_path, path_of
from energize.data.manifest import dump_manifest, read_manifest
from energize.data.stores import open_store
from energize.data.writing import write_new
from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    EnergizeError,
    MetadatasetError,
    UntrustedCodeError,
)
from energize.metadataset.models import json_schema

_FAULTS = 1
_USAGE = 2
"""Exit code of wrong arguments."""


class _Commands(TyperGroup):
    """Prints an error of energize as one message, without a traceback."""

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
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=("Prepare datasets, inspect them, and show what a run reads."),
)
_looking = (preview, serve, plan, simulate, state.report, replay, blame, profile)
for command in (init, prepare, prepare_media, convert, info, lint, *_looking):
    app.command()(command)
app.add_typer(state.app, name="state")
app.add_typer(cache.app, name="cache")


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
        imported(name, "--import")


@app.command()
def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            parser=path_of,
            help="Write to this file instead of the screen.",
        ),
    ] = None,
) -> None:
    """Print the JSON schema of metadataset files.

    Editors complete and check a file with this first line:

    # yaml-language-server: $schema=metadataset.schema.json
    """
    text = json.dumps(json_schema(), indent=2)
    if output is None:
        typer.echo(text)
        return
    write_new(output, f"{text}\n".encode(), ConfigError)
    typer.echo(f"Wrote {output}")


@app.command()
def manifest(
    mix: Annotated[Path, mixes.path_argument("A metadataset (.yaml).", "MIX")],
) -> None:
    """Write the small files of all folders of a mix into one file beside it.

    With many ranks, each rank then opens mix.yaml with mix.manifest.json instead of
    four files of every folder. Write it again if folders, or files that the mix
    includes, have changed: rank 0 refuses an outdated one.
    """
    if mix.is_dir():
        raise ConfigError(
            f"{mix} is not a file of a mix. A single folder needs no manifest"
        )
    with Documents().used() as documents:
        stored = mixes.Stored()
        for split in stored.splits(mix):
            for leaf in stored.leaves(mix, split):
                source = leaf.source()
                name = mixes.leaf_name(leaf)
                columns = len(source.column_names)
                typer.echo(f"Read {name}: {source.count:,} samples, {columns} columns")
                for ref in leaf.aux.values():
                    open_store(ref)
    text, count = dump_manifest(mix, documents)
    if not count:
        raise ConfigError(f"{mix} reads no other small files, so it needs no manifest")
    write_new(manifest_path(mix), text.encode(), ConfigError)
    read_manifest(mix)  # which says if it is too large
    typer.echo(f"Wrote {manifest_path(mix)}: {count} files, {len(text):,} bytes")


@app.command()
def trust(
    folder: Annotated[
        Path | None, mixes.path_argument("A prepared folder with code in its .nv-meta.")
    ] = None,
    forgotten: Annotated[
        bool, typer.Option("--forget", help="Stop trusting the folder.")
    ] = False,
) -> None:
    """Trust the present code of a prepared folder: sample loaders and part filters.

    Programs may run it from now on. Code that changes must be trusted again. Without a
    folder, trusted folders are listed.
    """
    if folder is None:
        for entry in sorted(trusting.trusted_folders()) or ["no folder is trusted"]:
            typer.echo(entry)
    elif forgotten:
        trusting.forget(folder)
        typer.echo(f"{folder} is not trusted any more")
    else:
        for file in trusting.trust(folder):
            typer.echo(f"Trusted {file}")


# A command of Megatron-Energon by its name.

checkpoint = typer.Typer(
    no_args_is_help=True, help="Same as `state`, with the names of Megatron-Energon."
)
checkpoint.command("info")(state.show)
app.add_typer(checkpoint, name="checkpoint")

"""`energize`: the commands, and how errors are shown."""

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
"""How commands end: 0 when all is well, 1 when something is wrong with the data, 2 when
the command was given something that cannot be used.
"""


class _Commands(TyperGroup):
    """Errors of energize are one message, without the traceback that means nothing to a
    user.
    """

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command; what the encoding of the terminal lacks is printed as its
        escapes.
        """
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
    help="Prepare data sets for energize, look into them, and see what a run will "
    "read.",
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
            help="A module, or FILE.py, of the program whose sample types and joiners "
            "data name.",
        ),
    ] = None,
) -> None:
    """Options before the command; `debug` is read where errors are shown."""
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
            help="Write to this file, not to the screen.",
        ),
    ] = None,
) -> None:
    """Print the JSON schema of metadataset files.

    Editors complete and check a file that names it in its first line:

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
    mix: Annotated[Path, mixes.path_argument("A metadataset, a .yaml file.", "MIX")],
) -> None:
    """Write the small files of all folders of a mix into one beside it, for runs of
    many ranks.

    Each rank opens mix.yaml by mix.manifest.json then, instead of four files of every
    folder. Write it again when folders, or files that the mix includes, were changed:
    rank 0 refuses a stale one.
    """
    if mix.is_dir():
        raise ConfigError(
            f"{mix} is no file of a mix; a single folder is opened as quickly"
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
        raise ConfigError(
            f"{mix} reads no small files but itself: it needs no manifest"
        )
    write_new(manifest_path(mix), text.encode(), ConfigError)
    read_manifest(mix)  # which says if it is too large
    typer.echo(f"Wrote {manifest_path(mix)}: {count} files, {len(text):,} bytes")


@app.command()
def trust(
    folder: Annotated[
        Path | None, mixes.path_argument("A prepared folder with code in its .nv-meta.")
    ] = None,
    forgotten: Annotated[
        bool, typer.Option("--forget", help="Trust it no longer.")
    ] = False,
) -> None:
    """Trust the code in a prepared folder, as it is now: sample loaders and part
    filters.

    Programs may run it from now on, without a change. Code that is changed has to be
    trusted anew. Without a folder, those that are trusted are listed.
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
    no_args_is_help=True, help="As `state`, by Megatron-Energon's names."
)
checkpoint.command("info")(state.show)
app.add_typer(checkpoint, name="checkpoint")

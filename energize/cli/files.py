"""`energize schema`, `energize manifest` and `energize trust`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from energize.cli import mixes
from energize.data import trust as trusting
from energize.data.files import Documents, manifest_path, path_of
from energize.data.manifest import dump_manifest, read_manifest
from energize.data.stores import open_store
from energize.data.writing import write_new
from energize.errors import ConfigError
from energize.metadataset.models import json_schema


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


def trust(
    folder: Annotated[
        Path | None, mixes.path_argument("A prepared folder with code in its .nv-meta.")
    ] = None,
    forgotten: Annotated[
        bool, typer.Option("--forget", help="Stop trusting the folder.")
    ] = False,
    pickles: Annotated[
        bool, typer.Option(help="Also unpickle its .pickle and .pyd parts.")
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
        for file in trusting.trust(folder, pickles=pickles):
            typer.echo(f"Trusted {file}")
        if pickles:
            typer.echo(f"Trusted the pickles of {folder}")

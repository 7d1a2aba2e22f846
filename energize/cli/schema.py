"""`energize schema`: the grammar of metadatasets, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from energize.compat import stage_files
from energize.data.writing import write_new
from energize.errors import ConfigError
from energize.metadataset.documents import json_schema


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file, not to the screen.")
    ] = None,
    stages: Annotated[
        bool, typer.Option("--stages", help="The schema of stage files instead.")
    ] = False,
) -> None:
    """Print the JSON schema of metadataset files.

    Editors complete and check a file that names it in its first line:

    # yaml-language-server: $schema=metadataset.schema.json
    """
    text = json.dumps(stage_files.json_schema() if stages else json_schema(), indent=2)
    if output is None:
        typer.echo(text)
        return
    write_new(output, f"{text}\n".encode(), ConfigError)
    typer.echo(f"Wrote {output}")

"""`energize schema`: the grammar of metadatasets, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from energize.errors import ConfigError
from energize.metadataset import stages_schema
from energize.metadataset.schema import json_schema

__all__ = ["schema"]


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
    text = json.dumps(stages_schema.json_schema() if stages else json_schema(), indent=2)
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as reason:
        raise ConfigError(f"--output: {output} cannot be written: {reason.strerror}") from reason
    typer.echo(f"Wrote {output}")

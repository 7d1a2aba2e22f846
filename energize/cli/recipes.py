"""`convert-recipe`: mixture files of other projects as metadatasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml
from typer import Option

from energize.data.files import path_of
from energize.data.writing import write_new
from energize.errors import ConfigError
from energize.metadataset.documents import read_metadataset
from energize.metadataset.resolver import as_mix


def convert_recipe(
    file: Annotated[
        str,
        typer.Argument(
            help="A mixture file of LLaVA-NeXT, InternVL, Eagle, Qwen-VL and others."
        ),
    ],
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            parser=path_of,
            help="Write to this file instead of the screen.",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        Option(
            "--option",
            help="An option of the original's command line: NAME=VALUE.",
        ),
    ] = None,
) -> None:
    """Print the metadataset that a mixture file of another project stands for.

    Loaded, it gives the same samples in the same order.
    """
    recipe = read_metadataset(as_mix(file, "train"), _options(options or [])).recipe
    if recipe is None:
        raise ConfigError(f"{file} is a metadataset already")
    lines = [f"# From {file}, a recipe of {recipe.format}."]
    lines += [f"# {note}." for note in recipe.notes]
    content = yaml.safe_dump(recipe.document, sort_keys=False, allow_unicode=True)
    text = "\n".join([*lines, content])
    if output is None:
        typer.echo(text.rstrip())
        return
    write_new(output, text.encode(), ConfigError)
    typer.echo(f"Wrote {output}")


def _options(texts: list[str]) -> dict[str, object]:
    """Return options by name; values are read as YAML reads them."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise ConfigError(f"--option: expected NAME=VALUE, got {name!r}")
    return {name: yaml.safe_load(value) for name, _, value in pairs}

"""`energize init`: write inferred settings of data as a metadataset."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
import yaml
from typer import Option

from energize.cli import mixes
from energize.data.files import path_of
from energize.data.writing import write_new
from energize.errors import ConfigError
from energize.inference.engine import infer_parts
from energize.inference.options import DataOptions
from energize.inference.spec import DataSpec

_HEAD = """\
# Written by `energize init`: what was inferred of the data. Correct what is wrong, and
# train with this file. Data that differ from `inferred` are an error; without that key
# they are not compared.
{notes}__module__: energize
__class__: MetadatasetV2
splits:
"""


def init(
    data: Annotated[
        list[Path], mixes.path_argument("Folders and files of samples.", "DATA...")
    ],
    output: Annotated[
        Path | None,
        Option("--output", "-o", parser=path_of, help="Write to this file."),
    ] = None,
) -> None:
    """Write the inferred settings of data as a metadataset, with comments.

    Without --output, it is printed.
    """
    folder = Path.cwd() if output is None else output.absolute().parent
    text = metadataset_text(data, folder)
    if output is None:
        typer.echo(text, nl=False)
        return
    write_new(output, text.encode(), ConfigError)
    typer.echo(f"Wrote {output}")


def metadataset_text(data: list[Path], folder: Path) -> str:
    """Return a metadataset of paths, for a file in a folder.

    Args:
        data: Folders and files of samples that are not prepared.
        folder: Folder of the file; paths below it are written relative to it.

    Returns:
        YAML with a split for each split part, and comments on inferred settings.

    Raises:
        DatasetError: For data that cannot be read as they are, with the line to write.
    """
    splits: dict[str, list[DataSpec]] = {}
    notes: list[str] = []
    for path in data:
        inferred = infer_parts(path, DataOptions())
        notes += [line for note in inferred.notes for line in note.splitlines()]
        for part, spec in inferred.specs.items():
            splits.setdefault(part, []).append(spec)
    text = _HEAD.format(notes="".join(f"# {line}\n" for line in notes))
    for part, specs in splits.items():
        text += f"  {part}:\n"
        text += "    blend:\n" if len(specs) > 1 else ""
        for spec in specs:
            text += _entry(spec, folder, in_blend=len(specs) > 1)
    return text


def _entry(spec: DataSpec, folder: Path, *, in_blend: bool) -> str:
    path = Path(os.path.abspath(spec.path))
    named = path.relative_to(folder) if path.is_relative_to(folder) else path
    entry = {"path": str(named), **({"weight": 1} if in_blend else {}), **spec.entry()}
    lines = yaml.safe_dump(
        entry, sort_keys=False, allow_unicode=True, width=100
    ).splitlines()
    indent = "      " if in_blend else "    "
    comments = "".join(f"{indent}# {line}\n" for line in spec.comments())
    marks = [
        "- " if in_blend and number == 0 else "  " * in_blend
        for number in range(len(lines))
    ]
    body = "".join(
        f"{indent}{mark}{line}\n" for mark, line in zip(marks, lines, strict=True)
    )
    return comments + body

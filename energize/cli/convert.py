"""`energize convert`: loose files to a prepared folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from energize.cli.clusters import Tasks
from energize.cli.console import Console, progress_bar
from energize.cli.mixes import takes
from energize.cli.prepare import parse_field_map, show_report
from energize.data.files import path_of
from energize.preparation import convert as converted
from energize.preparation import fields

_TYPES = f"One of {', '.join(fields.SAMPLE_TYPE_NAMES)}."
_SOURCE = "Images, conversations, a saved dataset, Parquet, MDS, tars."
_WORKERS = "--num-workers", "--workers"
Text = str | None


@takes("by", Tasks)
def convert(
    source: Annotated[Path, Argument(parser=path_of, help=_SOURCE)],
    out: Annotated[Path, Argument(parser=path_of, help="A new folder, or one half done.")],
    by: Tasks,
    *,
    samples_per_shard: Annotated[int, Option(min=1, help="Samples of each shard.")] = 1000,
    sample_type: Annotated[Text, Option(help=_TYPES)] = None,
    field_map: Annotated[Text, Option(help='Columns by fields, as JSON: {"text": "a"}.')] = None,
    image_folder: Annotated[Text, Option(help="Where the paths in rows begin.")] = None,
    strict: Annotated[bool, Option("--strict", help="What is left out is an error.")] = False,
    num_workers: Annotated[int | None, Option(*_WORKERS, min=1, help="By default cores.")] = None,
    progress: Annotated[bool, Option("--progress/--no-progress")] = True,
) -> None:
    """Make loose files a prepared folder of tar shards, of the same samples in the same order.

    What was stopped goes on where it was. A training may go on with either: states fit both. Many
    machines may do it together: see --tasks.
    """
    console = Console()
    by = by.run(console, num_workers, progress=progress)
    report = converted(
        source,
        out,
        samples_per_shard=samples_per_shard,
        sample_type=sample_type,
        field_map=None if field_map is None else parse_field_map(field_map),
        image_folder=image_folder,
        strict=strict,
        workers=num_workers,
        **by.given,
        on_progress=progress_bar("Writing shards", shown=progress),
    )
    show_report(console, report, by, "Converted {} to {}")

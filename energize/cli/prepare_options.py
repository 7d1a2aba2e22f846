"""The options of `energize prepare`; those that Energon has too carry the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from energize.preparation.fields import SAMPLE_TYPE_NAMES

Folder = Annotated[
    Path, typer.Argument(help="A folder of tar shards, a .jsonl file, or a metadataset with joins.")
]
SplitRatio = Annotated[
    str | None, typer.Option(help="Shares of the shards for train, val and test: 8,1,1.")
]
SplitParts = Annotated[
    list[str] | None,
    typer.Option(help="SPLIT:REGEX, the shards of a split by name: 'val:val-.*'. One per split."),
]
Exclude = Annotated[
    str | None, typer.Option(help="Leave out shards in whose name this REGEX is found.")
]
SkipUnreadable = Annotated[
    bool,
    typer.Option("--skip-unreadable", help="Go on without folders and shards that cannot be read."),
]
ShuffleTars = Annotated[
    bool, typer.Option("--shuffle-tars", help="Shuffle the shards before the ratio cuts them.")
]
SampleType = Annotated[str | None, typer.Option(help=f"One of {', '.join(SAMPLE_TYPE_NAMES)}.")]
FieldMap = Annotated[
    str | None,
    typer.Option(
        help='The part each field comes from, as JSON: {"image": "jpg,png", "caption": "txt"}. '
        "By default proposed by the parts found."
    ),
]
DatasetYamlName = Annotated[
    str, typer.Option(help="The name of the file that says what samples are.")
]
SkipDatasetYaml = Annotated[
    bool, typer.Option("--skip-dataset-yaml", help="Do not write a dataset.yaml.")
]
Sqlite = Annotated[
    bool, typer.Option("--sqlite", help="Write index.sqlite too; training does not read it.")
]
TarIndexOnly = Annotated[
    bool, typer.Option("--tar-index-only", help="Write the index of a prepared folder again.")
]
FixDuplicates = Annotated[
    bool,
    typer.Option(
        "--fix-duplicates",
        help="When shards share keys: write them anew, the members of each in a folder of its own.",
    ),
]
MediaByGlob = Annotated[
    str | None,
    typer.Option(
        "--media-metadata-by-glob",
        help="Store metadata of media, which are files named so: '*.jpg,*.png'.",
    ),
]
MediaByHeader = Annotated[
    bool, typer.Option("--media-metadata-by-header", help="The same, by how files begin.")
]
MediaByExtension = Annotated[
    bool, typer.Option("--media-metadata-by-extension", help="The same, by usual extensions.")
]
TmpPath = Annotated[
    Path | None, typer.Option(help="The folder in which the index with media metadata is built.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="NAME=HOW, what is to be known of each sample without reading it: tokens=size:txt, "
        "quality=json[quality], width=image:width, length=len:txt, tokens=MODULE:FUNCTION. Of a "
        "folder that is prepared, columns are all that is written. One option for each.",
    ),
]
ColumnDefaults = Annotated[
    list[str] | None,
    typer.Option("--column-default", help="NAME=VALUE, for samples without a value: tokens=1."),
]
Checksums = Annotated[
    bool,
    typer.Option(
        "--checksums",
        help="Write a checksum of each sample, for get_train_dataset(checksums=True) and lint. Of "
        "a folder that is prepared, they are all that is written.",
    ),
]
ForceOverwrite = Annotated[
    bool, typer.Option("--force-overwrite", help="Prepare a folder again without asking.")
]
NonInteractive = Annotated[
    bool, typer.Option("--non-interactive", help="Never ask: what is missing is an error.")
]
NumWorkers = Annotated[
    int | None,
    typer.Option(
        "--num-workers", "--workers", help="How many processes read shards; by default the cores."
    ),
]
ShowProgress = Annotated[bool, typer.Option("--progress/--no-progress")]

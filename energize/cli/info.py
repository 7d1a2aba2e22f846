"""`energize info`: what a prepared folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from energize.cli.showing import show_config, show_splits, size_text
from energize.errors import NotPreparedError, ShardError
from energize.storage.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.storage.tar import index_path


def info(
    path: Annotated[Path, typer.Argument(help="A prepared folder.")],
    split_config: Annotated[
        str, typer.Option(help="The file of .nv-meta that defines the splits.")
    ] = "split.yaml",
    dataset_config: Annotated[
        str, typer.Option(help="The file of .nv-meta that defines the samples.")
    ] = "dataset.yaml",
) -> None:
    """Show the samples, shards, splits and fields of a prepared folder."""
    console = Console(highlight=False, soft_wrap=True)
    counts = read_info(path).shard_counts
    splits = read_splits(path, split_config)
    size = sum(_shard_size(path / shard) for shard in counts)
    console.print(
        f"{path}: {sum(counts.values()):,} samples in {len(counts):,} shards, {size_text(size)}",
        markup=False,
    )
    show_splits(console, splits.parts, counts)
    if splits.exclude:
        console.print(f"Excluded: {len(splits.exclude)} shards or samples")
    try:
        show_config(console, read_dataset_yaml(path, dataset_config))
    except NotPreparedError as reason:
        console.print(f"Samples: of no type yet. {reason}", markup=False)


def _shard_size(shard: Path) -> int:
    """The size of a shard, which must be there with its index."""
    for file in (shard, Path(index_path(str(shard)))):
        if not file.is_file():
            raise ShardError(
                f"{file} is missing; put it back, or prepare the folder again with: "
                "energize prepare --force-overwrite"
            )
    return shard.stat().st_size

"""`energize info`: what a prepared folder, or what a file of a mix names, holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import energize.cli.contents as opt
from energize.cli.columns import show_columns
from energize.cli.console import Console
from energize.cli.contents import is_folder, is_jsonl, leaves_at, node_at, split_names
from energize.cli.mix_options import counted_text, print_table, table_console
from energize.cli.showing import show_config, show_splits, size_text
from energize.data.jsonl import JsonlSource
from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.data.tar import index_path
from energize.errors import ConfigError, MetadatasetError, NotPreparedError, ShardError
from energize.metadataset.nodes import JoinedLeaf, Leaf, leaves_with_weights


def info(
    path: opt.DataPath,
    *,
    split_config: opt.SplitConfig = "split.yaml",
    dataset_config: opt.DatasetConfig = "dataset.yaml",
) -> None:
    """Show the samples, shards, splits and fields of a folder, or the parts of a metadataset."""
    console = Console(soft_wrap=True)
    if is_jsonl(path):
        count, size = JsonlSource(path).count, size_text(path.stat().st_size)
        console.print(f"{path}: {counted_text(count, 'sample')}, {size}", markup=False)
        console.print("Samples: crude: plain dicts with the line as `json`; no splits")
    elif is_folder(path):
        _show_folder(console, path, split_config, dataset_config)
    else:
        _show_mix(path, split_config, dataset_config)


def _show_folder(console: Console, path: Path, split_config: str, dataset_config: str) -> None:
    found = read_info(path)
    counts = found.shard_counts
    splits = read_splits(path, split_config)
    size = sum(_shard_size(path / shard) for shard in counts)
    samples, shards = (
        counted_text(sum(counts.values()), "sample"),
        counted_text(len(counts), "shard"),
    )
    console.print(f"{path}: {samples} in {shards}, {size_text(size)}", markup=False)
    if found.energon_version is not None:
        console.print(f"Format: Megatron-Energon {found.energon_version}", markup=False)
    show_splits(console, splits.parts, counts)
    if splits.exclude:
        console.print(f"Excluded: {len(splits.exclude)} shards or samples")
    try:
        show_config(console, read_dataset_yaml(path, dataset_config, code=True))
    except NotPreparedError as reason:
        console.print(f"Samples: of no type yet. {reason}", markup=False)
    show_columns(console, path)


def _show_mix(path: Path, split_config: str, dataset_config: str) -> None:
    """The parts of each split, with the shares that are asked for them."""
    console = table_console()
    for split in split_names(path, None):
        leaves = leaves_at(path, split, dataset_config, split_config)
        shares = _shares(path, split)
        table = Table(title=Text(f"{path} [{split}]"), title_justify="left", box=SIMPLE_HEAD)
        table.add_column("folder", overflow="fold", min_width=12)
        table.add_column("split", no_wrap=True)
        table.add_column("samples", justify="right", no_wrap=True)
        table.add_column("asked %", justify="right", no_wrap=True)
        table.add_column("sample type", overflow="fold", min_width=12)
        for leaf in leaves:
            share = shares.get(_same(leaf))
            table.add_row(
                Text(_shown(leaf, path)),
                leaf.split_part,
                f"{leaf.source().size:,}",
                "-" if share is None else f"{100 * float(share):.3f}",
                leaf.sample_type.__name__,
            )
        print_table(console, table)


def _shown(leaf: Leaf, mix: Path) -> str:
    """The folder of a part, from the folder of the mix where it lies below it."""
    if isinstance(leaf, JoinedLeaf):
        return " joined with ".join(_shown(part.leaf, mix) for part in leaf.parts)
    above = mix.absolute().parent
    path = leaf.path.relative_to(above) if leaf.path.is_relative_to(above) else leaf.path
    return str(path if leaf.chosen is None else path / leaf.chosen.name)


def _shares(path: Path, split: str) -> Mapping[str, Fraction]:
    """The share of each part; nothing where there is no single one, as of stages."""
    try:
        asked = leaves_with_weights(node_at(path, split))
    except MetadatasetError:
        raise
    except ConfigError:
        return {}
    return {_same(leaf): share for leaf, share in asked}


def _same(leaf: Leaf) -> str:
    return repr(replace(leaf, place=""))


def _shard_size(shard: Path) -> int:
    """The size of a shard, which must be there with its index."""
    for file in (shard, Path(index_path(str(shard)))):
        if not file.is_file():
            raise ShardError(
                f"{file} is missing; put it back, or prepare the folder again with: "
                "energize prepare --force-overwrite"
            )
    return shard.stat().st_size

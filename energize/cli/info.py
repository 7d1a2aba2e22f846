"""`energize info`: what a prepared folder, or what a file of a mix names, holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from energize.cli.console import Console, counted, size_text, table
from energize.cli.mixes import (
    DataPath,
    DatasetConfig,
    SplitConfig,
    is_folder,
    is_jsonl,
    leaves_at,
    node_at,
    split_names,
)
from energize.core.columns import Column
from energize.data import nv_meta
from energize.data.columns import read_columns, read_values
from energize.data.jsonl import JsonlSource
from energize.data.tar import index_path
from energize.errors import (
    ConfigError,
    DatasetError,
    MetadatasetError,
    NotPreparedError,
    ShardError,
)
from energize.metadataset.nodes import JoinedLeaf, Leaf, leaves_with_weights

_WORDS_SHOWN = 8


def info(
    path: DataPath,
    *,
    split_config: SplitConfig = "split.yaml",
    dataset_config: DatasetConfig = "dataset.yaml",
) -> None:
    """Show the samples, shards, splits and fields of a folder, or the parts of a metadataset."""
    console = Console()
    if is_jsonl(path):
        count, size = JsonlSource(path).count, size_text(path.stat().st_size)
        console.say(f"{path}: {counted(count, 'sample')}, {size}")
        console.say("Samples: crude: plain dicts with the line as `json`; no splits")
    elif is_folder(path):
        _show_folder(console, path, split_config, dataset_config)
    else:
        _show_mix(console, path, split_config, dataset_config)


def _show_folder(console: Console, path: Path, split_config: str, dataset_config: str) -> None:
    found = nv_meta.read_info(path)
    counts = found.shard_counts
    splits = nv_meta.read_splits(path, split_config)
    for shard in counts:
        for file in (path / shard, Path(index_path(str(path / shard)))):
            if not file.is_file():
                raise ShardError(
                    f"{file} is missing; put it back, or prepare the folder again with: "
                    "energize prepare --force-overwrite"
                )
    size = size_text(sum((path / shard).stat().st_size for shard in counts))
    samples = counted(sum(counts.values()), "sample")
    console.say(f"{path}: {samples} in {counted(len(counts), 'shard')}, {size}")
    if found.energon_version is not None:
        console.say(f"Format: Megatron-Energon {found.energon_version}")
    show_splits(console, splits.parts, counts)
    if splits.exclude:
        console.say(f"Excluded: {len(splits.exclude)} shards or samples")
    try:
        show_config(console, nv_meta.read_dataset_yaml(path, dataset_config, code=True))
    except NotPreparedError as reason:
        console.say(f"Samples: of no type yet. {reason}")
    try:
        index = read_columns(path)
        if index is not None:
            total = sum(index.shard_counts.values())
            stored = index.columns.items()
            columns = {name: read_values(path, name, column, total) for name, column in stored}
            show_columns(console, columns, index.measured)
    except DatasetError as reason:
        console.note(str(reason))


def show_splits(
    console: Console, splits: Mapping[str, Sequence[str]], shard_counts: Mapping[str, int]
) -> None:
    """Print shards, samples and share of the samples of each split."""
    total = sum(shard_counts.values())
    shown = Table("split")
    for column in ("shards", "samples", "share"):
        shown.add_column(column, justify="right")
    for part, shards in splits.items():
        samples = sum(shard_counts.get(shard, 0) for shard in shards)
        share = f"{100 * samples / total:.1f} %" if total else "-"
        shown.add_row(Text(part), f"{len(shards):,}", f"{samples:,}", share)
    console.print(shown)


def show_config(console: Console, config: nv_meta.DatasetConfig) -> None:
    """Print the sample type, and from which part each field comes."""
    crude = config.sample_class == nv_meta.CRUDE
    told = "crude: plain dicts, for a task encoder that takes them"
    console.say(f"Samples: {told if crude else config.sample_class}")
    for name, source in (config.field_map or {}).items():
        console.say(f"  {name} from {source}")
    for name, value in config.code.items():
        code = f"{value}, code of the folder" if isinstance(value, str) else ", ".join(value)
        console.say(f"  {name}: {code}")


def show_columns(
    console: Console, columns: Mapping[str, Column], measured: Mapping[str, str]
) -> None:
    """Print columns: their range and mean, or their words, and how they were measured."""
    shown = Table("column", "values", *(["measured as"] if measured else []))
    for name, column in columns.items():
        how = [Text(measured[name])] if measured else []
        shown.add_row(Text(name), Text(values_text(column)), *how)
    console.print(shown)


def values_text(column: Column) -> str:
    """Return what a column says: its range and mean, or its words with their counts.

    >>> values_text(Column.of([1, 2, 6], "tokens"))
    '1 to 6, mean 3'
    >>> values_text(Column.of(["high", "low", None, "low"], "quality"))
    'low: 2, high: 1, no value: 1'
    """
    if not len(column):
        return "no samples"
    if column.categories is None:
        least, most, mean = (f(column.values) for f in (np.min, np.max, np.mean))
        return f"{least:g} to {most:g}, mean {mean:g}" if least != most else f"{least:g}"
    counts = np.bincount(column.values + 1, minlength=len(column.categories) + 1).tolist()
    pairs = sorted(zip(column.categories, counts[1:], strict=True), key=lambda each: -each[1])
    shown = [f"{word}: {count:,}" for word, count in pairs[:_WORDS_SHOWN]]
    more = len(pairs) - _WORDS_SHOWN
    shown += [f"{more} other words"] if more > 0 else []
    shown += [f"no value: {counts[0]:,}"] if counts[0] else []
    return ", ".join(shown)


def _show_mix(console: Console, path: Path, split_config: str, dataset_config: str) -> None:
    """The parts of each split, with the shares that are asked for them."""
    for split in split_names(path, None, split_config):
        columns = ("folder", "split", ">samples", ">asked %", "sample type")
        shown = table(*columns, title=f"{path} [{split}]")
        shares = _shares(path, split)
        for leaf in leaves_at(path, split, dataset_config, split_config):
            share = shares.get(repr(replace(leaf, place="")))
            cells: list[Any] = [Text(_folder(leaf, path)), Text(leaf.split_part)]
            cells += [f"{leaf.source().size:,}", "-" if share is None else f"{100 * share:.3f}"]
            shown.add_row(*cells, leaf.sample_type.__name__)
        console.print(shown)


def _folder(leaf: Leaf, mix: Path) -> str:
    """The folder of a part, from the folder of the mix where it lies below it."""
    if isinstance(leaf, JoinedLeaf):
        return " joined with ".join(_folder(part.leaf, mix) for part in leaf.parts)
    above = mix.absolute().parent
    path = leaf.path.relative_to(above) if leaf.path.is_relative_to(above) else leaf.path
    return str(path if leaf.chosen is None else path / leaf.chosen.name)


def _shares(path: Path, split: str) -> dict[str, float]:
    """The share of each part; nothing where there is no single one, as of stages."""
    try:
        asked = leaves_with_weights(node_at(path, split))
    except MetadatasetError:
        raise
    except ConfigError:
        return {}
    return {repr(replace(leaf, place="")): float(share) for leaf, share in asked}

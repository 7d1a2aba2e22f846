"""`energize info`: what a prepared folder, or what a file of a mix names, holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from energize.cli.console import (
    Console,
    counted_text,
    print_table,
    progress_bar,
    show_config,
    show_note,
    show_splits,
    size_text,
    table_console,
)
from energize.cli.mixes import (
    DataPath,
    DatasetConfig,
    SplitConfig,
    is_folder,
    is_jsonl,
    leaves_at,
    node_at,
    object_named,
    split_names,
)
from energize.core.columns import Column
from energize.data.columns import check_name, read_columns, read_values
from energize.data.jsonl import JsonlSource
from energize.data.nv_meta import read_dataset_yaml, read_info, read_splits
from energize.data.tar import index_path
from energize.errors import (
    ConfigError,
    DatasetError,
    MetadatasetError,
    NotPreparedError,
    ShardError,
    nearest,
)
from energize.metadataset.nodes import JoinedLeaf, Leaf, leaves_with_weights
from energize.preparation.columns import (
    How,
    Value,
    is_written,
    kind_meant,
    measure_of,
    prepare_columns,
)


def info(
    path: DataPath,
    *,
    split_config: SplitConfig = "split.yaml",
    dataset_config: DatasetConfig = "dataset.yaml",
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


_WORDS_SHOWN = 8


def parse_columns(given: Sequence[str]) -> dict[str, How]:
    """Columns of `--column NAME=HOW`; a function that HOW names is imported.

    Raises `ConfigError` for what is not written so, for a name that comes twice, and for a function
    that is not there.
    """
    columns: dict[str, How] = {}
    for each in given:
        name, equal, how = each.partition("=")
        if not (name and equal and how):
            raise ConfigError(
                "--column: expected NAME=HOW such as tokens=size:txt or quality=json[quality], "
                f"got {each!r}"
            )
        if check_name(name) in columns:
            raise ConfigError(f"--column: {name!r} is given twice")
        try:
            columns[name] = how if is_written(how) else _function(how, f"--column {name}")
            measure_of(columns[name])
        except ConfigError as fault:
            text = str(fault).removeprefix(f"--column {name}: ")
            hint = "" if is_written(how) else kind_meant(how)
            raise ConfigError(f"--column {name}: {text}{hint}") from None
    return columns


def parse_defaults(given: Sequence[str]) -> dict[str, Value]:
    """Values of `--column-default NAME=VALUE`; what a column takes for a number is one.

    >>> parse_defaults(["tokens=1", "language=unknown"])
    {'tokens': '1', 'language': 'unknown'}
    """
    defaults: dict[str, Value] = {}
    for each in given:
        name, equal, value = each.partition("=")
        if not (name and equal and value):
            raise ConfigError(
                f"--column-default: expected NAME=VALUE such as tokens=1, got {each!r}"
            )
        defaults[name] = value
    return defaults


@dataclass(frozen=True, slots=True)
class AskedColumns:
    """Columns of a folder that are to be measured."""

    path: Path
    columns: dict[str, How]
    defaults: dict[str, Value]

    def __bool__(self) -> bool:
        return bool(self.columns)

    def measure(self, console: Console, workers: int | None, *, progress: bool) -> None:
        """Measure them, and show what was found; the folder is prepared."""
        with progress_bar(console, "Measuring columns", shown=progress) as on_progress:
            report = prepare_columns(
                self.path,
                self.columns,
                defaults=self.defaults,
                workers=workers,
                on_progress=on_progress,
            )
        show_measured(console, report.columns, report.samples)
        for note in report.notes:
            show_note(console, note)

    def check_alone(self, *given: object) -> None:
        """Raises `ConfigError` for options `given` that would prepare the folder again."""
        if any(given):
            raise ConfigError(
                f"{self.path} is prepared already, so --column only adds columns to it, as "
                "--checksums adds checksums, and splits, sample types, fields and media are not "
                "looked at: leave these options out, or give --force-overwrite to prepare it again"
            )


def asked_columns(
    path: Path, columns: Sequence[str] | None, defaults: Sequence[str] | None
) -> AskedColumns:
    """What `--column` and `--column-default` ask for; `ConfigError` for what cannot be."""
    asked = AskedColumns(path, parse_columns(columns or ()), parse_defaults(defaults or ()))
    for name in asked.defaults:
        if name not in asked.columns:
            hint = nearest(name, list(asked.columns))
            raise ConfigError(f"--column-default {name}: there is no --column {name}=...{hint}")
    if asked and not is_folder(path):
        raise ConfigError(
            f"{path} is a file: the keys of the objects of a .jsonl file are its columns already, "
            "and a metadataset has those of its folders; measure columns of folders"
        )
    return asked


def show_measured(console: Console, columns: Mapping[str, Column], samples: int) -> None:
    """Columns that were measured of so many samples."""
    console.print(f"Measured {len(columns)} columns of {samples:,} samples")
    _show(console, columns, {})


def show_columns(console: Console, path: Path) -> None:
    """The columns of a prepared folder, if it has any; what is wrong with them is noted."""
    try:
        index = read_columns(path)
        if index is None:
            return
        samples = sum(index.shard_counts.values())
        columns = {
            name: read_values(path, name, stored, samples) for name, stored in index.columns.items()
        }
    except DatasetError as reason:
        show_note(console, str(reason))
        return
    _show(console, columns, index.measured)


def values_text(column: Column) -> str:
    """What a column says: its range and mean, or its words with how many samples have each.

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


def _show(console: Console, columns: Mapping[str, Column], measured: Mapping[str, str]) -> None:
    table = Table("column", "values")
    if measured:
        table.add_column("measured as")
    for name, column in columns.items():
        row: list[Any] = [Text(name), Text(values_text(column))]
        table.add_row(*row, *([Text(measured[name])] if measured else []))
    console.print(table)


def _function(how: str, option: str) -> How:
    function: Any = object_named(how, option)
    if not callable(function):
        raise ConfigError(f"{how} is no function, but {function!r}")
    checked: How = function
    return checked

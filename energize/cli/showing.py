"""Tables of samples, splits and fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from energize.cli.console import Console
from energize.data.nv_meta import CRUDE, DatasetConfig
from energize.preparation.fields import FirstLook


def show_samples(console: Console, shard: str, look: FirstLook) -> None:
    """Keys, parts, sizes and the start of texts of the first samples of a shard."""
    table = Table(title=Text(f"First samples of {shard}"), title_justify="left")
    for column in ("key", "part", "size", "content"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for key, parts in look.shown():
        for i, (name, size, start) in enumerate(parts):
            table.add_row(Text(key if i == 0 else ""), Text(name), size_text(size), Text(start))
        table.add_section()
    console.print(table)


def show_splits(
    console: Console, splits: Mapping[str, Sequence[str]], shard_counts: Mapping[str, int]
) -> None:
    """Shards, samples and share of the samples of each split."""
    total = sum(shard_counts.values())
    table = Table("split")
    for column in ("shards", "samples", "share"):
        table.add_column(column, justify="right")
    for part, shards in splits.items():
        samples = sum(shard_counts.get(shard, 0) for shard in shards)
        share = f"{100 * samples / total:.1f} %" if total else "-"
        table.add_row(Text(part), f"{len(shards):,}", f"{samples:,}", share)
    console.print(table)


def show_config(console: Console, config: DatasetConfig) -> None:
    """The sample type, and from which part each field comes."""
    crude = "crude: plain dicts, for a task encoder that takes them"
    console.print(
        "Samples:", crude if config.sample_class == CRUDE else config.sample_class, markup=False
    )
    for name, source in (config.field_map or {}).items():
        console.print(f"  {name} from {source}", markup=False)
    for name, value in config.code.items():
        told = f"{value}, code of the folder" if isinstance(value, str) else ", ".join(value)
        console.print(f"  {name}: {told}", markup=False)


def show_note(console: Console, note: str) -> None:
    """Something that may be a mistake."""
    console.print("Note:", style="yellow", end=" ")
    console.print(note, markup=False)


def show_lines(console: Console, lines: Iterable[str]) -> None:
    """Lines as they are."""
    for line in lines:
        console.print(line, markup=False)


def size_text(size: float) -> str:
    """A number of bytes for people.

    >>> size_text(123456)
    '120.6 KiB'
    """
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"

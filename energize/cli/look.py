"""`energize info`, `preview`, `replay`, `plan`, `simulate`: show data and runs."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import PIL.Image
import typer
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text
from typer import Option

from energize.cli import mixes
from energize.cli.console import Console, print_json, short, table
from energize.cli.pages import PreviewPage
from energize.core.columns import Column
from energize.core.dataset import Dataset
from energize.core.failures import Failed
from energize.core.html import fields_shown, pictures_of
from energize.core.node import INFINITE
from energize.core.progress import counted
from energize.core.records import (
    format_sample_compact,
    format_sample_detailed,
    sources_of,
)
from energize.core.restoring import restore_sample
from energize.core.trace import ReadContext, Trace
from energize.data import nv_meta
from energize.data.columns import read_columns, read_values
from energize.data.files import path_of
from energize.data.jsonl import JsonlSource
from energize.data.loose_columns import loose_column_names, read_loose_columns
from energize.data.writing import write_new
from energize.datasets.planned import PlannedDataset
from energize.errors import (
    ConfigError,
    DatasetError,
    MetadatasetError,
    NotPreparedError,
)
from energize.extras.plots import check_plot, draw, intervals_for
from energize.inference.engine import is_loose
from energize.metadataset.leaves import leaves_with_weights
from energize.preparation.tasks import ranges
from energize.report import PlannedBatch, PlannedSample, Simulation
from energize.report.forecast import SourceForecast, indexed, weighed_in
from energize.report.forecast import plan as planned
from energize.report.forecast import simulate as simulated
from energize.task.decode import SampleDecoder

# What a folder or a file of a mix holds.

_WORDS_SHOWN = 8


def info(
    path: mixes.DataPath,
    *,
    split_config: mixes.SplitConfig = "split.yaml",
    dataset_config: mixes.DatasetConfig = "dataset.yaml",
) -> None:
    """Show samples, shards, splits and fields of a folder, or the parts of a mix."""
    console = Console()
    stored = mixes.Stored(None, dataset_config, split_config)
    if mixes.is_jsonl(path):
        count = JsonlSource(path).count
        size = decimal(path.stat().st_size)
        console.write_line(f"{path}: {counted(count, 'sample')}, {size}")
        console.write_line(
            "Samples: crude: plain dicts with the line as `json`; no splits"
        )
        _show_loose_columns(console, path, stored)
    elif is_loose(path) and loose_column_names(path):
        _show_mix(console, path, stored)
        _show_loose_columns(console, path, stored)
    elif mixes.is_folder(path):
        _show_folder(console, path, stored)
    else:
        _show_mix(console, path, stored)


def _show_folder(console: Console, path: Path, stored: mixes.Stored) -> None:
    info = nv_meta.read_info(path)
    counts = info.shard_counts
    splits = nv_meta.read_splits(path, stored.split_config)
    size = decimal(sum((path / shard).stat().st_size for shard in counts))
    samples = counted(sum(counts.values()), "sample")
    console.write_line(f"{path}: {samples} in {counted(len(counts), 'shard')}, {size}")
    if info.energon_version is not None:
        console.write_line(f"Format: Megatron-Energon {info.energon_version}")
    show_splits(console, splits.split_parts, counts, splits.samples)
    if splits.exclude:
        console.write_line(f"Excluded: {len(splits.exclude)} shards or samples")
    try:
        show_config(
            console, nv_meta.read_dataset_yaml(path, stored.dataset_config, code=True)
        )
    except NotPreparedError as reason:
        console.write_line(f"Samples: of no type yet. {reason}")
    try:
        index = read_columns(path)
        total = sum(index.shard_counts.values())
        columns = {
            name: read_values(path, name, column, total)
            for name, column in index.columns.items()
        }
        if columns:
            show_columns(console, columns, index.measured)
    except DatasetError as reason:
        console.note(str(reason))


def _show_loose_columns(console: Console, path: Path, stored: mixes.Stored) -> None:
    """Print the measured columns of each split part of loose data."""
    try:
        index = read_loose_columns(path)
        measured = {} if index is None else index.measured
        for split in stored.splits(path) if measured else ():
            for leaf in stored.leaves(path, split):
                source = leaf.source()
                columns = {name: source.column(name) for name in measured}
                console.write_line(f"Columns of {mixes.leaf_name(leaf)}", "bold")
                show_columns(console, columns, measured)
    except DatasetError as reason:
        console.note(str(reason))


def show_splits(
    console: Console,
    splits: Mapping[str, Sequence[str]],
    shard_counts: Mapping[str, int],
    windows: Mapping[str, Sequence[int]],
) -> None:
    """Print shards, samples and share of the samples of each split."""
    total = sum(shard_counts.values())
    rows = []
    for part, shards in splits.items():
        whole = 0, sum(shard_counts.get(shard, 0) for shard in shards)
        start, stop = windows.get(part, whole)
        samples = stop - start
        share = f"{100 * samples / total:.1f} %" if total else "-"
        rows.append((part, f"{len(shards):,}", f"{samples:,}", share))
    console.print(table("split", ">shards", ">samples", ">share", rows=rows))


def show_config(console: Console, config: nv_meta.SampleConfig) -> None:
    """Print the sample type, and the parts of its fields."""
    crude = config.sample_class == nv_meta.CRUDE
    crude_text = "crude: plain dicts, for a task encoder that takes them"
    console.write_line(f"Samples: {crude_text if crude else config.sample_class}")
    for name, source in (config.field_map or {}).items():
        console.write_line(f"  {name} from {source}")
    for name, value in config.code.items():
        code = (
            f"{value}, code of the folder"
            if isinstance(value, str)
            else ", ".join(value)
        )
        console.write_line(f"  {name}: {code}")


def show_columns(
    console: Console, columns: Mapping[str, Column], measured: Mapping[str, str]
) -> None:
    """Print columns: range and mean, or words, and their measures."""
    head = ("column", "values", *(["measured as"] if measured else []))
    how = {name: [measure] for name, measure in measured.items()}
    rows = (
        [name, values_text(column), *how.get(name, ())]
        for name, column in columns.items()
    )
    console.print(table(*head, rows=rows))


def values_text(column: Column) -> str:
    """Return the range and mean of a column, or its words with their counts.

    >>> values_text(Column.of([1, 2, 6], "tokens"))
    '1 to 6, mean 3'
    >>> values_text(Column.of(["high", "low", None, "low"], "quality"))
    'low: 2, high: 1, no value: 1'
    """
    if not len(column):
        return "no samples"
    if column.categories is None:
        least, most, mean = (f(column.values) for f in (np.min, np.max, np.mean))
        return (
            f"{least:g} to {most:g}, mean {mean:g}" if least != most else f"{least:g}"
        )
    counts = np.bincount(
        column.values + 1, minlength=len(column.categories) + 1
    ).tolist()
    pairs = sorted(
        zip(column.categories, counts[1:], strict=True), key=lambda pair: -pair[1]
    )
    shown = [f"{word}: {count:,}" for word, count in pairs[:_WORDS_SHOWN]]
    more = len(pairs) - _WORDS_SHOWN
    shown += [f"{more} other words"] if more > 0 else []
    shown += [f"no value: {counts[0]:,}"] if counts[0] else []
    return ", ".join(shown)


def _show_mix(console: Console, path: Path, stored: mixes.Stored) -> None:
    """Print the parts of each split, with their requested shares."""
    columns = ("folder", "split", ">samples", ">asked %", "sample type")
    for split in stored.splits(path):
        shares = _shares(path, split)
        rows = []
        for leaf in stored.leaves(path, split):
            share = shares.get(leaf.identity)
            requested = "-" if share is None else f"{100 * share:.3f}"
            name = mixes.leaf_name(leaf, path.absolute().parent)
            count = leaf.source().size
            rows.append(
                (
                    name,
                    leaf.split_part,
                    f"{count:,}",
                    requested,
                    leaf.sample_class.__name__,
                )
            )
        console.print(table(*columns, rows=rows, title=f"{path} [{split}]"))


def _shares(path: Path, split: str) -> dict[Hashable, float]:
    """Return the share of each part; empty for stages, which have several."""
    try:
        weighted_leaves = leaves_with_weights(mixes.node_at(path, split))
    except MetadatasetError:
        raise
    except ConfigError:
        return {}
    return {leaf.identity: float(share) for leaf, share in weighted_leaves}


# Samples field by field.

_WITHOUT_QUESTIONS = 3
_MOST_PICTURES = 4
_MOST_BYTES = 64
_MOST_ROWS = 24
_MOST_SOURCES = 32


@mixes.takes("stored", mixes.Stored)
def preview(
    path: mixes.DataPath,
    stored: mixes.Stored,
    *,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            help="Show this many samples of each split, without prompts.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        Option(
            parser=path_of, help="Write an HTML page of the first batches, with images."
        ),
    ] = None,
    batches: Annotated[int, Option(min=1, max=64, help="Batches on the page.")] = 4,
    at: Annotated[int, Option(min=0, help="The first step on the page.")] = 0,
    encoder: Annotated[
        str | None,
        Option(help="The task encoder of the run, for the page: MODULE:NAME."),
    ] = None,
    batch_size: Annotated[
        int | None,
        Option(min=1, help="The batch size of the run, for the page; by default 8."),
    ] = None,
) -> None:
    """Show stored samples field by field, or with --html, batches of a run."""
    console = Console()
    if html is not None:
        if count or (stored.dataset_config, stored.split_config) != mixes.CONFIGS:
            raise ConfigError(
                "--count, --dataset-config and --split-config are for samples as they "
                "are stored, and --html shows batches of a run. See "
                "--batches, "
                "--batch-size and --split-parts"
            )
        split = stored.split_parts or "train"
        trusted = stored.trust_code
        run = mixes.RunOptions(
            batch_size=batch_size, split=split, encoder=encoder, trust_code=trusted
        )
        write_new(html, PreviewPage(path, run).page(at, batches), ConfigError)
        console.write_line(f"Wrote {html}: {decimal(html.stat().st_size)}")
        return
    if encoder or batch_size or at:
        raise ConfigError(
            "--encoder, --batch-size and --at are for --html, or energize serve"
        )
    _show_stored(console, path, stored, count)


def _show_stored(
    console: Console, path: Path, stored: mixes.Stored, count: int | None
) -> None:
    """Print stored samples of all splits; without a count, a terminal is prompted."""
    asks = count is None and sys.stdin.isatty()
    for split in stored.splits(path):
        for leaf in stored.leaves(path, split):
            part = stored.samples(leaf, SampleDecoder())
            for number in range(
                part.size if asks else min(part.size, count or _WITHOUT_QUESTIONS)
            ):
                sample = Trace(part, np.array([number], dtype=np.int64)).read(
                    ReadContext()
                )[0]
                console.write_line(
                    f"{mixes.leaf_name(leaf)}, sample {number:,} of {part.size:,}",
                    "bold",
                )
                show_item(console, sample)
                console.write_line()
                if asks and not typer.confirm("Continue?", default=True):
                    return


@mixes.takes_run
def replay(
    mix: mixes.MixPath,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="The key, as loader.restore_key prints it, or in JSON."
        ),
    ],
    run: mixes.RunOptions,
) -> None:
    """Show one sample or batch of a run again: its fields, and its source files.

    The options must be those of the run. Without its encoder, samples are shown as they
    are before it, in batches of the default encoder.
    """
    parsed = parse_key(key)
    dataset = run.read(mix, samples=True)
    item = restore_sample(dataset, parsed)
    console = Console()
    console.write_line(f"{type(item).__name__} {parsed!r}", "bold")
    show_item(console, item)
    lines = [
        (
            f"{info.dataset_path}/{info.shard_name}: {', '.join(info.file_names)} "
            "(sample "
            f"{info.index})"
        )
        for info in sources_of(item) or ()
    ]
    if not lines and dataset.indexed and len(parsed) == 2:
        console.print(_plan_table([*planned(dataset, parsed[1], 1, keys=True)]))
        return
    console.write_line("Made from" if lines else "", "bold")
    for line in lines[:_MOST_SOURCES]:
        console.write_line(f"  {line}")
    if len(lines) > _MOST_SOURCES:
        console.write_line(f"  and {len(lines) - _MOST_SOURCES} more")


def parse_key(text: str) -> tuple[Any, ...]:
    """Return a restore key from its printed form: `('energize', 7)`, or JSON.

    Raises:
        ConfigError: For other texts.

    Example:
        >>> parse_key("('energize', 7)"), parse_key('["Webdataset", "0.tar", 3]')
        (('energize', 7), ('Webdataset', '0.tar', 3))
    """
    try:
        key = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        key = None
    if isinstance(key, list | tuple):
        return tuple(key)
    raise ConfigError(
        "KEY must be a restore key as loader.restore_key prints it, in quotes, like "
        f"\"('energize', 7)\", got {text[:200]!r}"
    )


def show_item(console: Console, item: Any) -> None:
    """Print a sample or a batch, field by field, with pictures of images."""
    if isinstance(item, Failed):
        console.write_line(f"  cannot be used: {item}", "red")
        return
    for name, value in fields_shown(item).items():
        _show(console, name, value)


def _show(console: Console, name: str, value: Any) -> None:
    """Print a value with its name, type and description, and a picture of an image."""
    pictures = pictures_of(value)
    if pictures:
        size = f"{pictures[0].width} x {pictures[0].height} pixels"
        console.write_line(f"  {name}: {format_sample_compact(value)}, {size}")
        for picture in pictures[:_MOST_PICTURES] if console.is_terminal else ():
            console.print(drawn(picture))
        return
    if isinstance(value, bytes) and len(value) > _MOST_BYTES:
        text = (
            f"{value[:_MOST_BYTES]!r}... (and {len(value) - _MOST_BYTES:,} more bytes)"
        )
    else:
        text = format_sample_detailed(value)
    lines = text.split("\n")
    console.write_line(
        f"  {name} ({type(value).__name__}):" + (f" {text}" if len(lines) == 1 else "")
    )
    for line in lines if len(lines) > 1 else ():
        console.write_line(f"    {line}")


def drawn(picture: PIL.Image.Image) -> Text:
    """Return an image as at most 24 lines of text; a character has two pixels."""
    scaled = picture.convert("RGB")
    scaled.thumbnail((100, 2 * _MOST_ROWS))
    pixels = np.asarray(scaled)[: scaled.height // 2 * 2].tolist()
    text = Text()
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        text.append("  ")
        for above, below in zip(upper, lower, strict=True):
            colours = [
                f"rgb({red},{green},{blue})" for red, green, blue in (above, below)
            ]
            text.append("▀", " on ".join(colours))
        text.append("\n")
    return text


# What a run will read, and when it repeats.

_STEPS_PER_TABLE = 20

_DIFFERS = 5e-4
"""Difference between a planned and a requested share that is explained."""

_SHARDS_SHOWN = 12

Plot = Annotated[
    Path | None,
    Option(
        parser=path_of,
        help="Draw shares over the steps, and epochs, to a .png, .svg, .pdf or .html.",
    ),
]


@mixes.takes_run
@mixes.takes_efficiency
def plan(
    mix: mixes.MixPath,
    run: mixes.RunOptions,
    used: mixes.EfficiencyOptions,
    *,
    at: Annotated[
        int, Option(min=0, help="The first step, counted in batches of all ranks.")
    ] = 0,
    steps: Annotated[
        int, Option(min=1, help="Number of batches of all ranks together.")
    ] = 1,
    keys: Annotated[
        bool, Option("--keys", help="Show keys; this reads the shards.")
    ] = False,
    read: Annotated[
        bool,
        Option(
            "--read",
            help=(
                "Read the samples up to these steps, for a run that packs or filters."
            ),
        ),
    ] = False,
    as_json: mixes.AsJson = False,
) -> None:
    """Show the samples and sources of the batches of some steps, and their efficiency.

    Only the metadata of the folders are read. A late step takes no longer than the
    first, but of packs and batches that are planned from columns, all windows before it
    are planned: some seconds for a million packs.
    """
    dataset = run.read(mix, samples=read)
    batches = planned(
        dataset, at, steps, world_size=used.world_size, keys=keys, read=read
    )
    efficiency = used.of(dataset, at, at + steps)
    if as_json:
        for batch in batches:
            print_json(asdict(batch), indent=None)
        if efficiency is not None:
            print_json({"efficiency": efficiency.as_json()}, indent=None)
        return
    console = Console()
    totals: Counter[str] = Counter()
    while chunk := list(islice(batches, _STEPS_PER_TABLE)):
        console.print(_plan_table(chunk))
        totals.update(sample.source for batch in chunk for sample in batch.samples)
    samples = totals.total()
    parts = [
        f"{name} {n:,} ({100 * n / samples:.1f} %)" for name, n in totals.most_common()
    ]
    total = (
        f"{counted(steps, 'step')}, {counted(samples, 'sample')}: {', '.join(parts)}"
    )
    if not dataset.indexed:
        total += "; read, as no plan says what is packed or left out"
    console.write_line(
        total if run.validates else f"{total}; weights count {weighed_in(dataset)}"
    )
    if efficiency is not None:
        console.print(efficiency.table())


def _plan_table(batches: Sequence[PlannedBatch]) -> Table:
    first = batches[0].step
    last = batches[-1].step
    title = f"Step {first:,}" if first == last else f"Steps {first:,} to {last:,}"
    ranked = batches[0].rank is not None
    ranks = (">rank",) if ranked else ()
    result = table(
        ">step", *ranks, "source", ">samples", ">epoch", "shard[samples]", title=title
    )
    for batch in batches:
        batch_cells = [f"{batch.step:,}", *([str(batch.rank)] if ranked else [])]
        parts: dict[tuple[str, int], list[PlannedSample]] = {}
        for sample in batch.samples:
            parts.setdefault((sample.source, sample.epoch), []).append(sample)
        for (source, epoch), samples in parts.items():
            cells = (f"{len(samples):,}", short(epoch), Text(_locations(samples)))
            result.add_row(*batch_cells, Text(source), *cells)
            batch_cells = [""] * len(batch_cells)
        result.add_section()
    return result


def _locations(samples: Iterable[PlannedSample]) -> str:
    """Return the locations of samples by shard: "a.tar[0,3-5] b.tar[7]"."""
    ordered = sorted(samples, key=lambda sample: (sample.shard or "", sample.index))
    by_shard = [
        (shard, list(group))
        for shard, group in groupby(ordered, lambda sample: sample.shard)
    ]
    texts = [
        f"{shard or ''}[{_numbers(group)}]" for shard, group in by_shard[:_SHARDS_SHOWN]
    ]
    if hidden := by_shard[_SHARDS_SHOWN:]:
        number = sum(len(group) for _, group in hidden)
        texts.append(
            f"and {number:,} samples of {len(hidden):,} more shards (--json lists all)"
        )
    return " ".join(texts)


def _numbers(samples: Sequence[PlannedSample]) -> str:
    """Return keys if they are known, or else numbers with ranges such as "3-5"."""
    if any(sample.key is not None for sample in samples):
        return ",".join(f"#{s.index}" if s.key is None else s.key for s in samples)
    return ranges([sample.index for sample in samples]).replace(" ", "")


@mixes.takes_run
@mixes.takes_efficiency
def simulate(
    mix: mixes.MixPath,
    run: mixes.RunOptions,
    used: mixes.EfficiencyOptions,
    *,
    steps: Annotated[
        int | None,
        Option(min=1, help="Number of batches of all ranks; by default all."),
    ] = None,
    plot: Plot = None,
    read: Annotated[
        int | None,
        Option(
            min=1,
            help=("Estimate a run that packs or filters by reading this many batches."),
        ),
    ] = None,
    as_json: mixes.AsJson = False,
) -> None:
    """Show what a long run reads of each source, and when sources begin to repeat.

    Only the metadata of the folders are read. Any number of steps takes the same time,
    but packs and batches that are planned from columns are planned up to the last one.
    """
    if plot is not None:
        check_plot(plot)
    dataset = run.read(mix, samples=read is not None)
    if read is None:
        indexed(dataset, "simulate", "--read 100")
    if steps is None and (not dataset.sized or dataset.size == INFINITE):
        raise ConfigError(
            "this mix has no end, or only reading shows its end. Set --steps to the "
            "number of steps to look at"
        )
    steps = steps or dataset.size
    intervals = 1 if plot is None else intervals_for(dataset, steps)
    simulation = simulated(dataset, steps, intervals=intervals, read=read)
    efficiency = used.of(dataset, 0, steps)
    if as_json:
        shown = _as_json(simulation, validates=run.validates)
        shown["note"] = _window_note(dataset, simulation)
        print_json({**shown, "efficiency": efficiency and efficiency.as_json()})
    else:
        console = Console()
        _show_simulation(console, simulation, validates=run.validates)
        if note := _window_note(dataset, simulation):
            console.note(note, "Planned shares")
        if efficiency is not None:
            console.print(efficiency.table())
    if plot is not None:
        title = f"{mix}, split {run.split}"
        draw(simulation, plot, title=title, planned=efficiency)
        typer.echo(f"Drawn: {plot}", err=True)


def _window_note(dataset: Dataset[Any], simulation: Simulation) -> str | None:
    """Return why shares of planned packs differ from the request; None if they hold."""
    nodes: list[Dataset[Any]] = [dataset]
    for node in nodes:
        nodes.extend(node.inputs)
    windows = {node.window for node in nodes if isinstance(node, PlannedDataset)}
    differ = any(
        source.requested is not None
        and abs(source.share - source.requested) >= _DIFFERS
        for source in simulation.sources
    )
    if not (windows and differ):
        return None
    sizes = " or ".join(f"{window:,}" for window in sorted(windows))
    return (
        f"shares hold in each window of {sizes} samples. Within a window, packs and "
        "batches are ordered by the lengths of their samples, so the first ones can "
        "have other shares of samples"
    )


def _as_json(simulation: Simulation, *, validates: bool) -> dict[str, Any]:
    return {
        "steps": simulation.steps,
        "samples": simulation.samples,
        "weights_count": None if validates else simulation.unit,
        "validates": validates,
        "read": simulation.read,
        "stages": [asdict(entry) for entry in simulation.stages],
        "sources": [entry.as_json() for entry in simulation.sources],
    }


def _show_length(console: Console, simulation: Simulation, *, validates: bool) -> None:
    steps = counted(simulation.steps, "step")
    length = f"{steps}, {counted(simulation.samples, 'sample')}"
    if simulation.read is not None:
        length += f", estimated from the {simulation.read:,} batches that were read"
    if validates:
        console.write_line(f"Validation, every sample once in stored order: {length}")
    else:
        console.write_line(f"{length}; weights count {simulation.unit}")


def _show_simulation(
    console: Console, simulation: Simulation, *, validates: bool
) -> None:
    steps = simulation.steps
    samples = simulation.samples
    _show_length(console, simulation, validates=validates)
    has_shares = any(entry.requested is not None for entry in simulation.sources)
    columns = (">planned %", ">drawn", ">of", ">epochs", ">repeats at")
    result = table("source", *([">asked %"] if has_shares else []), *columns)
    for source in simulation.sources:
        result.add_row(
            Text(source.name), *_simulation_cells(source, has_shares=has_shares)
        )
    if len(simulation.sources) > 1:
        result.add_section()
        count = sum(entry.count for entry in simulation.sources)
        result.add_row(
            "all", *([""] if has_shares else []), "", short(samples), short(count)
        )
    console.print(result)
    for source in simulation.sources:
        if not source.drawn:
            _note_never_reached(console, source, steps)


def _note_never_reached(console: Console, source: SourceForecast, steps: int) -> None:
    why = f"not in {counted(steps, 'step')}"
    if source.requested == 0:
        why = "its weight is 0"
    console.note(f"{source.name}: {why}", "Never reached")


def _simulation_cells(source: SourceForecast, *, has_shares: bool) -> list[str]:
    """Return the cells of a source, with its requested share if `has_shares`."""
    cells: list[str] = []
    if has_shares:
        cells.append(
            "-" if source.requested is None else f"{100 * source.requested:.3f}"
        )
    first = "-"
    latest = "unknown"
    if source.repeats_at is not None:
        first = f"{source.repeats_at:,}"
        latest = f"<= {first}"
    return [
        *cells,
        f"{100 * source.share:.3f}",
        short(source.drawn),
        short(source.count),
        short(source.epochs, 2),
        first if source.repeats_exact else latest,
    ]

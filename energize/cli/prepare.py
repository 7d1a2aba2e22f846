"""`energize prepare`: index a folder of tar shards, asking for what was not given."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.prompt import Confirm

import energize.cli.prepare_options as opt
from energize.cli.asking import ask_field_map, ask_ratios, ask_sample_type
from energize.cli.options import parse_field_map, parse_patterns, parse_ratios
from energize.cli.showing import show_config, show_samples, show_splits
from energize.errors import ConfigError
from energize.prepare.discovery import find_shards
from energize.prepare.fields import check_choice
from energize.prepare.first_look import look_at
from energize.prepare.preparing import prepare as prepare_folder
from energize.prepare.report import PrepareReport
from energize.prepare.shards import Progress as OnProgress
from energize.storage.nv_meta_files import is_prepared

_REDRAW_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Choices:
    """What may be given as options or asked for."""

    ratios: Mapping[str, float] | None
    patterns: Mapping[str, Sequence[str]] | None
    sample_type: str | None
    field_map: Mapping[str, str] | None
    overwrite: bool
    typed: bool


def prepare(
    path: opt.Folder,
    *,
    split_ratio: opt.SplitRatio = None,
    split_parts: opt.SplitParts = None,
    exclude: opt.Exclude = None,
    shuffle_tars: opt.ShuffleTars = False,
    sample_type: opt.SampleType = None,
    field_map: opt.FieldMap = None,
    dataset_yaml_name: opt.DatasetYamlName = "dataset.yaml",
    skip_dataset_yaml: opt.SkipDatasetYaml = False,
    sqlite: opt.Sqlite = False,
    tar_index_only: opt.TarIndexOnly = False,
    force_overwrite: opt.ForceOverwrite = False,
    non_interactive: opt.NonInteractive = False,
    num_workers: opt.NumWorkers = None,
    progress: opt.ShowProgress = True,
) -> None:
    """Index a folder of tar shards, and say how it is split and what its samples are.

    What is not given is asked for, after a look at the first samples.
    """
    console = Console(highlight=False, soft_wrap=True)
    choices = _Choices(
        None if split_ratio is None else parse_ratios(split_ratio),
        parse_patterns(split_parts) if split_parts else None,
        sample_type,
        None if field_map is None else parse_field_map(field_map),
        force_overwrite,
        not skip_dataset_yaml,
    )
    if not tar_index_only:
        check_choice(choices.sample_type, choices.field_map)
        if non_interactive or not sys.stdin.isatty():
            _check_complete(choices)
        else:
            choices = _completed(console, path, exclude, choices)
    with _progress(console, shown=progress) as on_progress:
        report = prepare_folder(
            path,
            split_ratios=choices.ratios,
            split_patterns=choices.patterns,
            exclude=exclude,
            sample_type=choices.sample_type,
            field_map=choices.field_map,
            dataset_yaml=dataset_yaml_name,
            shuffle_shards=shuffle_tars,
            workers=num_workers,
            sqlite=sqlite,
            overwrite=choices.overwrite,
            tar_index_only=tar_index_only,
            on_progress=on_progress,
        )
    _show(console, report)


def _check_complete(choices: _Choices) -> None:
    """A missing choice is an error that names its option."""
    missing = []
    if choices.ratios is None and choices.patterns is None:
        missing.append("--split-ratio 8,1,1 or --split-parts 'train:train-.*'")
    if choices.typed and choices.sample_type is None:
        missing.append("--sample-type (CrudeWebdataset for plain dicts) or --skip-dataset-yaml")
    if missing:
        raise ConfigError(
            "nobody can be asked here (--non-interactive, or the input is no terminal): please "
            f"give {'; and '.join(missing)}"
        )


def _completed(console: Console, path: Path, exclude: str | None, choices: _Choices) -> _Choices:
    """The choices with what was missing asked for."""
    names = find_shards(path, exclude)
    console.print(f"Found {len(names):,} shards, from {names[0]} to {names[-1]}", markup=False)
    if is_prepared(path) and not choices.overwrite:
        question = f"{path} is prepared already. Prepare it again?"
        if not Confirm.ask(question, console=console, default=False):
            raise typer.Abort
        choices = replace(choices, overwrite=True)
    look = look_at(path / names[0])
    show_samples(console, names[0], look)
    if choices.ratios is None and choices.patterns is None:
        choices = replace(choices, ratios=ask_ratios(console, names))
    if choices.typed and choices.sample_type is None:
        choices = replace(choices, sample_type=ask_sample_type(console, look))
    if choices.sample_type is not None and choices.field_map is None:
        field_map = ask_field_map(console, choices.sample_type, look)
        choices = replace(choices, field_map=field_map)
    return choices


@contextmanager
def _progress(console: Console, *, shown: bool) -> Iterator[OnProgress]:
    """A bar drawn by this thread alone: worker processes are forked while it is there."""
    bar = Progress(
        TextColumn("Indexing shards"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not shown or not console.is_terminal,
        auto_refresh=False,
    )
    task = bar.add_task("", total=None)
    drawn = -_REDRAW_SECONDS

    def advance(done: int, total: int) -> None:
        nonlocal drawn
        due = done == total or time.monotonic() - drawn > _REDRAW_SECONDS
        bar.update(task, completed=done, total=total, refresh=due)
        if due:
            drawn = time.monotonic()

    with bar:
        yield advance


def _show(console: Console, report: PrepareReport) -> None:
    shards = f"{len(report.shard_counts):,} shard{'s' if len(report.shard_counts) > 1 else ''}"
    console.print(f"Indexed {report.samples:,} samples in {shards}")
    if report.splits:
        show_splits(console, report.splits, report.shard_counts)
    if report.config is not None:
        show_config(console, report.config)
    for note in report.notes:
        console.print("Note:", style="yellow", end=" ")
        console.print(note, markup=False)

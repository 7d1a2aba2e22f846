"""`energize prepare`: index a folder of tar shards, asking for what was not given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import typer

import energize.cli.prepare_options as opt
from energize.cli.asking import (
    AnswersEndedError,
    Dialogue,
    ask_field_map,
    ask_ratios,
    ask_sample_type,
)
from energize.cli.columns import AskedColumns, asked_columns, show_measured
from energize.cli.console import Console
from energize.cli.contents import is_folder, is_jsonl
from energize.cli.options import parse_field_map, parse_patterns, parse_ratios
from energize.cli.prepare_media import collected, media_filter
from energize.cli.progress import progress_bar
from energize.cli.showing import show_config, show_note, show_samples, show_splits
from energize.data.nv_meta import CRUDE, is_prepared
from energize.energon.loading import prepare_metadataset
from energize.errors import ConfigError
from energize.preparation.discovery import find_shards
from energize.preparation.fields import FirstLook, check_choice
from energize.preparation.index import PrepareReport
from energize.preparation.index import prepare as prepare_folder
from energize.preparation.jsonl import prepare_jsonl
from energize.preparation.verify import prepare_checksums

G = TypeVar("G")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Choices:
    """What may be given as options or asked for."""

    ratios: Mapping[str, float] | None
    patterns: Mapping[str, Sequence[str]] | None
    sample_type: str | None
    field_map: Mapping[str, str] | None
    overwrite: bool
    typed: bool
    exclude: str | None
    skip_unreadable: bool

    @classmethod
    def parsed(
        cls,
        ratios: str | None,
        patterns: Sequence[str] | None,
        sample_type: str | None,
        field_map: str | None,
        *others: Any,
    ) -> _Choices:
        """Those of options as they are typed."""
        return cls(
            _maybe(parse_ratios, ratios),
            _maybe(parse_patterns, patterns or None),
            sample_type,
            _maybe(parse_field_map, field_map),
            *others,
        )

    def options(self) -> dict[str, Any]:
        """As `prepare` takes them."""
        return {
            "split_ratios": self.ratios,
            "split_patterns": self.patterns,
            "sample_type": self.sample_type,
            "field_map": self.field_map,
            "overwrite": self.overwrite,
            "exclude": self.exclude,
            "skip_unreadable": self.skip_unreadable,
        }


def _maybe(parse: Callable[[G], T], given: G | None) -> T | None:
    """An option that was given, parsed."""
    return None if given is None else parse(given)


def prepare(
    path: opt.Folder,
    *,
    split_ratio: opt.SplitRatio = None,
    split_parts: opt.SplitParts = None,
    exclude: opt.Exclude = None,
    skip_unreadable: opt.SkipUnreadable = False,
    shuffle_tars: opt.ShuffleTars = False,
    sample_type: opt.SampleType = None,
    field_map: opt.FieldMap = None,
    dataset_yaml_name: opt.DatasetYamlName = "dataset.yaml",
    skip_dataset_yaml: opt.SkipDatasetYaml = False,
    sqlite: opt.Sqlite = False,
    tar_index_only: opt.TarIndexOnly = False,
    fix_duplicates: opt.FixDuplicates = False,
    force_overwrite: opt.ForceOverwrite = False,
    non_interactive: opt.NonInteractive = False,
    num_workers: opt.NumWorkers = None,
    column: opt.Columns = None,
    column_default: opt.ColumnDefaults = None,
    checksums: opt.Checksums = False,
    media_by_glob: opt.MediaByGlob = None,
    media_by_header: opt.MediaByHeader = False,
    media_by_extension: opt.MediaByExtension = False,
    tmp_path: opt.TmpPath = None,
    progress: opt.ShowProgress = True,
) -> None:
    """Index a folder of tar shards, and say how it is split and what its samples are.

    What is not given is asked for, after a look at the first samples; answers may come from a pipe.
    """
    console = Console(soft_wrap=True)
    media = media_filter(media_by_glob, media_by_header, media_by_extension)
    if media is not None and (tar_index_only or not is_folder(path)):
        raise ConfigError("only folders have metadata of media; for it alone use prepare-media")
    columns = asked_columns(path, column, column_default)
    if not is_folder(path):
        _prepare_file(console, path, checksums=checksums, progress=progress)
        return
    given = split_ratio, split_parts, sample_type, field_map
    if (columns or checksums) and is_prepared(path) and not (force_overwrite or tar_index_only):
        columns.check_alone(*given, exclude, media)
        _add(console, path, columns, num_workers, checksums=checksums, progress=progress)
        return
    passed = (force_overwrite, not skip_dataset_yaml, exclude, skip_unreadable)
    choices = _Choices.parsed(*given, *passed)
    if not tar_index_only:
        choices = _chosen(console, path, choices, may_ask=not non_interactive)
    _index(
        console,
        path,
        choices,
        progress,
        dataset_yaml=dataset_yaml_name,
        shuffle_shards=shuffle_tars,
        workers=num_workers,
        sqlite=sqlite or media is not None,
        tar_index_only=tar_index_only,
        fix_duplicates=fix_duplicates,
        columns=columns.columns,
        column_defaults=columns.defaults,
        checksums=checksums,
    )
    _end(console, path, media, num_workers, tmp_path, progress=progress)


def _index(console: Console, path: Path, choices: _Choices, progress: bool, **options: Any) -> None:
    with progress_bar(console, "Indexing shards", shown=progress) as on_progress:
        report = prepare_folder(path, **choices.options(), **options, on_progress=on_progress)
    _show(console, report)


def _end(
    console: Console,
    path: Path,
    media: str | None,
    workers: int | None,
    tmp_path: Path | None,
    *,
    progress: bool,
) -> None:
    """What is left to do: metadata of media, if any; exits with 1 where some are damaged."""
    if media is None:
        console.print("Done")
        return
    found = collected(console, path, media, workers, tmp_path, progress=progress)
    console.print("Done")
    if found.damaged:
        raise typer.Exit(1)


def _add(
    console: Console,
    path: Path,
    columns: AskedColumns,
    workers: int | None,
    *,
    checksums: bool,
    progress: bool,
) -> None:
    """Checksums and columns for a folder that is prepared."""
    if checksums:
        with progress_bar(console, "Reading shards", shown=progress) as on_progress:
            report = prepare_checksums(path, workers=workers, on_progress=on_progress)
        console.print(f"Wrote checksums of {report.samples:,} samples, {report.bytes:,} bytes")
    if columns:
        columns.measure(console, workers, progress=progress)
    console.print("Done")


def _prepare_file(console: Console, path: Path, *, checksums: bool, progress: bool) -> None:
    """Index a file of JSON lines; or write down the joins of a metadataset, if it has any."""
    if not is_jsonl(path):
        if path.suffix not in (".yaml", ".yml"):
            raise ConfigError(
                f"{path} is a file, and neither a .jsonl file nor a metadataset .yaml; of tar "
                "shards give the folder"
            )
        if checksums:
            raise ConfigError(
                f"{path}: --checksums is for folders of shards and .jsonl files; write those of "
                "each dataset of a metadataset by itself"
            )
        prepare_metadataset(path)
        console.print("Done")
        return
    with progress_bar(console, "Indexing lines", shown=progress) as on_progress:
        count = prepare_jsonl(path, checksums=checksums, on_progress=on_progress)
    console.print(f"Done. Found {count} samples.")


def _chosen(console: Console, path: Path, choices: _Choices, *, may_ask: bool) -> _Choices:
    """The choices, complete: what was not given is asked for, where somebody may be asked.

    Raises `ConfigError` that names the options for all that is missing.
    """
    check_choice(choices.sample_type, choices.field_map)
    missing = _missing(choices)
    if not may_ask:
        if missing:
            raise ConfigError(f"--non-interactive asks nothing: give {'; and '.join(missing)}")
        return choices
    prepared = is_prepared(path) and not choices.overwrite
    try:
        return _completed(Dialogue(console, sys.stdin.isatty()), path, choices)
    except AnswersEndedError as question:
        needed = [*(["--force-overwrite"] if prepared else []), *missing]
        raise ConfigError(
            f"the input ended at the question {str(question)!r}: please give "
            f"{'; and '.join(needed) or 'an answer to it'}"
        ) from None


def _missing(choices: _Choices) -> list[str]:
    """The options for what would have to be asked."""
    missing = []
    if choices.ratios is None and choices.patterns is None:
        missing.append("--split-ratio 8,1,1 or --split-parts 'train:train-.*'")
    if choices.typed and choices.sample_type is None:
        missing.append("--sample-type (CrudeWebdataset for plain dicts) or --skip-dataset-yaml")
    return missing


def _completed(dialogue: Dialogue, path: Path, choices: _Choices) -> _Choices:
    """The choices with what was missing asked for."""
    prepared = is_prepared(path) and not choices.overwrite
    mapped = choices.sample_type in (None, CRUDE) or choices.field_map is not None
    if mapped and not (prepared or _missing(choices)):
        return choices
    console = dialogue.console
    names = find_shards(path, choices.exclude, skip_unreadable=choices.skip_unreadable).names
    console.print(f"Found {len(names):,} shards, from {names[0]} to {names[-1]}", markup=False)
    if prepared:
        if not dialogue.confirm("It is prepared already. Prepare it again?", proposal=False):
            raise typer.Abort
        choices = replace(choices, overwrite=True)
    look = FirstLook(path / names[0])
    show_samples(console, names[0], look)
    if choices.ratios is None and choices.patterns is None:
        choices = replace(choices, ratios=ask_ratios(dialogue, names))
    if choices.typed and choices.sample_type is None:
        if not dialogue.confirm("Say in a dataset.yaml what its samples are?", proposal=True):
            return replace(choices, typed=False)
        choices = replace(choices, sample_type=ask_sample_type(dialogue, look))
    if choices.sample_type is not None and choices.field_map is None:
        field_map = ask_field_map(dialogue, choices.sample_type, look)
        choices = replace(choices, field_map=field_map)
    return choices


def _show(console: Console, report: PrepareReport) -> None:
    shards = f"{len(report.shard_counts):,} shard{'s' if len(report.shard_counts) > 1 else ''}"
    console.print(f"Indexed {report.samples:,} samples in {shards}")
    if report.splits:
        show_splits(console, report.splits, report.shard_counts)
    if report.config is not None:
        show_config(console, report.config)
    if report.columns:
        show_measured(console, report.columns, report.samples)
    for note in report.notes:
        show_note(console, note)

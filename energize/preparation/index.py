"""Preparing a folder of tar shards: everything that reading it at random needs, written
at once.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import re
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, chain, count, pairwise
from pathlib import Path
from typing import Any

from braceexpand import braceexpand

from energize.core.columns import Column
from energize.core.failures import Failed
from energize.core.os_errors import os_errors_as
from energize.core.progress import Progress, progress
from energize.data import nv_meta
from energize.data.columns import COLUMNS_FOLDER, COLUMNS_NAME, folder_version
from energize.data.files import path_of, read_file
from energize.data.jsonl import jsonl_checksums_path, jsonl_index_path
from energize.data.rows import parsed_row
from energize.data.tar import END_MARK, index_path
from energize.data.writing import NewFiles, exit_on_signals, remove_leftovers
from energize.errors import ConfigError, DatasetNotFoundError, PrepareError, ShardError
from energize.preparation.columns import (
    Columns,
    read_stored_columns,
    remove_unused,
)
from energize.preparation.fields import (
    FirstLook,
    check_choice,
    choose_config,
    field_notes,
)
from energize.preparation.measures import How, SampleReading, Value
from energize.preparation.scan import (
    ScannedShard,
    ShardHeaders,
    checksums_of,
    find_shards,
    glob_notes,
    listed,
)
from energize.preparation.tasks import (
    TASKS_FOLDER,
    Job,
    JobPart,
    ShardWork,
    all_in_turn,
    read_shard_counts,
)
from energize.preparation.verify import stage_records
from energize.preparation.write import (
    commit,
    locked,
    make_unique,
    shard_folders,
    staging,
)

_log = logging.getLogger("energize")


Parts = dict[str, tuple[str, ...]]
"""The shards of each split part."""

Ratios = Mapping[str, float]
"""The share of each split part, of any sum."""

_PARTS = ("train", "val", "test")

Windows = dict[str, tuple[int, int]]
"""First and end sample of split parts, counted over the samples of their shards."""

_REPLACED = (*nv_meta.INFO_NAMES, nv_meta.SQLITE_NAME, nv_meta.UUID_NAME)


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """Result of preparing a folder.

    Args:
        path: The folder.
        shard_counts: Samples by shard.
        parts: Samples by part, the most frequent first.
        splits: Shards by split part.
        config: Content of `dataset.yaml`; None if it was not written.
        notes: Notes on possible mistakes.
        columns: Measured columns by name.
        windows: For splits that begin or end inside a shard, the first and end sample.
    """

    path: Path
    shard_counts: dict[str, int]
    parts: dict[str, int]
    splits: Parts = field(default_factory=dict)
    config: nv_meta.SampleConfig | None = None
    notes: tuple[str, ...] = ()
    columns: dict[str, Column] = field(default_factory=dict)
    windows: Windows = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(self.shard_counts.values())


@all_in_turn
@os_errors_as(PrepareError, fault="cannot be used")
def prepare(  # noqa: PLR0913
    path: str | Path,
    *,
    shards: Sequence[str] | None = None,
    split_ratios: Mapping[str, float] | Sequence[float] | str | None = None,
    split_patterns: Mapping[str, Sequence[str]] | None = None,
    exclude: str | None = None,
    sample_type: str | None = None,
    field_map: Mapping[str, str] | None = None,
    dataset_yaml: str = "dataset.yaml",
    split_config: str = "split.yaml",
    shuffle_shards: bool = False,
    seed: int = 42,
    workers: int | None = None,
    sqlite: bool = True,
    overwrite: bool = False,
    tar_index_only: bool = False,
    fix_duplicates: bool = False,
    columns: Mapping[str, How] | None = None,
    column_defaults: Mapping[str, Value] | None = None,
    lengths: Collection[str] = (),
    checksums: bool = False,
    tasks: int | None = None,
    task: int | None = None,
    merge: bool = False,
    on_progress: Progress | None = None,
) -> PrepareReport:
    """Index the tar shards below a folder, so that energize and Energon can read it.

    Writes a `.tar.idx` beside each shard, and into `.nv-meta` the files `.info.json`,
    `split.yaml`, `dataset.yaml` and `shards.json`. All files appear together when the
    last shard has been read. After an error, no new file appears and existing files
    stay. A process killed in between leaves a folder that is not prepared.

    Several machines can share the work. Each runs one `task` of `tasks`, and a final
    call with `merge` combines the results in seconds. A task that ended with the same
    options and shards is not done again. The merged folder is byte for byte the same as
    that of a single call. `tasks` alone does all tasks in this process, and continues
    after an interruption.

    Args:
        path: The folder.
        shards: Names of shards relative to `path`, with braces: `["parts/{0..9}.tar"]`.
            By default, all shards below `path`; a link, folder or shard that cannot be
            read is an error.
        split_ratios: Shares of split parts, `{"train": 8, "val": 2}`, or `[8, 2]` for
            train and val. Splits are whole shards, which Energon can read. If there are
            too few shards, splits are cut by samples, with at least one sample each.
            Exactly one of `split_ratios` and `split_patterns` is required.
        split_patterns: Regular expressions of shard names by split: `{"val":
            ["val-.*"]}`.
        exclude: Regular expression; shards with a matching name are left out.
        sample_type: Name of a sample type, or "CrudeWebdataset". None writes no
            `dataset.yaml`.
        field_map: Parts by field; proposed from the existing parts by default.
        dataset_yaml: Name of the file of the sample type.
        split_config: Name of the file of the splits.
        shuffle_shards: Whether shards are shuffled before they are split by ratios.
        seed: Seed of that shuffle.
        workers: Processes that read shards; by default one for each core.
        sqlite: Whether `index.sqlite` and `index.uuid` are written, which joins and
            stores read.
        overwrite: Whether a prepared folder is prepared again.
        tar_index_only: Only write the index of a prepared folder again.
        fix_duplicates: Rewrite shards that share keys, with the name of the shard
            before the names of its members (`parts/0.tar/cat.jpg`).
        columns: Columns to measure, as in `prepare_columns`.
        column_defaults: Values for samples without one, by column.
        lengths: Columns of lengths, as in `prepare_columns`.
        checksums: Whether a checksum of each sample is written, as by
            `prepare_checksums`.
        tasks: Number of tasks that the shards are partitioned into.
        task: The task that this call does, from 0 on.
        merge: Whether all tasks have ended, and their results are merged. Splits and
            sample types are checked then.
        on_progress: Called with the shards that are done, and with all shards.

    Returns:
        The shards, splits, sample type and columns, and notes on possible mistakes.

    Raises:
        PrepareError: For damaged shards, repeated keys, a split without shards, a field
            without its part or JSON key, a folder that is already prepared, a file that
            cannot be written, and errors of `prepare_columns`; when merging, for tasks
            that have not ended or had other options or shards.
        ConfigError: For wrong arguments.
        DatasetNotFoundError: If the folder does not exist.

    Example:
        >>> import tempfile
        >>> from energize import write_shards
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shards = write_shards([{"__key__": "a", "txt": "hello"}], folder)
        ...     report = prepare(
        ...         folder, split_ratios={"train": 1}, sample_type="TextSample"
        ...     )
        >>> report.samples, report.splits, report.config.field_map
        (1, {'train': ('shard-000000.tar',)}, {'text': 'txt'})
    """
    root = path_of(path)
    meta = path_of(path) / nv_meta.META_FOLDER
    wanted = Columns(
        columns or {},
        column_defaults,
        lengths,
        _reading_of(root, is_prepared=tar_index_only),
    )
    ratios = ratios_of(split_ratios)
    indexed = dict[str, int]()
    notes = list[str]()
    splits = Parts()
    if tar_index_only:
        indexed = read_shard_counts(root)
        names = list(indexed)
        # A database left as it is would point into shards as they were before.
        sqlite = sqlite or (meta / nv_meta.SQLITE_NAME).exists()
    else:
        check_choice(sample_type, field_map)
        names, notes = find_shards(root, exclude, shards)
        splits = _requested_splits(
            names, ratios, split_patterns, seed if shuffle_shards else None, task
        )
    functions = _functions(names, wanted, checksums=checksums, sqlite=sqlite)
    options = {"checksums": checksums, "sqlite": sqlite, **wanted.options}
    work = ShardWork(partial(keep_index, root, indexed), functions)
    part = JobPart(workers, on_progress, tasks, task, merge)
    job = Job(root, "prepare", names, work, part, options, unique=True)
    _check_whole(tasks, whole=tar_index_only or fix_duplicates)
    _check_new(root, overwrite or tar_index_only or merge or job.is_done)
    _check_fields(root / names[0], field_map or {})
    folders = [meta, *shard_folders(root, names)]
    if task is not None:
        return report_of(root, job.of_task(*folders))
    with staging(
        root, *folders, *job.folders, *([root / COLUMNS_FOLDER] if columns else [])
    ) as files:
        if fix_duplicates:
            notes += _renamed(make_unique(root, names, workers))
        scanned = job.of_all(files, meta / nv_meta.SQLITE_NAME if sqlite else None)
        version = _stage_version(
            files, root, scanned, sqlite=sqlite, is_indexed=bool(indexed)
        )
        report = report_of(root, scanned)
        same = _are_unchanged(indexed, scanned)
        stored_columns = read_stored_columns(root) if same else {}
        measured, column_notes = wanted.stage(
            files, root, scanned, report.shard_counts, version, stored_columns
        )
        report = replace(report, splits=splits, columns=measured)
        oddities = _oddities(scanned, report, split_patterns or {})
        report = replace(report, notes=(*notes, *oddities, *column_notes))
        stage_records(root, files, scanned)
        if not indexed:
            look = FirstLook(root / names[0])
            config = choose_config(sample_type, field_map, look, report.parts)
            report = replace(report, config=config)
            texts = (split_config, dataset_yaml)
            report = stage_texts(files, report, ratios or {}, texts, overwrite)
        replaced = _replaced(root, texts=not indexed, columns=not same)
        is_last = not (merge or indexed)
        markers = (root / TASKS_FOLDER).glob("*/*") if is_last else ()
        commit(files, root / names[0], replaced, markers)
    remove_unused(root)
    return report


def _reading_of(root: Path, *, is_prepared: bool) -> SampleReading:
    """Return how measures read the samples of a folder."""
    if is_prepared:
        return SampleReading.of_folder(root)
    return SampleReading(refusal="the folder has to be prepared first")


def _requested_splits(
    names: Sequence[str],
    ratios: Ratios | None,
    patterns: Mapping[str, Sequence[str]] | None,
    seed: int | None,
    task: int | None,
) -> Parts:
    """Return the split parts; none for a task, unless they can be checked by it."""
    if task is None or ratios or patterns:
        return split(names, ratios, patterns, seed)
    return {}


def _check_whole(tasks: int | None, *, whole: bool) -> None:
    """Raise `ConfigError` for tasks, if an option needs all shards at once."""
    if tasks is not None and whole:
        raise ConfigError(
            "tar_index_only and fix_duplicates take all shards at once. Remove tasks "
            "(--tasks)"
        )


def _renamed(count: int) -> list[str]:
    """Return a note on shards that `fix_duplicates` wrote again."""
    if not count:
        return []
    return [f"{count} shards were written anew, with keys of their own"]


def _functions(
    names: Sequence[str], wanted: Columns, *, checksums: bool, sqlite: bool
) -> dict[str, Any]:
    """Return the functions that are called with each shard, by name."""
    functions: dict[str, Any] = {"names": check_members, "columns": wanted.measured}
    if checksums:
        functions["checksums"] = ShardHeaders.checksums
    if sqlite:
        functions["rows"] = partial(rows_of, dict(zip(names, count())))
    return functions


def _check_fields(shard: Path, field_map: Mapping[str, str]) -> None:
    """Raise `PrepareError` if the first sample lacks a key that a field names."""
    with suppress(ShardError):  # all damaged shards are reported together
        for name, source in field_map.items():
            FirstLook(shard).check_keys(name, source)


def _stage_version(
    files: NewFiles,
    root: Path,
    shards: Sequence[ScannedShard],
    *,
    sqlite: bool,
    is_indexed: bool,
) -> str | None:
    """Write the version of a new index; return it, or that of the one in the folder."""
    if sqlite:
        version = version_of(shards)
        files.write(root / nv_meta.META_FOLDER / nv_meta.UUID_NAME, version.encode())
        return version
    return folder_version(root) if is_indexed else None


def _are_unchanged(indexed: Mapping[str, int], shards: Sequence[ScannedShard]) -> bool:
    """Return whether all shards of a prepared folder are what they were."""
    return bool(indexed) and all(shard.results["same"] for shard in shards)


def _replaced(root: Path, *, texts: bool, columns: bool) -> list[Path]:
    """Return the files of an earlier preparation that are removed."""
    meta = root / nv_meta.META_FOLDER
    replaced = [meta / name for name in _REPLACED] if texts else []
    if columns:
        replaced.append(root / COLUMNS_FOLDER / COLUMNS_NAME)
    return replaced


def version_of(shards: Sequence[ScannedShard]) -> str:
    """Return the version of an index; another one for other samples."""
    text = json.dumps([[shard.name, *shard.record.of_shard] for shard in shards])
    return str(uuid.uuid5(uuid.NAMESPACE_OID, text))


def stage_texts(
    files: NewFiles,
    report: PrepareReport,
    ratios: Ratios,
    names: tuple[str, str],
    overwrite: bool,
) -> PrepareReport:
    """Write the texts of `.nv-meta`, the one that marks a folder as prepared last.

    Returns:
        The report with splits that fit the samples, and notes on them.
    """
    split_config, dataset_yaml = names
    counts = report.shard_counts
    meta = report.path / nv_meta.META_FOLDER
    splits, windows = _fitting(report.splits, counts, ratios)
    notes = [_CUT] if windows else split_notes(list(counts), splits)
    notes += field_notes(report.config, report.parts, report.samples)
    texts = {
        meta / split_config: nv_meta.dump_splits(splits, split_config, samples=windows)
    }
    if report.config is not None:
        texts[meta / dataset_yaml] = nv_meta.dump_dataset_yaml(report.config)
    info = nv_meta.Info(energon_version=nv_meta.FORMAT_VERSION, shard_counts=counts)
    texts[meta / nv_meta.INFO_NAMES[0]] = nv_meta.dump_info(info)
    # Where all is as it would be, the folder was merged before.
    same = all(
        file.exists() and read_file(file) == texts[file].encode() for file in texts
    )
    _check_new(report.path, overwrite or same)
    for file, text in texts.items():
        files.write(file, text.encode())
    return replace(
        report, splits=splits, windows=windows, notes=(*report.notes, *notes)
    )


def _check_new(root: Path, overwrite: bool) -> None:
    if nv_meta.is_prepared(root) and not overwrite:
        raise PrepareError(
            f"{root} is prepared already. Pass overwrite=True (--force-overwrite) to "
            "prepare it again"
        )


def report_of(root: Path, shards: Sequence[ScannedShard]) -> PrepareReport:
    """Return the counts of scanned shards, the most frequent parts first."""
    parts = sum((shard.parts for shard in shards), Counter[str]())
    return PrepareReport(
        root, {s.name: s.count for s in shards}, dict(parts.most_common())
    )


def keep_index(
    root: Path, indexed: Mapping[str, int], shard: ScannedShard, files: NewFiles
) -> None:
    """Write the index of a shard; raise if its count differs from `indexed`."""
    tar = root / shard.name
    index = path_of(index_path(str(tar)))
    if shard.count != indexed.get(shard.name, shard.count):
        raise ShardError(
            f"{tar} has {shard.count} samples, but .info.json has {indexed[shard.name]}"
        )
    shard.results["same"] = (
        indexed and index.is_file() and read_file(index) == shard.index
    )
    files.write(index, shard.index)


def rows_of(
    numbers: Mapping[str, int], shard: ShardHeaders
) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of a shard for the tables of the database."""
    number = numbers[shard.name]
    samples = shard.content.samples
    rows = enumerate(zip(samples, pairwise(shard.offsets), strict=True))
    return {
        "samples": [
            (number, entry.key, row, at, end - at) for row, (entry, (at, end)) in rows
        ],
        "sample_parts": [
            (number, row, part.name, part.offset, part.size)
            for row, sample in enumerate(samples)
            for part in sample.parts
        ],
    }


def check_members(shard: ShardHeaders) -> tuple[int, str]:
    """Count the files that belong to no sample, and return the first of them.

    Raises:
        ShardError: For a shard without samples, members with an absolute path or "..",
            and names that are not UTF-8.
    """
    if not shard.content.samples:
        raise ShardError(
            f"{shard.path} has no samples: no member is named KEY.PART, like 01.jpg"
        )
    for key, _, parts in shard.content.samples:
        if key.startswith("/") or ".." in key.split("/"):
            message = (
                f"{shard.path}: the member {f'{key}.{parts[0].name}'!r} has a name "
                "that is"
            )
            raise ShardError(
                f"{message} absolute or has '..' in it. Pack the shard again"
            )
        if not is_utf8(key) or not all(is_utf8(part.name) for part in parts):
            message = f"{shard.path}: sample {key!r} has a name that is no UTF-8"
            raise ShardError(f"{message}. Rename its files and pack the shard again")
    left_out = shard.content.left_out
    return len(left_out), next(iter(left_out), "")


def is_utf8(name: str) -> bool:
    """Return whether a file name is valid UTF-8; it has surrogates otherwise."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _oddities(
    shards: Sequence[ScannedShard],
    report: PrepareReport,
    patterns: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return notes on possible mistakes in split patterns, or damage of shards."""
    notes = _end_notes(shards)
    for part, regexes in patterns.items():
        notes += glob_notes(
            f"split {part!r}", regexes, [*report.shard_counts], report.splits[part]
        )
    return [*notes, *_stray_file_notes(shards), *_missing_part_notes(report)]


def _stray_file_notes(shards: Sequence[ScannedShard]) -> list[str]:
    """Return a note on files that belong to no sample, if there are any."""
    strays = [(shard, *shard.results["names"]) for shard in shards]
    strays = [(shard, count, name) for shard, count, name in strays if count]
    if not strays:
        return []
    shard, _, name = strays[0]
    return [
        f"{sum(count for _, count, _ in strays)} files belong to no sample, as their "
        f"names have no part after a dot: {name!r:.200} in {shard.name} for example"
    ]


def _missing_part_notes(report: PrepareReport) -> list[str]:
    """Return a note on parts that only a few samples lack, if there are any."""
    few = max(1, report.samples // 10)
    common = {part: count for part, count in report.parts.items() if count > 1}
    lacking = {part: report.samples - count for part, count in common.items()}
    faults = [
        f"{count} have no {part!r}"
        for part, count in lacking.items()
        if 0 < count <= few
    ]
    if not faults:
        return []
    return [
        f"of {report.samples} samples {', '.join(faults[:3])}, and all others have it: "
        "if that is not meant, files are missing, or their names are damaged"
    ]


def _end_notes(shards: Sequence[ScannedShard]) -> list[str]:
    """Return a note on shards that end without a mark and may be truncated."""
    cut = [shard for shard in shards if shard.trailing < END_MARK]
    return [
        f"{len(cut)} of {len(shards)} shards end without an end mark, {shard.name} for "
        f"example after {shard.record.bytes:,} bytes: if copying or writing them was "
        "cut off, samples are missing"
        for shard in cut[:1]
    ]


def ratios_of(ratios: Mapping[str, float] | Sequence[float] | str | None) -> Any:
    """Return shares by split part; numbers without names are train, val and test.

    >>> ratios_of("8, 2"), ratios_of([0.9, 0.1])
    ({'train': 8.0, 'val': 2.0}, {'train': 0.9, 'val': 0.1})
    """
    if ratios is None or isinstance(ratios, Mapping):
        return ratios
    try:
        numbers = [
            float(number)
            for number in (ratios.split(",") if isinstance(ratios, str) else ratios)
        ]
    except (TypeError, ValueError):
        numbers = []
    if not 1 <= len(numbers) <= len(_PARTS):
        raise ConfigError(
            "split ratio: expected up to three numbers for train, val and test, like "
            "8,1,1, got "
            f"{ratios!r}"
        )
    return dict(zip(_PARTS, numbers, strict=False))


def split(
    shards: Sequence[str],
    ratios: Mapping[str, float] | None,
    patterns: Mapping[str, Sequence[str]] | None,
    shuffle_seed: int | None = None,
) -> Parts:
    """Return the shards of each split part.

    Args:
        shards: Names of all shards.
        ratios: Shares by split part. Exactly one of `ratios` and `patterns` is
            required.
        patterns: Regular expressions by split part, with braces (`train-{000..099}`).
            They match from the start of a name.
        shuffle_seed: Seed of a shuffle before shards are split by ratios; None for
            none.

    Raises:
        ConfigError: For wrong arguments.
        PrepareError: For a split part without shards.
    """
    if ratios is not None and patterns is None:
        return _by_ratios(shards, ratios, shuffle_seed)
    if patterns is not None and ratios is None:
        return _by_patterns(shards, patterns)
    got = "neither" if ratios is None else "both"
    raise ConfigError(
        "pass either split_ratios (--split-ratio) or split_patterns (--split-parts): "
        f"{got}"
    )


def _by_ratios(
    shards: Sequence[str], ratios: Ratios, shuffle_seed: int | None
) -> Parts:
    """Cut the shards at the cumulative ratios, in order or shuffled.

    Part i ends before shard floor(n * (ratio 0 + ... + ratio i) / sum). The arithmetic
    is exact, so every shard is in a part; Energon's floats lose the last of 10 shards
    at 7,2,1.
    """
    for part, ratio in ratios.items():
        if not math.isfinite(ratio) or ratio < 0:
            raise ConfigError(f"the split ratio of {part!r} must be >= 0, got {ratio}")
    if not any(ratios.values()):
        raise ConfigError(f"at least one split ratio must be > 0, got {dict(ratios)}")
    shards = list(shards)
    if shuffle_seed is not None:
        # The generator of Energon, so that the same seed cuts the same way.
        random.Random(shuffle_seed).shuffle(shards)  # noqa: S311
    exact = _exact(ratios)
    bounds = pairwise(
        [0, *(math.floor(len(shards) * end) for end in accumulate(exact.values()))]
    )
    return {
        part: tuple(shards[a:b]) for part, (a, b) in zip(exact, bounds, strict=True)
    }


def _exact(ratios: Ratios) -> dict[str, Fraction]:
    """Return the share of each part that has one."""
    exact = {part: Fraction(str(ratio)) for part, ratio in ratios.items() if ratio}
    return {part: share / sum(exact.values()) for part, share in exact.items()}


_CUT = (
    "there are too few shards for these ratios, so splits begin and end inside of "
    "shards. Megatron-Energon reads whole shards only, and not this split file: for "
    "it, write more and smaller shards"
)


def _fitting(
    parts: Parts, counts: Mapping[str, int], ratios: Ratios
) -> tuple[Parts, Windows]:
    """Return parts of whole shards, or parts cut by samples if a part has no shard.

    Parts that are cut have at least one sample. Their windows are counted over the
    samples of their shards.

    >>> _fitting(
    ...     {"train": ("0.tar",), "val": ()},
    ...     {"0.tar": 10},
    ...     {"train": 0.98, "val": 0.02},
    ... )
    ({'train': ('0.tar',), 'val': ('0.tar',)}, {'train': (0, 9), 'val': (9, 10)})
    """
    if all(parts.values()):
        return parts, {}
    order = list(chain.from_iterable(parts.values()))
    sizes = _split_sizes(ratios, sum(counts.values()))
    ends = dict(zip(order, accumulate(counts[shard] for shard in order), strict=True))
    fitted: Parts = {}
    windows = {}
    for (part, size), stop in zip(
        sizes.items(), accumulate(sizes.values()), strict=True
    ):
        start = stop - size
        inside = [
            name
            for name in order
            if start < ends[name] and ends[name] - counts[name] < stop
        ]
        offset = ends[inside[0]] - counts[inside[0]]
        fitted[part] = tuple(inside)
        if (start, stop) != (offset, ends[inside[-1]]):
            windows[part] = start - offset, stop - offset
    return fitted, windows


def _split_sizes(ratios: Ratios, total: int) -> dict[str, int]:
    """Return the samples of each split, at least one; the smallest may get no entry."""
    shares = _exact(ratios)
    largest = sorted(shares, key=shares.__getitem__, reverse=True)[:total]
    sizes = {
        part: max(1, math.floor(total * share))
        for part, share in shares.items()
        if part in largest
    }
    sizes[largest[0]] += max(0, total - sum(sizes.values()))
    while sum(sizes.values()) > total:
        sizes[max(sizes, key=sizes.__getitem__)] -= 1
    return sizes


def _by_patterns(shards: Sequence[str], patterns: Mapping[str, Sequence[str]]) -> Parts:
    parts: Parts = {}
    for part, regexes in patterns.items():
        compiled: list[re.Pattern[str]] = []
        for pattern in regexes:
            try:
                # A backslash belongs to the regular expression, so it escapes no brace.
                compiled += map(re.compile, braceexpand(pattern, escape=False))
            except (re.error, ValueError) as reason:
                message = (
                    f"the pattern {pattern!r} of split {part!r} is no regular "
                    "expression"
                )
                raise ConfigError(f"{message}: {reason}") from reason
        parts[part] = tuple(
            shard for shard in shards if any(p.match(shard) for p in compiled)
        )
        if not parts[part]:
            raise PrepareError(
                f"split {part!r}: no shard matches {' or '.join(regexes)}. They are "
                "regular expressions, compared with names like "
                f"{shards[0]} from their "
                "start"
            )
    return parts


def split_notes(shards: Sequence[str], parts: Parts) -> list[str]:
    """Return notes on shards that are in no split, or in several."""
    times = Counter(shard for names in parts.values() for shard in names)
    unused = [shard for shard in shards if not times[shard]]
    shared = [shard for shard in shards if times[shard] > 1]
    notes = []
    if unused:
        notes.append(f"{_plural(unused)} in no split, {unused[0]} for example")
    if shared:
        splits = _splits_with(shared[0], parts)
        notes.append(
            f"{_plural(shared)} in several splits: {shared[0]} for example is in "
            f"{' and '.join(splits)}, so the splits share samples"
        )
    return notes


def _splits_with(shard: str, parts: Parts) -> list[str]:
    return [part for part, names in parts.items() if shard in names]


def _plural(shards: Sequence[str]) -> str:
    return f"{len(shards)} shard{'' if len(shards) == 1 else 's'}"


_SHOWN = 10
_REPORTED_BYTES = 4 * 1024 * 1024


@os_errors_as(PrepareError, fault="cannot be used")
def prepare_jsonl(
    path: str | os.PathLike[str],
    *,
    checksums: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the index `PATH.idx` of a `.jsonl` file.

    Every line that is not blank is a sample and must be a JSON object; all lines are
    parsed. Files appear when they are complete; after an error, existing files stay.

    Args:
        path: The file.
        checksums: Whether `PATH.crc` is written, with a checksum of each sample. They
            are compared by `JsonlSource(checksums=True)`,
            `get_train_dataset(checksums=True)` and `energize lint`.
        on_progress: Called with the bytes that are done, and with all bytes.

    Returns:
        The number of samples.

    Raises:
        PrepareError: For lines that are not JSON objects, a file without samples, and
            files that cannot be written.
        DatasetNotFoundError: If the file does not exist.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
        >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
        >>> prepare_jsonl(path)
        2
    """
    file = path_of(path)
    if not file.exists():
        raise DatasetNotFoundError(f"{file} does not exist")
    if not file.is_file() or file.suffix != ".jsonl":
        raise PrepareError(
            f"{file} is not a .jsonl file. For a folder of tar shards, call prepare"
        )
    index, crc = (
        path_of(name(str(file))) for name in (jsonl_index_path, jsonl_checksums_path)
    )
    with exit_on_signals(), locked(file), NewFiles(PrepareError) as files:
        offsets = _offsets(file, on_progress or progress(f"{file}: bytes"))
        for final in (index, crc):
            remove_leftovers(final.parent, of=final)
        if checksums:
            with os_errors_as(PrepareError):
                files.write(crc, checksums_of(file, offsets[1:]))
        files.write(index, offsets.tobytes())
        commit(files, file)
    return len(offsets) - 1


def _offsets(path: Path, on_progress: Callable[[int, int], None]) -> array[int]:
    """Return the start of each sample, and the size of the file."""
    size = path.stat().st_size
    offsets = array("Q")
    faults = list[str]()
    at = reported = wrong = 0
    with os_errors_as(PrepareError, path), path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text:
                # Blank lines at the start belong to the first sample.
                offsets.append(at if offsets else 0)
                row = parsed_row(text, f"line {number}")
                wrong += isinstance(row, Failed)
                if isinstance(row, Failed) and wrong <= _SHOWN:
                    faults.append(str(row))
            at += len(line)
            if at - reported > _REPORTED_BYTES:
                on_progress(reported := at, size)
    if faults:
        message = (
            f"{path}: {wrong} of {len(offsets)} lines are no JSON objects, {{...}}"
        )
        raise PrepareError(f"{message}:{listed(faults, wrong)}")
    if not offsets:
        raise PrepareError(f"{path} has no samples: every line is blank")
    if at != size:
        raise PrepareError(
            f"{path} grew or shrank while it was indexed. Wait until it is written"
        )
    on_progress(size, size)
    offsets.append(size)
    return offsets

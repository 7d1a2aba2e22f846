"""Preparing a folder of tar shards: everything that reading it at random needs, written at once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from energize.core.checks import checked_whole
from energize.data.nv_meta import (
    INFO_NAMES,
    META_FOLDER,
    SQLITE_NAME,
    UUID_NAME,
    Info,
    Splits,
    dump_dataset_yaml,
    dump_info,
    dump_splits,
    is_prepared,
    read_info,
)
from energize.data.sqlite import ReadOnlyDatabase
from energize.data.tar import END_MARK
from energize.data.writing import os_errors_as
from energize.errors import DatasetError, PrepareError, ShardError
from energize.preparation.checksums import prepare_checksums
from energize.preparation.columns import How, prepare_columns
from energize.preparation.discovery import find_shards, named_shards
from energize.preparation.duplicates import check_unique
from energize.preparation.fields import check_choice, choose_config, field_notes
from energize.preparation.first_look import look_at
from energize.preparation.indexing import IndexedShard
from energize.preparation.measures import Value, named
from energize.preparation.older_columns import COLUMNS, keep_columns, lost_columns, same_shards
from energize.preparation.parallel import default_workers
from energize.preparation.records import stage_records
from energize.preparation.renaming import make_unique
from energize.preparation.report import PrepareReport
from energize.preparation.shards import Progress, index_shards
from energize.preparation.splitting import Parts, split, split_notes
from energize.preparation.staging import Staging

_PADDING = 1024 * 1024


@os_errors_as(PrepareError, what="cannot be used")
def prepare(
    path: str | Path,
    *,
    shards: Sequence[str] | None = None,
    split_ratios: Mapping[str, float] | None = None,
    split_patterns: Mapping[str, Sequence[str]] | None = None,
    exclude: str | None = None,
    sample_type: str | None = None,
    field_map: Mapping[str, str] | None = None,
    dataset_yaml: str = "dataset.yaml",
    split_config: str = "split.yaml",
    shuffle_shards: bool = False,
    seed: int = 42,
    workers: int | None = None,
    sqlite: bool = False,
    overwrite: bool = False,
    tar_index_only: bool = False,
    fix_duplicates: bool = False,
    columns: Mapping[str, How] | None = None,
    column_defaults: Mapping[str, Value] | None = None,
    checksums: bool = False,
    skip_unreadable: bool = False,
    on_progress: Progress | None = None,
) -> PrepareReport:
    """Index the tar shards below the folder `path`, so that energize and Energon read it.

    Writes a `.tar.idx` beside each shard, and into `.nv-meta` `.info.json`, `split.yaml`,
    `dataset.yaml` and `shards.json`, by which readers know the shards again; with `sqlite` also
    `index.sqlite` and `index.uuid`. All files appear together when the last shard has been read; on
    any error before, none does, and what was there stays. A process killed in between leaves a
    folder that counts as not prepared.

    `shards` names them (`["parts/{0..9}.tar"]`, relative to `path`); without it all below are taken
    that the regular expression `exclude` is not found in. What cannot be looked into (a link to a
    disk that is not mounted, a folder that may not be entered, a shard that may not be read) is an
    error, or with `skip_unreadable` left out and noted. Splits are whole shards, given by exactly
    one of `split_ratios` ({"train": 8, "val": 2}; shards in order, or shuffled by `seed` with
    `shuffle_shards`) and `split_patterns` (regular expressions, {"val": ["val-.*"]}). `sample_type`
    is the name of a sample type, or "CrudeWebdataset"; without it no `dataset.yaml` is written.
    Without `field_map` one is proposed by the parts found. `dataset_yaml` and `split_config` are
    other names for the two files. `tar_index_only` writes the index of a prepared folder again.
    `fix_duplicates` writes the shards themselves anew when keys of one stand in another too, with
    the shard's name before those of its members (`parts/0.tar/cat.jpg`). `columns` are measured
    when the folder is prepared, see `prepare_columns`, which adds them to one that is; so does
    `prepare_checksums` with what `checksums` writes.

    Raises `PrepareError` naming damaged shards, repeated keys, a split without shards, a field
    without its part or its key in the JSON there, a folder that is prepared already (unless
    `overwrite`), a file that cannot be written; `ConfigError` for wrong parameters;
    `DatasetNotFoundError`.

    >>> import tempfile
    >>> from energize import write_shards
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shards = write_shards([{"__key__": "a", "txt": "hello"}], folder)
    ...     report = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> report.samples, report.splits, report.config.field_map
    (1, {'train': ('shard-000000.tar',)}, {'text': 'txt'})
    """
    run = _Run(
        Path(path),
        _checked_workers(workers),
        sqlite,
        on_progress or _silent,
        fix_duplicates,
        checksums,
    )
    measured = dict(columns or {})
    _ = list(named(measured))  # what is wrong with them is found before shards are read
    if tar_index_only:
        return _with_more(_rebuild_index(run, measured), run, measured, column_defaults)
    check_choice(sample_type, field_map)
    found = (
        find_shards(run.root, exclude, skip_unreadable=skip_unreadable)
        if shards is None
        else named_shards(run.root, shards)
    )
    names = found.names
    splits = split(names, split_ratios, split_patterns, seed if shuffle_shards else None)
    if is_prepared(run.root) and not overwrite:
        raise PrepareError(
            f"{run.root} is prepared already; to prepare it again, give overwrite=True "
            "(--force-overwrite)"
        )
    _check_keys(run.root / names[0], field_map or {})
    choice = _Choice(sample_type, field_map, dataset_yaml, split_config)
    report = _prepare(run, names, splits, choice, measured)
    report = replace(report, notes=(*found.notes, *report.notes))
    return _with_more(report, run, measured, column_defaults)


@dataclass(frozen=True, slots=True)
class _Run:
    root: Path
    workers: int
    sqlite: bool
    on_progress: Progress
    fix_duplicates: bool
    checksums: bool

    def index(self, names: Sequence[str], staging: Staging, *, sqlite: bool) -> list[IndexedShard]:
        """The indexed shards, whose keys are unique."""
        shards = index_shards(
            self.root,
            names,
            staging,
            workers=self.workers,
            sqlite=sqlite,
            on_progress=self.on_progress,
        )
        check_unique(self.root, shards)
        if sqlite:
            staging.write(UUID_NAME, str(uuid.uuid4()))
        return shards

    def record(self, shards: Sequence[IndexedShard], staging: Staging) -> tuple[str, ...]:
        """Stage what is known of the shards; notes, but for what is written again."""
        lost = stage_records(staging, self.root, shards)
        return () if self.checksums else lost


@dataclass(frozen=True, slots=True)
class _Choice:
    sample_type: str | None
    field_map: Mapping[str, str] | None
    file_name: str
    split_name: str


def _with_more(
    report: PrepareReport,
    run: _Run,
    columns: Mapping[str, How],
    defaults: Mapping[str, Value] | None,
) -> PrepareReport:
    """The report with what measuring the columns has to say; when checksums are written too."""
    if run.checksums:
        prepare_checksums(run.root, workers=run.workers, on_progress=run.on_progress)
    if not columns:
        return report
    try:
        measured = prepare_columns(
            run.root,
            columns,
            defaults=defaults,
            workers=run.workers,
            on_progress=run.on_progress,
        )
    except PrepareError as reason:
        raise PrepareError(f"{reason}\nThe folder is prepared, without these columns") from reason
    return replace(report, columns=measured.columns, notes=(*report.notes, *measured.notes))


def _prepare(
    run: _Run,
    names: Sequence[str],
    splits: Parts,
    choice: _Choice,
    columns: Mapping[str, How],
) -> PrepareReport:
    lost = (*_lost_media(run.root), *lost_columns(run.root, columns))
    with Staging(run.root, META_FOLDER) as staging:
        renamed = make_unique(run.root, names, run.workers) if run.fix_duplicates else 0
        shards = run.index(names, staging, sqlite=run.sqlite)
        parts = _parts(shards)
        look = look_at(run.root / names[0])
        config = choose_config(choice.sample_type, choice.field_map, look, parts)
        counts = {shard.name: shard.count for shard in shards}
        staging.write(choice.split_name, dump_splits(Splits(splits), choice.split_name))
        if config is not None:
            staging.write(choice.file_name, dump_dataset_yaml(config))
        lost = (*lost, *run.record(shards, staging))
        # Last, because this is the file that makes the folder a prepared one.
        staging.write(INFO_NAMES[0], dump_info(Info(counts)))
        staging.commit(run.root / names[0], remove=(COLUMNS, *INFO_NAMES, SQLITE_NAME, UUID_NAME))
    notes = (
        *([f"{renamed} shards were written anew, with keys of their own"] if renamed else []),
        *_end_notes(shards),
        *split_notes(names, splits),
        *field_notes(config, parts, sum(counts.values())),
        *lost,
    )
    return PrepareReport(run.root, counts, parts, splits, config, notes)


def _rebuild_index(run: _Run, columns: Mapping[str, How]) -> PrepareReport:
    """Write the index of a prepared folder again, for the shards that it says it has."""
    counts = read_info(run.root).shard_counts
    meta = run.root / META_FOLDER
    if not counts:
        raise PrepareError(f"{meta} names no shards; prepare the folder without --tar-index-only")
    lost = _lost_media(run.root)
    with Staging(run.root, META_FOLDER) as staging:
        # A database left as it is would point into shards as they were before.
        sqlite = run.sqlite or (meta / SQLITE_NAME).exists()
        shards = run.index(list(counts), staging, sqlite=sqlite)
        for shard in shards:
            if shard.count != counts[shard.name]:
                raise PrepareError(
                    f"{run.root / shard.name} has {shard.count} samples, but {meta} says "
                    f"{counts[shard.name]}: the shard was changed. Prepare the whole folder again, "
                    "without --tar-index-only"
                )
        lost = (*lost, *run.record(shards, staging))
        if same_shards(run.root, counts, staging):
            keep_columns(run.root, staging)
            staging.commit(run.root / next(iter(counts)))
        else:
            lost = (*lost, *lost_columns(run.root, columns))
            staging.commit(run.root / next(iter(counts)), remove=(COLUMNS,))
    return PrepareReport(run.root, counts, _parts(shards), notes=(*_end_notes(shards), *lost))


def _end_notes(shards: Sequence[IndexedShard]) -> Iterator[str]:
    """What is odd about the ends of shards: they may be parts of others."""
    cut = [each for each in shards if each.record.size - each.end < END_MARK]
    if cut:
        yield (
            f"{len(cut)} of {len(shards)} shards end without an end mark, {cut[0].name} for "
            f"example after {cut[0].record.size:,} bytes: if copying or writing them was cut off, "
            "samples are missing. Compare them with where they come from"
        )
    padded = [each for each in shards if each.record.size - each.end > _PADDING]
    if padded:
        yield (
            f"{len(padded)} of {len(shards)} shards have nothing but zeros after their end mark, "
            f"{padded[0].name} for example {padded[0].record.size - padded[0].end:,} bytes: if "
            "these were to be overwritten by samples, they are missing"
        )


def _lost_media(root: Path) -> tuple[str, ...]:
    """A note when the index that is written anew has media metadata."""
    index = root / META_FOLDER / SQLITE_NAME
    with suppress(DatasetError):  # a damaged one is written anew for just that
        if index.is_file() and ReadOnlyDatabase(index).has_table("media_metadata"):
            return (
                "the media metadata are gone with the index they were in, for shards may have "
                f"changed; collect them again with: energize prepare-media {root}",
            )
    return ()


def _check_keys(shard: Path, field_map: Mapping[str, str]) -> None:
    """Raises `PrepareError` for keys that are not in the JSON of the first shard."""
    keyed = {name: text for name, text in field_map.items() if "[" in text}
    if keyed:
        with suppress(ShardError):  # all damaged shards are told of together
            look = look_at(shard)
            for name, text in keyed.items():
                look.check_keys(name, text)


def _checked_workers(workers: int | None) -> int:
    return default_workers() if workers is None else checked_whole(workers, "workers", 1)


def _parts(shards: Sequence[IndexedShard]) -> dict[str, int]:
    """In how many samples each part is, the most frequent first."""
    parts: Counter[str] = Counter()
    for shard in shards:
        parts.update(shard.parts)
    return dict(parts.most_common())


def _silent(done: int, total: int) -> None:
    pass

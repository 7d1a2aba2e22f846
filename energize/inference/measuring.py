"""Measure columns of loose data: one value for each sample, stored beside the data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.columns import Column
from energize.core.failures import Failed
from energize.core.os_errors import os_errors_as
from energize.data.columns import COLUMNS_NAME
from energize.data.files import absolute, exists, path_of
from energize.data.jsonl import JsonlSource, jsonl_index_path
from energize.data.loose_columns import (
    PartColumns,
    dump_loose_columns,
    loose_columns_folder,
    read_loose_columns,
    rows_version,
)
from energize.data.nv_meta import ShardRecord
from energize.data.webdataset import WebdatasetSource
from energize.data.writing import NewFiles
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    PrepareError,
    ShardError,
)
from energize.inference.engine import is_loose, open_loose, split_parts
from energize.inference.options import DataOptions, MediaOptions
from energize.preparation.columns import Columns, ColumnsReport, prepare_columns
from energize.preparation.measures import How, SampleReading, Value
from energize.preparation.scan import ScannedShard, StoredSample
from energize.preparation.tasks import (
    Job,
    JobPart,
    ShardWork,
    all_in_turn,
)
from energize.preparation.write import commit, staging

_SAMPLES = 1000
"""Samples that a process measures at once."""
_READ = 64
"""Samples that are read together."""


class LooseSample(StoredSample):
    """A sample of a loose source; one that cannot be read raises `DataError`."""

    def __init__(self, source: Any, number: int, raw: dict[str, Any] | Failed) -> None:
        self._source = source
        self._number = number
        self._raw = raw

    @property
    def key(self) -> str:
        if isinstance(self._raw, Failed):
            return str(self._source.place(self._number).key)
        return str(self._raw["__key__"])

    @property
    def location(self) -> str:
        return str(self._source.where(self._number))

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {
            name: len(data)
            for name, data in self.raw().items()
            if not name.startswith("__")
        }

    def part(self, name: str) -> bytes:
        return bytes(self.raw()[name])

    def raw(self) -> dict[str, Any]:
        if isinstance(self._raw, Failed):
            raise DataError(str(self._raw.reason))
        return self._raw


@dataclass(frozen=True)
class _SplitSamples:
    """A split part of loose data."""

    split: str
    source: Any

    @cached_property
    def version(self) -> str:
        return rows_version(self.source)


@all_in_turn
@os_errors_as(PrepareError, fault="cannot be used")
def measure_columns(
    path: str | os.PathLike[str],
    columns: Mapping[str, How],
    *,
    defaults: Mapping[str, Value] | None = None,
    lengths: Collection[str] = (),
    sample_type: type[Any] | str | None = None,
    field_map: Mapping[str, str] | None = None,
    image_folder: str | os.PathLike[str] | None = None,
    job: JobPart | None = None,
) -> ColumnsReport:
    """Measure columns of loose data or of a prepared folder.

    Columns of loose data are stored beside them: in `.columns` of a folder, or in
    `.NAME.columns` beside a file. All split parts are measured. After the rows changed,
    the columns are refused. A column replaces a field of the rows with its name.

    Args:
        path: A folder or file that `get_train_dataset` reads.
        columns: Measures by column name, as in `prepare_columns`.
        defaults: Values by column for samples without one.
        lengths: Columns of lengths, as in `prepare_columns`.
        sample_type: As in `get_train_dataset`, for loose data. By default inferred.
        field_map: As in `get_train_dataset`, for loose data. By default inferred.
        image_folder: As in `get_train_dataset`, for loose data.
        job: The processes, and the task of this call; values appear after the merge of
            all tasks. By default one process for each core. A shard of loose data is
            1,000 samples.

    Returns:
        The measured columns, of all split parts one after the other, and notes.

    Raises:
        ConfigError: For wrong arguments.
        PrepareError: As `prepare_columns`.
        DatasetError: For data that cannot be inferred.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
        >>> _ = path.write_text('{"text": "a b"}' + chr(10) + '{"text": "c"}')
        >>> report = measure_columns(path, {"letters": "len:json[text]"})
        >>> report.columns["letters"].values.tolist()
        [3, 1]
        >>> from energize import get_train_dataset
        >>> dataset = get_train_dataset(path, batch_size=None)
        >>> dataset.sources[0].column("letters").values.tolist()
        [3, 1]
    """
    root = path_of(absolute(path))
    share = JobPart() if job is None else job
    if not is_measured_loose(root):
        return prepare_columns(
            root,
            columns,
            defaults=defaults,
            lengths=lengths,
            **_arguments(share),
        )
    named = ("energize", sample_type) if isinstance(sample_type, str) else sample_type
    folder = None if image_folder is None else os.fspath(image_folder)
    options = DataOptions(named, field_map, MediaOptions(folder))
    parts, reading = _parts_of(root, options)
    wanted = Columns(columns, defaults, lengths, reading)
    return _measured(root, parts, wanted, share)


def is_measured_loose(path: Path) -> bool:
    """Return whether the columns of a path are stored beside it, not in `.nv-meta`."""
    if path.is_dir() and next(path.rglob("*.tar"), None) is not None:
        return False
    return is_loose(path) or _is_indexed_jsonl(path)


def _is_indexed_jsonl(path: Path) -> bool:
    return path.suffix == ".jsonl" and exists(jsonl_index_path(str(path)))


def _arguments(share: JobPart) -> dict[str, Any]:
    return {
        "workers": share.workers,
        "on_progress": share.on_progress,
        "tasks": share.tasks,
        "task": share.task,
        "merge": share.merge,
    }


def _parts_of(
    root: Path, options: DataOptions
) -> tuple[list[_SplitSamples], SampleReading]:
    """Return the split parts of loose data, and how their samples are read."""
    if _is_indexed_jsonl(root):
        reading = SampleReading(refusal=f"{root} is an indexed file of JSON lines")
        return [_SplitSamples("train", JsonlSource(root))], reading
    inferred = {
        part: open_loose(root, part, options) for part in split_parts(root, options)
    }
    parts = [_SplitSamples(split, part.source) for split, part in inferred.items()]
    if any(isinstance(part.source, WebdatasetSource) for part in parts):
        raise PrepareError(
            f"{root} has tar shards, which are measured after they are prepared. "
            f"Prepare it first, with: energize prepare {root}"
        )
    return parts, SampleReading.of_config(next(iter(inferred.values())).config)


def _replacement_notes(
    parts: Sequence[_SplitSamples], columns: Iterable[str]
) -> list[str]:
    """Return notes on columns that replace those of the rows."""
    source = parts[0].source
    rows = getattr(source, "rows", None)
    names = source.row_names if rows is None else rows.column_names
    return [
        f"column {name!r} replaces the field {name!r} of the rows as a column"
        for name in columns
        if name in names
    ]


def _measured(
    root: Path, parts: Sequence[_SplitSamples], wanted: Columns, share: JobPart
) -> ColumnsReport:
    """Measure columns, and write them beside the data."""
    if not wanted.how:
        raise ConfigError(f"{root}: there are no columns to measure")
    folder = loose_columns_folder(root)
    base = folder.parent
    pieces = {
        f"{part.split}-{number:06d}": (part, start)
        for part in parts
        for number, start in enumerate(range(0, part.source.count, _SAMPLES))
    }

    def stamp(name: str) -> str:
        part, start = pieces[name]
        return f"{part.version} {start}"

    work = ShardWork(
        lambda _shard, _files: None, {}, None, stamp, partial(_scan, pieces, wanted)
    )
    job = Job(
        base,
        "columns",
        list(pieces),
        work,
        share,
        wanted.options,
        tasks_folder=f"{folder.name}/tasks",
    )
    if share.task is not None:
        shards = job.of_task(folder)
        return ColumnsReport(root, sum(shard.count for shard in shards), {})
    with staging(base, folder, *job.folders) as files:
        shards = job.of_all(files)
        columns, notes = wanted.whole(shards)
        stored = _stage(files, root, parts, wanted, columns)
        commit(files, base)
    _remove_unused(folder, stored)
    samples = sum(shard.count for shard in shards)
    notes += _replacement_notes(parts, columns)
    return ColumnsReport(root, samples, columns, tuple(notes))


def _stage(
    files: NewFiles,
    root: Path,
    parts: Sequence[_SplitSamples],
    wanted: Columns,
    columns: Mapping[str, Column],
) -> dict[str, PartColumns]:
    """Write the values of all split parts, and then `columns.json`."""
    folder = loose_columns_folder(root)
    index = None
    with suppress(DatasetError):  # a damaged index is replaced
        index = read_loose_columns(root)
    previous = {} if index is None else index.parts
    stored: dict[str, PartColumns] = {}
    start = 0
    for part in parts:
        stop = start + part.source.count
        rows = slice(start, stop)
        values = {name: column.part(rows) for name, column in columns.items()}
        entries = wanted.stage_values(files, folder, values)
        if part.version in previous:
            entries = previous[part.version].columns | entries
        stored[part.version] = PartColumns(
            split=part.split, samples=stop - start, columns=entries
        )
        start = stop
    files.write(folder / COLUMNS_NAME, dump_loose_columns(stored).encode())
    return stored


def _remove_unused(folder: Path, stored: Mapping[str, PartColumns]) -> None:
    """Remove the values of columns that no longer exist."""
    used = {column.file for part in stored.values() for column in part.columns.values()}
    for file in folder.glob("*.npy"):
        if file.name not in used:
            with suppress(OSError):  # nobody reads it any more, so it may stay
                file.unlink()


def _scan(
    pieces: Mapping[str, tuple[_SplitSamples, int]], wanted: Columns, name: str
) -> ScannedShard:
    """Measure some samples."""
    part, start = pieces[name]
    stop = min(start + _SAMPLES, part.source.count)
    with os_errors_as(ShardError, part.source.location):
        measured = wanted.measured_samples(_samples(part.source, start, stop))
    return ScannedShard(
        name,
        stop - start,
        b"",
        Counter(),
        np.zeros(0, np.uint64),
        ShardRecord(0, 0, 0, 0),
        0,
        {"columns": measured},
    )


def _samples(source: Any, start: int, stop: int) -> Iterator[LooseSample]:
    for first in range(start, stop, _READ):
        numbers = np.arange(first, min(first + _READ, stop))
        for number, raw in zip(numbers.tolist(), source.read(numbers), strict=True):
            yield LooseSample(source, number, raw)

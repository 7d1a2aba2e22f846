"""Conversion of loose files into a prepared folder of tar shards.

A finished shard has a marker with the names, sizes and times of its input files,
`.nv-meta/tasks/convert-DIGEST/train-000017.tar`. An interrupted conversion resumes
after the finished shards, and writes changed ones again. The digest is that of the
samples, so a folder accepts one source. The records of shards name the loose files
(`Origin`), so orders and states stay equal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.checks import checked_whole
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.os_errors import is_url, os_errors_as
from energize.core.progress import Progress
from energize.core.samples import is_package_module
from energize.data.columns import COLUMNS_FOLDER, check_name
from energize.data.files import absolute, exists, path_of, read_file
from energize.data.nv_meta import (
    META_FOLDER,
    SQLITE_NAME,
    UUID_NAME,
    is_prepared,
    read_info,
)
from energize.data.rows import JsonSource
from energize.data.tables import MemoryRows
from energize.data.tar import split_name
from energize.data.writing import NewFiles, writing
from energize.errors import ColumnError, ConfigError, PrepareError, ShardError
from energize.inference.engine import InferredPart, is_loose, open_loose, split_parts
from energize.inference.options import DataOptions, MediaOptions
from energize.preparation import index
from energize.preparation.columns import Columns
from energize.preparation.fields import module_of
from energize.preparation.scan import ScannedShard, check_unique, listed
from energize.preparation.tasks import (
    TASKS_FOLDER,
    Job,
    JobPart,
    ShardWork,
    all_in_turn,
)
from energize.preparation.verify import stage_records
from energize.preparation.write import commit, new_tar, staging

_AT_ONCE = 64
_LOOKED_AT = 1000
_WORDS = 100
_PLACES = ("__key__", "__dataset__", "__shard__", "__index__")


@all_in_turn
@os_errors_as(PrepareError, fault="cannot be used")
def convert(  # noqa: PLR0913
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    samples_per_shard: int = 1000,
    sample_type: type[Any] | str | None = None,
    field_map: Mapping[str, str] | None = None,
    image_folder: str | os.PathLike[str] | None = None,
    strict: bool = False,
    workers: int | None = None,
    tasks: int | None = None,
    task: int | None = None,
    merge: bool = False,
    on_progress: Progress | None = None,
) -> index.PrepareReport:
    """Convert loose files into a prepared folder, with equal samples in equal order.

    All split parts are written, as `train-000000.tar` and so on. Bytes of files are
    copied. `out` has the identity of the source: a run can resume from a state of the
    other. Columns of numbers, and of repeated words, become columns of `out`. Equal
    sources give equal bytes.

    `out` counts as prepared when it is complete. An interrupted call resumes after the
    finished shards, and writes those of changed files again.

    Args:
        source: A folder or file that `get_train_dataset` reads without preparing.
        out: The new folder, outside of `source`.
        samples_per_shard: Samples in each shard.
        sample_type: As in `get_train_dataset`. By default inferred.
        field_map: As in `get_train_dataset`. By default inferred.
        image_folder: As in `get_train_dataset`. By default that of the rows.
        strict: Whether files that are left out are an error.
        workers: Processes that write shards. By default one for each core.
        tasks: Number of tasks that the shards are partitioned into, as in `prepare`.
        task: The task of this call, from 0.
        merge: Whether all tasks have ended, to complete `out`.
        on_progress: Called with the progress.

    Returns:
        The report, as of `prepare`.

    Raises:
        PrepareError: If samples cannot be read or stored in a tar (all others are
            written first); if `out` is not empty, of another source, inside the source,
            or cannot be written; or if merged tasks are incomplete or their files have
            changed.
        ConfigError: If an argument is invalid, or split parts have different types.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from energize import get_train_dataset
        >>> photos, shards = (
        ...     Path(tempfile.mkdtemp(), "photos"),
        ...     Path(tempfile.mkdtemp(), "shards"),
        ... )
        >>> for label in ("cat", "dog"):
        ...     (photos / label).mkdir(parents=True)
        ...     Image.new("RGB", (8, 6)).save(photos / label / "0.jpg")
        >>> convert(photos, shards).shard_counts
        {'train-000000.tar': 2}
        >>> loose, converted = (
        ...     get_train_dataset(each, batch_size=None) for each in (photos, shards)
        ... )
        >>> (
        ...     loose[0].label_name == converted[0].label_name,
        ...     loose.describe() == converted.describe(),
        ... )
        (True, True)
    """
    path = path_of(absolute(source))
    root = path_of(absolute(out))
    size = checked_whole(samples_per_shard, "convert: samples_per_shard", 1)
    named = ("energize", sample_type) if isinstance(sample_type, str) else sample_type
    folder = None if image_folder is None else os.fspath(image_folder)
    parts = _parts(
        path, root, DataOptions(named, field_map, MediaOptions(folder), strict)
    )
    sources = {part: scanned.source for part, scanned in parts.items()}
    origins = {part: part_source.origin for part, part_source in sources.items()}
    shards = _samples_of_shards(sources, size)
    if not shards:
        raise PrepareError(f"{path} has no samples to convert")
    meta = root / META_FOLDER
    alone = len(parts) == 1
    markers_folder = root / TASKS_FOLDER / f"convert-{digest([origins, size])[:16]}"
    stamp = cache(lambda name: _stamp(*shards[name]))
    functions: dict[str, Any] = {"names": index.check_members}
    if alone:  # keys are those of a part
        functions["rows"] = partial(index.rows_of, dict(zip(shards, count())))
    write = partial(_write, root, markers_folder, shards, stamp)
    work = ShardWork(partial(index.keep_index, root, {}), functions, write, stamp)
    share = JobPart(workers, on_progress, tasks, task, merge)
    job = Job(root, markers_folder.name, [*shards], work, share)
    _check_out(root, markers_folder, done=merge or job.is_done)
    folders = [root, meta, root / TASKS_FOLDER, markers_folder]
    if task is not None:
        return index.report_of(root, job.of_task(*folders))
    with staging(root, *folders, *job.folders, root / COLUMNS_FOLDER) as files:
        scanned = job.of_all(files, meta / SQLITE_NAME if alone else None)
        version = index.version_of(scanned) if alone else None
        if version:
            files.write(meta / UUID_NAME, version.encode())
        splits = {
            part: tuple(s for s in shards if shards[s][0] is sources[part])
            for part in parts
        }
        _record_origins(root, splits, scanned, origins)
        columns = _columns([*sources.values()])
        report = index.report_of(root, scanned)
        config = next(iter(parts.values())).config
        report = replace(report, splits=splits, columns=columns, config=config)
        wanted = Columns({name: f"json[{name}]" for name in columns})
        wanted.stage(files, root, scanned, report.shard_counts, version, {}, columns)
        stage_records(root, files, scanned)
        texts = "split.yaml", "dataset.yaml"
        report = index.stage_texts(files, report, {}, texts, merge)
        markers = (
            markers_folder.glob("*") if merge else (root / TASKS_FOLDER).glob("*/*")
        )
        commit(files, root / next(iter(shards)), markers=markers)
    return report


def _samples_of_shards(
    sources: Mapping[str, Any], size: int
) -> dict[str, tuple[Any, int, int]]:
    """Return the source and the range of samples of each shard, by its name."""
    return {
        f"{part}-{number:06d}.tar": (source, start, min(start + size, source.count))
        for part, source in sources.items()
        for number, start in enumerate(range(0, source.count, size))
    }


def _record_origins(
    root: Path,
    splits: Mapping[str, tuple[str, ...]],
    scanned: Sequence[ScannedShard],
    origins: Mapping[str, Any],
) -> None:
    """Write the identity of the loose files into the first shard of each split part."""
    for part, names in splits.items():
        shards = [shard for shard in scanned if shard.name.startswith(f"{part}-")]
        check_unique(root, shards)
        contents = digest([names, [shard.count for shard in shards]])
        origin = origins[part]._replace(shards=contents)
        shards[0].record = shards[0].record._replace(origin=origin)


def _parts(path: Path, root: Path, options: DataOptions) -> dict[str, InferredPart]:
    """Return the inferred samples of each split part."""
    if not is_loose(path):
        if not exists(f"{path}.idx"):
            read_info(path)
        raise ConfigError(f"{path} is prepared already. Pass loose files")
    if root.is_relative_to(path):
        raise ConfigError(
            f"{root} is inside the source {path}. Pass a folder outside it"
        )
    parts = dict[str, InferredPart]()
    for part in split_parts(path, options):
        source, config, spec = open_loose(path, part, options)
        if is_package_module(config.sample_module):
            config = replace(config, sample_module=module_of(config.sample_class))
        parts[part] = InferredPart(source, config, spec)
    types = [
        f"{part}: {config.sample_class}, {config.field_map}"
        for part, (_, config, _) in parts.items()
    ]
    if len({line.partition(":")[2] for line in types}) > 1:
        fault = f"{path}: split parts are of several types: {'; '.join(types)}"
        raise ConfigError(f"{fault}. Write the sample_type and field_map of all parts")
    return parts


def _check_out(root: Path, markers_folder: Path, *, done: bool) -> None:
    """Raise `PrepareError` for a folder that is neither new nor of these samples."""
    markers = (root / TASKS_FOLDER).glob(
        f"{markers_folder.name}*/*"
    )  # in stores there are no folders
    is_begun = exists(markers_folder) or next(markers, None) is not None
    if is_prepared(root) and not (done and is_begun):
        raise PrepareError(f"{root} is prepared already. Pass a new folder")
    entry = next(root.iterdir(), None) if root.is_dir() else None
    if entry is not None and not is_begun:
        raise PrepareError(
            f"{root} is not empty: it has {entry.name}. Pass a new folder. A "
            "conversion resumes only with the same samples and samples_per_shard"
        )


def _stamp(source: Any, start: int, stop: int) -> str:
    """Return a text that changes when files of these samples are rewritten."""
    rows = getattr(source, "rows", source)
    files = [os.path.join(rows.location, row) for row in rows.shards if row]
    read = []
    if isinstance(
        getattr(rows, "rows", rows), MemoryRows | JsonSource
    ):  # others hold the images
        stored = rows.read(np.arange(start, stop))
        read = [row for row in stored if not isinstance(row, Failed)]
        files += chain.from_iterable(map(source.files_of, read))
    return digest([read, *map(_seen, files)])


def _seen(file: str) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        if not is_url(file):
            stat = os.stat(file)
            return stat.st_size, stat.st_mtime_ns
    return None


def _write(
    root: Path,
    markers_folder: Path,
    shards: Mapping[str, Any],
    stamp: Callable[[str], str],
    name: str,
) -> None:
    """Write a shard, unless it exists and its files are unchanged."""
    shard = root / name
    marker = markers_folder / name
    contents = stamp(name).encode()
    if exists(marker) and exists(shard) and read_file(marker) == contents:
        return
    with NewFiles(PrepareError) as files:
        with new_tar(files, shard) as tar:
            for sample in _samples(*shards[name]):
                with writing(shard, PrepareError):
                    tar.write(sample)
        files.write(marker, contents)
        files.commit()


def _samples(source: Any, start: int, stop: int) -> Iterator[dict[str, Any]]:
    """Yield samples to write; raise `ShardError` with all that cannot be written."""
    faults = []
    for first in range(start, stop, _AT_ONCE):
        numbers = np.arange(first, min(first + _AT_ONCE, stop))
        for number, raw in zip(numbers.tolist(), source.read(numbers), strict=True):
            if isinstance(raw, Failed):
                faults.append(f"{raw.where}: {raw.reason}")
                continue
            parts = {name: data for name, data in raw.items() if name not in _PLACES}
            fault = _fault_in_tar(raw["__key__"], parts)
            if fault:
                faults.append(f"{source.where(number)}: {fault}")
            else:
                yield {"__key__": raw["__key__"], **parts}
    if faults:
        raise ShardError(listed(faults).strip())


def _fault_in_tar(key: Any, parts: Mapping[str, Any]) -> str:
    """Return why a tar cannot hold a sample, an empty text if it can."""
    if not parts:
        return "it is empty"
    wrong = [name for name in parts if not _fits(key, name)]
    return f"no tar can hold its {wrong[0]!r}. Rename it" if wrong else ""


def _fits(key: Any, part: str) -> bool:
    name = f"{key}.{part}"
    splits = isinstance(key, str) and split_name(name) == (key, part)
    return splits and part[:1] != "_" and name.isprintable() and index.is_utf8(name)


def _columns(sources: list[Any]) -> dict[str, Column]:
    """Return the columns of loose rows that are numbers, or repeated words."""
    columns = dict[str, Column]()
    rows = getattr(sources[0], "rows", None)
    if rows is None:
        return columns
    sample = rows.read(np.arange(min(_LOOKED_AT, rows.count)))
    first = [row for row in sample if not isinstance(row, Failed)]
    for name in sources[0].column_names if sample else ():
        values = [row.get(name) for row in first]
        if name in sources[0].media or not _may_be_column(values):
            continue
        with suppress(ColumnError):
            parts = (source.column(check_name(name)) for source in sources)
            columns[name] = Column.of(chain.from_iterable(map(_values, parts)), name)
    return columns


def _may_be_column(values: Sequence[Any]) -> bool:
    """Return whether values are numbers or few different words."""
    words = {value for value in values if isinstance(value, str)}
    is_other = any(isinstance(value, bytes | list | dict) for value in values)
    return len(words) <= _WORDS and not is_other


def _values(column: Column) -> list[Any]:
    words = column.categories
    numbers: list[Any] = column.values.tolist()
    return numbers if words is None else [None if i < 0 else words[i] for i in numbers]

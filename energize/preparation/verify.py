"""Whether shards are those that were prepared: checksums of samples, and what `lint`
compares.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.core.os_errors import os_errors_as
from energize.core.progress import Progress
from energize.data import nv_meta
from energize.data.columns import (
    StoredColumn,
    column_command,
    read_columns,
    read_values,
)
from energize.data.files import exists, path_of, read_file
from energize.data.jsonl import jsonl_checksums_path, jsonl_index_path
from energize.data.tar import BLOCK, CHECKSUM, ENTRY, checksums_path, index_path
from energize.data.writing import NewFiles
from energize.errors import ConfigError, DatasetError, PrepareError, ShardError
from energize.preparation.columns import Columns, is_written
from energize.preparation.scan import (
    ScannedShard,
    ShardHeaders,
    check_unique,
    checksums_of,
    scan_shards,
)
from energize.preparation.tasks import (
    Job,
    JobPart,
    Piece,
    ShardWork,
    all_in_turn,
    known_shards,
    share,
    unchanged,
)
from energize.preparation.write import commit, shard_folders, staging


@dataclass(frozen=True, slots=True)
class ChecksumsReport:
    """Of how many samples and bytes of shards checksums were written."""

    path: Path
    samples: int
    bytes: int


@all_in_turn
@os_errors_as(PrepareError, fault="cannot be used")
def prepare_checksums(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    tasks: int | None = None,
    task: int | None = None,
    merge: bool = False,
    on_progress: Progress | None = None,
) -> ChecksumsReport:
    """Write a checksum of each sample of a prepared folder, one that Energon prepared
    too.

    They are read with `WebdatasetSource(checksums=True)`,
    `get_train_dataset(checksums=True)` and by `energize lint`. Beside the index of each
    shard stands `SHARD.tar.crc`: of each sample the CRC-32 of its bytes in the shard,
    headers included, as unsigned 32-bit little-endian number. All shards are read as a
    whole, in `workers` processes. `.nv-meta/shards.json` is written too where it was
    missing. Files appear together when the last shard has been read; on any error none
    does. `tasks` share the shards out, and `task` and `merge` do a part of it, as in
    `prepare`: then those of a task appear when it ends, and are compared with when all
    are merged.

    Raises `PrepareError` for shards that are damaged, or not those that were prepared,
    and for files that cannot be written; `NotPreparedError` and `DatasetNotFoundError`.

    >>> import tempfile
    >>> from energize import WebdatasetSource, prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards(
    ...     [{"__key__": "a", "txt": "one"}, {"__key__": "b", "txt": "two"}], folder
    ... )
    >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
    >>> prepare_checksums(folder).samples
    2
    >>> WebdatasetSource(folder, checksums=True)[1]["txt"]
    b'two'
    """
    root = path_of(path)
    meta = path_of(path) / nv_meta.META_FOLDER
    counts = known_shards(root)
    work = ShardWork(unchanged(root), {"checksums": ShardHeaders.checksums})
    part = JobPart(workers, on_progress, tasks, task, merge)
    job = Job(root, "checksums", list(counts), work, part)
    folders = [meta, *shard_folders(root, counts)]
    if task is not None:
        shards = job.of_task(*folders)
    else:
        with staging(root, *folders, *job.folders) as files:
            shards = job.of_all(files)
            stage_records(root, files, shards)
            commit(files, root / next(iter(counts)))
    size = sum(shard.record.bytes for shard in shards)
    return ChecksumsReport(root, sum(shard.count for shard in shards), size)


def stage_records(root: Path, files: NewFiles, shards: Sequence[ScannedShard]) -> None:
    """Write what readers know the shards by.

    Checksums that lie beside a shard stay its own, unless it was prepared before and
    was another one, or had none, then. That they fit is seen when they are verified.
    """
    before: dict[str, nv_meta.ShardRecord] | None = {}
    with suppress(
        DatasetError
    ):  # of a damaged file nothing is known, and it is written anew
        before = nv_meta.read_records(root)
    for shard in shards:
        previous = shard.record if before is None else before.get(shard.name)
        if previous is None or previous.of_shard != shard.record.of_shard:
            continue
        shard.record = shard.record._replace(origin=previous.origin)
        had_checksums = before is None or previous.checksums_crc32 is not None
        if had_checksums and shard.record.checksums_crc32 is None:
            shard.record = _with_checksums(root, shard)
    records = nv_meta.dump_records({shard.name: shard.record for shard in shards})
    files.write(root / nv_meta.META_FOLDER / nv_meta.RECORDS_NAME, records.encode())


def _with_checksums(root: Path, shard: ScannedShard) -> nv_meta.ShardRecord:
    """Return the record of a shard with the checksums beside it, if they fit."""
    with suppress(OSError):
        data = read_file(checksums_path(str(root / shard.name)))
        if len(data) == shard.count * CHECKSUM:
            return shard.record._replace(checksums_crc32=zlib.crc32(data))
    return shard.record


# What `energize lint` compares.


@dataclass(frozen=True, slots=True)
class CheckedFolder:
    """What is wrong with a folder; and of how many of its shards there is no record."""

    faults: tuple[str, ...]
    shards: int
    unrecorded: int


def check_folder(
    path: Path,
    workers: int | None = None,
    on_progress: Progress | None = None,
    tasks: int | None = None,
    task: int | None = None,
) -> CheckedFolder:
    """Read every header of a prepared folder and compare with indices and records;
    every sample that has a checksum; and columns, which are measured again. A task does
    it with its share of the shards, and sees keys that stand twice only there.

    Raises what reading `.info.json` raises, and `PrepareError` when a process is
    killed.
    """
    counts = nv_meta.read_info(path).shard_counts
    faults: list[str] = []
    records: dict[str, nv_meta.ShardRecord] = {}
    columns: dict[str, StoredColumn] = {}
    measures = Columns({})
    with _told(faults):
        records = nv_meta.read_records(path, counts) or {}
    with _told(faults):
        columns = read_columns(path).columns
        measures = Columns(
            {k: v.measured for k, v in columns.items() if is_written(v.measured)}
        )

    def compare(shard: ScannedShard) -> ScannedShard:
        tar = str(path / shard.name)
        faults.extend(
            shard.differences(path, counts[shard.name], records.get(shard.name))
        )
        if (crc := checked.get(shard.name)) is not None:
            found = shard.found["checksums"]
            faults.extend(_checksum_faults(tar, checksums_path(tar), found, crc))
        shard.index = b""
        return shard

    def checksums(shard: ShardHeaders) -> bytes:
        return b"" if checked.get(shard.name) is None else shard.checksums()

    checked = {name: each.checksums_crc32 for name, each in records.items()}
    functions = {"checksums": checksums, "columns": measures.measured}
    names = list(counts)[share(len(counts), tasks, task)]
    how: dict[str, Any] = {
        "workers": workers,
        "on_progress": on_progress,
        "faults": faults,
    }
    found = scan_shards(path, names, compare, functions, **how)
    with _told(faults):
        check_unique(path, found)
    for name, column in columns.items():
        with _told(faults):
            faults.extend(_column_faults(path, name, column, counts, found))
    return CheckedFolder(tuple(faults), len(counts), len(counts) - len(records))


def check_counts(path: Path) -> None:
    """Raise `ShardError` for a shard of a prepared folder that cannot have as many
    samples as the folder says: reading each of them, to say that it is not there, might
    never end.
    """
    for shard, count in nv_meta.read_info(path).shard_counts.items():
        tar = path / shard
        files = (ENTRY, path_of(index_path(str(tar)))), (BLOCK, tar)
        room = [file.stat().st_size // least for least, file in files if exists(file)]
        if count > max(room, default=0):
            raise ShardError(
                f"{tar}: .info.json counts {count} samples, and neither the shard nor "
                "its index has room for so many; copy the folder again, or prepare it "
                "again"
            )


def check_lines(path: Path) -> tuple[str, ...]:
    """Return what is wrong with the checksums of a file of JSON lines, if it has
    any.
    """
    stored = jsonl_checksums_path(str(path))
    faults = list[str]()
    if exists(stored):
        with _told(faults), os_errors_as(ShardError):
            index = read_file(jsonl_index_path(str(path)))
            stops = np.frombuffer(index[8 : len(index) // 8 * 8], "<u8").tolist()
            found = checksums_of(path, stops)
            faults += _checksum_faults(str(path), stored, found)
    return tuple(faults)


@contextmanager
def _told(faults: list[str]) -> Iterator[None]:
    """A block in which what is wrong with a folder is added to faults."""
    try:
        yield
    except (ConfigError, DatasetError) as reason:
        faults.append(str(reason))


def _checksum_faults(
    path: str, file: str, found: bytes, crc: int | None = None
) -> Iterator[str]:
    with os_errors_as(ShardError):
        data = read_file(file)
    if crc not in (None, zlib.crc32(data)):
        yield f"{file} is not what was written: its CRC-32 is another one"
    elif len(data) != len(found):
        yield (
            f"{path} has {len(found) // 4} samples, and {file} checksums of "
            f"{len(data) // 4}"
        )
    elif data != found:
        now = np.frombuffer(found, "<u4")
        then = np.frombuffer(data, "<u4")
        wrong = np.flatnonzero(now != then)
        yield (
            f"{path}: the checksums of {len(wrong)} of {len(now)} samples are others: "
            f"that of sample {wrong[0]} is {now[wrong[0]]:08x}, and was "
            f"{then[wrong[0]]:08x}"
        )


def _column_faults(
    path: Path,
    name: str,
    column: StoredColumn,
    counts: dict[str, int],
    found: list[ScannedShard],
) -> Iterator[str]:
    stored = read_values(path, name, column, sum(counts.values()))
    was: npt.NDArray[Any] = stored.values
    if stored.categories is not None:
        was = np.array([*stored.categories, ""], dtype=object)[was]
    pieces: dict[str, Piece | None] = {
        s.name: s.found["columns"].get(name) for s in found
    }
    wrong: list[tuple[str, Any, Any, Any]] = []
    start = 0
    for shard, count in counts.items():
        then = was[start : start + count]
        piece = pieces.get(shard)
        start += count
        # Shards that have another number of samples have been told of.
        if piece is not None and len(piece.absent) == count:
            # Samples without a value have a default, or none.
            numbers = np.flatnonzero(~piece.absent)
            now = piece.values
            rows = np.flatnonzero(then[numbers] != now)
            wrong += [
                (shard, numbers[row], then[numbers[row]], now[row]) for row in rows
            ]
    if wrong:
        shard, number, before, after = wrong[0]
        yield (
            f"{path}: the column {name!r} says something else of {len(wrong)} of "
            f"{len(was)} samples than they do, the first of them {path / shard}, "
            f"sample {number}: {before}, and now {after}; measure it again with: "
            f"{column_command(path, {name: column.measured})}"
        )

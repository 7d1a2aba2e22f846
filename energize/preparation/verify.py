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
from energize.preparation.columns import Columns
from energize.preparation.measures import SampleReading, is_of_content
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
    read_shard_counts,
    share,
    unchanged,
)
from energize.preparation.write import commit, shard_folders, staging


@dataclass(frozen=True, slots=True)
class ChecksumsReport:
    """Result of writing checksums.

    Args:
        path: The folder.
        samples: Number of samples.
        bytes: Bytes of their shards.
    """

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
    """Write a checksum of each sample of a folder that energize or Energon prepared.

    Checksums are compared by `WebdatasetSource(checksums=True)`,
    `get_train_dataset(checksums=True)` and `energize lint`. `SHARD.tar.crc` has the
    CRC-32 of each sample, headers included, as unsigned 32-bit little-endian numbers. A
    missing `.nv-meta/shards.json` is written too. Files appear together when the last
    shard has been read; after an error, none appears.

    Args:
        path: The prepared folder.
        workers: Processes that read shards; by default one for each core.
        tasks: Number of tasks that the shards are partitioned into, as in `prepare`.
        task: The task that this call does. Its checksums appear when it ends, and are
            compared after the merge.
        merge: Whether all tasks have ended, and their results are merged.
        on_progress: Called with the shards that are done, and with all shards.

    Returns:
        The number of samples and bytes.

    Raises:
        PrepareError: For shards that are damaged or have changed since they were
            prepared.
        ConfigError: For wrong arguments.
        NotPreparedError: If the folder is not prepared.
        DatasetNotFoundError: If the folder does not exist.

    Example:
        >>> import tempfile
        >>> from energize import WebdatasetSource, prepare, write_shards
        >>> folder = tempfile.mkdtemp()
        >>> samples = [{"__key__": "a", "txt": "one"}, {"__key__": "b", "txt": "two"}]
        >>> _ = write_shards(samples, folder)
        >>> _ = prepare(folder, split_ratios={"train": 1}, sample_type="TextSample")
        >>> prepare_checksums(folder).samples
        2
        >>> WebdatasetSource(folder, checksums=True)[1]["txt"]
        b'two'
    """
    root = path_of(path)
    meta = path_of(path) / nv_meta.META_FOLDER
    counts = read_shard_counts(root)
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
    """Write the records by which readers recognise shards.

    Existing checksums of an unchanged shard stay in its record. They are compared only
    when they are verified.
    """
    records_read: dict[str, nv_meta.ShardRecord] | None = {}
    with suppress(
        DatasetError
    ):  # of a damaged file nothing is known, and it is written anew
        records_read = nv_meta.read_records(root)
    for shard in shards:
        previous = (
            shard.record if records_read is None else records_read.get(shard.name)
        )
        if previous is None or previous.of_shard != shard.record.of_shard:
            continue
        shard.record = shard.record._replace(origin=previous.origin)
        had_checksums = records_read is None or previous.checksums_crc32 is not None
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
    """Result of checking a folder.

    Args:
        faults: The faults.
        shards: Number of shards.
        unrecorded: Shards without a record.
    """

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
    """Compare all headers, checksums and columns of a prepared folder.

    A task checks only its shards, and finds only keys that are repeated there.

    Args:
        path: The folder.
        workers: Processes that read shards; by default one for each core.
        on_progress: Called with the shards that are done, and with all shards.
        tasks: Number of tasks that the shards are partitioned into.
        task: The task that this call does.

    Raises:
        PrepareError: If a process is killed; also errors of reading `.info.json`.
    """
    counts = nv_meta.read_info(path).shard_counts
    faults: list[str] = []
    records: dict[str, nv_meta.ShardRecord] = {}
    columns: dict[str, StoredColumn] = {}
    measures = Columns({})
    with _collecting(faults):
        records = nv_meta.read_records(path, counts) or {}
    with _collecting(faults):
        columns = read_columns(path).columns
        measured = {
            name: column.measured
            for name, column in columns.items()
            if is_of_content(column.measured)
        }
        measures = Columns(measured, reading=SampleReading.of_folder(path))

    def compare(shard: ScannedShard) -> ScannedShard:
        tar = str(path / shard.name)
        faults.extend(
            shard.differences(path, counts[shard.name], records.get(shard.name))
        )
        if (crc := checked.get(shard.name)) is not None:
            scanned = shard.results["checksums"]
            faults.extend(_checksum_faults(tar, checksums_path(tar), scanned, crc))
        shard.index = b""
        return shard

    def checksums(shard: ShardHeaders) -> bytes:
        return b"" if checked.get(shard.name) is None else shard.checksums()

    checked = {name: record.checksums_crc32 for name, record in records.items()}
    functions = {"checksums": checksums, "columns": measures.measured}
    names = list(counts)[share(len(counts), tasks, task)]
    how: dict[str, Any] = {
        "workers": workers,
        "on_progress": on_progress,
        "faults": faults,
    }
    scanned = scan_shards(path, names, compare, functions, **how)
    with _collecting(faults):
        check_unique(path, scanned)
    for name, column in columns.items():
        with _collecting(faults):
            faults.extend(_column_faults(path, name, column, counts, scanned))
    return CheckedFolder(tuple(faults), len(counts), len(counts) - len(records))


def check_counts(path: Path) -> None:
    """Raise `ShardError` for a shard that is too small for its number of samples.

    Reporting each missing sample of a wrong count might never end.
    """
    for shard, count in nv_meta.read_info(path).shard_counts.items():
        tar = path / shard
        files = (ENTRY, path_of(index_path(str(tar)))), (BLOCK, tar)
        room = [file.stat().st_size // least for least, file in files if exists(file)]
        if count > max(room, default=0):
            raise ShardError(
                f"{tar}: .info.json counts {count} samples, but the shard and its "
                "index are too small for them. Copy or prepare the folder again"
            )


def check_lines(path: Path) -> tuple[str, ...]:
    """Return faults of the checksums of a file of JSON lines, if it has any."""
    stored = jsonl_checksums_path(str(path))
    faults = list[str]()
    if exists(stored):
        with _collecting(faults), os_errors_as(ShardError):
            index = read_file(jsonl_index_path(str(path)))
            stops = np.frombuffer(index[8 : len(index) // 8 * 8], "<u8").tolist()
            checksums = checksums_of(path, stops)
            faults += _checksum_faults(str(path), stored, checksums)
    return tuple(faults)


@contextmanager
def _collecting(faults: list[str]) -> Iterator[None]:
    """Add errors of the block to faults."""
    try:
        yield
    except (ConfigError, DatasetError) as reason:
        faults.append(str(reason))


def _checksum_faults(
    path: str, file: str, computed: bytes, crc: int | None = None
) -> Iterator[str]:
    with os_errors_as(ShardError):
        data = read_file(file)
    if crc not in (None, zlib.crc32(data)):
        yield f"{file} is not what was written: its CRC-32 is another one"
    elif len(data) != len(computed):
        yield (
            f"{path} has {len(computed) // 4} samples, and {file} checksums of "
            f"{len(data) // 4}"
        )
    elif data != computed:
        current = np.frombuffer(computed, "<u4")
        recorded = np.frombuffer(data, "<u4")
        wrong = np.flatnonzero(current != recorded)
        yield (
            f"{path}: the checksums of {len(wrong)} of {len(current)} samples are "
            f"others: that of sample {wrong[0]} is {current[wrong[0]]:08x}, and was "
            f"{recorded[wrong[0]]:08x}"
        )


def _column_faults(
    path: Path,
    name: str,
    column: StoredColumn,
    counts: dict[str, int],
    scanned: list[ScannedShard],
) -> Iterator[str]:
    stored = read_values(path, name, column, sum(counts.values()))
    was: npt.NDArray[Any] = stored.values
    if stored.categories is not None:
        was = np.array([*stored.categories, ""], dtype=object)[was]
    pieces: dict[str, Piece | None] = {
        s.name: s.results["columns"].get(name) for s in scanned
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
            current = piece.values
            rows = np.flatnonzero(then[numbers] != current)
            wrong += [
                (shard, numbers[row], then[numbers[row]], current[row]) for row in rows
            ]
    if wrong:
        shard, number, stored_value, current_value = wrong[0]
        yield (
            f"{path}: the column {name!r} says something else of {len(wrong)} of "
            f"{len(was)} samples than they do, the first of them {path / shard}, "
            f"sample {number}: {stored_value}, and now {current_value}; measure it "
            f"again with: {column_command(path, {name: column.measured})}"
        )

"""Which samples of prepared folders have the same key, by their `index.sqlite`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from energize.arrays import Int64Array
from energize.describing import digest
from energize.errors import DatasetError, NotPreparedError, ShardError
from energize.sources.webdataset import WebdatasetSource
from energize.storage.nv_meta import read_info
from energize.storage.nv_meta_files import META_FOLDER, SQLITE_NAME, UUID_NAME
from energize.storage.read_only_sqlite import check_disk

_PREPARE = "energize prepare --tar-index-only --sqlite"
_PARTNERS = (
    "SELECT p.sample_index, p.sample_key, s.tar_file_id, s.sample_index FROM main.samples p "
    "LEFT JOIN other.samples s ON s.sample_key = p.sample_key "
    "WHERE p.tar_file_id = ? ORDER BY p.sample_index"
)

_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises for damaged files; the latter where its message quotes damaged text."""


@dataclass(frozen=True, slots=True)
class Partners:
    """For each sample of one source, by its number, the sample of another one that has its key: -1
    where there is none. `example` is a key without a partner, if there is one.
    """

    indices: Int64Array
    example: str | None


def partners(first: WebdatasetSource, other: WebdatasetSource) -> Partners:
    """Look the keys of all samples of `first` up in `other`.

    Keys come from the `index.sqlite` of both folders. Splits, parts and excluded samples are those
    of the sources: what `other` does not read is no partner. Where a sample has none, both
    indexes are looked through for damage. Time is some microseconds for each sample of `first`,
    memory 8 bytes.

    Raises `NotPreparedError` for a folder without this index, `DatasetError` for one that cannot be
    read or has a key twice, and `ShardError` for one of other shards than those indexed now.
    """
    with closing(_opened(first, other)) as database:
        _check_counts(database, "main", first)
        _check_counts(database, "other", other)
        found = np.full(first.count, -1, dtype=np.int64)
        example = None
        ids, numbers_of = _shard_ids(first), _numbers_by_id(other)
        for number, shard in enumerate(first.shards):
            rows = _rows(database, ids[shard], first, other)
            _check_keys(rows, first, other)
            own = first.indices(np.full(len(rows), number), _column(rows, 0))
            kept = own >= 0
            theirs = _theirs(rows, other, numbers_of)
            found[own[kept]] = theirs[kept]
            if example is None:
                alone = np.flatnonzero(kept & (theirs < 0))
                example = rows[alone[0]][1] if len(alone) else None
        if len(found) and found.min() < 0:
            _check_whole(database, "main", first)
            _check_whole(database, "other", other)
    return Partners(found, example)


def index_version(source: WebdatasetSource) -> str:
    """What is different when the folder was prepared again, or other samples of it are read.

    Raises `NotPreparedError` for a folder without `index.sqlite`.
    """
    file = _index_of(source)
    uuid = file.with_name(UUID_NAME)
    if uuid.is_file():
        version: Any = uuid.read_bytes()[:100].hex()
    else:
        version = [file.stat().st_size, file.stat().st_mtime_ns]
    return digest([version, source.shards, source.counts, source.excluded, source.window])


def _opened(first: WebdatasetSource, other: WebdatasetSource) -> sqlite3.Connection:
    """Both indexes, which nobody writes to while they are read."""
    try:
        database = sqlite3.connect(_uri(first), uri=True)
    except sqlite3.Error as reason:
        check_disk(reason, str(_index_of(first)))
        raise _unreadable(str(_index_of(first)), reason) from reason
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("ATTACH DATABASE ? AS other", (_uri(other),))
    except _UNREADABLE as reason:
        database.close()
        check_disk(reason, str(_index_of(other)))
        raise _unreadable(str(_index_of(other)), reason) from reason
    return database


def _uri(source: WebdatasetSource) -> str:
    return f"file:{quote(str(_index_of(source).absolute()))}?mode=ro&immutable=1"


def _index_of(source: WebdatasetSource) -> Path:
    file = source.path / META_FOLDER / SQLITE_NAME
    if not file.is_file():
        raise NotPreparedError(
            f"{source.path} has no {META_FOLDER}/{SQLITE_NAME}, by which samples are found by "
            f"their keys; write it with: {_PREPARE} {source.path}"
        )
    return file


def _rows(
    database: sqlite3.Connection, shard_id: int, first: WebdatasetSource, other: WebdatasetSource
) -> list[tuple[Any, ...]]:
    try:
        return database.execute(_PARTNERS, (shard_id,)).fetchall()
    except _UNREADABLE as reason:
        check_disk(reason, str(_index_of(first)))
        check_disk(reason, str(_index_of(other)))
        what = f"the {SQLITE_NAME} of {first.path} and {other.path}"
        raise _unreadable(what, reason) from reason


def _unreadable(what: str, reason: object) -> DatasetError:
    return DatasetError(
        f"{what} cannot be read: {reason}. It was cut off, is no SQLite database, or lacks a "
        f"table; write it again with: {_PREPARE} FOLDER"
    )


def _check_counts(database: sqlite3.Connection, name: str, source: WebdatasetSource) -> None:
    """The index has to be of the shards that `.info.json` lists, with every sample once."""
    try:
        is_table = database.execute(
            f"SELECT 1 FROM {name}.sqlite_master WHERE type = 'table' AND name = 'samples'"  # noqa: S608
        ).fetchone()
        if not is_table:  # a view could compute for ever
            raise _unreadable(str(_index_of(source)), "it has no table 'samples'")
        listed = database.execute(
            f"SELECT tar_file_id, COUNT(*), MIN(sample_index), MAX(sample_index) "  # noqa: S608
            f"FROM {name}.samples GROUP BY tar_file_id"  # `name` is "main" or "other"
        ).fetchall()
    except _UNREADABLE as reason:
        check_disk(reason, str(_index_of(source)))
        raise _unreadable(str(_index_of(source)), reason) from reason
    found = {each[0]: each[1:] for each in listed}
    for shard_id, (shard, count) in enumerate(read_info(source.path).shard_counts.items()):
        expected = (count, 0, count - 1) if count else (0, None, None)
        seen = found.pop(shard_id, (0, None, None))
        if seen != expected:
            raise ShardError(
                f"{_index_of(source)} lists {seen[0]} samples of {shard}, and .info.json {count}: "
                "the index is of other shards, or has one key for several samples; write it again "
                f"with: {_PREPARE} {source.path}"
            )
    if found:
        raise ShardError(
            f"{_index_of(source)} lists samples of more shards than .info.json; write it again "
            f"with: {_PREPARE} {source.path}"
        )


def _check_whole(database: sqlite3.Connection, name: str, source: WebdatasetSource) -> None:
    """Where samples have no partner: each key is stored twice, so a damaged one can be told."""
    try:
        found = database.execute(f"PRAGMA {name}.integrity_check('samples')").fetchone()
    except _UNREADABLE as reason:
        check_disk(reason, str(_index_of(source)))
        raise _unreadable(str(_index_of(source)), reason) from reason
    if found != ("ok",):
        raise _unreadable(str(_index_of(source)), found[0])


def _check_keys(
    rows: list[tuple[Any, ...]], first: WebdatasetSource, other: WebdatasetSource
) -> None:
    """Every sample stands in `rows` once, unless a key stands for several of the others."""
    numbers = _column(rows, 0)
    twice = np.flatnonzero(np.diff(numbers) == 0)
    if len(twice):
        raise DatasetError(
            f"{first.path} cannot be joined with {other.path}: in one of them the key "
            f"{rows[int(twice[0])][1]!r} stands for several samples; make keys unique, with "
            "`energize prepare --fix-duplicates` say"
        )


def _column(rows: list[tuple[Any, ...]], number: int) -> Int64Array:
    return np.fromiter((row[number] for row in rows), dtype=np.int64, count=len(rows))


def _shard_ids(source: WebdatasetSource) -> dict[str, int]:
    """The numbers that the index gives to shards: their places in `.info.json`."""
    return {shard: number for number, shard in enumerate(read_info(source.path).shard_counts)}


def _numbers_by_id(source: WebdatasetSource) -> Int64Array:
    """For each number of the index the shard's number in `source`, -1 where it is not read."""
    ids = _shard_ids(source)
    numbers = np.full(len(ids), -1, dtype=np.int64)
    numbers[[ids[shard] for shard in source.shards]] = np.arange(len(source.shards))
    return numbers


def _theirs(
    rows: list[tuple[Any, ...]], other: WebdatasetSource, numbers_of: Int64Array
) -> Int64Array:
    """For each row the sample of `other`, -1 for none."""
    indices = np.full(len(rows), -1, dtype=np.int64)
    paired = [i for i, row in enumerate(rows) if row[2] is not None]
    shards = numbers_of[[rows[i][2] for i in paired]] if paired else np.zeros(0, dtype=np.int64)
    numbers = np.array([rows[i][3] for i in paired], dtype=np.int64)
    read = shards >= 0
    at = np.array(paired, dtype=np.int64)[read]
    indices[at] = other.indices(shards[read], numbers[read])
    return indices

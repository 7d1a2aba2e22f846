"""The optional `index.sqlite`: samples and their parts by key.

Training does not read it; looking up samples by key, joining datasets and mounting them do.
"""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from energize.data.nv_meta import SQLITE_NAME, UUID_NAME
from energize.data.writing import writing
from energize.errors import PrepareError
from energize.preparation.indexing import IndexedShard

__all__ = ["SQLITE_NAME", "UUID_NAME", "SqliteIndex"]

_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL,
    sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL,
    byte_offset INTEGER,
    byte_size INTEGER
);
CREATE TABLE sample_parts (
    tar_file_id INTEGER,
    sample_index INTEGER,
    part_name TEXT,
    content_byte_offset INTEGER,
    content_byte_size INTEGER
);
"""

_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq
    ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


class SqliteIndex:
    """Writes the database that will be `final` at `path`, where nothing is; shards are numbered as
    they are added.
    """

    def __init__(self, final: Path, path: Path) -> None:
        self._final = final
        self._path = path
        self._shards = 0

    def __enter__(self) -> Self:
        with writing(self._final, PrepareError):
            self._path.open("xb").close()
        try:
            self._database = sqlite3.connect(self._path)
            # A file that gets its name when it is complete needs no protection before.
            self._database.execute("PRAGMA journal_mode = OFF")
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.executescript(_TABLES)
        except sqlite3.Error as reason:
            raise self._failed(reason) from reason
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._database.executescript(_INDEXES)
                self._database.commit()
        except sqlite3.Error as reason:
            raise self._failed(reason) from reason
        finally:
            self._database.close()

    def add(self, shard: IndexedShard) -> None:
        """Write the samples of the next shard."""
        offsets = [*(sample.offset for sample in shard.samples), shard.end]
        sizes = [after - before for before, after in pairwise(offsets)]
        samples = [
            (self._shards, sample.key, i, sample.offset, size)
            for i, (sample, size) in enumerate(zip(shard.samples, sizes, strict=True))
        ]
        parts = [
            (self._shards, i, part.name, part.offset, part.size)
            for i, sample in enumerate(shard.samples)
            for part in sample.parts
        ]
        try:
            # Keys that occur twice are reported, all of them, once every shard has been seen.
            self._database.executemany("INSERT OR IGNORE INTO samples VALUES (?,?,?,?,?)", samples)
            self._database.executemany("INSERT INTO sample_parts VALUES (?,?,?,?,?)", parts)
        except sqlite3.Error as reason:
            raise self._failed(reason) from reason
        self._shards += 1

    def _failed(self, reason: Exception) -> PrepareError:
        return PrepareError(
            f"{self._final} cannot be written: {reason}. Make room, or prepare without the "
            "SQLite index (training does not read it)"
        )

"""Reader and writer of the `index.sqlite` of a folder, as in Megatron-Energon."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple
from typing import Any, NamedTuple

from energize.data.stores import connected, unreadable
from energize.energon.edataclass import edataclass
from energize.errors import ConfigError, PrepareError
from energize.preparation.write import INDEXES, TABLES


@edataclass
class IndexSample:
    """Where a sample lies: in which shard, as which of its samples, from which byte
    on.
    """

    tar_file_id: int
    sample_key: str
    sample_index: int
    byte_offset: int
    byte_size: int


@edataclass
class IndexSamplePart:
    """Where the content of a part of a sample lies."""

    tar_file_id: int
    sample_index: int
    part_name: str
    content_byte_offset: int
    content_byte_size: int


class ITarSamplePointer(NamedTuple):
    """Where a sample lies in which shard."""

    tar_file_id: int
    byte_offset: int
    byte_size: int


class ITarRawSamplePartPointer(NamedTuple):
    """Where the content of a part lies in which shard."""

    tar_file_id: int
    raw_byte_offset: int
    raw_byte_size: int


class DuplicateSampleKeyError(PrepareError, RuntimeError):
    """Two samples have the key `sample_key`."""

    def __init__(self, sample_key: str) -> None:
        super().__init__(
            f"two samples have the key {sample_key!r}. Use a different key for each"
        )
        self.sample_key = sample_key


class SqliteIndexWriter(AbstractContextManager["SqliteIndexWriter"]):
    """Writes samples and their parts into a new database, as `energize prepare` does.

    The media metadata of a folder are written by
    `energize.preparation.media.prepare_media`.

    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/index.sqlite"
    >>> with SqliteIndexWriter(path) as writer:
    ...     writer.append_samples(
    ...         [
    ...             IndexSample(
    ...                 tar_file_id=0,
    ...                 sample_key="a",
    ...                 sample_index=0,
    ...                 byte_offset=0,
    ...                 byte_size=1536,
    ...             )
    ...         ]
    ...     )
    >>> SqliteIndexReader(path).get_sample_pointer_by_key("a")
    ITarSamplePointer(tar_file_id=0, byte_offset=0, byte_size=1536)
    """

    def __init__(self, sqlite_path: str | os.PathLike[str]) -> None:
        self.sqlite_path = sqlite_path
        os.makedirs(os.path.dirname(os.path.abspath(sqlite_path)), exist_ok=True)
        self.db: sqlite3.Connection | None = sqlite3.connect(sqlite_path)
        drop = "".join(
            f"DROP TABLE IF EXISTS {name};" for name in ("samples", "sample_parts")
        )
        self.db.executescript(drop + TABLES)

    def append_samples(self, rows: Sequence[IndexSample]) -> None:
        """Add samples: all, or none with a `DuplicateSampleKeyError`."""
        database = self._open()
        database.execute("SAVEPOINT adding")
        for row in rows:
            try:
                database.execute(
                    "INSERT INTO samples VALUES (?, ?, ?, ?, ?)", astuple(row)
                )
            except sqlite3.IntegrityError as reason:
                database.execute("ROLLBACK TO adding")
                raise DuplicateSampleKeyError(row.sample_key) from reason
        database.execute("RELEASE adding")

    def append_parts(self, rows: Sequence[IndexSamplePart]) -> None:
        """Add parts of samples."""
        add = "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)"
        self._open().executemany(add, map(astuple, rows))

    def close(self) -> None:
        """Write the indexes, and close the database."""
        database = self._open()
        self.db = None
        database.executescript(INDEXES)
        database.commit()
        database.close()

    def _open(self) -> sqlite3.Connection:
        if self.db is None:
            raise ConfigError(
                f"the writer of {self.sqlite_path} is closed. Create a new one"
            )
        return self.db

    def __exit__(self, *failed: object) -> None:
        self.close()


class SqliteIndexReader(AbstractContextManager["SqliteIndexReader"]):
    """Says where samples and their parts lie, by the database `sqlite_path`."""

    def __init__(self, sqlite_path: str | os.PathLike[str]) -> None:
        self.sqlite_path = sqlite_path
        with unreadable(os.fspath(sqlite_path)):
            self._database = connected(os.fspath(sqlite_path))

    def get_sample_pointer_by_key(self, key: str) -> ITarSamplePointer:
        """Return where a sample lies; raise KeyError if there is none of the key."""
        asked = (
            "SELECT tar_file_id, byte_offset, byte_size FROM samples WHERE "
            "sample_key = ?"
        )
        return ITarSamplePointer(*self._first_row(asked, key))

    def get_sample_part(self, key: str, part_name: str) -> ITarRawSamplePartPointer:
        """Return where the content of a part lies; raise KeyError if there is none."""
        asked = (
            "SELECT tar_file_id, content_byte_offset, content_byte_size FROM "
            "sample_parts JOIN samples USING (tar_file_id, sample_index) WHERE "
            "sample_key = ? AND part_name = ?"
        )
        return ITarRawSamplePartPointer(*self._first_row(asked, key, part_name))

    def get_sample_count(self) -> int:
        """Return how many samples there are."""
        return int(self._first_row("SELECT COUNT(*) FROM samples")[0])

    def get_total_size(self) -> int:
        """Return how many bytes all samples have in their shards."""
        return int(
            self._first_row("SELECT COALESCE(SUM(byte_size), 0) FROM samples")[0]
        )

    def list_all_samples(self) -> Iterator[tuple[str, int, int]]:
        """Yield the key, size in bytes and shard of each sample."""
        return self._rows("SELECT sample_key, byte_size, tar_file_id FROM samples")

    def list_all_sample_parts(self) -> Iterator[tuple[str, int, int]]:
        """Yield the full name, size in bytes and shard of each part, as they lie in the
        shards.
        """
        return self._rows(
            "SELECT sample_key || '.' || part_name, content_byte_size, tar_file_id "
            "FROM sample_parts JOIN samples USING (tar_file_id, sample_index) ORDER BY "
            "tar_file_id, sample_index, content_byte_offset"
        )

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _rows(self, key: str, *names: str) -> Iterator[tuple[Any, ...]]:
        with unreadable(os.fspath(self.sqlite_path)):
            yield from self._database.execute(key, names)

    def _first_row(self, key: str, *names: str) -> tuple[Any, ...]:
        row = next(self._rows(key, *names), None)
        if row is None:
            raise KeyError(f"{'.'.join(names)} is not in {self.sqlite_path}")
        return row

    def __exit__(self, *failed: object) -> None:
        self.close()

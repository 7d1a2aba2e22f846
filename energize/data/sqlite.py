"""Reading an SQLite database that belongs to a data folder."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from energize.core import limits
from energize.data.files import again, files_at, os_errors_as
from energize.errors import DatasetError

_REFUSED = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_WRITE_IT_AGAIN = "write it again with: energize prepare --tar-index-only --sqlite FOLDER"
_STRANGE = "SELECT name FROM {}.sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'"


class ReadOnlyDatabase:
    """The database at `path`, which nobody writes to while it is read.

    It is opened when it is first asked, once in each thread and process, without locks or journal,
    so that folders on read-only and network file systems work. A pickled one arrives closed. Files
    are replaced as a whole when they are prepared again; who has one open goes on with the old one.
    Whatever a file brings along may call no function that acts, and only tables are read: a view
    could compute for ever.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._threads = threading.local()

    def rows(
        self, statement: str, values: tuple[Any, ...] = (), most: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Return all rows that a statement gives; raise `DatasetError` naming the file if it cannot
        be read, or gives more than `most`, `limits.ROWS` by default.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "numbers.sqlite")
        >>> with sqlite3.connect(path) as database:
        ...     _ = database.execute("CREATE TABLE numbers (n INTEGER)")
        ...     _ = database.execute("INSERT INTO numbers VALUES (3)")
        >>> ReadOnlyDatabase(path).rows("SELECT n FROM numbers WHERE n > ?", (1,))
        [(3,)]
        """
        most = limits.ROWS if most is None else most
        with os_errors_as(DatasetError, self.path):
            found = again(lambda: self._rows(statement, values, most), self.path)
        if len(found) > most:
            raise DatasetError(f"{self.path}: {limits.over('ROWS')}")
        return found

    def _rows(self, statement: str, values: tuple[Any, ...], most: int) -> list[tuple[Any, ...]]:
        with unreadable(self.path):
            return self._connection().execute(statement, values).fetchmany(most + 1)

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of that name."""
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,)))

    def _connection(self) -> sqlite3.Connection:
        opened: tuple[int, sqlite3.Connection] | None = getattr(self._threads, "opened", None)
        # A connection that came through a fork belongs to the other process.
        if opened is None or opened[0] != os.getpid():
            opened = self._threads.opened = os.getpid(), connected(self.path)
        return opened[1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadOnlyDatabase) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __reduce__(self) -> tuple[type[ReadOnlyDatabase], tuple[str]]:
        return ReadOnlyDatabase, (self.path,)


def connected(*paths: str) -> sqlite3.Connection:
    """Open databases of tables, the first as `main`, another one as `other`; raise `DatasetError`
    for one that has views.
    """
    uris = [
        f"file:{quote(os.path.abspath(files_at(path).local(path)))}?mode=ro&immutable=1"
        for path in paths
    ]
    connection = sqlite3.connect(uris[0], uri=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.CELL_BYTES)
    for each in uris[1:]:
        connection.execute("ATTACH DATABASE ? AS other", (each,))
    for path, schema in zip(paths, ("main", "other"), strict=False):
        strange = connection.execute(_STRANGE.format(schema)).fetchone()
        if strange is not None:
            connection.close()
            raise DatasetError(
                f"{path} has {strange[0]!r}, which is no table, and only tables are read; "
                f"{_WRITE_IT_AGAIN}"
            )
    return connection


@contextmanager
def unreadable(*paths: str) -> Iterator[None]:
    """A block in which faults of databases are `DatasetError`s naming them; and OSError, where the
    system refuses them.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as reason:  # the latter in sqlite3's messages
        code = getattr(reason, "sqlite_errorcode", None) or 0
        if code & 0xFF in _REFUSED and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            for path in paths:
                files_at(path).size(path)  # says why, if it cannot even be opened
            raise OSError(errno.EIO, f"SQLite says: {reason}", paths[0]) from reason
        raise DatasetError(
            f"{' and '.join(paths)} cannot be read: {reason}. It was cut off, is no SQLite "
            f"database, or lacks a table; {_WRITE_IT_AGAIN}"
        ) from reason

"""Reading an SQLite database that belongs to a data folder."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from energize.core.limits import limit, over_limit
from energize.data.writing import os_errors_as, patiently
from energize.errors import DatasetError

_REFUSED = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


class ReadOnlyDatabase:
    """The database at `path`, which nobody writes to while it is read.

    It is opened when it is first asked, once in each thread and process, without locks or journal,
    so that folders on read-only and network file systems work. A pickled one arrives closed. Files
    are replaced as a whole when they are prepared again; who has one open goes on with the old one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._threads = threading.local()

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows that a statement gives; `DatasetError` naming the file when it cannot be read.

        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "numbers.sqlite")
        >>> with sqlite3.connect(path) as database:
        ...     _ = database.execute("CREATE TABLE numbers (n INTEGER)")
        ...     _ = database.execute("INSERT INTO numbers VALUES (3)")
        >>> ReadOnlyDatabase(path).rows("SELECT n FROM numbers WHERE n > ?", (1,))
        [(3,)]
        """
        with os_errors_as(DatasetError, self.path):
            return patiently(lambda: self._rows(statement, values), self.path)

    def _rows(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        most = limit("ROWS")
        try:
            found = self._connection().execute(statement, values).fetchmany(most + 1)
        except (sqlite3.Error, UnicodeDecodeError) as reason:  # the latter in sqlite3's messages
            check_disk(reason, self.path)
            raise DatasetError(
                f"{self.path} cannot be read: {reason}. It was cut off, is no SQLite database, or "
                "lacks a table; run `energize prepare --tar-index-only --sqlite` on the folder to "
                "write it again"
            ) from reason
        if len(found) > most:
            raise DatasetError(f"{self.path}: {over_limit('ROWS')}")
        return found

    def has_table(self, name: str) -> bool:
        """Whether there is a table of that name."""
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,)))

    def _connection(self) -> sqlite3.Connection:
        opened: tuple[int, sqlite3.Connection] | None = getattr(self._threads, "opened", None)
        # A connection that came through a fork belongs to the other process.
        if opened is not None and opened[0] == os.getpid():
            return opened[1]
        connection = sqlite3.connect(
            f"file:{quote(os.path.abspath(self.path))}?mode=ro&immutable=1", uri=True
        )
        # Whatever a file brings along may call no function that acts, and a view could compute for
        # ever: what is prepared is tables.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit("CELL_BYTES"))
        views = "SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'"
        strange = connection.execute(views).fetchone()
        if strange is not None:
            raise DatasetError(
                f"{self.path} has {strange[0]!r}, which is no table, and only tables are read; run "
                "`energize prepare --tar-index-only --sqlite` on the folder to write it again"
            )
        self._threads.opened = (os.getpid(), connection)
        return connection

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadOnlyDatabase) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __reduce__(self) -> tuple[type[ReadOnlyDatabase], tuple[str]]:
        return ReadOnlyDatabase, (self.path,)


def check_disk(reason: Exception, path: str) -> None:
    """Raise OSError where SQLite was refused by the system: nothing is wrong with the database."""
    code = getattr(reason, "sqlite_errorcode", None) or 0
    if code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _REFUSED:
        return
    with open(path, "rb"):  # says why, if it cannot even be opened
        pass
    raise OSError(errno.EIO, f"SQLite says: {reason}", path) from reason

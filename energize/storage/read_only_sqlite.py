"""Reading an SQLite database that belongs to a data folder."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from energize.errors import DatasetError


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
        try:
            return self._connection().execute(statement, values).fetchall()
        except sqlite3.Error as reason:
            raise DatasetError(
                f"{self.path} cannot be read: {reason}. It was cut off, is no SQLite database, or "
                "lacks a table; run `energize prepare --tar-index-only --sqlite` on the folder to "
                "write it again"
            ) from reason

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
        # Whatever views and triggers a file brings along, they may call no function that acts.
        connection.execute("PRAGMA trusted_schema = OFF")
        self._threads.opened = (os.getpid(), connection)
        return connection

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadOnlyDatabase) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __reduce__(self) -> tuple[type[ReadOnlyDatabase], tuple[str]]:
        return ReadOnlyDatabase, (self.path,)

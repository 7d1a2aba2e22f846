"""The tables of media metadata in a folder's `index.sqlite`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from energize.data.media import MediaFilterConfig, MediaMetadataBase, serialize_media_metadata
from energize.errors import PrepareError

_TABLES = """
CREATE TABLE IF NOT EXISTS media_metadata (
    entry_key TEXT PRIMARY KEY,
    metadata_type TEXT NOT NULL,
    metadata_json TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS media_filters (
    filter_id INTEGER PRIMARY KEY AUTOINCREMENT,
    strategy TEXT NOT NULL,
    patterns TEXT,
    created_at_utc TEXT DEFAULT CURRENT_TIMESTAMP,
    UNIQUE(strategy, patterns)
);
"""

_ADD = """
INSERT INTO media_metadata VALUES (?, ?, ?)
ON CONFLICT(entry_key) DO UPDATE
SET metadata_type = excluded.metadata_type, metadata_json = excluded.metadata_json
"""


class MediaIndex:
    """Adds to the database `path`, which nobody reads yet; `source` is what messages call it.

    Everything is written when the block ends without an error. Raises `PrepareError`.
    """

    def __init__(self, path: Path, media_filter: MediaFilterConfig, source: Path) -> None:
        self._path = path
        self._filter = media_filter
        self._source = source

    def __enter__(self) -> Self:
        try:
            self._database = sqlite3.connect(self._path)
            # A copy that gets its name when it is complete needs no protection before.
            self._database.execute("PRAGMA journal_mode = OFF")
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.executescript(_TABLES)
            self._database.execute(
                "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)",
                (self._filter.strategy.value, ",".join(self._filter.patterns)),
            )
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
                self._database.commit()
        except sqlite3.Error as reason:
            raise self._failed(reason) from reason
        finally:
            self._database.close()

    def put(self, found: Iterable[tuple[str, MediaMetadataBase]], gone: Iterable[str]) -> None:
        """Write the metadata of files, in place of what was known, and forget that of `gone`."""
        rows = [(key, *serialize_media_metadata(metadata)) for key, metadata in found]
        try:
            self._database.executemany(_ADD, [(key, str(kind), text) for key, kind, text in rows])
            self._database.executemany(
                "DELETE FROM media_metadata WHERE entry_key = ?", [(key,) for key in gone]
            )
        except sqlite3.Error as reason:
            raise self._failed(reason) from reason

    def _failed(self, reason: Exception) -> PrepareError:
        return PrepareError(
            f"{self._source} cannot be written: {reason}. Make room; if it is damaged, write "
            "it again with `energize prepare --tar-index-only --sqlite`"
        )

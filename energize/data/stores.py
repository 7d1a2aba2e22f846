"""File stores: files by name in prepared folders, plain folders and JSON lines.

`open_store` parses the references that `aux` in a metadataset uses. `ReadOnlyDatabase`
reads `index.sqlite` safely from untrusted folders.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from energize.core import limits
from energize.core.os_errors import (
    again,
    check_path,
    convert_os_errors,
    is_path,
    is_url,
    os_error_message,
    os_errors_as,
)
from energize.core.samples import SourceInfo
from energize.core.stores import FileStore
from energize.data.files import exists, files_at, joined, path_of
from energize.data.jsonl import JsonlSource
from energize.data.local import FileStream
from energize.data.media import MediaMetadataBase, deserialize_media_metadata
from energize.data.nv_meta import META_FOLDER, SQLITE_NAME, is_prepared, read_info
from energize.data.tar import BLOCK, padded, split_name, walk
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    ShardError,
)

StorePath = str | os.PathLike[str]

_FOLDER = "filesystem"
_SHORT = 100
"""Bytes of a name that the header right before a payload always contains."""
NO_SUCH_FILE = (
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
)
NO_REGULAR_FILE = (errno.EINVAL, errno.ENXIO)

_FIND = """
SELECT part_name, tar_file_id, byte_offset, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE sample_key = ? ORDER BY tar_file_id, content_byte_offset
"""


def index_of(folder: Path) -> Path:
    """Return the `index.sqlite` of a prepared folder, or raise `NotPreparedError`."""
    file = folder / META_FOLDER / SQLITE_NAME
    if not file.is_file():
        raise NotPreparedError(
            f"{folder} has no {META_FOLDER}/{SQLITE_NAME}, required for lookups by "
            f"name. Write it with: energize prepare --tar-index-only --sqlite {folder}"
        )
    return file


class _PathStore(FileStore[bytes]):
    """A store at a path; compared and pickled by the path."""

    path: Path | None

    def get_path(self) -> str:
        return "" if self.path is None else str(self.path)

    def _source(self, index: str | int, shard: str, name: str) -> SourceInfo:
        return SourceInfo(
            dataset_path=self.get_path(),
            index=index,
            shard_name=shard,
            file_names=(name,),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_path()})"


class _FolderStore(_PathStore):
    """A folder store; `.nv-meta/index.sqlite` may have media metadata."""

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        rows = self._media.rows(
            "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = "
            "?",
            (key,),
        )
        if not rows:
            raise DataError(
                f"{self.get_path()} has no media metadata of {key!r}: it was added "
                "later, or prepare-media filtered it out or could not read it"
            )
        try:
            return deserialize_media_metadata(*rows[0])
        except DatasetError as reason:
            raise DataError(f"{self._media.path}, {key!r}: {reason}") from reason

    @cached_property
    def _database(self) -> ReadOnlyDatabase:
        return ReadOnlyDatabase((self.path or Path("/")) / META_FOLDER / SQLITE_NAME)

    @cached_property
    def _media(self) -> ReadOnlyDatabase:
        database = ReadOnlyDatabase(
            self._database.path
        )  # it may be newer than the open one
        named = (
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = "
            "'media_metadata'"
        )
        if exists(database.path) and database.rows(named):
            return database
        raise NotPreparedError(
            f"{self.get_path()} has no media metadata. Collect it with: energize "
            f"prepare-media --media-metadata-by-extension {self.get_path()}"
        )


class WebdatasetFileStore(_FolderStore):
    """The files of a prepared folder by full name in the shards: `"000123.jpg"`.

    Searches all splits through `index.sqlite`, which `energize prepare --sqlite` and
    Energon write. Names are never used as paths.

    A missing name raises `DataError`; shards that changed after indexing raise
    `ShardError`.

    Args:
        path: The prepared folder.

    Raises:
        DatasetNotFoundError: If the folder does not exist.
        NotPreparedError: If it has no index.

    Example:
        >>> import tempfile
        >>> from energize.preparation import prepare, write_shards
        >>> folder = tempfile.mkdtemp()
        >>> _ = write_shards([{"__key__": "cat", "txt": "a cat"}], folder)
        >>> _ = prepare(folder, split_ratios={"train": 1}, sqlite=True)
        >>> WebdatasetFileStore(folder).get("cat.txt")
        b'a cat'
    """

    path: Path

    @convert_os_errors
    def __init__(self, path: StorePath) -> None:
        self.path = store_path(path)
        info = read_info(self.path)
        index_of(self.path)
        self._again = (
            "Index the shards again with: energize prepare --tar-index-only "
            f"{self.path}"
        )
        self._shards = tuple(info.shard_counts)
        self._files = files_at(self.path)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        shard, begin, offset, size = self._find(key)
        return self._payload(shard, begin, offset, size, key), self._source(
            key, shard, key
        )

    def _find(self, key: str) -> tuple[str, int, int, int]:
        """Return shard, sample offset, payload offset and size of a file."""
        split = split_name(key)
        if split is None:
            raise DataError(
                f"{self.path}: {key!r} is not the name of a file in a shard, such as "
                "'000123.jpg': the key of a sample, a dot and the part"
            )
        rows = self._database.rows(_FIND, split[:1])
        location = next((row[1:] for row in rows if row[0] == split[1]), None)
        if location is None:
            parts = ", ".join(str(row[0]) for row in rows[:20])
            reason = f"sample {split[0]!r} has only the parts {parts}"
            if not rows:
                reason = f"no sample has the key {split[0]!r}"
            raise DataError(f"{self.path} has no file {key!r}: {reason}")
        number, begin, offset, size = location
        if (
            not all(map(_is_count, location))
            or number >= len(self._shards)
            or offset < BLOCK
        ):
            raise DatasetError(
                f"{self._database.path} places {key!r} in shard {number} of "
                f"{len(self._shards)}, at byte {offset}. {self._again}"
            )
        return self._shards[number], begin, offset, size

    def _payload(
        self, shard: str, begin: int, offset: int, size: int, key: str
    ) -> bytes:
        path = f"{self.path}/{shard}"
        if key.isascii() and len(key) <= _SHORT:
            begin = offset - BLOCK  # longer names are in an extra header

        def read(at: int, count: int) -> bytes:
            start = min(begin + at, stop)
            return self._files.read(path, start, min(start + count, stop))

        actual = "no file"
        wanted = f"{key!r} of {size} bytes at byte {offset}"
        with os_errors_as(ShardError, path):
            stop = min(offset + padded(size), self._files.size(path))
            data = read(offset - begin, size)
            # Verify by its headers that it is the file in the database.
            with suppress(ShardError, LookupError):
                member = walk(read, stop - begin, path)[0][-1]
                actual = (
                    f"{member.name!r} of {member.size} bytes at byte "
                    f"{begin + member.offset}"
                )
        if actual != wanted:
            raise ShardError(
                f"{path} and {self._database.path} do not match: found {actual} "
                f"instead of {wanted}. {self._again}"
            )
        return data


class SystemFileStore(_FolderStore):
    """The files below the folder `base_dir`, by relative path.

    Keys cannot leave the folder: `..`, absolute names, links to outside, folders, pipes
    and devices raise `DataError`.

    Args:
        base_dir: The folder. None allows any path of this machine; use it only for keys
            that your program makes itself.

    Raises:
        DatasetNotFoundError: If the folder does not exist.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("hello")
        >>> SystemFileStore(folder).get("a.txt")
        b'hello'
    """

    @convert_os_errors
    def __init__(self, base_dir: StorePath | None = None) -> None:
        self.path = None if base_dir is None else store_path(base_dir)
        self._base = os.path.realpath(self.path or "")
        if self.path is not None and not self.path.is_dir():
            raise DatasetNotFoundError(f"{self.path} does not exist or is not a folder")

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        with self.open(key) as file:
            return file.read(), self._source(key, self.get_path(), key)

    def open(self, key: str) -> BinaryIO:
        """Open the file `key` for reading.

        Raises:
            DataError: If the file does not exist.
            DatasetError: If the disk or its permissions refuse it.
        """
        path = self._located(key)
        try:
            return BufferedReader(FileStream(files_at(path, follow=False), path))
        except OSError as error:
            if error.errno in NO_REGULAR_FILE:
                raise DataError(f"{self}: {key!r} is not a regular file") from error
            if error.errno in NO_SUCH_FILE:
                raise DataError(
                    f"{self}: the file {key!r} does not exist: {error}"
                ) from error
            raise DatasetError(os_error_message(error, path)) from error

    def _located(self, key: str) -> str:
        """Return the path of a file, with links resolved."""
        if not key or not is_path(key):
            raise DataError(f"{self}: {key!r} is not the name of a file")
        if self.path is None:
            return key if is_url(key) else os.path.realpath(key)
        if os.path.isabs(key) or ".." in key.split("/"):
            raise DataError(
                f"{self}: the name {key!r} may lead out of the folder. Pass paths "
                "relative to the folder, without '..'"
            )
        if is_url(self.path):
            return str(self.path / key)
        real = os.path.realpath(os.path.join(self._base, key))
        if not real.startswith(os.path.join(self._base, "")):
            raise DataError(
                f"{self}: {key!r} is a link, or below a link, to {real} outside of "
                "the folder. Copy the file into the folder"
            )
        return real


class JsonlFileStore(_PathStore):
    """The lines of an indexed `.jsonl` file, by number: `"7"` or `"7.json"`.

    Values are lines as bytes; a `DecodeFileStore` around the store parses those of
    `"7.json"`. A missing number raises `DataError`.

    Args:
        jsonl_path: The file.

    Raises:
        DatasetNotFoundError: If the file does not exist.
        NotPreparedError: If it has no index.
        ShardError: If the index does not fit.

    Example:
        >>> import tempfile
        >>> from energize.preparation.index import prepare_jsonl
        >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
        >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
        >>> _ = prepare_jsonl(path)
        >>> JsonlFileStore(path).get("1")
        b'{"text": "b"}'
    """

    path: Path

    @convert_os_errors
    def __init__(self, jsonl_path: StorePath) -> None:
        self.path = store_path(jsonl_path)
        self._lines = JsonlSource(self.path)

    def __len__(self) -> int:
        return self._lines.count

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        digits = key.removesuffix(".json")
        number = int(digits) if digits.isdecimal() and len(digits) < 20 else -1
        if not 0 <= number < len(self) or str(number) != digits:  # not "٣" and "007"
            raise DataError(
                f"{self.path} has no sample {key!r}: its keys are '0' to "
                f"'{len(self) - 1}', each also with '.json'"
            )
        source = self._source(number, self.path.name, f"{digits}.json")
        with os_errors_as(ShardError, self.path):
            return self._lines.stored([number])[0].strip(), source


def store_path(path: StorePath) -> Path:
    """Return the path of a store; raise `ConfigError` if it cannot be a path."""
    return path_of(check_path(os.fspath(path)))


def local_path(path: StorePath) -> Path:
    """Return a local path; raise `ConfigError` for object storage."""
    if is_url(path):
        raise ConfigError(f"{path}: files that are rewritten must be in a local folder")
    return store_path(path)


def open_store(ref: StorePath, base: StorePath = ".") -> FileStore[Any]:
    """Open the store of a reference, as `aux` in a metadataset specifies it.

    Files are only read on request.

    Args:
        ref: Path of a prepared folder or an indexed `.jsonl` file; or of a plain folder
            after `filesystem://`.
        base: Folder that relative paths refer to.

    Returns:
        The store.

    Raises:
        ConfigError: If the reference is invalid.
        DatasetNotFoundError: If the path does not exist.
        NotPreparedError: If the path is not prepared.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("hello")
        >>> open_store("filesystem://.", folder).get("a.txt")
        b'hello'
    """
    text = os.fspath(ref)
    scheme, separator, rest = text.partition("://")
    if separator and scheme == _FOLDER:
        return SystemFileStore(joined(store_path(base), check_path(rest)))
    path = joined(store_path(base), check_path(text.removeprefix(f"{_FOLDER}+")))
    if path.suffix == ".jsonl":
        return JsonlFileStore(path)
    if not is_prepared(path) and (path / META_FOLDER / SQLITE_NAME).is_file():
        return SystemFileStore(
            path
        )  # a plain folder whose media metadata was collected
    try:
        return WebdatasetFileStore(path)
    except NotPreparedError as error:
        raise NotPreparedError(
            f"{error}\nThe files of a plain folder are a store as {_FOLDER}://{text}"
        ) from None


_REFUSED = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_WRITE_IT_AGAIN = (
    "Write it again with: energize prepare --tar-index-only --sqlite FOLDER"
)
_STRANGE = (
    "SELECT name FROM {}.sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE "
    "VIRTUAL%'"
)


class ReadOnlyDatabase:
    """A database that does not change while it is read.

    Opened on the first query, once per thread and process, without locks or journal, so
    it works on read-only and network file systems. Preparing again replaces the file;
    open connections keep reading the old one. Files are untrusted: only tables without
    views are read, and functions with side effects are disabled.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._threads = threading.local()

    def rows(
        self, statement: str, values: tuple[Any, ...] = ()
    ) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Args:
            statement: The query.
            values: Parameters of the query.

        Returns:
            The rows.

        Raises:
            DatasetError: If the file cannot be read, or returns more than
                `limits.ROWS`.

        Example:
            >>> import tempfile
            >>> path = Path(tempfile.mkdtemp(), "numbers.sqlite")
            >>> with sqlite3.connect(path) as database:
            ...     _ = database.execute("CREATE TABLE numbers (n INTEGER)")
            ...     _ = database.execute("INSERT INTO numbers VALUES (3)")
            >>> ReadOnlyDatabase(path).rows("SELECT n FROM numbers WHERE n > ?", (1,))
            [(3,)]
        """

        def fetch() -> list[tuple[Any, ...]]:
            with unreadable(self.path):
                return (
                    self._connection()
                    .execute(statement, values)
                    .fetchmany(limits.ROWS + 1)
                )

        with os_errors_as(DatasetError, self.path):
            rows = again(fetch, self.path)
        if len(rows) > limits.ROWS:
            raise DatasetError(f"{self.path}: {limits.over('ROWS')}")
        return rows

    def _connection(self) -> sqlite3.Connection:
        opened: tuple[int, sqlite3.Connection] | None = getattr(
            self._threads, "opened", None
        )
        # A connection inherited by a fork belongs to the parent.
        if opened is None or opened[0] != os.getpid():
            opened = self._threads.opened = os.getpid(), connected(self.path)
        return opened[1]


class _Connection(sqlite3.Connection):
    """A connection that interrupts statements after `most` thousand steps."""

    most = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        left = iter(range(self.most))
        self.set_progress_handler(lambda: next(left, None) is None, 1000)
        return super().execute(*arguments)


def connected(*paths: str) -> sqlite3.Connection:
    """Open databases as `main` and `other`; raise `DatasetError` for views."""
    uris = [
        f"file:{quote(os.path.abspath(files_at(path).local(path)))}?mode=ro&immutable=1"
        for path in paths
    ]
    connection = sqlite3.connect(uris[0], uri=True, factory=_Connection)
    size = sum(files_at(path).size(path) for path in paths)
    connection.most = limits.STEPS * (100_000 + size) // 1000
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.CELL_BYTES)
    for uri in uris[1:]:
        connection.execute("ATTACH DATABASE ? AS other", (uri,))
    for path, schema in zip(paths, ("main", "other"), strict=False):
        strange = connection.execute(_STRANGE.format(schema)).fetchone()
        if strange is not None:
            connection.close()
            raise DatasetError(
                f"{path} has {strange[0]!r}, which is not a table. {_WRITE_IT_AGAIN}"
            )
    return connection


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


@contextmanager
def unreadable(*paths: str) -> Iterator[None]:
    """Convert database errors to `DatasetError`, or OSError of the system."""
    try:
        yield
    except (
        sqlite3.Error,
        UnicodeDecodeError,
    ) as reason:  # UnicodeDecodeError comes from messages of sqlite3
        code = getattr(reason, "sqlite_errorcode", None) or 0
        if code & 0xFF in _REFUSED and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            for path in paths:
                files_at(path).size(
                    path
                )  # raises with the reason if it cannot be opened
            raise OSError(errno.EIO, f"SQLite: {reason}", paths[0]) from reason
        message = limits.over("STEPS") if code == sqlite3.SQLITE_INTERRUPT else reason
        raise DatasetError(
            f"{' and '.join(paths)} cannot be read: {message}. It is truncated, not "
            f"an SQLite database, or has no such table. {_WRITE_IT_AGAIN}"
        ) from reason

"""Store the metadata of the images, videos and sounds of a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from sqlite3 import Connection
from tempfile import TemporaryDirectory
from typing import BinaryIO

from energize.core.os_errors import os_errors_as
from energize.core.progress import Progress
from energize.data.files import files_at
from energize.data.media import serialize_media_metadata
from energize.data.media_filter import MediaFilterConfig
from energize.data.nv_meta import META_FOLDER, SQLITE_NAME, is_prepared, read_info
from energize.data.stores import SystemFileStore, store_path
from energize.data.writing import writing
from energize.errors import DatasetNotFoundError, PrepareError, SampleError, ShardError
from energize.preparation.index import is_utf8, prepare
from energize.preparation.scan import ShardHeaders, listed
from energize.preparation.workers import map_in_order
from energize.preparation.write import commit, new_database, staging

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
_REMOVE = "DELETE FROM media_metadata WHERE entry_key = ?"


@dataclass(frozen=True, slots=True)
class MediaReport:
    """Result of storing media metadata.

    Args:
        path: The folder.
        count: Files with written metadata.
        damaged: Files that were left out, with location and reason.
    """

    path: Path
    count: int
    damaged: tuple[str, ...] = ()


_Row = tuple[str, str | None, str]
"""Name, type and metadata of a file; name, None and reason for a damaged one."""


@os_errors_as(PrepareError, fault="cannot be used")
def prepare_media(
    path: str | os.PathLike[str],
    by: str | MediaFilterConfig = "extension",
    *,
    workers: int | None = None,
    on_progress: Progress | None = None,
    tmp_path: str | os.PathLike[str] | None = None,
) -> MediaReport:
    """Store the metadata of all media of a folder, for `store.get_media_metadata`.

    The metadata is written into `.nv-meta/index.sqlite`, in addition to existing
    content, and appears when all files have been read. A prepared folder without that
    file gets one. Damaged media are listed in the report and have no metadata.

    Args:
        path: A folder prepared by energize or Energon, or a plain folder.
        by: How media are recognised: "extension", "header", patterns such as
            "*.jpg,*.png", or a `MediaFilterConfig`.
        workers: Processes that read files; by default one for each core.
        on_progress: Called with the shards or files that are done, and with all.
        tmp_path: Folder in which the database is built; by default `path`.

    Returns:
        The number of files, and the damaged files.

    Raises:
        PrepareError: For a folder without media, damaged shards, and a killed process.
        ConfigError: For wrong arguments, and for a video if PyAV is not installed.
        DatasetNotFoundError: If the folder does not exist.

    Example:
        >>> import tempfile
        >>> from energize.preparation import prepare, write_shards
        >>> from energize.energon.cache import WebdatasetFileStore
        >>> from PIL import Image
        >>> folder = tempfile.mkdtemp()
        >>> image = Image.new("RGB", (8, 4))
        >>> _ = write_shards([{"__key__": "a", "png": image}], folder)
        >>> _ = prepare(folder, split_ratios={"train": 1}, sqlite=True)
        >>> prepare_media(folder).count
        1
        >>> WebdatasetFileStore(folder).get_media_metadata("a.png").width
        8
    """
    root = store_path(path)
    if not isinstance(by, MediaFilterConfig):
        ways = [by.lower() == strategy for strategy in ("header", "extension")]
        by = MediaFilterConfig.parse(None if any(ways) else by, *ways)
    if not root.is_dir():
        raise DatasetNotFoundError(f"{root} does not exist, or is no folder")
    function, names = _read_by(root, by, workers)
    final = root / META_FOLDER / SQLITE_NAME
    with staging(root, root / META_FOLDER) as files, ExitStack() as ends:
        target = built = files.place(final)
        with writing(final, PrepareError):
            files.create(final).close()
            if tmp_path is not None:
                built = Path(
                    ends.enter_context(TemporaryDirectory(dir=tmp_path)), final.name
                )
            if final.exists():
                shutil.copyfile(files_at(final).local(str(final)), built)
        with new_database(files, final, _TABLES, target=built) as database:
            filters = (
                "INSERT OR IGNORE INTO media_filters (strategy, patterns) VALUES (?, ?)"
            )
            database.execute(filters, (by.strategy.value, ",".join(by.patterns)))
            results = map_in_order(function, names, workers, on_progress)
            results = ends.enter_context(closing(results))
            count, damaged = _store_rows(database, results)
        if not count:
            raise PrepareError(_nothing(root, by, damaged))
        if built != target:
            with writing(final, PrepareError):
                shutil.copyfile(built, target)
        commit(files, root)
    return MediaReport(root, count, tuple(damaged))


def _store_rows(
    database: Connection, results: Iterable[list[_Row] | Exception]
) -> tuple[int, list[str]]:
    """Write metadata; return the number of files, and the reasons of damaged ones."""
    count = 0
    damaged: list[str] = []
    for rows in results:
        if isinstance(rows, ShardError):
            raise PrepareError(str(rows))
        if isinstance(rows, Exception):
            raise rows
        for name, media_type, text in rows:
            if media_type is None:
                database.execute(_REMOVE, (name,))
                damaged.append(text)
            else:
                database.execute(_ADD, (name, media_type, text))
                count += 1
    return count, damaged


def prepare_filesystem_dataset(
    root_path: str | os.PathLike[str],
    media_filter: MediaFilterConfig,
    *,
    progress: bool = False,
    workers: int = 16,
    index_sqlite_tmp_path: str | os.PathLike[str] | None = None,
) -> int:
    """Store the metadata of all media below a plain folder; see `prepare_media`.

    Args:
        root_path: The folder.
        media_filter: How media are recognised.
        progress: Has no use.
        workers: Processes that read files.
        index_sqlite_tmp_path: A path in the folder in which the database is built.

    Returns:
        The number of files.

    Raises:
        PrepareError: As `prepare_media`, and for damaged media.
    """
    tmp_path = (
        None if index_sqlite_tmp_path is None else Path(index_sqlite_tmp_path).parent
    )
    report = prepare_media(root_path, media_filter, workers=workers, tmp_path=tmp_path)
    if report.damaged:
        raise PrepareError(
            f"{root_path}: {len(report.damaged)} files are damaged, the metadata of "
            "the other "
            f"{report.count} was written:{listed(report.damaged)}"
        )
    return report.count


def _files(root: Path, media: MediaFilterConfig) -> Iterator[str]:
    """Yield the names of files that may be media, without hidden ones."""

    def unreadable(reason: OSError) -> None:
        raise reason

    for folder, inner, files in os.walk(root, onerror=unreadable):
        inner[:] = [name for name in inner if not name.startswith(".")]
        for file in files:
            name = os.path.relpath(os.path.join(folder, file), root)
            if not file.startswith(".") and media.should_consider_media(name):
                if not is_utf8(name):
                    raise PrepareError(
                        f"{root}: the name {name!r} is not UTF-8. Rename the file"
                    )
                yield name


def _row(
    media: MediaFilterConfig, name: str, location: str, opened: Callable[[], BinaryIO]
) -> list[_Row]:
    """Return the metadata of a file; empty if it is not a media file."""
    try:
        with opened() as file:
            metadata = media.extract_metadata(file, name)
    except SampleError as reason:
        return [(name, None, f"{location}: {reason}")]
    if metadata is None:
        return []
    media_type, text = serialize_media_metadata(metadata)
    return [(name, str(media_type), text)]


def _of_file(store: SystemFileStore, media: MediaFilterConfig, name: str) -> list[_Row]:
    return _row(media, name, store.get_path(), partial(store.open, name))


def _of_shard(root: Path, media: MediaFilterConfig, shard: str) -> list[_Row]:
    rows: list[_Row] = []
    for sample in ShardHeaders(root, shard).samples():
        for part in sample.sizes:
            name = f"{sample.entry.key}.{part}"
            if media.should_consider_media(name):
                rows += _row(
                    media, name, sample.location, partial(BytesIO, sample.part(part))
                )
    return rows


def _read_by(
    root: Path, media: MediaFilterConfig, workers: int | None
) -> tuple[Callable[[str], list[_Row]], list[str]]:
    """Return the function that reads a file or shard, and the names to read."""
    if not is_prepared(root):
        return partial(_of_file, SystemFileStore(root), media), sorted(
            _files(root, media)
        )
    if not (root / META_FOLDER / SQLITE_NAME).exists():
        prepare(root, tar_index_only=True, sqlite=True, workers=workers)
    return partial(_of_shard, root, media), list(read_info(root).shard_counts)


def _nothing(root: Path, media: MediaFilterConfig, damaged: list[str]) -> str:
    if damaged:
        return f"{root}: all of the {len(damaged)} media are damaged:{listed(damaged)}"
    ways = ", ".join([media.strategy, *media.patterns])
    hint = (
        ""
        if is_prepared(root)
        else f"; of tar shards, run first: energize prepare {root}"
    )
    return f"{root} has no files that are images, videos or sounds by {ways}{hint}"

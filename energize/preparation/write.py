"""Write tar shards from samples, and rewrite shards that share keys."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from energize.core.checks import checked_whole
from energize.core.lazy import webdataset
from energize.core.os_errors import is_url
from energize.data.files import path_of
from energize.data.media import kind_by_name
from energize.data.tar import checksums_path, index_path
from energize.data.writing import (
    NewFiles,
    exit_on_signals,
    remove_leftovers,
    writing,
)
from energize.errors import ConfigError, PrepareError, some
from energize.preparation.scan import ShardHeaders, scan_shards
from energize.preparation.workers import map_in_order

TABLES = """
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
INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq
    ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, \
content_byte_size);
"""


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Lock a folder or file; raise `PrepareError` if another process holds it."""
    if is_url(path):  # no store knows locks; what is merged twice has the same bytes
        yield
        return
    with writing(path, PrepareError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        with suppress(OSError):  # a file system without locks
            try:
                mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
                fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            except BlockingIOError as reason:
                raise PrepareError(
                    f"{path} is being prepared by another process. Wait until it is "
                    "done"
                ) from reason
        yield
    finally:
        os.close(descriptor)


@contextmanager
def staging(root: Path, *folders: Path, shared: bool = False) -> Iterator[NewFiles]:
    """Yield new files for folders that one process at a time may write.

    Missing folders are made, and removed again if nothing is committed to them. Files
    that are not committed are removed, also if the process is terminated. Files that a
    killed process left are removed first.

    Args:
        root: The locked folder.
        *folders: Folders below `root` that are written.
        shared: Whether several processes may write. Then files and folders that others
            left stay: their process may still run.
    """
    with ExitStack() as ends:
        ends.enter_context(exit_on_signals())
        with writing(root, PrepareError):
            missing = {folder for folder in (root, *folders) if not folder.exists()}
            root.mkdir(parents=True, exist_ok=True)
        ends.enter_context(locked(root, shared=shared))
        for folder in (root, *folders):
            if folder in missing and not shared:
                ends.callback(_remove_empty, folder)
            with writing(folder, PrepareError):
                folder.mkdir(exist_ok=True)
                if folder in missing and folder != root and not is_url(folder):
                    folder.chmod(stat.S_IMODE(root.stat().st_mode) | 0o700)
        for folder in () if shared else folders:
            remove_leftovers(folder)
            ends.callback(remove_leftovers, folder)  # what killed workers left
        yield ends.enter_context(NewFiles(PrepareError))


def shard_folders(root: Path, names: Iterable[str]) -> list[Path]:
    """Return the folders of shards."""
    return list(dict.fromkeys((root / name).parent for name in names))


def commit(
    files: NewFiles,
    like: Path,
    remove: Sequence[Path] = (),
    markers: Iterable[Path] = (),
) -> None:
    """Give staged files their names, with the permissions of the file `like`.

    Args:
        files: The staged files.
        like: A file with the permissions for new files.
        remove: Files that are removed first. Without the file that marks a folder as
            prepared, a reader never sees a mixture of old and new files.
        markers: Files that are removed last, from which the next call resumes after a
            failure.
    """
    files.commit(stat.S_IMODE(like.stat().st_mode) & 0o666 | 0o600, remove)
    with suppress(OSError):  # one that stays does no harm
        for marker in [*markers]:
            marker.unlink(missing_ok=True)


@contextmanager
def new_database(
    files: NewFiles,
    final: Path,
    tables: str,
    *,
    indexes: str = "",
    target: Path | None = None,
) -> Iterator[sqlite3.Connection]:
    """Open a new database with tables, and with indexes when the block ends.

    Args:
        files: The staged files.
        final: The final path of the database.
        tables: Statements that create tables.
        indexes: Statements that create indexes, run at the end.
        target: A file to write instead.

    Raises:
        PrepareError: For errors of SQLite in the block.
    """
    if target is None:
        files.write(final, b"")
        target = files.place(final)
    try:
        with closing(sqlite3.connect(target)) as database:
            # A file that gets its name when it is complete needs no protection before.
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("PRAGMA synchronous = OFF")
            database.executescript(tables)
            yield database
            database.executescript(indexes)
            database.commit()
    except sqlite3.Error as reason:
        raise PrepareError(
            f"{final} cannot be written: {reason}. Make room on that disk. If the file "
            "is damaged, write it again with "
            "`energize prepare --tar-index-only --sqlite`"
        ) from reason


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def write_shards(
    samples: Iterable[Mapping[str, Any]],
    folder: str | Path,
    *,
    samples_per_shard: int = 1000,
    pattern: str = "shard-%06d.tar",
    checksums: bool = False,
) -> list[Path]:
    """Write samples into tar shards of a new folder, ready for `prepare`.

    The same samples give the same bytes. Shards appear together, after the last sample.
    After an error, also one of `samples`, and if the process is terminated, all written
    files are removed. Files of a killed process are removed by the next call that
    writes to the folder.

    Args:
        samples: Dicts of a unique `__key__` and parts by name. Parts are bytes, text,
            or values that webdataset encodes by the name of the part: a PIL image or an
            array as `jpg` or `png`, dicts and lists as `json`, a number as `cls`. Names
            that begin with `_` are left out.
        folder: The folder; it must be empty or missing.
        samples_per_shard: Samples in each shard but the last.
        pattern: Name of a shard by its number.
        checksums: Whether checksums of samples are written beside the shards, as by
            `prepare_checksums`; `prepare` adopts them.

    Returns:
        The paths of the shards.

    Raises:
        PrepareError: For a sample without a key or parts, a repeated key or one with a
            dot or slash, a part that cannot be encoded, a folder that is not empty, and
            a file that cannot be written.
        ConfigError: For wrong arguments.

    Example:
        >>> import tempfile
        >>> from energize import WebdatasetSource
        >>> from energize.preparation import prepare
        >>> samples = [
        ...     {"__key__": f"{i:03d}", "txt": "hello", "json": {"i": i}}
        ...     for i in range(5)
        ... ]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shards = write_shards(samples, folder, samples_per_shard=2)
        ...     report = prepare(
        ...         folder, split_ratios={"train": 1}, sample_type="CrudeWebdataset"
        ...     )
        ...     source = WebdatasetSource(folder)
        ...     len(shards), report.samples, source[4]["__key__"], source[4]["json"]
        (3, 5, '004', b'{"i": 4}')
    """
    per_shard = checked_whole(samples_per_shard, "write_shards: samples_per_shard", 1)
    _check_pattern(pattern)
    root = path_of(folder).absolute()
    with staging(root, root) as files:
        _check_empty(root)
        encode = webdataset.writer.make_encoder(True)
        keys = set[str]()
        shards: list[Path] = []
        for of_shard, group in groupby(
            enumerate(samples), lambda pair: pair[0] // per_shard
        ):
            shards.append(root / (pattern % of_shard))
            with new_tar(files, shards[-1]) as tar:
                for number, sample in group:
                    key = _checked_key(sample, number)
                    if key in keys:
                        raise PrepareError(
                            f"sample {number}: its key {key!r} occurs twice"
                        )
                    keys.add(key)
                    encoded = _encoded(sample, encode, f"sample {number}, {key!r}")
                    with writing(shards[-1], PrepareError):
                        tar.write({"__key__": key} | encoded)
        if not shards:
            raise PrepareError(f"no samples to write to {root}")
        for shard in shards if checksums else ():
            staged = files.place(shard)
            headers = ShardHeaders(staged.parent, staged.name)
            files.write(path_of(checksums_path(str(shard))), headers.checksums())
        files.commit()
    return shards


def _check_pattern(pattern: str) -> None:
    """Raise `ConfigError` unless a pattern makes names of shards of numbers."""
    try:
        first, second = (pattern % number for number in (0, 1))
    except (TypeError, ValueError):
        first = second = ""
    if first == second or "/" in first or not first.endswith(".tar"):
        raise ConfigError(
            "write_shards: pattern must have the number of the shard, like "
            "'shard-%06d.tar', got "
            f"{pattern!r}"
        )


def _check_empty(folder: Path) -> None:
    with writing(folder, PrepareError):
        entry = next(folder.iterdir(), None)
    if entry is not None:
        raise PrepareError(
            f"{folder} is not empty: it has {entry.name}. Pass a new folder"
        )


@contextmanager
def new_tar(files: NewFiles, shard: Path) -> Iterator[Any]:
    """Open a new shard; the same samples give the same bytes."""
    with writing(shard, PrepareError):
        stream = files.create(shard)
    # Names and numbers of any length are what this form of tar has room for.
    tar = webdataset.TarWriter(stream, mtime=0, format="GNU_FORMAT", encoder=False)
    try:
        yield tar
        with writing(shard, PrepareError):
            tar.close()
            stream.close()
    finally:  # what could not be written has been told of
        for file in (tar, stream):
            with suppress(OSError):
                file.close()


def _checked_key(sample: object, number: int) -> str:
    if not isinstance(sample, Mapping):
        message = f"sample {number} is a {type(sample).__name__}"
        raise PrepareError(f"{message}, not a dict of its parts")
    key = sample.get("__key__")
    if not isinstance(key, str) or not key:
        message = f"sample {number}: '__key__' is a text, got {key!r}, beside"
        raise PrepareError(f"{message} {some(sample) or 'no parts'}")
    if any(character in "./" or not character.isprintable() for character in key):
        raise PrepareError(
            f"sample {number}: the key {key!r} has a dot, a slash or a character that "
            "cannot be printed. Use '_' or '-' instead"
        )
    return key


def _encoded(
    sample: Mapping[str, Any], encode: Callable[[Any], Any], location: str
) -> dict[str, bytes]:
    """Return the parts of a sample as bytes."""
    parts: dict[str, bytes] = {}
    for name, value in sample.items():
        if not _is_part_name(name):
            raise PrepareError(
                f"{location}: the name of a part must be like 'jpg' or 'seg.png', got "
                f"{name!r}"
            )
        if not name.startswith("_"):
            parts[name] = _encoded_part(name, value, encode, location)
    if not parts:
        raise PrepareError(f"{location} has no parts except its key")
    return parts


def _is_part_name(name: object) -> bool:
    if not isinstance(name, str):
        return False
    return bool(name) and "/" not in name and name.isprintable()


def _encoded_part(
    name: str, value: Any, encode: Callable[[Any], Any], location: str
) -> bytes:
    """Return a part as bytes; raise `PrepareError` if it cannot be encoded."""
    if isinstance(value, str) and kind_by_name(f"a.{name}") == "image":
        message = f"{location}: part {name!r} is the text {value[:80]!r}"
        raise PrepareError(f"{message}. Pass the bytes of the file, or a PIL image")
    whole = bytes(value) if isinstance(value, bytearray | memoryview) else value
    try:
        encoded: bytes = encode({name: whole})[name]
    except Exception as reason:
        message = (
            f"{location}: part {name!r}, {type(value).__name__}, cannot be encoded by "
            "that name"
        )
        raise PrepareError(f"{message}: {reason}. Pass bytes") from reason
    return encoded


def make_unique(root: Path, names: Sequence[str], workers: int | None) -> int:
    """Rewrite shards that share keys, with members in a folder: `SHARD/000.jpg`.

    A shard is replaced when its copy is complete, which needs free space for as many
    shards as `workers`. Shards that were already rewritten stay. The index of a
    rewritten shard is removed, because offsets change.

    Returns:
        The number of rewritten shards.

    Raises:
        PrepareError: For damaged shards, and shards that cannot be written.
    """
    hashes = scan_shards(
        root, names, lambda shard: np.unique(shard.hashes), workers=workers
    )
    all_hashes = np.concatenate(hashes)
    if len(np.unique(all_hashes)) == len(all_hashes):
        return 0
    renamed = 0
    with closing(map_in_order(partial(_renamed, root), names, workers)) as results:
        for result in results:
            if isinstance(result, Exception):
                raise result
            renamed += result
    return renamed


def _renamed(root: Path, name: str) -> bool:
    """Put the members of a shard in a folder; return False if they already are."""
    shard = root / name
    folder = f"{name}/"
    try:
        with (
            NewFiles(PrepareError) as files,
            writing(shard, PrepareError),
            tarfile.open(shard, "r:") as tar,
        ):
            members = tar.getmembers()
            if all(
                member.name.startswith(folder) for member in members if member.isreg()
            ):
                return False
            with (
                files.create(shard) as copy,
                tarfile.open(fileobj=copy, mode="w:") as renamed,
            ):
                for member in members:
                    moved = member.replace(name=folder + member.name, deep=True)
                    # In extended headers its old name would win.
                    extended = member.pax_headers.items()
                    moved.pax_headers = {k: v for k, v in extended if "path" not in k}
                    if moved.islnk():
                        moved.linkname = folder + moved.linkname
                    renamed.addfile(
                        moved, tar.extractfile(member) if member.isreg() else None
                    )
            files.commit(shard.stat().st_mode & 0o777, [Path(index_path(str(shard)))])
    except tarfile.TarError as reason:
        raise PrepareError(f"{shard} cannot be read as a tar: {reason}") from reason
    return True

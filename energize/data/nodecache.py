"""The node cache: byte ranges of remote objects on a local disk, shared by a node.

Objects are immutable and identified by a key. Each 64 MiB section of an object is a
sparse file and a log of records: one per range within a 16 KiB block, with position and
XXH3-64, appended after the bytes are written. Only recorded bytes are read, and their
checksum is verified. So there are no locks between readers: processes may be killed and
files removed at any time.

It imports only the standard library, xxhash and the errors, to keep helper processes
small.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from io import FileIO
from typing import Any

from xxhash import xxh3_64_intdigest as checksum

from energize.errors import ConfigError, legible

FOLDER = "ENERGIZE_CACHE"
"""Environment variable: folder of the node cache."""
LIMIT = "ENERGIZE_CACHE_BYTES"
"""Environment variable: size limit of the node cache in bytes."""

_NAME = "nodecache-v"
_SECTION = 64 * 1024 * 1024
_BLOCK = 16 * 1024
_PAGE = 4096
_COUNTED = 1024 * 1024
"""Bytes written per byte of the node file, which counts them."""

_MOST_OPEN = 128
"""Sections that stay open."""
_RENEWED = 60.0
"""Seconds until an open section is checked again."""
_PAUSE = 10.0
"""Seconds without writes after one failed."""

_MAGIC = 0xA7E5
_START = b"\xe5\xa7"
_RECORD = struct.Struct("<HIHHQ")
"""A record: magic, block number, first and last byte in the block, checksum."""

_SUMMED = struct.Struct("<18sQ")
"""A record as stored in the log: followed by its own checksum."""

_LOCK = struct.Struct("hhqqi4x")
_EVICTION = 1 << 62
"""The byte of the node file that eviction locks; fetches lock lower ones."""

_FULL = (errno.ENOSPC, errno.EDQUOT)

Range = tuple[int, int]
Record = tuple[int, int, int]
"""Start and end of a byte range, and its checksum; -1 if it is not cached."""


class NodeCache:
    """Byte ranges of remote objects on a local disk, for all processes of a node.

    Evicts the least recently used sections. Threads and forked processes may share an
    object. Reading and writing never raise.

    Args:
        folder: Folder of the cache; by default ENERGIZE_CACHE, or else `energize` in
            the user's cache folder.
        limit: Size limit in bytes; by default ENERGIZE_CACHE_BYTES, or else half of its
            current size plus the free space.

    Raises:
        ConfigError: If a specified folder cannot be created, or the limit is invalid.

    Example:
        >>> import tempfile
        >>> cache, key = (
        ...     NodeCache(tempfile.mkdtemp()),
        ...     "s3://bucket/a.tar 5d41402a 1000",
        ... )
        >>> (
        ...     cache.write(key, 100, b"hello"),
        ...     cache.read(key, 101, 103),
        ...     cache.read(key, 90, 110),
        ... )
        (True, b'el', None)
        >>> cache.missing(key, 90, 110)
        [(90, 100), (105, 110)]
    """

    def __init__(self, folder: str = "", limit: int = 0) -> None:
        named = folder or os.environ.get(FOLDER, "")
        root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        path = os.path.expanduser(named or f"{root}/energize")
        self.folder = os.path.abspath(path)
        self._inside = f"{self.folder}/{_NAME}1"
        self._node = f"{self._inside}/node"
        self._open: dict[tuple[str, int], _Section] = {}
        self._failed = float("-inf")
        size = 0
        self._uncounted = _COUNTED  # counted in advance: processes may be killed
        try:
            if "://" in path or path.startswith("~"):
                raise ValueError("it is not a path on a disk")
            self._make()
            size = shutil.disk_usage(path).free + _COUNTED * self._append(
                self._node, b""
            )
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) or (named and not os.path.isdir(path)):
                raise ConfigError(
                    f"{path}: the folder of the node cache cannot be made ({error}). "
                    f"Set {FOLDER} to a folder on a local disk"
                ) from error
        default = max(size // 2, 2 * _SECTION)
        self.limit = _checked_limit(limit or os.environ.get(LIMIT) or default)

    def read(self, key: str, start: int, stop: int) -> bytes | None:
        """Return the bytes from `start` to before `stop`; None if any are missing."""
        number = start // _SECTION
        if not start < stop <= (number + 1) * _SECTION:
            parts: list[Any] = [
                self.read(key, *span) for span in _cut(start, stop, _SECTION)
            ]
            return None if None in parts else b"".join(parts)
        section = self._open.get((key, number))
        fresh = section is not None and time.monotonic() < section.until
        data = section.read(start, stop) if fresh and section is not None else None
        if data is None and (section := self._section(key, number)) is not None:
            data = section.read(start, stop)
        return data

    def holds(self, key: str, start: int, stop: int) -> bool:
        """Return whether the bytes should be cached, by records already loaded."""
        for begin, end in _cut(start, stop, _SECTION):
            section_key = key, begin // _SECTION
            section = self._open.get(section_key) or self._section(*section_key)
            if section is None or any(
                value < 0 for _, _, value in section.covering(begin, end)
            ):
                return False
        return True

    def missing(
        self, key: str, start: int, stop: int, look: bool = True
    ) -> list[Range]:
        """Return the uncached ranges; without `look`, by the records alone."""
        gaps: list[Range] = []
        for begin, end in _cut(start, stop, _SECTION):
            section = self._section(key, begin // _SECTION)
            uncached = (
                [(begin, end)] if section is None else section.missing(begin, end, look)
            )
            for first, last in uncached:
                joined = gaps.pop()[0] if gaps and gaps[-1][1] == first else first
                gaps.append((joined, last))
        return gaps

    def claim(self, key: str, start: int, stop: int) -> FileIO | None:
        """Claim a range for fetching; None if part of it is claimed on this node.

        The claim lasts until it is closed or the process ends. Its holder fetches and
        writes the `missing` ranges and closes it, so each byte is fetched once. On
        disks without locks every claim succeeds. Children forked meanwhile share the
        claim.
        """
        return self._locked(
            2 * int(_hashed(key)[:15], 16) + start, max(1, stop - start)
        )

    @property
    def failing(self) -> bool:
        """Whether writing is paused after the disk refused it."""
        return time.monotonic() - self._failed < _PAUSE

    def write(self, key: str, start: int, data: bytes) -> bool:
        """Cache bytes of an object from `start` on; return whether they were written.

        If the disk refuses it, logs a warning once and pauses writing.
        """
        for again in (False, True):
            if self.failing:
                return False
            try:
                if again:  # the folder was removed
                    self._make()
                self._write(key, start, memoryview(data))
                return True
            except OSError as error:
                if again or error.errno not in (*_FULL, errno.ENOENT):
                    self._failed = time.monotonic()
                    _warn(self.folder, error.errno or 0)
                elif error.errno in _FULL:
                    self._make_room()
        return False

    def status(self) -> dict[str, int]:
        """Return used bytes, limit, free bytes, and numbers of sections and objects.

        Raises:
            OSError: If the disk cannot be queried.
        """
        sections = self._scan()
        free = shutil.disk_usage(self.folder).free
        used = sum(size for _, size in sections.values())
        objects = {path.rpartition(".")[0] for path in sections}
        counts = {"sections": len(sections), "objects": len(objects)}
        return {"used": used, "limit": self.limit, "free": free, **counts}

    def clear(self) -> None:
        """Remove all sections that this user may remove; concurrent use is safe."""
        self._make_room(-8)

    def _path(self, key: str, number: int) -> str:
        return f"{self._inside}/{_hashed(key)}.{number:x}"

    def _section(self, key: str, number: int) -> _Section | None:
        """Return a section with its current records, or None."""
        section = self._open.pop((key, number), None)
        for old in list(self._open)[: 1 - _MOST_OPEN]:
            self._open.pop(old, None)
        for candidate in (section, None):
            try:
                section = candidate or _Section(self._path(key, number))
                if section.renew():
                    self._open[key, number] = section
                    return section
            except OSError as error:
                if error.errno == errno.EMFILE:
                    self._open.clear()
        return None

    def _make(self) -> None:
        # Private, unless the user has created the folder with other permissions.
        os.makedirs(self.folder, 0o700, exist_ok=True)
        os.makedirs(self._inside, exist_ok=True)

    def _append(self, path: str, data: bytes) -> int:
        """Append to a file; return its new size."""
        with FileIO(path, "a", opener=_careful) as file:
            file.write(data)
            return file.tell()

    def _write(self, key: str, start: int, data: memoryview) -> None:
        count, self._uncounted = divmod(
            self._uncounted + len(data) + 2 * _PAGE, _COUNTED
        )
        if count and self._append(self._node, bytes(count)) * _COUNTED > self.limit:
            self._make_room(self.limit)
        for begin, end in _cut(start, start + len(data), _SECTION):
            path = self._path(key, begin // _SECTION)
            at = begin
            with FileIO(path, "r+", opener=_careful) as file:
                while at < end:
                    at += os.pwrite(file.fileno(), data[at - start : end - start], at)
            pieces = _cut(begin, end, _BLOCK)
            records = [
                _record(*piece, data[piece[0] - start : piece[1] - start])
                for piece in pieces
            ]
            self._append(f"{path}.log", b"".join(records))

    def _locked(self, start: int, length: int) -> FileIO | None:
        lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        with suppress(OSError):
            file = FileIO(self._node, "r+", opener=_careful)
            try:
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
            except BlockingIOError:
                file.close()
                return None
            return file
        return FileIO(os.devnull)

    def _make_room(self, most: int = 0) -> None:
        """Evict least recently used sections until an eighth of `most` bytes is free.

        Without `most`, an eighth of the current size. Does nothing while another
        process evicts.
        """
        lock = self._locked(_EVICTION, 1)
        if lock is None:
            return
        with lock, suppress(OSError):
            counted = os.path.getsize(self._node)
            sections = self._scan()
            total = sum(size for _, size in sections.values())
            target = (most or total) // 8 * 7
            for path, (_, size) in sorted(sections.items(), key=lambda file: file[1]):
                if total > target:
                    total -= size  # even if it fails, to avoid immediate retries
                    for file in (
                        path,
                        f"{path}.log",
                    ):  # an old log must not describe a new file
                        with suppress(OSError):
                            os.unlink(file)
            since = os.path.getsize(self._node) - counted
            os.truncate(self._node, total // _COUNTED + since)

    def _scan(self) -> dict[str, Range]:
        """Return the last use in ns and the size on disk of each section."""
        sections: dict[str, Range] = {}
        caches = (
            entry.path
            for entry in os.scandir(self.folder)
            if entry.is_dir() and entry.name.startswith(_NAME)
        )
        for folder in caches:
            for entry in os.scandir(folder):  # of other versions too
                path = entry.path.removesuffix(".log")
                with suppress(FileNotFoundError):
                    if "." in entry.name:
                        used, size = sections.get(path, (0, 0))
                        status = entry.stat()
                        sections[path] = (
                            max(used, status.st_mtime_ns),
                            size + status.st_blocks * 512,
                        )
        return sections


def _checked_limit(limit: int | str) -> int:
    if not (str(limit).isdecimal() and int(limit) >= 2 * _SECTION):
        raise ConfigError(
            f"the limit of the node cache ({LIMIT}) must be a number of bytes >= "
            f"{2 * _SECTION}, got {limit!r}. For 500 GB, set 500000000000"
        )
    return int(limit)


class _Section(dict[int, tuple[Record, ...]]):
    """A section open for reading: the records of each block, as of the last renewal."""

    def __init__(self, path: str) -> None:
        self._number = -1
        self._number = _careful(path, os.O_RDONLY)
        self._path = f"{path}.log"
        self._log = 0
        self._seen = 0
        self._last = b""  # last bytes seen: a truncated log may grow again
        self.until = 0.0

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)

    def renew(self) -> bool:
        """Load new log records; return whether the log is that of this file."""
        with FileIO(self._path, opener=_careful) as log:
            status = os.fstat(log.fileno())
            if self._log not in (0, status.st_ino) or status.st_size < self._seen:
                return False
            if not os.fstat(self._number).st_nlink:
                return False  # the file was removed, its log was not
            self._log = status.st_ino
            log.seek(self._seen - len(self._last))
            data = log.readall()
            if not data.startswith(self._last):
                return False
            self._learn(data[len(self._last) :])
        if time.monotonic() > self.until:  # record the use on disk
            self.until = time.monotonic() + _RENEWED
            if time.time() - os.fstat(self._number).st_mtime > _RENEWED:
                with suppress(OSError):
                    os.utime(self._number)
        return True

    def _learn(self, log: bytes) -> None:
        """Add records of a piece of the log; skips partial records of a full disk."""
        at = 0
        size = _SUMMED.size
        while len(log) - at >= size:
            whole = at + (len(log) - at) // size * size
            for body, sum_ in _SUMMED.iter_unpack(memoryview(log)[at:whole]):
                if checksum(body) != sum_:
                    break
                _, block, first, last, value = _RECORD.unpack(body)
                start = block * _BLOCK
                records = self.get(block)
                record = start + first, start + last + 1, value
                if records is None:
                    self[block] = (record,)
                elif record not in records:
                    self[block] = tuple(
                        sorted((*records, record), key=lambda entry: entry[1])
                    )
                at += size
            else:
                break
            at = log.find(_START, at + 1) if _START in log[at + 1 :] else len(log) - 1
        self._seen += at
        self._last = (self._last + log[:at])[-size:]

    def read(self, start: int, stop: int) -> bytes | None:
        """Return the bytes from `start` to before `stop`; None if any are missing."""
        while True:
            records = self.covering(start, stop)
            if any(value < 0 for _, _, value in records):
                return None
            begin = records[0][0]
            end = records[-1][1]
            data = b""
            with suppress(OSError):
                data = os.pread(self._number, end - begin, begin)
            view = memoryview(data)
            for record in records:
                first, last, value = record
                if checksum(view[first - begin : last - begin]) != value:
                    block = first // _BLOCK
                    self[block] = tuple(
                        entry for entry in self[block] if entry != record
                    )
                    break
            else:
                return (
                    data
                    if (begin, end) == (start, stop)
                    else data[start - begin : stop - begin]
                )

    def missing(self, start: int, stop: int, look: bool) -> list[Range]:
        """Return the uncached ranges of these bytes, in order."""
        while True:
            covering = self.covering(start, stop)
            present = [record[:2] for record in covering if look and record[2] >= 0]
            if all(self.read(*record) is not None for record in present):
                return [(begin, end) for begin, end, value in covering if value < 0]

    def covering(self, start: int, stop: int) -> list[Record]:
        """Return the records that cover the bytes, and the gaps, in order."""
        records = []
        while start < stop:
            number = start // _BLOCK
            best = None
            block_records = self.get(number, ())
            for record in block_records:  # sorted by end
                if record[0] <= start < record[1]:
                    best = record
            if best is None:
                later = [begin for begin, _, _ in block_records if begin > start]
                number += 1
                while number * _BLOCK < stop and not later and number not in self:
                    number += 1
                best = start, min(stop, number * _BLOCK, *later), -1
            records.append(best)
            start = best[1]
        return records


def _record(start: int, stop: int, data: memoryview) -> bytes:
    body = _RECORD.pack(
        _MAGIC, start // _BLOCK, start % _BLOCK, (stop - 1) % _BLOCK, checksum(data)
    )
    return _SUMMED.pack(body, checksum(body))


def _cut(start: int, stop: int, size: int) -> Iterator[Range]:
    """Yield a range in pieces that end at multiples of a size.

    >>> list(_cut(5, 23, 10))
    [(5, 10), (10, 20), (20, 23)]
    """
    while start < stop:
        end = min(stop, (start // size + 1) * size)
        yield start, end
        start = end


def _hashed(key: str) -> str:
    return hashlib.blake2b(
        key.encode("utf-8", "surrogateescape"), digest_size=16
    ).hexdigest()


def _careful(path: str, flags: int) -> int:
    """Open or create a regular file, without following links or waiting for pipes."""
    create = os.O_CREAT if flags & (os.O_WRONLY | os.O_RDWR) else 0
    return os.open(path, flags | create | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


@cache
def _warn(folder: str, number: int) -> None:
    """Log once that a folder cannot be written, with reason and remedy."""
    do = "Free space there" if number in _FULL else "Make it writable for this user"
    logging.getLogger("energize").warning(
        f"{legible(folder)}: the node cache is not writable ({os.strerror(number)}), "
        f"so fetched data is not cached. {do}, or set {FOLDER} to a folder on another "
        "local disk"
    )

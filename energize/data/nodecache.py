"""The node cache: ranges of bytes of objects that lie far away, on a local disk, for all processes
and jobs of a node.

An object is known by a key and never changes. It is cut into sections of 64 MiB. Each is a sparse
file, in which bytes lie where they lie in the object, and a log beside it of what is there: a
record for each range within a block of 32 KiB, with the CRC-32 of its bytes, appended when they
are written. Only what a record says is read, and compared with it. So nobody waits for anybody: a
process may be killed, a file cut or removed at any moment, and what is not whole is not there.

Only the standard library and the errors are imported: small helper processes use it.
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
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self
from zlib import crc32

from energize.errors import ConfigError, legible

FOLDER, LIMIT = "ENERGIZE_CACHE", "ENERGIZE_CACHE_BYTES"
"""The environment variables that say where the node cache is, and how many bytes it may have."""

_log = logging.getLogger("energize")

_NAME, _VERSION = "nodecache-v", 1
_SECTION, _BLOCK, _PAGE = 64 * 1024 * 1024, 32 * 1024, 4096
_COUNTED = 1024 * 1024
"""The file of the node has a byte for each of so many that were written."""

_MOST_OPEN = 128
_MOST_LOG = 16 * 1024 * 1024
_SWEEP, _PAUSE = 60.0, 10.0
"""Seconds from one look at all open sections to the next, and without writing after it failed."""

_MAGIC = 0xA7E5
_TAG, _RECORD = struct.Struct("<HH"), struct.Struct("<HHHHI")
"""Of a record: magic and block, with these the first and the last byte in the block and the CRC-32
of the bytes. The CRC-32 of all that follows.
"""

_LOCK = struct.Struct("hhqqi4x")
_EVICTION = 1 << 62
"""Which bytes of the file of the node are locked: this one by who evicts, those before by who
fetches.
"""

_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK
_FULL = (errno.ENOSPC, errno.EDQUOT)

Record = tuple[int, int, int]
Range = tuple[int, int]


class Status(NamedTuple):
    """What a node cache has. `used`, `limit` and `free`, what the disk has left, are bytes on the
    disk; `older` are the names of folders of older versions, which are not counted.
    """

    folder: str
    used: int
    limit: int
    free: int
    sections: int
    objects: int
    older: list[str]


class Claim:
    """A range that is the holder's to fetch until it is released or forgotten, or the process ends.

    A child that is forked meanwhile holds it too.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def release(self) -> None:
        """Let others have it."""
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class NodeCache:
    """Ranges of bytes of objects, on a local disk, for all processes and jobs of a node.

    `folder` is by default what the environment variable ENERGIZE_CACHE says, else `energize` in the
    user's folder of caches. The cache takes at most `limit` bytes of the disk, by default what
    ENERGIZE_CACHE_BYTES says, else half of what is free, with what the cache has. What was read
    longest ago goes. Threads and forked processes may use one object; a pickled one arrives with
    nothing open. No disk makes reading and writing raise an error.

    Raise `ConfigError` for a folder that was named and cannot be made, or a limit that is none.

    >>> import tempfile
    >>> cache, key = NodeCache(tempfile.mkdtemp()), "s3://bucket/a.tar 5d41402a 1000"
    >>> cache.write(key, 100, b"hello"), cache.read(key, 101, 103), cache.read(key, 90, 110)
    (True, b'el', None)
    >>> cache.missing(key, 90, 110)
    [(90, 100), (105, 110)]
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, limit: int | None = None
    ) -> None:
        named = os.fspath(folder) if folder is not None else os.environ.get(FOLDER)
        self.folder = os.path.abspath(os.path.expanduser(named)) if named else _default_folder()
        self._inside = os.path.join(self.folder, f"{_NAME}{_VERSION}")
        self._node = os.path.join(self._inside, "node")
        self._open: dict[tuple[str, int], _Section] = {}
        self._swept, self._failed, self._pending = time.monotonic(), float("-inf"), 0
        try:
            if "://" in (named or ""):
                raise ValueError("that is no path")
            self._make()
        except (OSError, ValueError) as error:
            if named and not os.path.isdir(self.folder):
                raise ConfigError(
                    f"{self.folder}: the folder of the node cache cannot be made ({error}); name "
                    f"one on a local disk with {FOLDER}"
                ) from error
        self.limit = self._checked(os.environ.get(LIMIT) if limit is None else limit)
        self._made_of = named, self.limit

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeCache, self._made_of

    def read(self, key: str, start: int, stop: int) -> bytes | None:
        """Return the bytes of an object from `start` to before `stop`; None if not all of them are
        there, as they were written.
        """
        number = start // _SECTION
        begin = number * _SECTION
        if stop > begin + _SECTION:
            parts = [self.read(key, *each) for each in _cut(start, stop, _SECTION)]
            found = [part for part in parts if part is not None]
            return b"".join(found) if len(found) == len(parts) else None
        now = time.monotonic()
        if now - self._swept > _SWEEP:
            self._sweep(now)
        data, section = None, self._open.get((key, number))
        with suppress(OSError):
            if section is not None:
                data = section.read(start - begin, stop - begin)
            if data is None and (section := self._newer(key, number, section)) is not None:
                data = section.read(start - begin, stop - begin)
        return data

    def missing(self, key: str, start: int, stop: int) -> list[Range]:
        """Return in which ranges the bytes of an object are not there, as `read` would find."""
        gaps: list[Range] = []
        for begin, end in _cut(start, stop, _SECTION):
            if self.read(key, begin, end) is None:
                of = begin // _SECTION * _SECTION
                section = self._open.get((key, begin // _SECTION))
                found = [(begin - of, end - of)]
                with suppress(OSError):
                    found = found if section is None else section.missing(*found[0])
                gaps += [(of + first, of + last) for first, last in found]
        return gaps

    def claim(self, key: str, start: int, stop: int) -> Claim | None:
        """Return a claim on a range of an object; None while a claim on any of its bytes is held,
        in whatever process of the node.

        Who has a claim asks what is `missing`, fetches and writes that, and releases it: so each
        byte is fetched once. Where the disk gives no locks, everybody has a claim.
        """
        return self._locked(2 * int(_hashed(key)[:15], 16) + start, stop - start)

    def write(self, key: str, start: int, data: bytes | memoryview) -> bool:
        """Keep the bytes of an object from `start` on; return whether they were written.

        Where the disk refuses it, a warning says so, once, and nothing is written for a while.
        """
        if time.monotonic() - self._failed < _PAUSE:
            return False
        try:
            try:
                self._write(key, start, memoryview(data))
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._make_room()
                self._write(key, start, memoryview(data))
        except OSError as error:
            self._failed = time.monotonic()
            _warn(self.folder, error.errno or 0)
            return False
        return True

    def status(self) -> Status:
        """Look at all that is there."""
        found = self._scan()
        used = sum(size for _, size in found.values())
        objects = len({name.partition(".")[0] for name in found})
        free, older = self._free(), self._older()
        return Status(self.folder, used, self.limit, free, len(found), objects, older)

    def clear(self) -> None:
        """Remove all that this user may remove, of older versions too. Others may use the cache
        meanwhile.
        """
        for name in (*self._older(), self._inside):
            shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def _checked(self, limit: Any) -> int:
        if limit in (None, ""):
            return max((self._free() + self._counted()) // 2, 2 * _SECTION)
        try:
            if (most := int(limit)) >= 2 * _SECTION:
                return most
        except (TypeError, ValueError, OverflowError):
            pass
        raise ConfigError(
            f"the limit of the node cache ({LIMIT}) is a number of bytes, at least {2 * _SECTION}, "
            f"got {limit!r}; 500_000_000_000 is 500 GB"
        )

    # Reading.

    def _newer(self, key: str, number: int, known: _Section | None) -> _Section | None:
        """Return a section as it is now; None if there is none, or no more of it than was known."""
        if known is not None and os.fstat(known.number).st_nlink:
            return known if known.grown() else None
        self._open.pop((key, number), None)
        try:
            section = _Section(self._path(key, number))
        except OSError as error:
            if error.errno != errno.EMFILE or not self._open:
                raise
            self._open.clear()
            section = _Section(self._path(key, number))
        self._open[key, number] = section
        for old in list(self._open)[:-_MOST_OPEN]:
            self._open.pop(old, None)
        return section

    def _sweep(self, now: float) -> None:
        """Say on the disk which sections were read, and let go of those that were evicted."""
        self._swept = now
        for place, section in list(self._open.items()):
            if not section.touched():
                self._open.pop(place, None)

    # Writing.

    def _path(self, key: str, number: int) -> str:
        return f"{self._inside}/{_hashed(key)}.{number:x}"

    def _make(self) -> None:
        # What lies there is nobody else's business, unless the user has made the folder for them.
        os.makedirs(self.folder, 0o700, exist_ok=True)
        os.makedirs(self._inside, exist_ok=True)

    def _opened(self, path: str, flags: int) -> int:
        flags |= os.O_CREAT | _CAREFULLY
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:  # somebody has removed the folder
            self._make()
            return os.open(path, flags, 0o666)

    def _write(self, key: str, start: int, data: memoryview) -> None:
        for begin, end in _cut(start, start + len(data), _SECTION):
            path, of = self._path(key, begin // _SECTION), begin // _SECTION * _SECTION
            file, at = self._opened(path, os.O_WRONLY), begin
            try:
                while at < end:
                    at += os.pwrite(file, data[at - start : end - start], at - of)
            finally:
                os.close(file)
            records = b"".join(
                _record(first - of, last - of, crc32(data[first - start : last - start]))
                for first, last in _cut(begin, end, _BLOCK)
            )
            size = self._append(f"{path}.log", records)
            self._pending += _paged(end) - begin // _PAGE * _PAGE
            self._pending += _paged(size) - _paged(size - len(records))
        count, self._pending = divmod(self._pending, _COUNTED)
        if count and self._append(self._node, bytes(count)) * _COUNTED > self.limit:
            self._make_room(self.limit)

    def _append(self, path: str, data: bytes) -> int:
        """Append to a file; return how many bytes it has then."""
        file = self._opened(path, os.O_WRONLY | os.O_APPEND)
        try:
            while data:
                data = data[os.write(file, data) :]
            return os.fstat(file).st_size
        finally:
            os.close(file)

    # Who has which range, and what goes when there is too much.

    def _locked(self, start: int, length: int) -> Claim | None:
        try:
            claim = Claim(number := self._opened(self._node, os.O_RDWR))
        except OSError:
            return Claim(-1)
        try:
            fcntl.fcntl(
                number, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
            )
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
        return claim

    def _make_room(self, most: int | None = None) -> None:
        """Remove the sections that were read longest ago, until an eighth is free of `most` bytes,
        or of those that there are; nothing while another process does so.
        """
        if (claim := self._locked(_EVICTION, 1)) is None:
            return
        with claim:
            for name in self._older():
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
            found = self._scan()
            total = sum(size for _, size in found.values())
            kept = (total if most is None else most) // 8 * 7
            for name, (_, size) in sorted(found.items(), key=lambda each: each[1]):
                if total <= kept:
                    break
                with suppress(OSError):
                    # In this order nobody takes an old log for that of new bytes.
                    for path in (name, f"{name}.log"):
                        os.unlink(os.path.join(self._inside, path))
                    total -= size
            # What could not be removed does not have all processes try again and again.
            with suppress(OSError):
                os.truncate(self._node, min(total, kept) // _COUNTED)

    def _scan(self) -> dict[str, Range]:
        """Return when each section was last used, in ns, and its bytes on the disk."""
        found: dict[str, Range] = {}
        with suppress(FileNotFoundError), os.scandir(self._inside) as entries:
            for entry in entries:
                name = entry.name.removesuffix(".log")
                if "." in name:
                    with suppress(FileNotFoundError):
                        at = entry.stat(follow_symlinks=False)
                        used, size = found.get(name, (0, 0))
                        found[name] = max(used, at.st_mtime_ns), size + at.st_blocks * 512
        return found

    def _older(self) -> list[str]:
        with suppress(OSError):
            names = [each for each in os.listdir(self.folder) if each.startswith(_NAME)]
            numbers = [each.removeprefix(_NAME) for each in names]
            return [f"{_NAME}{n}" for n in numbers if n.isdecimal() and int(n) < _VERSION]
        return []

    def _counted(self) -> int:
        """Return about how many bytes the cache has on the disk."""
        with suppress(OSError):
            return os.stat(self._node).st_size * _COUNTED
        return 0

    def _free(self) -> int:
        with suppress(OSError):
            found = os.statvfs(self.folder)
            return found.f_bavail * found.f_frsize
        return 0


class _Section:
    """A section that is open for reading, with its log as far as it was read. Bytes are counted
    from its first one.
    """

    __slots__ = ("_blocks", "_inode", "_log", "_path", "_used", "number")

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | _CAREFULLY)
        self._path, self._inode, self._log, self._used = path, 0, b"", True
        self._blocks: dict[int, tuple[Record, ...]] = {}
        self.touched()
        self.grown()

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)

    def touched(self) -> bool:
        """Say on the disk that it was read; return whether it is still there."""
        found = os.fstat(self.number)
        if self._used and time.time() - found.st_mtime > _SWEEP:
            with suppress(OSError):
                os.utime(self.number)
        self._used = False
        return found.st_nlink > 0

    def grown(self) -> bool:
        """Read on in the log; return whether there was more of it. Raise OSError if it is gone."""
        log = os.open(f"{self._path}.log", os.O_RDONLY | _CAREFULLY)
        try:
            found, known = os.fstat(log), self._log
            if found.st_ino != self._inode or found.st_size < len(known):
                known = b""
            more = min(found.st_size, _MOST_LOG) - len(known)
            if more > 0:
                self._log, self._inode = known + os.pread(log, more, len(known)), found.st_ino
                self._blocks = {}
            return more > 0
        finally:
            os.close(log)

    def read(self, start: int, stop: int) -> bytes | None:
        """Return bytes from `start` to before `stop`; None if they are not all there."""
        self._used = True
        while start < stop:
            records, gaps = self._covering(start, stop)
            if gaps:
                return None
            begin, end = records[0][0], records[-1][1]
            data = os.pread(self.number, end - begin, begin)
            view = memoryview(data)
            for record in records:
                first, last, crc = record
                if last - begin > len(data) or crc32(view[first - begin : last - begin]) != crc:
                    block = first // _BLOCK
                    kept = [each for each in self._blocks.get(block, ()) if each is not record]
                    self._blocks[block] = tuple(kept)
                    break
            else:
                whole = end - begin == stop - start
                return data if whole else data[start - begin : stop - begin]
        return b""

    def missing(self, start: int, stop: int) -> list[Range]:
        """Return the ranges of these bytes that are not there."""
        while True:
            records, gaps = self._covering(start, stop)
            if all(self.read(first, last) is not None for first, last, _ in records):
                return gaps

    def _covering(self, start: int, stop: int) -> tuple[list[Record], list[Range]]:
        """Return records in which the bytes are, in order, and the gaps between them."""
        records: list[Record] = []
        gaps: list[Range] = []
        while start < stop:
            block = start // _BLOCK
            known = self._blocks.get(block)
            if known is None:
                known = self._recorded(block)
            end = start
            for record in known:
                if record[0] <= start and record[1] > end:
                    best, end = record, record[1]
            if end > start:
                records.append(best)
            else:
                ends = [stop, (block + 1) * _BLOCK, *(first for first, _, _ in known)]
                end = min(each for each in ends if each > start)
                begin = gaps.pop()[0] if gaps and gaps[-1][1] == start else start
                gaps.append((begin, end))
            start = end
        return records, gaps

    def _recorded(self, block: int) -> tuple[Record, ...]:
        """Return the records of a block. They are found wherever they lie in the log, for half a
        record, of a disk that was full, moves those after it.
        """
        tag, at, size = _TAG.pack(_MAGIC, block), -1, _RECORD.size
        found: dict[Record, None] = {}
        while (at := self._log.find(tag, at + 1)) >= 0:
            body = self._log[at : at + size]
            if self._log[at + size : at + size + 4] == crc32(body).to_bytes(4, "little"):
                _, _, first, last, crc = _RECORD.unpack(body)
                found[block * _BLOCK + first, block * _BLOCK + last + 1, crc] = None
        return self._blocks.setdefault(block, tuple(found))


def _record(start: int, stop: int, crc: int) -> bytes:
    block = start // _BLOCK
    body = _RECORD.pack(_MAGIC, block, start % _BLOCK, (stop - 1) % _BLOCK, crc)
    return body + crc32(body).to_bytes(4, "little")


def _cut(start: int, stop: int, size: int) -> Iterator[Range]:
    """Yield a range in pieces that end at multiples of a size.

    >>> list(_cut(5, 23, 10))
    [(5, 10), (10, 20), (20, 23)]
    """
    while start < stop:
        end = min(stop, (start // size + 1) * size)
        yield start, end
        start = end


def _paged(size: int) -> int:
    """Return the bytes on the disk of so many that begin with a page."""
    return -(-size // _PAGE) * _PAGE


@lru_cache(4096)
def _hashed(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


@cache
def _warn(folder: str, number: int) -> None:
    """Tell once that a folder cannot be written, why, and what to do."""
    if number in _FULL:
        remedy = "make room on that disk, with `energize cache clear`, or give the cache another"
    else:
        remedy = "let the user who runs this write there, or give the cache another folder"
    _log.warning(
        "%s: the node cache cannot be written (%s); what is fetched is not kept there; %s with %s",
        legible(folder),
        os.strerror(number),
        remedy,
        FOLDER,
    )


def _default_folder() -> str:
    root = os.environ.get("XDG_CACHE_HOME", "")
    root = root if os.path.isabs(root) else os.path.expanduser("~/.cache")
    if not os.path.isabs(root):
        raise ConfigError(
            f"there is no folder for the node cache, as this user has no home; name one on a local "
            f"disk with {FOLDER}"
        )
    return os.path.join(root, "energize")

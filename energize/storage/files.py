"""Byte ranges of local files, through descriptors that stay open between reads."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from energize.errors import ShardError

_GAP = 32 * 1024
"""Bytes that are cheaper to read in vain than to leave out with another call."""

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}

_RUN = 8 * 1024 * 1024
"""Neighbouring ranges are read together up to this many bytes."""


class LocalFile:
    """A regular file that is open for reading at any offset, from any number of threads.

    Reads have no position, so a descriptor that a forked process inherits stays right in both. It
    is closed when the last user lets go of the object. Raises OSError as `os.open` does, for what
    is no regular file; `read_ranges` raises `ShardError` when the file has changed since then.
    """

    __slots__ = ("number", "path", "signature", "size")

    def __init__(self, path: str) -> None:
        self.number = -1
        self.path = path
        # Opening a named pipe would wait for who writes into it.
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(self.number)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "device")
            raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", path)
        self.size = found.st_size
        self.signature = _signature(found)
        """What is another one when the file was written to, or another one has its name."""

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`; fewer when the file ends before."""
        data = os.pread(self.number, size, offset)
        if len(data) == size:
            return data
        return self._read_on(data, offset, size)

    def _read_on(self, data: bytes, offset: int, size: int) -> bytes:
        """One call reads at most 2 GiB, and a network file system may give less."""
        parts = [data]
        got = len(data)
        while got < size and parts[-1]:
            parts.append(os.pread(self.number, size - got, offset + got))
            got += len(parts[-1])
        return b"".join(parts)

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        """For each range, given in ascending order, bytes that hold it, and where in them.

        Ranges that lie close together are read at once and share their bytes. Bytes past the end
        of the file are missing.
        """
        first = 0
        while first < len(starts):
            begin, end = starts[first], stops[first]
            last = first + 1
            while last < len(starts) and starts[last] - end <= _GAP and stops[last] - begin <= _RUN:
                end = max(end, stops[last])
                last += 1
            data = self.read(begin, end - begin)
            if _signature(os.fstat(self.number)) != self.signature:
                raise _changed(self.path)
            for start in starts[first:last]:
                yield data, start - begin
            first = last

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _changed(path: str) -> ShardError:
    return ShardError(
        f"{path} has changed since it was first read: files stay as they are while runs read them. "
        "Put the old one back, or run `energize prepare` and start a new run"
    )


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _opened(signatures: dict[str, tuple[int, int, int]], path: str) -> LocalFile:
    file = LocalFile(path)
    if signatures.setdefault(path, file.signature) != file.signature:
        raise _changed(path)
    return file


class OpenFiles:
    """The files used last, at most `limit` of them, kept open for reading.

    A file that was closed meanwhile has to be the same one, unchanged, when it is opened again.

    Any number of threads and forked processes may use it. A file is closed when it has been put
    out and nobody reads it any more. Several caches in one process share its descriptors fairly
    enough: one that meets a shortage keeps none of its own. A pickled cache arrives empty.

    >>> OpenFiles().get(__file__).read(0, 3)
    b'\"\"\"'
    """

    def __init__(self, limit: int = 128) -> None:
        self._limit = limit
        # Without `self`, or files would wait for the garbage collector to be closed.
        self._cached = lru_cache(maxsize=limit)(partial(_opened, {}))
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._crowded = allowed // 2 if allowed > 0 else 2**31

    def get(self, path: str) -> LocalFile:
        """The open file at `path`; hold it only while reading. Raises what `LocalFile` raises, and
        `ShardError` for another file than the one that was read before.
        """
        try:
            file = self._cached(path)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            self._cached.cache_clear()
            file = self._cached(path)
        if file.number >= self._crowded:
            # The system gives the lowest free number: this one says how many are in use.
            self._cached.cache_clear()
        return file

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[int]]:
        return OpenFiles, (self._limit,)

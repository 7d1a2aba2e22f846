"""Byte ranges of local files, through descriptors that stay open between reads."""

from __future__ import annotations

import errno
import io
import os
import resource
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from energize.core.limits import limit, over_limit
from energize.data.writing import is_of_path, os_errors_as, patiently
from energize.errors import ShardError

T = TypeVar("T")

_GAP = 32 * 1024
"""Bytes that are cheaper to read in vain than to leave out with another call."""

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}

_RUN = 8 * 1024 * 1024
"""Neighbouring ranges are read together up to this many bytes."""


class LocalFile:
    """A regular file that is open for reading at any offset, from any number of threads.

    Reads have no position, so a descriptor that a forked process inherits stays right in both. It
    is closed when the last user lets go of the object. Raises OSError as `os.open` does, and for
    what is no regular file or no path; `read_ranges` raises `ShardError` when the file has changed
    since then. Faults that may pass are tried again, with the file opened anew (`faults.py`).
    `flags` are more of `os.open`.
    """

    __slots__ = ("_flags", "_whole", "number", "path", "signature", "size")

    def __init__(self, path: str, *, flags: int = 0) -> None:
        self.number = -1
        self.path = path
        self._flags = flags
        self._whole: bytes | None = None
        self.number = patiently(lambda: _descriptor(path, flags), path)
        found = patiently(lambda: os.fstat(self.number), path)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "device")
            raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", path)
        self.size = found.st_size
        self.signature = _signature(found)
        """What is another one when the file was written to, or another one has its name."""

    def read(self, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`; fewer when the file ends before."""
        try:
            data = os.pread(self.number, size, offset)
        except OSError as error:
            data = self._again(error, partial(os.pread, self.number, size, offset))
        if len(data) == size:
            return data
        return self._read_on(data, offset, size)

    def _read_on(self, data: bytes, offset: int, size: int) -> bytes:
        """One call reads at most 2 GiB, and a network file system may give less, or nothing."""
        parts = [data]
        got = len(data)
        while got < size:
            at = offset + got
            if not parts[-1] and (at >= self.size or self.now() != self.signature):
                break  # the end of the file, or of what is left of it
            more = partial(self._more, size - got, at, hopeful=not parts[-1])
            try:
                parts.append(more())
            except OSError as error:
                parts.append(self._again(error, more))
            got += len(parts[-1])
        return b"".join(parts)

    def _more(self, size: int, offset: int, hopeful: bool) -> bytes:
        data = os.pread(self.number, size, offset)
        if hopeful and not data and self.now() == self.signature:
            text = f"nothing is read from byte {offset} on, of {self.size}"
            raise OSError(errno.EIO, text, self.path)
        return data

    def now(self) -> tuple[int, int, int]:
        """What the signature would be now."""
        try:
            found = os.fstat(self.number)
        except OSError as error:
            found = self._again(error, partial(os.fstat, self.number))
        return _signature(found)

    def _again(self, error: OSError, call: Callable[[], T]) -> T:
        """`call`, which raised `error`, on the file opened anew; it has to be the same file."""

        def anew() -> T:
            number = _descriptor(self.path, self._flags)
            try:
                if _signature(os.fstat(number)) != self.signature:
                    raise _changed(self.path)
                os.dup2(number, self.number, inheritable=False)
            finally:
                os.close(number)
            return call()

        return patiently(anew, self.path, error)

    def read_ranges(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[bytes, int]]:
        """For each range, given in ascending order, bytes that hold it, and where in them.

        Ranges that lie close together are read at once and share their bytes. Bytes past the end
        of the file are missing. Whether it has changed is looked at after the last bytes are read,
        so that is known before their ranges come; who finds others wrong asks `check`.
        """
        first = 0
        while first < len(starts):
            begin, end = starts[first], stops[first]
            last = first + 1
            while last < len(starts) and starts[last] - end <= _GAP and stops[last] - begin <= _RUN:
                end = max(end, stops[last])
                last += 1
            if end - begin > _RUN and end - begin > limit("SAMPLE_BYTES"):
                raise ShardError(f"{self.path}: {over_limit('SAMPLE_BYTES', end - begin)}")
            data = self.read(begin, end - begin)
            if last == len(starts):
                self.check()
            for start in starts[first:last]:
                yield data, start - begin
            first = last

    def check(self) -> None:
        """Raise `ShardError` when the file has changed."""
        if self.now() != self.signature:
            raise _changed(self.path)

    def whole(self) -> bytes:
        """All its bytes, read once and then kept while it is open."""
        if self._whole is None:
            self._whole = next(self.read_ranges([0], [self.size]))[0]
        return self._whole

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class FileStream(io.RawIOBase):
    """An open file for libraries that read from streams: faults are tried again, changes told.

    >>> FileStream(LocalFile(__file__)).read(3)
    b'\"\"\"'
    """

    def __init__(self, file: LocalFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte, counted from the start, from here or from the end."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, all by default; fewer at the end only. `ShardError` when they cannot be
        read, or the file is another one now.
        """
        rest = max(0, self._file.size - self._at)
        wanted = rest if size is None or size < 0 else min(size, rest)
        with os_errors_as(ShardError, self._file.path):
            data = self._file.read(self._at, wanted)
            if len(data) < wanted or self._file.now() != self._file.signature:
                raise _changed(self._file.path)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """All that is left."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """As many bytes as the buffer has room for; fewer at the end only."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _descriptor(path: str, flags: int) -> int:
    try:
        # Opening a named pipe would wait for who writes into it.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except ValueError as error:
        if is_of_path(error):
            raise OSError(errno.EINVAL, f"it is no path of a file: {error}", path) from error
        raise


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

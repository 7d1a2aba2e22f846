"""Reading files by path: interface `Files`, and `LocalFiles` for mounted disks.

Methods raise OSError naming the path, and `ShardError` for a file that has changed
since it was first read. `merged` plans requests of object storage; `Recent` is a
bounded cache.
"""

from __future__ import annotations

import errno
import io
import os
import resource
import stat
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from typing import Any, Generic, TypeVar

from energize.core import limits
from energize.core.os_errors import (
    NO_PATH,
    again,
    os_errors_as,
)
from energize.errors import (
    ShardError,
)

K = TypeVar("K")
T = TypeVar("T")
# A file, and starts and stops of ranges; empty for the whole file.
Ranges = tuple[str, Sequence[int], Sequence[int]]
# Gap up to which reading on is cheaper than another call, in bytes.
_GAP = 32 * 1024
# Neighbouring ranges are read together up to this many bytes.
RUN_BYTES = 8 * 1024 * 1024
# Size of a request of object storage, see `merged`. A request costs 0.25 ms of CPU
# and a round trip of some 30 ms, in which a connection transfers about this much.
FAR_BLOCK = 1024 * 1024
# Concurrent requests of a process: 64 MiB of memory, and at a round trip of 30 ms twice
# the rate of a fast network.
IN_FLIGHT = 64
# Largest remote index that is read whole, and size of the cache of indexes, in bytes.
WHOLE = 64 * 1024 * 1024
_MOST_OPEN = 128
_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
}


class OpenFile:
    """A regular file open for reading; closed with its last reference."""

    __slots__ = ("content", "number", "signature")

    def __init__(self, path: str, flags: int = 0) -> None:
        self.number = -1
        self.content: bytes | None = None
        # Opening a named pipe would block until it has a writer.
        flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self.number = os.open(path, flags)
        except ValueError as error:
            raise OSError(errno.EINVAL, NO_PATH, path) from error
        status = os.fstat(self.number)
        if not stat.S_ISREG(status.st_mode):
            file_type = _KINDS.get(stat.S_IFMT(status.st_mode), "device")
            raise OSError(
                errno.EINVAL, f"it is a {file_type}, not a regular file", path
            )
        self.signature = status.st_size, status.st_mtime_ns, status.st_ino

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:  # modules may be unloaded at exit
            close(self.number)


class Files(ABC):
    """Interface for reading files by path."""

    # Whether calls have high latency and run well in parallel.
    remote = False

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    @abstractmethod
    def read_ranges(
        self, path: str, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[bytes]:
        """Yield the bytes of ascending ranges; close ones are read together."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes from `start` to before `stop`, to the end by default."""
        return next(
            self.read_ranges(path, [start], [self.size(path) if stop is None else stop])
        )

    def plan(  # noqa: B027
        self, path: str, starts: Sequence[int], stops: Sequence[int]
    ) -> None:
        """Start fetching ranges that will be read soon; empty for the whole file."""

    @abstractmethod
    def read_whole(self, path: str) -> bytes:
        """Return the bytes of a small file, which is read once and cached."""

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file in pieces."""
        size = self.size(path)
        return (
            self.read(path, at, min(at + RUN_BYTES, size))
            for at in range(0, size, RUN_BYTES)
        )

    def crc32(self, path: str) -> int:
        """Return the CRC-32 of a file; an equal rewrite is then accepted."""
        return reduce(lambda crc, data: zlib.crc32(data, crc), self.pieces(path), 0)

    def remember(self, path: str) -> None:  # noqa: B027
        """Read a file once, so that an equal rewrite is accepted."""

    def check(self, path: str) -> None:  # noqa: B027
        """Raise `ShardError` if a file has changed since it was first read."""

    @abstractmethod
    def local(self, path: str) -> str:
        """Return a local path of the file, for libraries that open files themselves."""


class LocalFiles(Files):
    """Files of mounted file systems.

    Reads have no position, so threads and forked processes may share an object.
    Pickling drops open files.

    Args:
        most_open: Number of files that stay open between reads.
        follow: Whether to follow links; otherwise a link is not a file.

    Example:
        >>> LocalFiles().read(__file__, 0, 3)
        b'\"\"\"'
    """

    def __init__(self, most_open: int = _MOST_OPEN, *, follow: bool = True) -> None:
        self._most_open = most_open
        self._flags = 0 if follow else os.O_NOFOLLOW
        self._open: dict[str, OpenFile] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._crcs: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LocalFiles, follow=not self._flags), (self._most_open,)

    def size(self, path: str) -> int:
        return (self._open.get(path) or self._file(path)).signature[0]

    def read_ranges(
        self, path: str, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[bytes]:
        """Implement `Files`; checks for changes before yielding the last read."""
        for first, last, begin, end in runs_of(starts, stops):
            file = self._open.get(path) or self._file(path)
            if end - begin > RUN_BYTES and end - begin > limits.SAMPLE_BYTES:
                raise ShardError(f"{path}: {limits.over('SAMPLE_BYTES', end - begin)}")
            failed = None
            data = b""
            try:
                data = os.pread(file.number, end - begin, begin)
            except OSError as error:
                failed = error
            if len(data) < end - begin:
                data = self._read_on(path, begin, end, data, failed)
            if last == len(starts):
                self.check(path)
            for row in range(first, last):
                yield data[starts[row] - begin : stops[row] - begin]

    def _read_on(
        self, path: str, begin: int, end: int, data: bytes, failed: OSError | None
    ) -> bytes:
        """Read the rest: a call reads at most 2 GiB, network file systems may read
        less.
        """
        pieces = [data]
        at = begin + len(data)

        def read() -> bytes:
            self._open.pop(path, None)
            file = self._file(path)
            some = os.pread(file.number, end - at, at)
            if not some:
                size = file.signature[0]
                code = errno.EIO if at < size else errno.EINVAL
                raise OSError(
                    code, f"bytes {at} to {end} are missing: it has {size} bytes", path
                )
            return some

        while at < end:
            pieces.append(again(read, path, failed))
            at = at + len(pieces[-1])
            failed = None
        return b"".join(pieces)

    def read_whole(self, path: str) -> bytes:
        file = self._open.get(path) or self._file(path)
        if file.content is None:
            file.content = self.read(path)
            self._crcs[path] = zlib.crc32(file.content)
        return file.content

    def crc32(self, path: str) -> int:
        crc = self._crcs[path] = super().crc32(path)
        return crc

    def remember(self, path: str) -> None:
        """Read a file of up to 16 MiB once, so that an equal rewrite is accepted."""
        if path not in self._crcs and self.size(path) <= 2 * RUN_BYTES:
            self.crc32(path)

    def check(self, path: str) -> None:
        """Raise `ShardError` if a file has changed since it was first read.

        An equal rewrite is accepted if all bytes were read before.
        """
        with suppress(OSError, KeyError):  # `_file` below decides
            status = os.fstat(self._open[path].number)
            if (status.st_size, status.st_mtime_ns, status.st_ino) == self._seen[path]:
                return
        again(lambda: (self._open.pop(path, None), self._file(path)), path)

    def local(self, path: str) -> str:
        self._file(path)  # raises for a named pipe, which would block
        return path

    def _file(self, path: str) -> OpenFile:
        """Open a file, which must be the one that was first read."""
        try:
            file = again(partial(OpenFile, path, self._flags), path)
        except OSError as error:
            if error.errno != errno.EMFILE or not self._open:
                raise
            self._open.clear()
            file = OpenFile(path, self._flags)
        signature = file.signature
        expected_crc = self._crcs.get(path)
        other = self._seen.setdefault(path, signature) != signature
        if other and (
            expected_crc is None
            or zlib.crc32(os.pread(file.number, signature[0], 0)) != expected_crc
        ):
            raise changed(path)
        self._seen[path] = signature
        # Descriptors are the lowest free numbers, so they show how many are in use.
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most_open = 1 if file.number >= allowed // 2 > 0 else self._most_open
        # Insert before evicting, so that concurrent threads keep the bound.
        self._open[path] = file
        for old in list(self._open)[:-most_open]:
            self._open.pop(old, None)
        return file


class FileStream(io.RawIOBase):
    """A stream over a file of `Files`, for libraries that need streams.

    Args:
        files: Reads the file.
        path: The file.

    Example:
        >>> FileStream(LocalFiles(), __file__).read(3)
        b'\"\"\"'
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._size = files.size(path)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, relative to the start, the position or the end."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; the end of the file may leave a rest.

        Raises:
            ShardError: If the bytes cannot be read.
        """
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        with os_errors_as(ShardError, self._path):
            data = self._files.read(self._path, self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def runs_of(
    starts: Sequence[int], stops: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield runs of neighbouring ranges, which are read at once.

    Args:
        starts: First bytes of the ranges. A run ends where they do not ascend.
        stops: Ends of the ranges.

    Yields:
        The numbers of the first range of a run and of that behind its last, and the
        first byte and the end of the run.

    Example:
        >>> list(runs_of([0, 10, 900_000], [10, 25, 900_005]))
        [(0, 2, 0, 25), (2, 3, 900000, 900005)]
    """
    first = 0
    while first < len(starts):
        begin = starts[first]
        end = stops[first]
        last = first + 1
        while (
            last < len(starts)
            and begin <= starts[last] <= end + _GAP
            and stops[last] <= begin + RUN_BYTES
        ):
            end = max(end, stops[last])
            last += 1
        yield first, last, begin, end
        first = last


def merged(
    spans: Iterable[tuple[int, int]], size: int, block: int = FAR_BLOCK
) -> Iterator[tuple[int, int]]:
    """Yield the requests that fetch ranges of a file in object storage.

    Requests do not overlap. Within each block, one request covers everything from the
    first to the last requested byte; or the whole block if several ranges span more
    than half of it, because the rest will probably be read later.

    Args:
        spans: The ranges, ascending.
        size: Size of the file in bytes.
        block: Size of a block in bytes.

    Yields:
        Start and end of each request.

    Example:
        >>> list(merged([(0, 10), (20, 30), (1_500_000, 1_500_010)], 2_000_000))
        [(0, 30), (1500000, 1500010)]
        >>> list(merged([(1_000, 1_010), (900_000, 1_300_000)], 2_000_000))
        [(0, 1048576), (1048576, 1300000)]
    """
    begin = end = -1
    for number, (low, high, count) in _block_spans(spans, block).items():
        whole = count > 1 and high - low > block // 2
        first = number * block if whole else low
        last = min(size, (number + 1) * block) if whole else high
        if first == end and last - begin <= FAR_BLOCK:
            end = last
            continue
        if begin >= 0:
            yield begin, end
        begin = first
        end = last
    if begin >= 0:
        yield begin, end


def _block_spans(
    spans: Iterable[tuple[int, int]], block: int
) -> dict[int, tuple[int, int, int]]:
    """Return per block its first wanted byte, the end of the last, and the ranges."""
    extents = dict[int, tuple[int, int, int]]()
    for start, stop in spans:
        for number in range(start // block, -(-stop // block)):
            low = number * block
            high = (number + 1) * block
            first, last, count = extents.get(number, (high, low, 0))
            extents[number] = (
                min(first, max(start, low)),
                max(last, min(stop, high)),
                count + 1,
            )
    return extents


def changed(path: str) -> ShardError:
    """Return the error for a file that has changed since it was first read."""
    return ShardError(
        f"{path} has changed since it was first read. Restore the old file, or run "
        "`energize prepare` and start a new run"
    )


def read_entries(
    files: Files, path: str, numbers: Sequence[int], stride: int, size: int
) -> Iterator[bytes]:
    """Yield `size` bytes of entries of a file with a stride, in ascending order."""
    files.remember(path)
    if files.remote and files.size(path) <= WHOLE:
        whole = files.read_whole(path)
        return (whole[number * stride : number * stride + size] for number in numbers)
    starts = [number * stride for number in numbers]
    return files.read_ranges(path, starts, [start + size for start in starts])


class Recent(Generic[K, T]):
    """The most recently used values, by key.

    Args:
        limit: Size limit; at least one value is kept.
        size: Returns the size of a value.

    Example:
        >>> Recent(3, len).get("a", lambda: b"four")
        b'four'
    """

    def __init__(self, limit: int, size: Callable[[T], int]) -> None:
        self._limit = limit
        self._size = size
        self._values: dict[K, T] = {}

    def get(self, key: K, make: Callable[[], T]) -> T:
        """Return the value of a key; call `make` if it is missing."""
        value = self._values.pop(key, None)
        self._values[key] = value = make() if value is None else value
        while (
            len(self._values) > 1
            and sum(map(self._size, self._values.values())) > self._limit
        ):
            del self._values[next(iter(self._values))]
        return value

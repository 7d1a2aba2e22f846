"""The seam through which everything in a data folder is read: sizes, ranges of bytes,
names.

`files_at` gives what reads the files at a path: `LocalFiles`, of mounted file systems,
or those of object storage (`energize.data.remote`). They raise OSError naming the path,
and `ShardError` for a file that has changed since it was first read. `os_errors_as`
makes errors of ours of the former, `again` tries once more what may pass: a disk, or
the server behind it, that fails for a moment must not end a run, and is never bad data
of a sample.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import resource
import stat
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property, partial, reduce, wraps
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, cast

from energize.core import limits
from energize.errors import (
    ConfigError,
    DatasetError,
    EnergizeError,
    ShardError,
    legible,
)

_log = logging.getLogger("energize")

P = ParamSpec("P")
K = TypeVar("K")
T = TypeVar("T")

AnyPath = str | os.PathLike[str]
_HALF = re.compile(r"(s3|gs|az|abfss?|https?|hf|msc|file):/(?!/)|file://")
# A file, and where ranges of it start and stop; the whole file without any.
Ranges = tuple[str, Sequence[int], Sequence[int]]

# Bytes that are cheaper to read in vain than to leave out with another call.
_GAP = 32 * 1024

# Neighbouring ranges are read together up to this many bytes.
_RUN = 8 * 1024 * 1024

# What is fetched of object storage at once, see `merged`. A request costs a quarter of
# a millisecond of a core and a round trip of some 30 ms, in which a connection brings
# so much.
FAR_BLOCK = 1024 * 1024

# Requests of a process that are in flight at most: 64 MiB of memory, and over a round
# trip of 30 ms twice as much in a second as a fast network brings.
IN_FLIGHT = 64

# An index in object storage of up to so many bytes is read whole, and so many bytes are
# kept.
WHOLE = 64 * 1024 * 1024

_MOST_OPEN = 128

URL = re.compile(
    r"(?!file:)(?P<root>[a-zA-Z][a-zA-Z0-9+.-]*://(?P<host>[^/?#]*))(?P<key>.*)", re.S
)
_PAUSE = 0.5

_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
}

_NETWORK = (
    "CONNABORTED CONNREFUSED CONNRESET HOSTDOWN HOSTUNREACH NETDOWN NETRESET NETUNREACH"
)
_DISK = "NOTCONN REMOTEIO TIMEDOUT IO STALE AGAIN INTR NFILE"
# What may be over when it is tried again: faults of disks, of file servers and on the
# way there, and that all processes of the machine together have too many files open.
PASSING = frozenset(
    getattr(errno, f"E{name}") for name in f"{_NETWORK} {_DISK}".split()
)

_OF_MACHINE = (
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
)

_NO_PATH = "that is no path: it has a NUL in it, or what cannot be encoded"
_LOOK = "see what is there, and that it can be read and written"
_FAILS = (
    "the disk, or the file server, fails: go on from the last state when it is "
    "well again"
)
_MAKE_ROOM = "make room on that disk"
_REMEDIES = {
    **dict.fromkeys(PASSING, _FAILS),
    errno.EACCES: "let the user who runs this read and write there",
    errno.EDQUOT: _MAKE_ROOM,
    errno.ELOOP: "links on the way to it lead to one another: correct them",
    errno.EMFILE: "let it open more with `ulimit -n`, or use fewer workers",
    errno.ENFILE: (
        "all processes together have too many files open: end some, or raise "
        "fs.file-max"
    ),
    errno.ENOENT: "restore it, or correct the path",
    errno.ENOMEM: "memory is short: use fewer workers, or let the process have more",
    errno.ENOSPC: _MAKE_ROOM,
    errno.ENOTDIR: "a folder on the way to it is a file: correct the path",
}


class _OpenFile:
    """A regular file that is open for reading; it is closed when the last user lets go
    of it.
    """

    __slots__ = ("kept", "number", "signature")

    def __init__(self, path: str, flags: int = 0) -> None:
        self.number = -1
        self.kept: bytes | None = None
        # Opening a named pipe would wait for who writes into it.
        flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self.number = os.open(path, flags)
        except ValueError as error:
            raise OSError(errno.EINVAL, _NO_PATH, path) from error
        found = os.fstat(self.number)
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "device")
            raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", path)
        self.signature = found.st_size, found.st_mtime_ns, found.st_ino

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.number >= 0:  # modules may be gone when Python ends
            close(self.number)


class Files(ABC):
    """What reads files, by their paths."""

    # Whether each call of a function takes a while, and several at once no longer.
    remote = False

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the bytes of a file."""

    @abstractmethod
    def read_ranges(
        self, path: str, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[bytes]:
        """Yield the bytes of each range, given in ascending order. Ranges that lie
        close together are read at once.
        """

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes from `start` to before `stop`, to the end by default."""
        return next(
            self.read_ranges(path, [start], [self.size(path) if stop is None else stop])
        )

    def plan(self, path: str, starts: Sequence[int], stops: Sequence[int]) -> None:  # noqa: B027
        """Have ranges fetched that will be read soon; the whole file without any."""

    @abstractmethod
    def kept(self, path: str) -> bytes:
        """Return a whole small file, which is read once."""

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a whole file, some of them at a time."""
        size = self.size(path)
        return (
            self.read(path, at, min(at + _RUN, size)) for at in range(0, size, _RUN)
        )

    def crc32(self, path: str) -> int:
        """Return the CRC-32 of a whole file, which may be written anew with these
        bytes.
        """
        return reduce(lambda found, data: zlib.crc32(data, found), self.pieces(path), 0)

    def know(self, path: str) -> None:  # noqa: B027
        """Look at all bytes of a file once, so that it may be written anew with
        these.
        """

    def check(self, path: str) -> None:  # noqa: B027
        """Raise `ShardError` if a file has changed since it was first read."""

    @abstractmethod
    def local(self, path: str) -> str:
        """Return a path by which libraries that open files themselves may read this
        one.
        """


class LocalFiles(Files):
    """Files of mounted file systems, the last `most_open` of which stay open between
    reads.

    Reads have no position, so that any number of threads and forked processes may use
    one object. A pickled one arrives with nothing open. Without `follow`, a link is no
    file.

    >>> LocalFiles().read(__file__, 0, 3)
    b'\"\"\"'
    """

    def __init__(self, most_open: int = _MOST_OPEN, *, follow: bool = True) -> None:
        self._most_open = most_open
        self._flags = 0 if follow else os.O_NOFOLLOW
        self._open: dict[str, _OpenFile] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._crcs: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(LocalFiles, follow=not self._flags), (self._most_open,)

    def size(self, path: str) -> int:
        return (self._open.get(path) or self._file(path)).signature[0]

    def read_ranges(
        self, path: str, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[bytes]:
        """As `Files` says; that the file has not changed is known before the bytes of
        the last read are given.
        """
        first = 0
        count = len(starts)
        while first < count:
            begin = starts[first]
            end = stops[first]
            last = first + 1
            while (
                last < count
                and starts[last] - end <= _GAP
                and stops[last] - begin <= _RUN
            ):
                end = max(end, stops[last])
                last += 1
            file = self._open.get(path) or self._file(path)
            if end - begin > _RUN and end - begin > limits.SAMPLE_BYTES:
                raise ShardError(f"{path}: {limits.over('SAMPLE_BYTES', end - begin)}")
            failed = None
            data = b""
            try:
                data = os.pread(file.number, end - begin, begin)
            except OSError as error:
                failed = error
            if len(data) < end - begin:
                data = self._read_on(path, begin, end, data, failed)
            if last == count:
                self.check(path)
            for row in range(first, last):
                yield data[starts[row] - begin : stops[row] - begin]
            first = last

    def _read_on(
        self, path: str, begin: int, end: int, data: bytes, failed: OSError | None
    ) -> bytes:
        """One call reads at most 2 GiB, and a network file system may give less, or
        nothing.
        """
        pieces = [data]
        at = begin + len(data)

        def read() -> bytes:
            self._open.pop(path, None)
            file = self._file(path)
            some = os.pread(file.number, end - at, at)
            if not some:
                size = file.signature[0]
                kind = errno.EIO if at < size else errno.EINVAL
                raise OSError(
                    kind, f"there are no bytes {at} to {end}: it has {size}", path
                )
            return some

        while at < end:
            pieces.append(again(read, path, failed))
            at = at + len(pieces[-1])
            failed = None
        return b"".join(pieces)

    def kept(self, path: str) -> bytes:
        file = self._open.get(path) or self._file(path)
        if file.kept is None:
            file.kept = self.read(path)
            self._crcs[path] = zlib.crc32(file.kept)
        return file.kept

    def crc32(self, path: str) -> int:
        found = self._crcs[path] = super().crc32(path)
        return found

    def know(self, path: str) -> None:
        """Look at all bytes of a file of up to 16 MiB once: then it may be written anew
        with these.
        """
        if path not in self._crcs and self.size(path) <= 2 * _RUN:
            self.crc32(path)

    def check(self, path: str) -> None:
        """Raise `ShardError` if a file has changed since it was first read, unless all
        its bytes were looked at then, and are the same.
        """
        with suppress(OSError, KeyError):  # a second look, at what is there now, tells
            found = os.fstat(self._open[path].number)
            if (found.st_size, found.st_mtime_ns, found.st_ino) == self._seen[path]:
                return
        again(lambda: (self._open.pop(path, None), self._file(path)), path)

    def local(self, path: str) -> str:
        self._file(path)  # who reads it would wait for a named pipe
        return path

    def _file(self, path: str) -> _OpenFile:
        """Open the file at a path, which has to be the one that was read before."""
        try:
            file = again(partial(_OpenFile, path, self._flags), path)
        except OSError as error:
            if error.errno != errno.EMFILE or not self._open:
                raise
            self._open.clear()
            file = _OpenFile(path, self._flags)
        now = file.signature
        known = self._crcs.get(path)
        other = self._seen.setdefault(path, now) != now
        if other and (
            known is None or zlib.crc32(os.pread(file.number, now[0], 0)) != known
        ):
            raise changed(path)
        self._seen[path] = now
        # The system gives the lowest free number: it says how many are in use, here and
        # elsewhere.
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        kept = 1 if file.number >= allowed // 2 > 0 else self._most_open
        # First, so that threads that open others see it, and keep the bound.
        self._open[path] = file
        for old in list(self._open)[:-kept]:
            self._open.pop(old, None)
        return file


class FileStream(io.RawIOBase):
    """A file of `LocalFiles` for libraries that read from streams.

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
        """Go to a byte, counted from the start, from here or from the end."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as the buffer has room for; fewer at the end only.

        Raise `ShardError` if they cannot be read.
        """
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        with os_errors_as(ShardError, self._path):
            data = self._files.read(self._path, self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def merged(
    spans: Iterable[tuple[int, int]], size: int, block: int = FAR_BLOCK
) -> Iterator[tuple[int, int]]:
    """Yield what is fetched of a file of `size` bytes in object storage, a request
    each, for ranges in ascending order, no byte twice: of each `block` of bytes all
    from the first to the last one that is wanted, or the whole block, if several ranges
    take up more than half of it with what is between them: what is not wanted yet will
    be.

    >>> list(merged([(0, 10), (20, 30), (1_500_000, 1_500_010)], 2_000_000))
    [(0, 30), (1500000, 1500010)]
    >>> list(merged([(1_000, 1_010), (900_000, 1_300_000)], 2_000_000))
    [(0, 1048576), (1048576, 1300000)]
    """
    found = dict[int, tuple[int, int, int]]()
    for start, stop in spans:
        for number in range(start // block, -(-stop // block)):
            low = number * block
            high = (number + 1) * block
            first, last, count = found.get(number, (high, low, 0))
            found[number] = (
                min(first, max(start, low)),
                max(last, min(stop, high)),
                count + 1,
            )
    begin = end = -1
    for number, (low, high, count) in found.items():
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


def files_at(path: AnyPath, *, follow: bool = True) -> Files:
    """Return what reads the files at a path and below it; without `follow`, a link is
    no file.
    """
    if is_url(path):
        from energize.data.remote import files

        return files()
    return LocalFiles(follow=follow)


def is_url(path: object) -> bool:
    """Return whether a path is one of object storage.

    >>> is_url("s3://bucket/web"), is_url("/data/web"), is_url("file:///data/web")
    (True, False, False)
    """
    return isinstance(path, str | os.PathLike) and bool(URL.match(os.fspath(path)))


def path_of(given: AnyPath) -> Path:
    """Return the path of something given by name: a `Path`, or for a URL what has its
    methods.

    Raise `ConfigError` for a URL with a name, a password or a query in it, which would
    be written into logs and states.

    >>> path_of("s3://bucket/web") / "../text" / "0.tar"
    RemotePath('s3://bucket/text/0.tar')
    """
    text = os.fspath(given)
    if URL.match(text):
        from energize.data.remote import remote_path

        return remote_path(text)
    return Path(_here(text) if ":/" in text else os.path.expanduser(text))


def joined(base: Path, name: str) -> Path:
    """Return the path of a name in the folder `base`, which a URL does not depend
    on.
    """
    return path_of(name) if URL.match(name) else base / _here(name)


def absolute(path: AnyPath) -> str:
    """Return an absolute path without `..`, by which documents are known."""
    text = os.fspath(path)
    if URL.match(text):
        return text
    return os.path.abspath(_here(text) if ":/" in text else os.path.expanduser(text))


def _here(text: str) -> str:
    """Return the path of this machine that a text stands for."""
    text = re.sub(r"\Afile://(localhost)?(?=/)", "", text)
    if _HALF.match(text):
        raise ConfigError(
            f"{text} is no URL: give s3://BUCKET/... or file:///FOLDER/..., as text, "
            "for a Path "
            "makes one slash of two"
        )
    return os.path.expanduser(text)


class Documents:
    """Documents, small files of JSON and YAML, by absolute path or URL: the text of
    each as it was first read, None for one that was not there.

    >>> with Documents({"/mix/cats/.nv-meta/split.yaml": "split_parts: {}"}).used():
    ...     (
    ...         read_file("/mix/cats/.nv-meta/split.yaml", "YAML_BYTES"),
    ...         found_at(Path("/mix/cats")),
    ...     )
    (b'split_parts: {}', 'folder')
    """

    def __init__(self, texts: Mapping[str, str | None] | None = None) -> None:
        self.texts = dict(texts or {})

    @cached_property
    def folders(self) -> set[str]:
        """Those that have documents, and those around them, which are there."""
        there = {
            os.path.dirname(path)
            for path, text in self.texts.items()
            if text is not None
        }
        return there | set(map(os.path.dirname, there))

    @contextmanager
    def used(self) -> Iterator[Self]:
        """A block in which this thread reads no document twice, and none that is known
        here.
        """
        before = documents_in_use.set(self)
        try:
            yield self
        finally:
            documents_in_use.reset(before)


LISTED = "/*"
"""Ends the name of a document that is none: of the names of all files of a folder."""

# Those whose block a thread is in.
documents_in_use: ContextVar[Documents | None] = ContextVar("documents", default=None)


def read_file(path: AnyPath, most: str | None = None) -> bytes:
    """Return all bytes of a regular file; raise OSError if it cannot be read, or is
    larger than the limit of the name `most`, which documents have.
    """
    place = os.fspath(path)
    documents = documents_in_use.get()
    if most is None or documents is None:
        return _whole(place, most)
    key = absolute(place)
    texts = documents.texts
    if (text := texts.get(key)) is not None:
        return text.encode()
    if key in texts:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
    try:
        data = _whole(place, most)
    except FileNotFoundError:
        texts[key] = None
        raise
    if (
        data.isascii() or len(data) <= _RUN
    ):  # else one letter makes all of them four bytes wide
        with suppress(UnicodeDecodeError):
            texts[key] = data.decode()
    return data


def _whole(path: str, most: str | None) -> bytes:
    """Return all bytes of a file as it is now, whatever it was before."""
    if URL.match(path):
        from energize.data.remote import RemoteFiles

        return RemoteFiles().whole(path, most)
    file = again(partial(_OpenFile, path), path)
    size = file.signature[0]
    if most is not None and size > getattr(limits, most):
        raise OSError(errno.EFBIG, limits.over(most, size), path)
    with suppress(OSError):
        data = os.pread(file.number, size, 0)
        if len(data) == size and os.fstat(file.number).st_mtime_ns == file.signature[1]:
            return data
    return LocalFiles().read(
        path, 0, size
    )  # which tries again, and tells what is wrong


def by_manifest(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function whose first parameter, `path`, is a mix: a file is opened by its
    manifest, if it has one, and no document is read twice.
    """

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> T:
        mix = args[0] if args else kwargs.get("path")
        config = kwargs.get("worker_config")
        if not isinstance(mix, str | os.PathLike) or documents_in_use.get() is not None:
            return function(*args, **kwargs)
        with Documents().used() as documents:
            path = path_of(mix)
            if path.suffix in (".yaml", ".yml"):
                with suppress(FileNotFoundError, NotADirectoryError):
                    read_file(manifest_path(path), "JSON_BYTES")  # most mixes have none
                    from energize.data.manifest import read_manifest

                    documents.texts |= read_manifest(path, cast("Any", config))
            return function(*args, **kwargs)

    return opened


def manifest_path(mix: Path) -> Path:
    """Return where the manifest of a mix lies.

    >>> manifest_path(Path("mixes/web.yaml")).name
    'web.manifest.json'
    """
    return mix.with_name(f"{mix.stem}.manifest.json")


def found_at(path: AnyPath, *, follow: bool = True) -> Literal["folder", "file", ""]:  # noqa: PLR0911
    r"""Return what is at a path: "folder", "file", or "" for nothing, which a link to
    nothing is with `follow`. Raise OSError if the disk cannot say.

    >>> found_at("/"), found_at("/nowhere"), found_at("no\0path")
    ('folder', '', '')
    """
    documents = documents_in_use.get()
    place = os.fspath(path)
    if documents is not None:
        key = absolute(place)
        if key in documents.folders:
            return "folder"
        if key in documents.texts:
            return "" if documents.texts[key] is None else "file"
    if URL.match(place):
        far = path_of(place)
        if (
            not far.suffix and far.is_dir()
        ):  # beside it there may be an object of its name
            return "folder"
        if far.is_file():
            return "file"
        if far.suffix and far.is_dir():
            return "folder"
        return ""
    try:
        found = again(partial(os.stat, place, follow_symlinks=follow), place)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in PASSING:
            raise
        return ""
    return "folder" if stat.S_ISDIR(found.st_mode) else "file"


def exists(path: AnyPath, *, follow: bool = True) -> bool:
    r"""Return whether `found_at` finds something at a path.

    >>> exists("/"), exists("/nowhere"), exists("no\0path")
    (True, False, False)
    """
    return found_at(path, follow=follow) != ""


def again(call: Callable[[], T], path: AnyPath, failed: OSError | None = None) -> T:
    """Return `call()`; where it raises an OSError that may pass, call it once more
    after a pause. `failed` is what the first call raised, where it was made already.

    >>> again(lambda: 3, "a.tar")
    3
    """
    tries = 0
    while True:
        try:
            if failed is None:
                return call()
        except EnergizeError:
            raise
        except OSError as error:
            failed = error
        tries += 1
        if failed.filename is None:
            failed.filename = _text(path)
        if tries > 1 or failed.errno not in PASSING or is_url(failed.filename):
            raise failed
        _log.warning("%s: %s; it is tried again", legible(_text(path)), failed.strerror)
        time.sleep(_PAUSE)
        failed = None


def absent(path: AnyPath) -> str:
    """Return what to say of a path at which nothing is.

    >>> absent("/nowhere")
    'does not exist'
    """
    with suppress(OSError, ValueError):
        return f"is a link to {os.readlink(path)!r}, where nothing is; correct the link"
    lists = not absolute(path).startswith("http")
    return "does not exist" + (
        "" if lists else ", or is a folder that its server does not list"
    )


def of_machine(error: BaseException | None) -> bool:
    """Return whether the disk or the system is what failed, so that no sample is to
    blame.
    """
    return isinstance(error, OSError) and error.errno in _OF_MACHINE


def told(
    error: OSError, path: AnyPath | None = None, what: str = "cannot be read"
) -> str:
    """Return what to say of a file that the system refuses: the path, its words and
    what to do.

    `path` is what was asked for, where the error does not know.

    >>> told(OSError(errno.EMFILE, "Too many open files"), "a.tar")
    'a.tar: cannot be read (Too many open files); let it open more with `ulimit -n`, \
or use fewer workers'
    """
    place = error.filename if error.filename is not None else path
    where = "" if place is None else f"{_text(place)}: "
    if error.errno and error.strerror != os.strerror(
        error.errno
    ):  # it says itself what to do
        return f"{where}{what}: {error.strerror}"
    return (
        f"{where}{what} ({error.strerror or error}); "
        f"{_REMEDIES.get(error.errno or 0, _LOOK)}"
    )


@contextmanager
def os_errors_as(
    kind: type[EnergizeError], path: AnyPath | None = None, what: str = "cannot be read"
) -> Iterator[None]:
    """A block, or a function, in which an OSError becomes an error of this kind; those
    of energize stay as they are.

    >>> with os_errors_as(DatasetError):
    ...     _ = open("/nowhere/at all")
    Traceback (most recent call last):
        ...
    energize.errors.DatasetError: /nowhere/at all: cannot be read (No such file or \
directory); restore it, or correct the path
    """
    try:
        yield
    except (
        EnergizeError,
        BrokenPipeError,
    ):  # the latter is of who reads what a command prints
        raise
    except OSError as error:
        raise kind(told(error, path, what)) from error
    except ValueError as error:
        null = type(error) is ValueError and "embedded null" in str(error)
        if not (null or isinstance(error, UnicodeEncodeError)):
            raise
        shown = "" if path is None else f"{os.fspath(path)}: "
        raise ConfigError(f"{shown}{_NO_PATH} ({error})") from error


def own_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that is given paths and only reads: what may pass is tried again,
    what else the system refuses is a `DatasetError`, and what can be no path a
    `ConfigError`.
    """

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with os_errors_as(DatasetError):
            return again(partial(function, *args, **kwargs), function.__qualname__)

    return guarded


def is_path(text: str) -> bool:
    r"""Return whether a file could have this path at all.

    >>> is_path("a/b"), is_path("a\0b"), is_path("\ud800")
    (True, False, False)
    """
    with suppress(UnicodeEncodeError):
        return "\0" not in text and os.fsencode(text) is not None
    return False


def check_path(text: str) -> str:
    """Return the text; raise `ConfigError` if no file can have this path."""
    if not is_path(text):
        raise ConfigError(f"{text!r}: {_NO_PATH}; correct it")
    return text


def changed(path: str) -> ShardError:
    """Return the error for a file that is another one than when it was first read."""
    return ShardError(
        f"{path} has changed since it was first read: files stay as they are while "
        "runs read them. "
        "Put the old one back, or run `energize prepare` and start a new run"
    )


def _text(place: object) -> str:
    """Return a path, or whatever an error has for one: some have the number of a
    descriptor.
    """
    return os.fsdecode(place) if isinstance(place, bytes | os.PathLike) else str(place)


def read_entries(
    files: Files, path: str, numbers: Sequence[int], stride: int, size: int
) -> Iterator[bytes]:
    """Yield `size` bytes of each of these entries of a file, ascending, `stride` bytes
    apart.
    """
    files.know(path)
    if files.remote and files.size(path) <= WHOLE:
        whole = files.kept(path)
        return (whole[number * stride : number * stride + size] for number in numbers)
    starts = [number * stride for number in numbers]
    return files.read_ranges(path, starts, [start + size for start in starts])


class Recent(Generic[K, T]):
    """What was made last, by key: one thing at least, and at most `limit` bytes by
    `size`.

    >>> Recent(3, len).get("a", lambda: b"four")
    b'four'
    """

    def __init__(self, limit: int, size: Callable[[T], int]) -> None:
        self._limit = limit
        self._size = size
        self._kept: dict[K, T] = {}

    def get(self, key: K, make: Callable[[], T]) -> T:
        """Return what is known by a key, or is made now."""
        found = self._kept.pop(key, None)
        self._kept[key] = found = make() if found is None else found
        while (
            len(self._kept) > 1
            and sum(map(self._size, self._kept.values())) > self._limit
        ):
            del self._kept[next(iter(self._kept))]
        return found

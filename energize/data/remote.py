"""Folders and files in object storage: `RemotePath` and `RemoteFiles`.

All access goes through `energize.data.fetching`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from io import BufferedReader
from multiprocessing.util import Finalize
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

from energize.core import limits
from energize.core.os_errors import URL, AnyPath, is_url
from energize.data import fetching
from energize.data.local import WHOLE, Files, FileStream, Recent
from energize.data.sidecar import shown
from energize.errors import ConfigError, ShardError

_PIECE = 8 * 1024 * 1024


def remote_path(url: str) -> Path:
    """Return the `RemotePath` of a URL; raises `ConfigError` as `path_of`."""
    if shown(url) != url or ("#" in url and url.startswith("http")):
        raise ConfigError(
            f"{shown(url)}{'?...' * ('?' in url)} is not read: names, passwords and "
            "text after a '?' would appear in logs and states. Set credentials in "
            "the variables of the store's library, such as AWS_ACCESS_KEY_ID or "
            "AZURE_STORAGE_SAS_TOKEN. Rename objects with a '?' in their key"
        )
    match = cast("re.Match[str]", URL.match(url))
    key = posixpath.normpath("/" + match["key"].lstrip("/"))
    return cast("Path", RemotePath(match["root"], PurePosixPath(key)))


@dataclass(frozen=True, order=True)
class RemotePath(os.PathLike[str]):
    """URL of a file or folder, with the methods of `Path` that are used here.

    A folder exists if any object is below it. Joining resolves `..`.
    """

    _root: str
    _key: PurePosixPath

    def __fspath__(self) -> str:
        return self._root + str(self._key).rstrip("/")

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __truediv__(self, name: AnyPath) -> Path:
        text = os.fspath(name)
        if is_url(text) or text.startswith("/"):
            return remote_path(text) if is_url(text) else Path(text)
        key = PurePosixPath(posixpath.normpath(self._key / text))
        return cast("Path", RemotePath(self._root, key))

    name = property(lambda self: self._key.name or self._root.rpartition("/")[2])
    stem = property(lambda self: self._key.stem)
    suffix = property(lambda self: self._key.suffix)
    parent = property(lambda self: self / "..")
    parts = property(lambda self: (self._root + "/", *self._key.parts[1:]))

    def with_name(self, name: str) -> Path:
        return cast("Path", self.parent / name)

    def absolute(self) -> Path:
        return cast("Path", self)

    resolve = absolute

    def relative_to(self, other: AnyPath) -> PurePosixPath:
        """Return the path relative to `other`; ValueError if it is not below."""
        return PurePosixPath(str(self)).relative_to(str(other))

    def is_relative_to(self, other: AnyPath) -> bool:
        return PurePosixPath(str(self)).is_relative_to(str(other))

    # Queries.

    def is_file(self) -> bool:
        with suppress(FileNotFoundError, IsADirectoryError):
            return fetching.stat(str(self)) is not None
        return False

    def is_dir(self) -> bool:
        with suppress(FileNotFoundError, NotADirectoryError):
            return fetching.is_folder(str(self))
        return False

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def stat(self) -> Any:
        """Return size, a mode for file or folder, and the ETag as modification time."""
        try:
            mode = stat.S_IFREG | 0o644
            (size, tag) = fetching.stat(str(self))
        except (FileNotFoundError, IsADirectoryError):
            if not self.is_dir():
                raise
            size = 0
            tag = ""
            mode = stat.S_IFDIR | 0o755
        return SimpleNamespace(st_size=size, st_mode=mode, st_mtime_ns=tag)

    def iterdir(self) -> Iterator[Path]:
        return (self / name for name, _ in fetching.listing(str(self)))

    def glob(self, pattern: str) -> Iterator[Path]:
        """Yield the files below that match a pattern; `**/` matches any folders."""
        deep = "/" in pattern or "**" in pattern
        for name, size in fetching.listing(str(self), recursive=deep):
            fits = fnmatchcase(name, pattern.replace("**/", "*"))
            if size is not None and fits:
                yield self / name

    def read_bytes(self) -> bytes:
        return RemoteFiles().whole(str(self))

    def open(self, mode: str = "rb") -> BufferedReader:
        if mode != "rb":
            raise ValueError(f"mode {mode!r}: objects in a store must be written whole")
        return BufferedReader(FileStream(files(), str(self)), _PIECE)

    def write_bytes(self, data: bytes | Path) -> None:
        """Write an object from bytes or from a local file."""
        fetching.write(str(self), data)
        files().forget(str(self))

    def unlink(self, *, missing_ok: bool = False) -> None:
        with suppress(FileNotFoundError) if missing_ok else nullcontext():
            fetching.delete(str(self))

    def mkdir(self, *args: Any, **options: Any) -> None:
        """Do nothing: stores have no empty folders."""

    chmod = rmdir = mkdir


class RemoteFiles(Files):
    """Files of object storage.

    The ETag identifies an object from its first use; a changed object raises
    `ShardError`. Small files are read whole, ranges through the node cache.
    """

    remote = True

    def __init__(self) -> None:
        self._stats: dict[str, fetching.Stat] = {}
        self._small: Recent[str, bytes] = Recent(WHOLE, len)

    def __reduce__(self) -> tuple[Any, ...]:
        return files, ()

    def size(self, path: str) -> int:
        return self.stat(path).size

    def stat(self, path: str) -> fetching.Stat:
        return self._stats.get(path) or self._stats.setdefault(
            path, fetching.stat(path)
        )

    def forget(self, path: str) -> None:
        """Look an object up again at the next use, because it was replaced."""
        self._stats.pop(path, None)

    def whole(self, path: str, most: str | None = None) -> bytes:
        """Return the bytes of a file; OSError if it exceeds the limit `most`."""
        if most is not None and self.size(path) > getattr(limits, most):
            raise OSError(errno.EFBIG, limits.over(most, self.size(path)), path)
        return self.read(path)

    def read_ranges(
        self, path: str, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[bytes]:
        object_stat = self.stat(path)
        for start, stop in zip(starts, stops, strict=True):
            if stop - start > limits.SAMPLE_BYTES:
                raise ShardError(f"{path}: {limits.over('SAMPLE_BYTES', stop - start)}")
            if stop > object_stat.size:
                reason = (
                    f"bytes {start} to {stop} are missing: it has {object_stat.size} "
                    "bytes"
                )
                raise OSError(errno.EINVAL, reason, path)
        return iter(fetching.ranges(path, object_stat, starts, stops))

    def read_whole(self, path: str) -> bytes:
        return self._small.get(path, lambda: self.read(path))

    def local(self, path: str) -> str:
        return _copy(path, self.stat(path).tag)

    def plan(self, path: str, starts: Sequence[int], stops: Sequence[int]) -> None:
        with suppress(OSError):  # raised when it is read
            fetching.plan(path, self._stats.get(path), starts, stops)


@cache
def _copy(path: str, tag: str) -> str:
    """Return a local copy, which is removed with the process."""
    number, copy = tempfile.mkstemp(prefix="energize-")
    # Not by what this process has forked.
    Finalize(None, Path(copy).unlink, kwargs={"missing_ok": True}, exitpriority=0)
    with open(number, "wb") as stream:
        stream.writelines(files().pieces(path))
    return copy


@cache
def files() -> RemoteFiles:
    """Return the `RemoteFiles` of this process."""
    return RemoteFiles()

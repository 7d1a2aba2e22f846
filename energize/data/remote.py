"""Folders and files in object storage: their paths, which are URLs, and what reads them.

`path_of` is where a path that somebody gives becomes one of a mounted file system or of a store.
Nothing is known of a store here but what `energize.data.fetching` asks of it.
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
from functools import cache, total_ordering
from io import BufferedReader
from multiprocessing.util import Finalize
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, cast

from energize.core import limits
from energize.data import fetching
from energize.data.files import URL, AnyPath, Files, FileStream, Recent, is_url
from energize.data.sidecar import shown
from energize.errors import ConfigError, ShardError

# Bytes of indices and other small files that a process keeps, as each is read whole.
_KEPT = 64 * 1024 * 1024
_HALF = re.compile(r"(s3|gs|az|abfss?|https?|hf|msc):/(?!/)")
_PIECE = 8 * 1024 * 1024


def path_of(given: AnyPath) -> Path:
    """Return the path of something given by name: a `Path`, or for a URL what has its methods.

    Raise `ConfigError` for a URL with a name, a password or a query in it, which would be written
    into logs and states.

    >>> path_of("s3://bucket/web") / "../text" / "0.tar"
    RemotePath('s3://bucket/text/0.tar')
    """
    text = os.fspath(given)
    if _HALF.match(text):
        raise ConfigError(f"{text}: a Path makes one slash of two; give the text of a URL instead")
    if not is_url(text):
        return Path(text.removeprefix("file://") if text.startswith("file:///") else given)
    found = cast("re.Match[str]", URL.match(text))
    if shown(text) != text or "#" in text:
        raise ConfigError(
            f"{shown(text)} was given with a name, a password or a query, which would be "
            "written into logs and states; give credentials where the library of the store looks "
            "for them, as in AWS_ACCESS_KEY_ID or AZURE_STORAGE_SAS_TOKEN"
        )
    key = posixpath.normpath("/" + found["key"].lstrip("/"))
    return cast("Path", RemotePath(found["root"], PurePosixPath(key)))


def joined(base: Path, name: str) -> Path:
    """Return the path of a name in the folder `base`, which a URL does not depend on."""
    return path_of(name) if is_url(name) else base / name


def tidied(path: Path) -> Path:
    """Return an absolute path without `..`."""
    return path if isinstance(path, RemotePath) else Path(os.path.abspath(path))


@total_ordering
@dataclass(frozen=True)
class RemotePath(os.PathLike[str]):
    """The URL of a file or folder, with those methods of `Path` that readers and writers use.

    A folder is there when something is below it. `..` is taken out when paths are joined.
    """

    _root: str
    _key: PurePosixPath

    def __fspath__(self) -> str:
        return self._root + str(self._key).rstrip("/")

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __truediv__(self, name: AnyPath) -> Path:
        text = os.fspath(name)
        if is_url(text) or text.startswith("/"):
            return path_of(text)
        return self._at(posixpath.normpath(self._key / text))

    def _at(self, key: str | PurePosixPath) -> Path:
        return cast("Path", RemotePath(self._root, PurePosixPath(key)))

    name = property(lambda self: self._key.name or self._root.rpartition("/")[2])
    stem = property(lambda self: self._key.stem)
    suffix = property(lambda self: self._key.suffix)
    parent = property(lambda self: self._at(self._key.parent))
    parts = property(lambda self: (self._root + "/", *self._key.parts[1:]))

    def with_name(self, name: str) -> Path:
        return self._at(self._key.with_name(name))

    def absolute(self) -> Path:
        return cast("Path", self)

    resolve = absolute

    def relative_to(self, other: AnyPath) -> PurePosixPath:
        """Return the path from `other` to here; raise ValueError if it is not below it."""
        base = path_of(other)
        if not isinstance(base, RemotePath) or base._root != self._root:
            raise ValueError(f"{str(self)!r} is not below {str(other)!r}")
        return self._key.relative_to(base._key)

    def is_relative_to(self, other: AnyPath) -> bool:
        with suppress(ValueError):
            return self.relative_to(other) is not None
        return False

    def samefile(self, other: AnyPath) -> bool:
        return self == other

    # What is asked of the store.

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
        """Return the size, and a mode that says whether it is a file."""
        try:
            size, mode = fetching.stat(str(self)).size, stat.S_IFREG | 0o644
        except (FileNotFoundError, IsADirectoryError):
            if not self.is_dir():
                raise
            size, mode = 0, stat.S_IFDIR | 0o755
        return SimpleNamespace(st_size=size, st_mode=mode)

    def iterdir(self) -> Iterator[Path]:
        return (self / name for name, _ in fetching.listing(str(self)))

    def glob(self, pattern: str) -> Iterator[Path]:
        """Yield the files below whose path from here fits a pattern, in which `**/` is any folders
        or none.
        """
        deep = "/" in pattern or "**" in pattern
        for name, size in fetching.listing(str(self), recursive=deep):
            fits = fnmatchcase(name, pattern.replace("**/", "*"))
            if size is not None and fits and (deep or "/" not in name):
                yield self / name

    def read_bytes(self) -> bytes:
        return RemoteFiles().whole(str(self))

    def open(self, mode: str = "rb") -> BufferedReader:
        if mode != "rb":
            raise ValueError(f"mode {mode!r}: what is written to a store is written whole")
        return BufferedReader(FileStream(files(), str(self)), _PIECE)

    def write_bytes(self, data: bytes | Path) -> None:
        """Make an object of these bytes, or of those of a file of this machine."""
        fetching.write(str(self), data)
        files().forget(str(self))

    def unlink(self, *, missing_ok: bool = False) -> None:
        with suppress(FileNotFoundError) if missing_ok else nullcontext():
            fetching.delete(str(self))

    def mkdir(self, *args: Any, **options: Any) -> None:
        """Do nothing: a folder of a store is there when something is in it."""

    chmod = rmdir = mkdir


class RemoteFiles(Files):
    """Files of stores, with the methods of `Files`.

    What a URL stands for is known by its ETag from when it was first asked for; another one is a
    `ShardError`. Small files are read whole, ranges go through the node cache.
    """

    remote = True

    def __init__(self) -> None:
        self._stats: dict[str, fetching.Stat] = {}
        self._small: Recent[str, bytes] = Recent(_KEPT, len)

    def __reduce__(self) -> tuple[Any, ...]:
        return files, ()

    def size(self, path: str) -> int:
        return self._stat(path).size

    def stamp(self, path: str) -> str:
        found = fetching.stat(path)
        return f"{found.size} {found.tag}"

    def _stat(self, path: str) -> fetching.Stat:
        return self._stats.get(path) or self._stats.setdefault(path, fetching.stat(path))

    def forget(self, path: str) -> None:
        self._stats.pop(path, None)  # what describes data may be written anew

    def read_ranges(
        self, path: str, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[bytes]:
        known = self._stat(path)
        for start, stop in zip(starts, stops, strict=True):
            if stop - start > limits.SAMPLE_BYTES:
                raise ShardError(f"{path}: {limits.over('SAMPLE_BYTES', stop - start)}")
            if stop > known.size:
                what = f"there are no bytes {start} to {stop}: it has {known.size}"
                raise OSError(errno.EINVAL, what, path)
        return iter(fetching.ranges(path, known, starts, stops))

    def kept(self, path: str) -> bytes:
        return self._small.get(path, lambda: self.read(path))

    def exists(self, path: str) -> bool:
        return path in self._stats or super().exists(path)

    def local(self, path: str) -> str:
        return _copy(path, self._stat(path).tag)

    def plan(self, path: str, starts: Sequence[int], stops: Sequence[int]) -> None:
        with suppress(OSError):  # told when it is read
            fetching.plan(path, self._stats.get(path), starts, stops)


@cache
def _copy(path: str, tag: str) -> str:
    """Return a copy, which goes with the process."""
    number, copy = tempfile.mkstemp(prefix="energize-")
    # Not by what this process has forked.
    Finalize(None, Path(copy).unlink, kwargs={"missing_ok": True}, exitpriority=0)
    with open(number, "wb") as made:
        made.writelines(files().pieces(path))
    return copy


@cache
def files() -> RemoteFiles:
    """Return what reads the files of all stores in this process."""
    return RemoteFiles()

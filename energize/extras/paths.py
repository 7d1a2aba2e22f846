"""Paths of files that may lie anywhere: universal_pathlib's, with the methods of
Energon's `EPath`.

`msc://` is the protocol of the Multi-Storage Client, which reads its own configuration.
"""

from __future__ import annotations

import errno
import inspect
import io
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from glob import has_magic
from pathlib import Path
from posixpath import normpath
from typing import IO, Any, cast

import fsspec.utils
from upath.extensions import ProxyUPath

from energize.core.os_errors import check_path
from energize.errors import ConfigError

__all__ = ["DEFAULT_PROFILE_NAME", "EPath"]

DEFAULT_PROFILE_NAME = "__filesystem__"
"""The profile of the local file system: `msc://__filesystem__/etc/hosts` is
`/etc/hosts`."""

_LOCAL = re.compile(rf"file://|msc://(default|{DEFAULT_PROFILE_NAME})(?=/)")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://")
_INSTALL = {
    "msc": "'energize[msc]'",
    "s3": "'energize[s3]'",
    "http": "aiohttp",
    "https": "aiohttp",
}


def _normalized_url(text: str, protocol: re.Match[str]) -> str:
    """Resolve `.` and `..` in the path of a URL, below its host or bucket."""
    if not {".", ".."} & set(text.split("/")):
        return text
    store, _, inside = text[protocol.end() :].partition("/")
    inside = normpath(inside)
    root = f"{protocol[0]}{store}"
    if inside.startswith(".."):
        raise ConfigError(f"{text} is outside of {root}. Pass a path inside it")
    return root if inside == "." else f"{root}/{inside}"


def _check_protocol(text: str, protocol: str) -> None:
    """Raise `ConfigError` if the library that reads the protocol is missing."""
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        library = _INSTALL.get(protocol)
        # What a library brings along is not known to fsspec without that library.
        if isinstance(error, ValueError) and library is None:
            message = f"{text}: the protocol {protocol}:// is not known: {error}"
            raise ConfigError(message) from error
        library = library or "the library it names"
        raise ConfigError(
            f"{text}: {error}. Install it with: pip install {library}"
        ) from error


class EPath(ProxyUPath, os.PathLike[str]):
    """A path of a file or folder that is local or remote, much like `pathlib.Path`.

    It is one of: a local path; `file://...`; `msc://PROFILE/...`, a store that the
    configuration of the Multi-Storage Client describes (needs `energize[msc]`);
    `dss://NAME@VERSION/...`, a folder below `NVDATASET_CACHE_DIR`; and the URLs of
    fsspec, such as `s3://BUCKET/...` (needs `energize[s3]`), `https://...` and
    `memory://...`.

    Local paths are made absolute. Paths are hashable and ordered, and pickled without
    credentials. Missing files raise FileNotFoundError, refused ones PermissionError, as
    in pathlib. Raise `ConfigError` for what cannot be a path, unknown protocols, and if
    a library is missing.

    >>> path = EPath("/data/shards") / "a.tar"
    >>> (
    ...     path.name,
    ...     path.stem,
    ...     path.suffix,
    ...     str(path.with_suffix(".idx")),
    ...     str(path.parent / "../b"),
    ... )
    ('a.tar', 'a', '.tar', '/data/shards/a.idx', '/data/b')
    """

    __slots__ = ()
    # `inspect` takes the `__wrapped__` of a proxy for that of a decorated function.
    __signature__ = inspect.signature(lambda initial_path: None)

    def __init__(self, initial_path: str | os.PathLike[str]) -> None:
        text = check_path(str(initial_path))
        if text.startswith("rclone://"):
            warnings.warn(
                "rclone:// is deprecated. Use msc://", FutureWarning, stacklevel=2
            )
            text = text.replace("rclone", "msc", 1)
        if text.startswith("dss://"):
            text = _dss_path(text)
        text = _LOCAL.sub("", text, count=1)
        url = None if isinstance(initial_path, Path) else _URL.match(text)
        if url is None:
            super().__init__(os.path.abspath(text))
            return
        text = _normalized_url(text, url)
        _check_protocol(text, url[1])
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            # It warns that msc:// has no class of its own. Folders are listed anew each
            # time.
            super().__init__(text, use_listings_cache=False)

    @property
    def url(self) -> str:
        """The path as text, from which `EPath` makes it again; of local ones without
        `file://`.
        """
        return str(self)

    @property
    def display_name(self) -> str:
        """The name of the path for messages."""
        return self.name

    def relative_to(self, other: EPath) -> str:  # type: ignore[override]
        """Return the path from `other`; raise `ConfigError` if it does not lie below
        it.
        """
        folder = f"{str(other).rstrip('/')}/"
        if not f"{self}/".startswith(folder):
            raise ConfigError(f"{self} is not below {other}")
        return str(self)[len(folder) :]

    def is_local(self) -> bool:
        """Return whether it is a path of this machine's file system."""
        return isinstance(self.__wrapped__, Path)

    def local_path(self) -> Path:
        """Return the path for `open` and the like; raise `ConfigError` if it is not
        local.
        """
        if not self.is_local():
            raise ConfigError(
                f"{self} is not a local path. Open it with its own methods"
            )
        return Path(str(self))

    def open(  # type: ignore[override]
        self,
        mode: str = "r",
        block_size: int | None = None,
        prefetch_file: bool = False,
    ) -> IO[Any]:
        """Open the file; text is UTF-8. Parent folders of a written file are created.

        Args:
            mode: As in `open`.
            block_size: Bytes per ranged read of a remote file.
            prefetch_file: Whether a remote file is read at once.
        """
        if not mode.startswith("r"):
            self.parent.mkdir(parents=True)
        options: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8"}
        if prefetch_file and mode in ("r", "rb"):
            whole = io.BytesIO(self.read_bytes())
            return io.TextIOWrapper(whole, **options) if options else whole
        if block_size is not None and self.protocol != "msc":
            options["block_size"] = block_size
        return cast("IO[Any]", self.fs.open(self.path, mode, **options))

    def read_text(self) -> str:  # type: ignore[override]
        """Return all of it, as UTF-8."""
        return self.read_bytes().decode("utf-8")

    def write_text(self, text: str) -> int:  # type: ignore[override]
        """Make it a file of this text, in UTF-8."""
        return self.write_bytes(text.encode("utf-8"))

    def write_bytes(self, data: bytes) -> int:
        """Make it a file of these bytes."""
        with self.open("wb") as file:
            return file.write(data)

    def copy(self, target: EPath) -> None:  # type: ignore[override]
        """Copy the file, or the folder with all files in it, to the path `target`,
        anywhere.

        Raise `ConfigError` if that is the file itself.
        """
        if not self.is_file():
            files = list(self.walk())
            if not files and not self.is_dir():
                raise FileNotFoundError(
                    errno.ENOENT, os.strerror(errno.ENOENT), str(self)
                )
            for file in files:
                file.copy(target / file.relative_to(self))
            return
        same = self.is_local() and target.is_local() and target.exists()
        if self == target or (same and os.path.samefile(self, target)):
            raise ConfigError(
                f"{self} cannot be copied to {target}: both are the same file"
            )
        with self.open("rb") as source, target.open("wb") as output:
            shutil.copyfileobj(source, output, 2**22)

    def move(self, target: EPath) -> None:  # type: ignore[override]
        """Copy it to `target`, or rename it if both are local, and remove it."""
        if self.is_local() and target.is_local():
            target.parent.mkdir(parents=True)
            os.replace(self, target)
            return
        files = [self] if self.is_file() else list(self.walk())
        self.copy(target)
        for file in files:
            file.unlink()

    def unlink(self) -> None:  # type: ignore[override]
        """Remove the file, if there is one."""
        super().unlink(missing_ok=True)

    def mkdir(  # type: ignore[override]
        self, exist_ok: bool = True, parents: bool = False
    ) -> None:
        """Make the folder. Stores of objects have none; there nothing is to be done."""
        if self.is_local():
            super().mkdir(parents=parents, exist_ok=exist_ok)

    def size(self) -> int:
        """Return the bytes of the file."""
        return int(self.stat().st_size)

    def walk(self) -> Iterator[EPath]:  # type: ignore[override]
        """Yield all files below it, sorted, also those behind links to folders."""
        return self.glob("**")

    def glob(self, pattern: str) -> Iterator[EPath]:  # type: ignore[override]
        """Yield all files below it that match, sorted; no folders. `**` stands for any
        folders.

        >>> [path.name for path in EPath("/").glob("etc/host[s]")]
        ['hosts']
        """
        first, _, rest = pattern.partition("/")
        if rest and not has_magic(first):
            yield from (self / first).glob(rest)
            return
        matching = re.compile(fsspec.utils.glob_translate(pattern)).fullmatch
        depth = None if "**" in pattern else pattern.count("/") + 1
        if self.is_local():
            names = _files_below(str(self), depth)
        else:
            folder = self.path.strip("/") + "/"
            found = (
                each.strip("/") for each in self.fs.find(self.path, maxdepth=depth)
            )
            names = (
                each.removeprefix(folder) for each in found if each.startswith(folder)
            )
        yield from (self / name for name in sorted(names) if matching(name))

    def __truediv__(self, other: str | os.PathLike[str]) -> EPath:
        text = str(other)
        inside = not (text.startswith("/") or _URL.match(text))
        return EPath(f"{str(self).rstrip('/')}/{text}" if inside else text)

    def __reduce__(self) -> tuple[type[EPath], tuple[str]]:
        return EPath, (str(self),)

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"EPath({str(self)!r})"


def _dss_path(text: str) -> str:
    """Return the path that `dss://NAME@VERSION/...` stands for."""
    dataset, slash, inside = text.removeprefix("dss://").partition("/")
    name, _, version = dataset.rpartition("@")
    if not name or not version or {name, version, *inside.split("/")} & {".", ".."}:
        raise ConfigError(
            f"{text} is not a valid dss path. Use dss://NAME@VERSION/..., without '.' "
            "and '..'"
        )
    folder = os.environ.get("NVDATASET_CACHE_DIR")
    if not folder:
        raise ConfigError(
            f"{text} needs the environment variable NVDATASET_CACHE_DIR. Set it"
        )
    return f"{folder.rstrip('/')}/{name}/{version}{slash}{inside}"


def _files_below(root: str, depth: int | None) -> Iterator[str]:
    """Yield local files up to `depth` levels below `root`, relative to it."""

    def refused(error: OSError) -> None:
        # A folder that cannot be listed is not an empty one; one that is not there has
        # no files.
        if error.errno not in (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.ELOOP,
            errno.ENAMETOOLONG,
        ):
            raise error

    above: dict[str, frozenset[str]] = {}
    for folder, folders, files in os.walk(root, onerror=refused, followlinks=True):
        inside = Path(folder).relative_to(root)
        real = os.path.realpath(folder)
        outer = above.pop(folder, frozenset[str]())
        if real in outer:  # a link to a folder that it is in
            folders.clear()
            continue
        if len(inside.parts) + 1 == depth:
            folders.clear()
        for name in folders:
            above[os.path.join(folder, name)] = outer | {real}
        folders.sort()
        yield from (str(inside / name) for name in files)

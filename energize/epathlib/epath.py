"""Paths of files that may lie anywhere."""

from __future__ import annotations

import io
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from functools import total_ordering
from pathlib import Path, PurePosixPath
from typing import IO, Any

from energize.epathlib.finding import PathInfo, files_below, info_of, resolved, split_pattern
from energize.epathlib.stores import file_system, profile_store, reaching
from energize.errors import ConfigError
from energize.late import fsspec
from energize.storage.faults import check_path

DEFAULT_PROFILE_NAME = "__filesystem__"
"""The profile of the local file system: `msc://__filesystem__/etc/hosts` is `/etc/hosts`."""

_LOCAL = frozenset({DEFAULT_PROFILE_NAME, "default"})
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)


@total_ordering
class EPath(os.PathLike[str]):
    """A path of a file or folder that is local or remote, much like `pathlib.Path`.

    A path is one of: a local path; `file://...`; `msc://PROFILE/...`, a store that a profile of the
    Multi-Storage Client or of rclone describes (see `energize.epathlib.profiles`);
    `dss://NAME@VERSION/...`, a folder below `NVDATASET_CACHE_DIR`; and the URLs of fsspec, such as
    `s3://BUCKET/...` (needs `energize[s3]`), `https://...` and `memory://...`.

    Paths are absolute and free of `.` and `..`; one that leads above the root, or can be no path,
    as with a NUL in it, is a `ConfigError`. They are hashable, ordered, and pickle without
    credentials: these are looked up where a path is used. Missing files raise FileNotFoundError,
    what is refused PermissionError, other faults of a disk OSError, as in pathlib, and a store that
    cannot be reached `DatasetError`.

    >>> path = EPath("/data/shards") / "a.tar"
    >>> path.name, path.stem, path.suffix, str(path.with_suffix(".idx")), str(path.parent / "../b")
    ('a.tar', 'a', '.tar', '/data/shards/a.idx', '/data/b')
    >>> (EPath("msc://store/bucket/x") / "y.tar").url
    'msc://store/bucket/x/y.tar'
    """

    __slots__ = ("internal_path", "profile", "scheme")

    internal_path: PurePosixPath
    """The path in its store, from its root."""
    profile: str
    """The profile of `msc://`, that of local paths being `DEFAULT_PROFILE_NAME`; else empty."""
    scheme: str
    """The protocol: "file", "msc", "dss", "s3", ..."""

    def __init__(self, initial_path: str | os.PathLike[str] | EPath) -> None:
        if isinstance(initial_path, EPath):
            self.scheme, self.profile = initial_path.scheme, initial_path.profile
            self.internal_path = initial_path.internal_path
            return
        text = check_path(os.fspath(initial_path))
        url = _URL.fullmatch(text) if isinstance(initial_path, str) else None
        self.scheme = url["scheme"] if url else "file"
        self.profile = ""
        rest = url["rest"] if url else text
        if self.scheme == "rclone":
            warnings.warn("rclone:// is deprecated; write msc://", FutureWarning, stacklevel=2)
            self.scheme = "msc"
        if self.scheme == "msc":
            self.profile, _, rest = rest.partition("/")
            if self.profile in _LOCAL:
                self.scheme, rest = "file", f"/{rest}"
        if self.scheme in ("file", "local"):
            self.scheme, self.profile = "file", DEFAULT_PROFILE_NAME
            rest = os.path.abspath(rest) if not rest.startswith("/") else rest
        self.internal_path = resolved(rest, text)
        if self.scheme == "dss":
            _dss_parts(self)

    # Names

    @property
    def name(self) -> str:
        """The last component."""
        return self.internal_path.name

    @property
    def stem(self) -> str:
        """The last component without its suffix."""
        return self.internal_path.stem

    @property
    def suffix(self) -> str:
        """The last suffix of the last component, with its dot."""
        return self.internal_path.suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The components of the path in its store, the first being "/"."""
        return self.internal_path.parts

    @property
    def parent(self) -> EPath:
        """The folder that it lies in; of the root, the root."""
        return self._with(self.internal_path.parent)

    @property
    def url(self) -> str:
        """The path as text, from which `EPath` makes it again; of local ones without `file://`."""
        if self.scheme == "file":
            return str(self.internal_path)
        rest = str(self.internal_path)
        return f"msc://{self.profile}{rest}" if self.scheme == "msc" else f"{self.scheme}:/{rest}"

    @property
    def display_name(self) -> str:
        """What to call it: its name, or of `dss://` the dataset with its version."""
        return self.internal_path.parts[1] if self.scheme == "dss" else self.name

    def with_suffix(self, suffix: str) -> EPath:
        """The path with another last suffix."""
        return self._with(self.internal_path.with_suffix(suffix))

    def with_name(self, name: str) -> EPath:
        """The path with another last component."""
        return self._with(self.internal_path.with_name(name))

    def relative_to(self, other: EPath) -> str:
        """The path from `other`; `ConfigError` when it does not lie below it."""
        if self._store != other._store or not self.internal_path.is_relative_to(
            other.internal_path
        ):
            raise ConfigError(f"{self} does not lie below {other}")
        return str(self.internal_path.relative_to(other.internal_path))

    def __truediv__(self, other: str | os.PathLike[str] | EPath) -> EPath:
        if isinstance(other, EPath):
            return other
        text = os.fspath(other)
        if text.startswith("/") or "://" in text:
            return EPath(text)
        return self._with(resolved(f"{self.internal_path}/{text}", f"{self} / {text}"))

    # The store

    @property
    def fs(self) -> Any:
        """The file system of fsspec that it lies in."""
        return self._located()[0]

    def is_local(self) -> bool:
        """Whether it is a path of this machine's file system."""
        fs, _ = self._located()
        return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)

    def local_path(self) -> Path:
        """The path for `open` and the like; `ConfigError` when it is not local."""
        if not self.is_local():
            raise ConfigError(f"{self} is not a local path; open it with its own methods")
        return Path(self._located()[1])

    def __fspath__(self) -> str:
        return str(self.local_path())

    # Files

    def open(
        self,
        mode: str = "r",
        block_size: int | None = None,
        prefetch_file: bool = False,
    ) -> IO[Any]:
        """The open file; text is UTF-8. Folders above a file that is written are made.

        Of remote files ranges are read as they are asked for, in blocks of `block_size` bytes; with
        `prefetch_file` the whole file at once.
        """
        fs, path = self._located()
        with reaching(self):
            if self.is_local():
                if not mode.startswith("r"):
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                return open(path, mode, encoding=None if "b" in mode else "utf-8")
            if prefetch_file and mode in ("r", "rb"):
                whole = io.BytesIO(fs.cat_file(path))
                return whole if mode == "rb" else io.TextIOWrapper(whole, encoding="utf-8")
            options: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8"}
            if block_size is not None:
                options["block_size"] = block_size
            return fs.open(path, mode, **options)  # type: ignore[no-any-return]

    def read_text(self) -> str:
        """All of it, as UTF-8."""
        return self.read_bytes().decode("utf-8")

    def read_bytes(self) -> bytes:
        """All of it."""
        fs, path = self._located()
        with reaching(self):
            return fs.cat_file(path)  # type: ignore[no-any-return]

    def write_text(self, text: str) -> None:
        """Makes it a file of this text, in UTF-8."""
        self.write_bytes(text.encode("utf-8"))

    def write_bytes(self, data: bytes) -> None:
        """Makes it a file of these bytes."""
        with reaching(self), self.open("wb") as file:
            file.write(data)

    def copy(self, target: EPath) -> None:
        """Copies the file, or the folder with all files in it, to the path `target`, anywhere.

        Raises `ConfigError` when that is what it is already.
        """
        if self._same_place(target):
            raise ConfigError(f"{self} cannot be copied to {target}: that is the file itself")
        if not self.is_file():
            files = list(self.walk())
            if not files and not self.is_dir():
                raise FileNotFoundError(f"{self} does not exist")
            for each in files:
                each.copy(target / each.relative_to(self))
            return
        with reaching(self), self.open("rb") as source, target.open("wb") as made:
            shutil.copyfileobj(source, made, 2**22)

    def move(self, target: EPath) -> None:
        """Copies it to `target`, or renames it where both are local, and removes it."""
        if self.is_local() and target.is_local():
            place = target.local_path()
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.local_path(), place)
            return
        files = [self] if self.is_file() else list(self.walk())
        self.copy(target)
        for each in files:
            each.unlink()

    def unlink(self) -> None:
        """Removes the file; nothing happens when there is none."""
        fs, path = self._located()
        with reaching(self):
            if self.is_local():
                Path(path).unlink(missing_ok=True)
            elif fs.exists(path):
                fs.rm_file(path)

    def mkdir(self, exist_ok: bool = True, parents: bool = False) -> None:
        """Makes the folder. Stores of objects have none; there nothing is to be done."""
        if self.is_local():
            self.local_path().mkdir(exist_ok=exist_ok, parents=parents)

    def is_file(self) -> bool:
        """Whether it is a file."""
        fs, path = self._located()
        with reaching(self):
            return bool(fs.isfile(path))

    def is_dir(self) -> bool:
        """Whether it is a folder; in a store of objects, whether there are files below it."""
        fs, path = self._located()
        with reaching(self):
            return bool(fs.isdir(path))

    def exists(self) -> bool:
        """Whether it is a file or a folder."""
        fs, path = self._located()
        with reaching(self):
            return bool(fs.exists(path))

    def size(self) -> int:
        """Bytes of the file."""
        return self.stat().content_length

    def stat(self) -> PathInfo:
        """What the store says of it now."""
        fs, path = self._located()
        with reaching(self):
            return info_of(fs.info(path))

    def walk(self) -> Iterator[EPath]:
        """All files below it, sorted; no folders. Links to folders are followed, once each."""
        yield from self._below(None)

    def glob(self, pattern: str) -> Iterator[EPath]:
        """All files below it that match, sorted; no folders. `**` stands for any folders.

        >>> [path.name for path in EPath("/").glob("etc/host[s]")]
        ['hosts']
        """
        fixed, rest = split_pattern(pattern)
        if not rest:
            path = self / fixed
            yield from [path] if path.is_file() else []
            return
        folder = self / fixed if fixed else self
        matching = re.compile(fsspec.utils.glob_translate(rest)).fullmatch
        depth = None if "**" in rest else rest.count("/") + 1
        yield from (each for each in folder._below(depth) if matching(each.relative_to(folder)))

    def _below(self, depth: int | None) -> Iterator[EPath]:
        """The files up to `depth` levels below, sorted."""
        if self.is_local():
            names = sorted(files_below(self.local_path(), depth))
        else:
            fs, path = self._located()
            with reaching(self):
                found = fs.find(path, maxdepth=depth)
            root = fs._strip_protocol(path).rstrip("/")
            inside = (str(fs._strip_protocol(each)) for each in found)
            names = sorted(each[len(root) + 1 :] for each in inside if each.startswith(f"{root}/"))
        yield from (self._with(self.internal_path / name) for name in names)

    def _same_place(self, other: EPath) -> bool:
        """Whether both are one file, whatever they are called."""
        if self.is_local() and other.is_local():
            return self.exists() and other.exists() and os.path.samefile(self, other)
        return self._located() == other._located()

    def _located(self) -> tuple[Any, str]:
        """The file system, and the path as it knows it."""
        inside = str(self.internal_path).lstrip("/")
        if self.scheme == "file":
            return file_system("file"), str(self.internal_path)
        if self.scheme == "dss":
            dataset, version = _dss_parts(self)
            place = _dataset_cache() / dataset / version
            return place._with(
                place.internal_path.joinpath(*self.internal_path.parts[2:])
            )._located()
        if self.scheme == "msc":
            fs, base = profile_store(self.profile)
            return fs, "/".join(part for part in (base.rstrip("/"), inside) if part) or "/"
        fs = file_system(self.scheme)
        return fs, str(fs._strip_protocol(self.url))

    @property
    def _store(self) -> tuple[str, str]:
        return self.scheme, self.profile

    def _with(self, internal_path: PurePosixPath) -> EPath:
        other = EPath(self)
        other.internal_path = internal_path
        return other

    # Values

    def __getstate__(self) -> tuple[str, str, str]:
        return self.scheme, self.profile, str(self.internal_path)

    def __setstate__(self, state: tuple[str, str, str]) -> None:
        self.scheme, self.profile, inside = state
        self.internal_path = PurePosixPath(inside)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EPath):
            return NotImplemented
        return (self._store, self.internal_path) == (other._store, other.internal_path)

    def __lt__(self, other: EPath) -> bool:
        return (self._store, self.internal_path) < (other._store, other.internal_path)

    def __hash__(self) -> int:
        return hash((self._store, self.internal_path))

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"EPath({self.url!r})"


def _dss_parts(path: EPath) -> tuple[str, str]:
    """Dataset and version of a `dss://` path."""
    first = path.internal_path.parts[1] if len(path.internal_path.parts) > 1 else ""
    dataset, _, version = first.rpartition("@")
    if not dataset or not version or {dataset, version} & {".", ".."}:
        raise ConfigError(
            f"dss:/{path.internal_path}: DSS paths must include a dataset version separated by "
            "'@': dss://NAME@VERSION/..."
        )
    return dataset, version


def _dataset_cache() -> EPath:
    if NVDATASET_CACHE_DIR is not None:
        return NVDATASET_CACHE_DIR
    if given := os.environ.get("NVDATASET_CACHE_DIR"):
        return EPath(given)
    raise ConfigError("dss:// paths need the environment variable NVDATASET_CACHE_DIR")


NVDATASET_CACHE_DIR: EPath | None = None
"""The folder of `dss://` datasets; None for that of the environment variable of this name."""

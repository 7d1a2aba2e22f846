"""Profiles: names for stores, with what it takes to reach them, in files of the user.

Those of the Multi-Storage Client are read (`MSC_CONFIG`, or `~/.msc_config.yaml` and the other
places where it looks), and remotes of rclone.
"""

from __future__ import annotations

import configparser
import errno
import io
import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import total_ordering
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import yaml

from energize.core.lazy import fsspec
from energize.data.writing import check_path
from energize.errors import ConfigError, DatasetError, EnergizeError, nearest

__all__ = ["DEFAULT_PROFILE_NAME", "EPath"]


_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_RCLONE_OPTIONS = {
    "region_name": "region",
    "endpoint_url": "endpoint",
    "base_path": "base_path",
    "profile_name": "profile_name",
}
_RCLONE_CREDENTIALS = {
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
}


@dataclass(frozen=True)
class Profile:
    """A store: its kind, what reaches it, and the file that says so. Secrets are not shown."""

    name: str
    file: str
    kind: str
    options: Mapping[str, Any] = field(repr=False)
    credentials_kind: str | None = None
    credentials: Mapping[str, Any] = field(default_factory=dict, repr=False)


def find_profile(name: str) -> Profile:
    """The profile of this name; `ConfigError` naming those there are, and where it was looked."""
    known: dict[str, str] = {}
    looked: list[str] = []
    for file, profiles in _files():
        looked.append(file)
        if name in profiles:
            return _profile(name, file, profiles[name])
        known |= dict.fromkeys(profiles, file)
    where = ", ".join(looked) or "no such file was found"
    raise ConfigError(
        f"msc://{name}/: there is no profile {name!r}{nearest(name, list(known))}; known are "
        f"{', '.join(sorted(known)) or 'none'} ({where}). Name the file with MSC_CONFIG, or add "
        "the profile to ~/.msc_config.yaml"
    )


def _files() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The profiles of each file in which some may be, the first one that has a name being right."""
    main = next((path for path in _msc_places() if path.is_file()), None)
    if main is not None:
        document = _document(main)
        yield str(main), _section(document, "profiles", main)
        for each in document.get("include") or ():
            included = main.parent / str(each)
            yield str(included), _section(_document(included), "profiles", included)
    remotes = next((path for path in _rclone_places() if path.is_file()), None)
    if remotes is not None:
        yield str(remotes), _rclone(remotes)


def _msc_places() -> Iterator[Path]:
    if given := os.environ.get("MSC_CONFIG"):
        yield Path(given)
    home = Path.home()
    folders = [home / ".config" / "msc", *_xdg_folders("msc")]
    if own := os.environ.get("XDG_CONFIG_HOME"):
        folders.insert(0, Path(own) / "msc")
    for stem in (home / ".msc_config", *(folder / "config" for folder in folders)):
        yield stem.with_name(f"{stem.name}.yaml")
        yield stem.with_name(f"{stem.name}.json")
    yield Path("/etc/msc_config.yaml")
    yield Path("/etc/msc_config.json")


def _xdg_folders(name: str) -> list[Path]:
    listed = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    return [Path(each) / name for each in listed.split(":") if each]


def _rclone_places() -> Iterator[Path]:
    if own := os.environ.get("XDG_CONFIG_HOME"):
        yield Path(own) / "rclone" / "rclone.conf"
    yield Path("/etc/rclone.conf")
    yield Path.home() / ".config" / "rclone" / "rclone.conf"
    yield Path.home() / ".rclone.conf"


def _document(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: profiles cannot be read: {error}") from error
    if document is not None and not isinstance(document, dict):
        raise ConfigError(f"{path}: expected a mapping with `profiles`, got {document!r:.80}")
    return document or {}


def _section(parent: Mapping[str, Any], name: str, where: Path | str) -> Mapping[str, Any]:
    section = parent.get(name) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{where}: `{name}` is a mapping, got a {type(section).__name__}")
    return section


def _rclone(path: Path) -> Mapping[str, Any]:
    """Remotes of rclone in the words of the Multi-Storage Client."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: remotes cannot be read: {error}") from error
    return {name: _remote(parser[name]) for name in parser.sections()}


def _remote(section: configparser.SectionProxy) -> dict[str, Any]:
    options = {
        ours: section[theirs] for ours, theirs in _RCLONE_OPTIONS.items() if theirs in section
    }
    secrets = {
        ours: section[theirs] for ours, theirs in _RCLONE_CREDENTIALS.items() if theirs in section
    }
    profile: dict[str, Any] = {
        "storage_provider": {"type": section.get("type", ""), "options": options}
    }
    if "access_key" in secrets:
        profile["credentials_provider"] = {"type": "S3Credentials", "options": secrets}
    return profile


def _profile(name: str, file: str, content: Any) -> Profile:
    where = f"{file}: profile {name!r}"
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is a mapping, got {content!r:.80}")
    storage = _section(content, "storage_provider", where)
    secrets = _section(content, "credentials_provider", where)
    if not storage.get("type"):
        raise ConfigError(
            f"{where} has no `storage_provider` with a `type`; bundles and profiles made of others "
            "are not read here"
        )
    return Profile(
        name=name,
        file=file,
        kind=str(storage["type"]),
        options=_expanded(_section(storage, "options", where), where),
        credentials_kind=str(secrets["type"]) if secrets.get("type") else None,
        credentials=_expanded(_section(secrets, "options", where), where),
    )


def _expanded(value: Any, where: str) -> Any:
    """`value` with `$VAR` and `${VAR}` in its texts replaced by what the environment says."""
    if isinstance(value, dict):
        return {key: _expanded(each, where) for key, each in value.items()}
    if isinstance(value, list):
        return [_expanded(each, where) for each in value]
    if not isinstance(value, str):
        return value
    missing = [a or b for a, b in _VARIABLE.findall(value) if (a or b) not in os.environ]
    if missing:
        raise ConfigError(f"{where} needs the environment variable {missing[0]}, which is not set")
    return _VARIABLE.sub(lambda match: os.environ[match[1] or match[2]], value)


# The file systems of fsspec that paths and profiles mean.

_log = logging.getLogger("energize")

_S3 = ("s3", "s8k")
_S3_OPTIONS = ("base_path", "endpoint_url", "profile_name", "region_name", "signature_version")
_SECRETS = {"key": "access_key", "secret": "secret_key", "token": "session_token"}
_EXTRAS = {"s3": "energize[s3]", "s3a": "energize[s3]", "http": "aiohttp", "https": "aiohttp"}


def file_system(protocol: str, **options: Any) -> Any:
    """The file system of a protocol; one object for equal options within a process.

    What lies in a folder is asked anew each time. Raises `ConfigError` for unknown protocols, and
    naming what to install.
    """
    try:
        return fsspec.filesystem(protocol, use_listings_cache=False, **options)
    except ImportError as error:
        install = _EXTRAS.get(protocol)
        hint = f"pip install {install!r}" if install else str(error)
        raise ConfigError(
            f"paths of {protocol}:// need another library ({error}): {hint}"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"paths of {protocol}:// are not known: {error}; known are local paths, file://, "
            "msc://PROFILE/, dss://, s3://, http(s):// and the other protocols of fsspec"
        ) from error


def profile_store(name: str) -> tuple[Any, str]:
    """The file system of a profile, and the path in it that `msc://name/` means."""
    profile = find_profile(name)
    base = str(profile.options.get("base_path") or "")
    if profile.kind == "file":
        return file_system("file"), base or "/"
    if profile.kind not in _S3:
        raise ConfigError(
            f"{profile.file}: profile {name!r} is of the type {profile.kind!r}, which is not read "
            f"through msc:// here, only s3, s8k and file; fsspec may have a protocol for it, such "
            "as gs://BUCKET/PATH"
        )
    return file_system("s3", **_s3_options(profile)), base


def _s3_options(profile: Profile) -> dict[str, Any]:
    if profile.credentials_kind not in (None, "S3Credentials"):
        raise ConfigError(
            f"{profile.file}: profile {profile.name!r} has credentials of the type "
            f"{profile.credentials_kind!r}; known is S3Credentials, and without any those of the "
            "environment and of ~/.aws are taken"
        )
    given = profile.options
    unused = [name for name in given if name not in _S3_OPTIONS]
    if unused:
        _log.info("profile %s: %s have no use here", profile.name, ", ".join(unused))
    client = {name: given[name] for name in ("endpoint_url", "region_name") if given.get(name)}
    options: dict[str, Any] = {
        ours: profile.credentials[theirs]
        for ours, theirs in _SECRETS.items()
        if profile.credentials.get(theirs)
    }
    if given.get("profile_name"):
        options["profile"] = given["profile_name"]
    if given.get("signature_version") == "UNSIGNED":
        options["anon"] = True
    return options | ({"client_kwargs": client} if client else {})


@contextmanager
def reaching(path: object) -> Iterator[None]:
    """Errors inside the block name `path`; those of a store's own library become `DatasetError`."""
    try:
        yield
    except EnergizeError:
        raise
    except OSError as error:
        plain = type(error) in (OSError, FileNotFoundError, PermissionError, TimeoutError)
        if error.filename is not None or not plain or str(error).startswith(str(path)):
            raise
        raise type(error)(f"{path}: {error}") from error
    except Exception as error:
        raise DatasetError(
            f"{path} cannot be reached: {type(error).__name__}: {error}; look at the address and "
            "the credentials of its profile or environment"
        ) from error


# Making paths plain, and finding files.

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathInfo:
    """What a store says of a file: its size in bytes, and when it was last changed if it knows."""

    key: str
    type: Literal["file", "directory"]
    content_length: int
    last_modified: datetime | None = None


def info_of(found: Mapping[str, Any]) -> PathInfo:
    """What a file system of fsspec says of a file, in one form."""
    changed = found.get("LastModified") or found.get("last_modified") or found.get("mtime")
    if isinstance(changed, int | float):
        changed = datetime.fromtimestamp(changed, UTC)
    return PathInfo(
        key=str(found["name"]),
        type="directory" if found["type"] == "directory" else "file",
        content_length=int(found.get("size") or 0),
        last_modified=changed if isinstance(changed, datetime) else None,
    )


def resolved(path: str, shown: str) -> PurePosixPath:
    """The absolute path without `.` and `..`; `ConfigError` for `shown` when it leaves the root.

    >>> str(resolved("a/./b/../c", "a path"))
    '/a/c'
    """
    parts: list[str] = []
    for part in PurePosixPath("/" + path.lstrip("/")).parts[1:]:
        if part == ".." and not parts:
            raise ConfigError(f"{shown} leads above the root of its store")
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath("/", *parts)


def split_pattern(pattern: str) -> tuple[str, str]:
    """The folders that a pattern begins with, and the rest from the first with a wildcard on.

    >>> split_pattern("parts/2024/**/*.tar")
    ('parts/2024', '**/*.tar')
    """
    parts = pattern.split("/")
    first = next((i for i, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    return "/".join(parts[:first]), "/".join(parts[first:])


def _refused(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one; one that is not there has no files."""
    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        raise error


def files_below(root: Path, depth: int | None) -> Iterator[str]:
    """Local files up to `depth` levels below `root`, relative to it.

    Links to folders are followed; a folder that was met before is not entered again.
    """
    seen: set[str] = set()
    for folder, folders, files in os.walk(root, onerror=_refused, followlinks=True):
        inside = Path(folder).relative_to(root)
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        if depth is not None and len(inside.parts) + 1 >= depth:
            folders.clear()
        folders.sort()
        yield from (str(inside / name) for name in files)


# Paths of files that may lie anywhere.

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

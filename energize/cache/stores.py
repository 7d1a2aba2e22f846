"""Stores over plain folders and files of JSON lines, and stores around others."""

from __future__ import annotations

import errno
import os
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from energize.cache.base import FileStore, FileStoreDecoder
from energize.cache.media_table import MediaTable
from energize.epathlib import EPath
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    EmptyDatasetError,
    ShardError,
)
from energize.media.metadata import MediaMetadataBase
from energize.samples.source_info import SourceInfo
from energize.storage.faults import check_path, is_path, os_errors_as, own_errors, told
from energize.storage.files import FileStream, LocalFile
from energize.storage.indexed_jsonl import IndexedJsonl
from energize.storage.nv_meta_files import META_FOLDER

T = TypeVar("T")

_NO_SUCH_FILE = (
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENXIO,
)

StorePath = str | os.PathLike[str]


class SystemFileStore(FileStore[bytes]):
    """The files below the folder `base_dir`, by their paths relative to it.

    What a key names stays below the folder: `..`, absolute names and links that lead out of it are
    a `DataError`, and so are folders, pipes and devices. Without a `base_dir` keys are paths of
    this machine, any of them: only for keys that the program makes itself.

    Raises `DatasetNotFoundError` when the folder does not exist.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("hello")
    >>> SystemFileStore(folder).get("a.txt")
    b'hello'
    """

    @own_errors
    def __init__(self, base_dir: StorePath | None = None) -> None:
        self.base_dir = None if base_dir is None else local_path(base_dir)
        if self.base_dir is not None and not self.base_dir.is_dir():
            raise DatasetNotFoundError(f"{self.base_dir} does not exist, or is no folder")

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        base = self.get_path()
        source = SourceInfo(dataset_path=base, index=key, shard_name=base, file_names=(key,))
        with self.open(key) as file:
            return file.read(), source

    def get_path(self) -> str:
        """The folder; nothing without one."""
        return "" if self.base_dir is None else str(self.base_dir)

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """What `energize prepare-media` found of the file; `DataError` when it found none."""
        return self._media.of(key)

    def _located(self, key: str) -> str:
        """The path of a file, links followed."""
        if not key or not is_path(key):
            raise DataError(f"{self}: {key!r} is no name of a file")
        if self._base is None:
            return os.path.realpath(key)
        if os.path.isabs(key) or ".." in key.split("/"):
            raise DataError(
                f"{self}: the name {key!r} may lead out of the folder, and only files below it are "
                "read; give paths relative to the folder, without '..'"
            )
        real = os.path.realpath(os.path.join(self._base, key))
        if not real.startswith(os.path.join(self._base, "")):
            raise DataError(
                f"{self}: {key!r} is a link, or lies behind one, that leads out of the folder, to "
                f"{real}; copy the file into the folder"
            )
        return real

    def open(self, key: str) -> BinaryIO:
        """The file `key`, open for reading.

        Raises `DataError` where no file has that name, and `DatasetError` for one that the disk, or
        who may read it, does not give: that is no fault of the sample.
        """
        path = self._located(key)
        try:
            file = LocalFile(path, flags=os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in _NO_SUCH_FILE:
                raise DatasetError(told(error, path)) from error
            if error.errno == errno.EINVAL:
                raise DataError(f"{self}: {key!r} is no regular file") from error
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            what = "there is no such file" if missing else error.strerror
            raise DataError(f"{self}: {key!r} cannot be read: {what}") from error
        return BufferedReader(FileStream(file))

    @cached_property
    def _base(self) -> str | None:
        return None if self.base_dir is None else os.path.realpath(self.base_dir)

    @cached_property
    def _media(self) -> MediaTable:
        return MediaTable((self.base_dir or Path("/")) / META_FOLDER, self.get_path())

    def __getstate__(self) -> dict[str, Any]:
        return {"base_dir": self.base_dir}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SystemFileStore) and self.base_dir == other.base_dir

    def __hash__(self) -> int:
        return hash(self.base_dir)

    def __repr__(self) -> str:
        return f"SystemFileStore({self.get_path()})"


class JsonlFileStore(FileStore[bytes]):
    """The lines of an indexed `.jsonl` file, by number: `"7"` and `"7.json"` are sample 7.

    The content is the line as bytes; a `DecodeFileStore` around makes it a value, of `"7.json"`.

    Raises `DatasetNotFoundError`, `NotPreparedError` without an index and `ShardError` for one that
    does not fit; asking for a sample that is not there is a `DataError`.

    >>> import tempfile
    >>> from energize.prepare.jsonl import prepare_jsonl
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> _ = prepare_jsonl(path)
    >>> JsonlFileStore(path).get("1")
    b'{"text": "b"}'
    """

    @own_errors
    def __init__(self, jsonl_path: StorePath) -> None:
        self.path = local_path(jsonl_path)
        if not self.path.is_file():
            raise DatasetNotFoundError(f"{self.path} does not exist, or is no file")
        self._count = IndexedJsonl(str(self.path)).count()
        if not self._count:
            raise EmptyDatasetError(f"{self.path} has no samples")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        digits = key.removesuffix(".json")
        # Only the number as the key of a sample has it: isdigit alone takes "٣" and "007" too.
        known = digits.isascii() and digits.isdigit() and len(digits) < 20
        if not known or int(digits) >= self._count or str(int(digits)) != digits:
            raise DataError(
                f"{self.path} has no sample {key!r}: its keys are '0' to '{self._count - 1}', "
                "each also with '.json'"
            )
        source = SourceInfo(
            dataset_path=str(self.path),
            index=int(digits),
            shard_name=self.path.name,
            file_names=(f"{digits}.json",),
        )
        with os_errors_as(ShardError, self.path):
            return self._file.lines([int(digits)])[0], source

    def get_path(self) -> str:
        """The file."""
        return str(self.path)

    @cached_property
    def _file(self) -> IndexedJsonl:
        return IndexedJsonl(str(self.path))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_count": self._count}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonlFileStore) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"JsonlFileStore({self.path})"


class DecodeFileStore(FileStore[Any]):
    """What another store holds, decoded by the names of the files.

    >>> from energize import SampleDecoder
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.json").write_text('{"n": 1}')
    >>> DecodeFileStore(SystemFileStore(folder), decoder=SampleDecoder()).get("a.json")
    {'n': 1}
    """

    def __init__(self, inner: FileStore[bytes], *, decoder: FileStoreDecoder) -> None:
        if not isinstance(decoder, FileStoreDecoder):
            raise ConfigError(
                "DecodeFileStore: decoder is a SampleDecoder, or has a method decode(name, data); "
                f"got {decoder!r}"
            )
        self.inner = inner
        self.decoder = decoder

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        data, source = self.inner[key]
        return self.decoded(key, data), source

    def get_path(self) -> str:
        """That of the store inside."""
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """As the store inside knows it."""
        return self.inner.get_media_metadata(key)

    def raw(self, key: str) -> tuple[Any, SourceInfo]:
        """The bytes that are decoded."""
        return self.inner.raw(key)

    def decoded(self, key: str, raw: Any) -> Any:
        """The content of the file, of its bytes."""
        try:
            return self.decoder.decode(key, self.inner.decoded(key, raw))
        except DataError as reason:
            raise type(reason)(f"{self.inner}: {reason}") from reason

    def resolved(self, key: str) -> tuple[FileStore[Any], str]:
        """A decoding store around what the inner one resolves to."""
        store, name = self.inner.resolved(key)
        kept = store is self.inner
        return (self if kept else DecodeFileStore(store, decoder=self.decoder)), name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DecodeFileStore):
            return NotImplemented
        return (self.inner, self.decoder) == (other.inner, other.decoder)

    def __hash__(self) -> int:
        return hash(self.inner)

    def __repr__(self) -> str:
        return f"DecodeFileStore({self.inner})"


class PrimaryFileStore(FileStore[T]):
    """The store of the folder that the current sample is from: `".jpg"` is a part of that sample.

    Keys that begin with a dot have `current_key` put before them; all others are names of files as
    the store inside has them.
    """

    def __init__(self, inner: FileStore[T], current_key: str) -> None:
        self.inner = inner
        self.current_key = current_key

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        return self.inner[self._full(key)]

    def get_path(self) -> str:
        """That of the store inside."""
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """As the store inside knows it."""
        return self.inner.get_media_metadata(self._full(key))

    def resolved(self, key: str) -> tuple[FileStore[T], str]:
        """The store inside, and the full name."""
        return self.inner.resolved(self._full(key))

    def raw(self, key: str) -> tuple[Any, SourceInfo]:
        """As the store inside has it."""
        return self.inner.raw(self._full(key))

    def decoded(self, key: str, raw: Any) -> T:
        """As the store inside decodes it."""
        return self.inner.decoded(self._full(key), raw)

    def _full(self, key: str) -> str:
        return f"{self.current_key}{key}" if key.startswith(".") else key

    def __repr__(self) -> str:
        return f"PrimaryFileStore({self.inner}, {self.current_key!r})"


def local_path(path: StorePath) -> Path:
    """A path of this machine; `ConfigError` for a place that is not mounted here."""
    if isinstance(path, EPath):
        if path.is_local():
            return Path(path.local_path())
        text = str(path)
    else:
        text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        raise ConfigError(
            f"{text}: stores read files of local and mounted file systems only; copy the folder, "
            "or mount the bucket, and give that path"
        )
    return Path(check_path(text.removeprefix("file://")))

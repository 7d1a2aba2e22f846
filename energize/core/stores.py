"""File stores, lazy references and cache pools: what hooks and loaders know of them.

Stores of real folders and the pool that fetches files ahead are in
`energize.extras.cache`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from energize.core.media import MediaMetadata
from energize.core.samples import SourceInfo
from energize.errors import ConfigError, DataError, LoaderError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FileStore(ABC, Generic[T_co]):
    """Files by name: `store[key]` returns the content of a file and where it came from.

    Subclasses define `__getitem__` and `get_path`. A store opens what it needs at first
    use, may be pickled, and is used by several threads.

    >>> class Words(FileStore[bytes]):
    ...     def __getitem__(self, key):
    ...         source = SourceInfo(
    ...             dataset_path="words",
    ...             index=key,
    ...             shard_name="words",
    ...             file_names=(key,),
    ...         )
    ...         return key.upper().encode(), source
    ...
    ...     def get_path(self):
    ...         return "words"
    >>> sample = {"__key__": "000"}
    >>> Words().get("a", sample), sample["__sources__"][0].file_names
    (b'A', ('a',))
    """

    @abstractmethod
    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """Return the content of the file `key` and its source; raise `DataError`
        without one.
        """

    @abstractmethod
    def get_path(self) -> str:
        """Return where the files are, for messages and sources."""

    def get(self, key: str, sample: Any = None) -> T_co:
        """Return the content of the file `key`, and add its source to a sample or crude
        sample.
        """
        content, source = self[key]
        add_source(sample, source)
        return content

    def get_media_metadata(self, key: str) -> MediaMetadata:
        """Return what is known of the image, video or sound `key` without reading it.

        Raise `ConfigError` if the store keeps no metadata, `DataError` if it has none
        of the file.
        """
        raise ConfigError(
            f"{self} has no media metadata. Use a prepared or plain folder after "
            "`energize prepare-media`"
        )

    def raw(self, key: str) -> tuple[Any, SourceInfo]:
        """Return what `decoded` makes the content of, as a cache keeps it on disk."""
        return self[key]

    def decoded(self, key: str, raw: Any) -> T_co:
        """Return the content of the file `key`, given its `raw` one."""
        return raw  # type: ignore[no-any-return]

    def resolved(self, key: str) -> tuple[FileStore[T_co], str]:
        """Return the store that holds the file for any sample, and the name of the file
        there.
        """
        return self, key


def add_source(sample: Any, source: SourceInfo | None) -> None:
    """Add `source` to the `__sources__` of a sample or dict, unless it is there
    already.

    Raise `ConfigError` for an object that cannot have sources.

    >>> sample = {"__key__": "000"}
    >>> add_source(
    ...     sample, SourceInfo(dataset_path="", index=0, shard_name="", file_names=())
    ... )
    >>> len(sample["__sources__"])
    1
    """
    if sample is None or source is None:
        return
    is_dict = isinstance(sample, dict)
    previous = (
        sample.get("__sources__") if is_dict else getattr(sample, "__sources__", None)
    )
    if source in (previous or ()):
        return
    sources = (*(previous or ()), source)
    if is_dict:
        sample["__sources__"] = sources
        return
    try:
        sample.__sources__ = sources
    except AttributeError as reason:
        raise ConfigError(
            f"a source needs a Sample or a dict, but a {type(sample).__name__} "
            "has no __sources__ that can be set. Pass the sample of the hook, or "
            "None"
        ) from reason


# Stores around others.


@runtime_checkable
class FileStoreDecoder(Protocol):
    """Decodes files by their names; `SampleDecoder` does."""

    def decode(self, name: str, data: bytes, /) -> Any:
        """Return the content of the file `name` that holds `data`."""


@dataclass(frozen=True, repr=False)
class DecodeFileStore(FileStore[Any]):
    """The files of another store, decoded by their names.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from energize import SampleDecoder
    >>> from energize.stores import SystemFileStore
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.json").write_text('{"n": 1}')
    >>> DecodeFileStore(SystemFileStore(folder), decoder=SampleDecoder()).get("a.json")
    {'n': 1}
    """

    inner: FileStore[bytes]
    decoder: FileStoreDecoder = field(kw_only=True, hash=False)

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        data, source = self.inner[key]
        return self.decoded(key, data), source

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self.inner.get_media_metadata(key)

    def raw(self, key: str) -> tuple[Any, SourceInfo]:
        return self.inner.raw(key)

    def decoded(self, key: str, raw: Any) -> Any:
        try:
            return self.decoder.decode(key, self.inner.decoded(key, raw))
        except DataError as reason:
            raise type(reason)(f"{self.inner}: {reason}") from reason

    def resolved(self, key: str) -> tuple[FileStore[Any], str]:
        store, name = self.inner.resolved(key)
        unchanged = store is self.inner
        return (
            self if unchanged else DecodeFileStore(store, decoder=self.decoder)
        ), name

    def __repr__(self) -> str:
        return f"DecodeFileStore({self.inner})"


class PrimaryFileStore(FileStore[T]):
    """The store that the current sample is from: the key `".jpg"` is a part of that
    sample.

    Keys that begin with a dot follow `current_key`; all others are names in the store
    inside.
    """

    def __init__(self, inner: FileStore[T], current_key: str) -> None:
        self.inner = inner
        self.current_key = current_key

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        return self.inner[self._full(key)]

    def get_path(self) -> str:
        return self.inner.get_path()

    def get_media_metadata(self, key: str) -> MediaMetadata:
        return self.inner.get_media_metadata(self._full(key))

    def resolved(self, key: str) -> tuple[FileStore[T], str]:
        return self.inner.resolved(self._full(key))

    def _full(self, key: str) -> str:
        return f"{self.current_key}{key}" if key.startswith(".") else key

    def __repr__(self) -> str:
        return f"PrimaryFileStore({self.inner}, {self.current_key!r})"


# Lazy references, and the pools that make them.


class Lazy(Generic[T]):
    """A file that is read on demand: `get()` returns the same content each time.

    Cheap to keep in a packing buffer. Two references to one file are equal. In another
    process, pickled or forked, it reads the file itself.
    """

    def __init__(self, *, ds: FileStore[T], fname: str, pool: CachePool) -> None:
        self.ds = ds
        self.fname = fname
        self.pool = pool
        self._data: tuple[T, SourceInfo | None] | None = None

    def get(self, sample: Any = None) -> T:
        """Return the content, and add its source to those of `sample`."""
        if self._data is None:
            self._data = self._read()
        content, source = self._data
        add_source(sample, source)
        return content

    def _read(self) -> tuple[T, SourceInfo | None]:
        return self.ds[self.fname]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and (self.ds, self.fname) == (
            other.ds,
            other.fname,
        )

    def __hash__(self) -> int:
        return hash((self.ds.get_path(), self.fname))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fname!r} of {self.ds})"

    def __reduce__(self) -> tuple[Any, ...]:
        ds = HeldStore(self.get()) if isinstance(self.ds, HeldStore) else self.ds
        return _unpickled, (ds, self.fname)


DirectLazy = Lazy


class CachePool(ABC):
    """Brings files near before they are used."""

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """Return the content of the file `fname` of the store `ds`, now."""
        return ds.get(fname, sample)

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """Return a reference to the file `fname` of the store `ds`, which may be
        fetched ahead.
        """

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """Return a reference to data, which may be stored elsewhere until it is loaded.

        Args:
            data: Bytes, or any picklable object.
            name: The name of the data, for messages.
        """

    def close(self) -> None:  # noqa: B027 - most pools hold nothing
        """Give back all that is held; references still read their files. May be called
        twice.
        """


def _unpickled(ds: FileStore[T], fname: str) -> Lazy[T]:
    return Lazy(ds=ds, fname=fname, pool=NoCachePool())


class HeldStore(FileStore[Any]):
    """Stands for the store of what was put into a pool and is in no file: it holds the
    content.

    `clear` is for a pool that has put the content elsewhere.
    """

    def __init__(self, content: Any) -> None:
        self._content: tuple[Any, ...] = (content,)

    def clear(self) -> None:
        self._content = ()

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        if not self._content:
            raise LoaderError(
                f"{key!r} was put into a cache pool that has been closed, belongs to "
                "another process, or whose files were changed or removed. Put it "
                "there again"
            )
        return self._content[0], None  # type: ignore[return-value]

    def get_path(self) -> str:
        return "memory"

    def __repr__(self) -> str:
        return "memory"


class NoCachePool(CachePool):
    """Reads every file when it is needed, and keeps nothing on disk.

    >>> lazy = NoCachePool().to_cache([1, 2], "numbers")
    >>> lazy.get(), lazy.get()
    ([1, 2], [1, 2])
    """

    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        store, name = ds.resolved(fname)
        return Lazy(ds=store, fname=name, pool=self)

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        return Lazy(ds=HeldStore(data), fname=name, pool=self)


# The pool of the loader that is running.

_NO_CACHE = NoCachePool()
_current: ContextVar[CachePool] = ContextVar("energize_cache_pool")


@contextmanager
def activate(pool: CachePool | None) -> Iterator[None]:
    """Make `pool` the one of all hooks that are called within the block, in this
    thread.

    None leaves the current one. Blocks may be nested. The pool is not closed at the
    end.

    >>> pool = NoCachePool()
    >>> with activate(pool):
    ...     active_pool() is pool
    True
    """
    token = None if pool is None else _current.set(pool)
    try:
        yield
    finally:
        if token is not None:
            _current.reset(token)


def active_pool() -> CachePool:
    """Return the cache pool of the loader that calls the hook, in its workers too.

    Outside of one, a `NoCachePool`: files are read when they are needed.
    """
    return _current.get(_NO_CACHE)

"""What stores of files, cache pools and lazy references are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from energize.errors import ConfigError
from energize.media.metadata import MediaMetadataBase
from energize.samples.source_info import SourceInfo

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class FileStore(ABC, Generic[T_co]):
    """Files by name, read at random: `store[key]` is the content and where it came from.

    Subclasses give `__getitem__` and `get_path`. A store opens what it needs when it is first
    asked, and may be copied to other processes and used by several threads.

    >>> class Words(FileStore[bytes]):
    ...     def __getitem__(self, key):
    ...         source = SourceInfo(
    ...             dataset_path="words", index=key, shard_name="words", file_names=(key,)
    ...         )
    ...         return key.upper().encode(), source
    ...     def get_path(self):
    ...         return "words"
    >>> sample = {"__key__": "000"}
    >>> Words().get("a", sample), sample["__sources__"][0].file_names
    (b'A', ('a',))
    """

    @abstractmethod
    def __getitem__(self, key: str) -> tuple[T_co, SourceInfo]:
        """The content of the file `key` and its source; `DataError` when there is no such file."""

    @abstractmethod
    def get_path(self) -> str:
        """Where the files are, for messages and sources."""

    def get(self, key: str, sample: Any = None) -> T_co:
        """The content of the file `key`; its source is added to those of `sample`, if given.

        `sample` is a `Sample`, or a dict such as a crude sample.
        """
        content, source = self[key]
        add_source(sample, source)
        return content

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """What is known of the image, video or sound `key` without reading it.

        Raises `ConfigError` for a store that keeps no metadata, `DataError` for a file it knows
        nothing of.
        """
        raise ConfigError(
            f"{self} keeps no media metadata; prepared folders and plain folders do, after "
            "`energize prepare-media`"
        )

    def raw(self, key: str) -> tuple[Any, SourceInfo]:
        """What `decoded` makes the content of; a cache keeps it on disk."""
        return self[key]

    def decoded(self, key: str, raw: Any) -> T_co:
        """The content of the file `key`, of what `raw` gave."""
        return raw  # type: ignore[no-any-return]

    def resolved(self, key: str) -> tuple[FileStore[T_co], str]:
        """The store that holds the file whatever sample asks for it, and the file's name there."""
        return self, key


@runtime_checkable
class FileStoreDecoder(Protocol):
    """What decodes files by their names; `SampleDecoder` does."""

    def decode(self, name: str, data: bytes, /) -> Any:
        """The content of the file `name` that holds `data`."""


class Lazy(ABC, Generic[T]):
    """A file that is read when it is needed: `get()` gives its content, the same each time.

    Cheap to keep in a packing buffer. Equal when it stands for the same file. Pickled, or met in a
    forked process, it reads the file itself.
    """

    ds: FileStore[T]
    fname: str
    pool: CachePool

    @abstractmethod
    def get(self, sample: Any = None) -> T:
        """The content; its source is added to those of `sample`, if given."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and (self.ds, self.fname) == (other.ds, other.fname)

    def __hash__(self) -> int:
        return hash((self.ds.get_path(), self.fname))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fname!r} of {self.ds})"


class CachePool(ABC):
    """Brings files near ahead of their use."""

    @abstractmethod
    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file `fname` of the store `ds`, now."""

    @abstractmethod
    def get_lazy(self, ds: FileStore[T], fname: str) -> Lazy[T]:
        """A reference to the file `fname` of the store `ds`, which may be fetched meanwhile."""

    @abstractmethod
    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """A reference to `data`, which may be put away until it is asked for.

        `name` is what messages call it. What is not bytes has to be picklable.
        """

    def close(self) -> None:  # noqa: B027 - most pools hold nothing
        """Give back all that is held; references still read their files. Twice is no error."""


def add_source(sample: Any, source: SourceInfo | None) -> None:
    """Add `source` to the `__sources__` of a sample or dict, unless it is there already.

    Raises `ConfigError` for an object that can have no sources.

    >>> sample = {"__key__": "000"}
    >>> add_source(sample, SourceInfo(dataset_path="", index=0, shard_name="", file_names=()))
    >>> len(sample["__sources__"])
    1
    """
    if sample is None or source is None:
        return
    is_dict = isinstance(sample, dict)
    known = sample.get("__sources__") if is_dict else getattr(sample, "__sources__", None)
    if source in (known or ()):
        return
    sources = (*(known or ()), source)
    if is_dict:
        sample["__sources__"] = sources
        return
    try:
        sample.__sources__ = sources
    except AttributeError as reason:
        raise ConfigError(
            f"a source is added to a Sample or a dict, and a {type(sample).__name__} has no "
            "__sources__ that can be set; pass the sample that the hook was given, or none"
        ) from reason

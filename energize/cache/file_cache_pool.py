"""A cache pool on a local disk."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any, Literal, TypeVar

from energize.cache.base import CachePool, FileStore, Lazy, add_source
from energize.cache.entries import Entry, Limits
from energize.cache.fetching import Fetcher
from energize.cache.no_cache import HeldStore, in_memory, unpickled_lazy
from energize.cache.stores import StorePath, local_path
from energize.errors import ConfigError
from energize.numbers import checked_whole
from energize.samples.source_info import SourceInfo

T = TypeVar("T")

_GIGABYTE = 1024**3
_METHODS = ("raw", "pickle")


class FileStoreCachePool(CachePool):
    """Fetches files to a local disk in the background, from when they are referred to until they
    are used.

    `parent_cache_dir` is where each process makes a folder of its own (by default where temporary
    files are). `num_workers` threads fetch, in the order of the calls of `get_lazy`. `method` is
    what lies there: "raw" the bytes as stored, decoded when they are used; "pickle" what they were
    decoded to. At most `max_cache_size_gbytes` (of 1024**3 bytes) and `max_cache_count` files lie
    there at once in each process, those of `to_cache` among them: when it is full, fetching waits,
    and who needs a file reads it from its store.

    References to one file share it; it is removed when the last has been used or dropped. Nothing
    is left behind: not when the pool is closed, nor at the end of a process, and what a killed
    process leaves is removed by the next pool with the same parent. The pool may be used by several
    threads, forked and pickled; each process begins with an empty one.

    Raises `ConfigError` for wrong arguments, and when the folder cannot be made, at first use.

    >>> import contextlib
    >>> from energize.cache import SystemFileStore
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("hello")
    >>> with contextlib.closing(FileStoreCachePool(num_workers=1)) as pool:
    ...     lazy = pool.get_lazy(SystemFileStore(folder), "a.txt")
    ...     lazy.get(), lazy.get()
    (b'hello', b'hello')
    """

    def __init__(
        self,
        *,
        parent_cache_dir: StorePath | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1024,
        max_cache_count: int = 10_000_000,
        method: Literal["raw", "pickle"] = "raw",
    ) -> None:
        if method not in _METHODS:
            raise ConfigError(f"FileStoreCachePool: method={method!r} is none of {_METHODS}")
        size = max_cache_size_gbytes
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < 2**40:
            raise ConfigError(
                f"FileStoreCachePool: max_cache_size_gbytes={size!r} is no number from 0 on"
            )
        given = tempfile.gettempdir() if parent_cache_dir is None else parent_cache_dir
        self._parent = local_path(given)
        self._limits = Limits(
            int(size * _GIGABYTE),
            checked_whole(max_cache_count, "FileStoreCachePool: max_cache_count", 0),
            checked_whole(num_workers, "FileStoreCachePool: num_workers", 1),
            method == "pickle",
        )
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._fetcher: Fetcher | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        _POOLS.add(self)

    @property
    def cache_dir(self) -> Path:
        """The folder of this process."""
        return self._opened().path

    @property
    def max_cache_size(self) -> int:
        """How many bytes may lie on disk at once."""
        return self._limits.size

    @max_cache_size.setter
    def max_cache_size(self, size: int) -> None:
        self._limits.size = checked_whole(size, "FileStoreCachePool: max_cache_size", 0)

    @property
    def max_cache_count(self) -> int:
        """How many files may lie on disk at once."""
        return self._limits.count

    @property
    def current_cache_size(self) -> int:
        """How many bytes lie on disk."""
        return 0 if self._fetcher is None else self._fetcher.size

    @property
    def current_cache_count(self) -> int:
        """How many files lie on disk."""
        return 0 if self._fetcher is None else self._fetcher.count

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file `fname` of the store `ds`, read now."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> FileCacheLazy[T]:
        """A reference to the file, which is being fetched from now on."""
        store, name = ds.resolved(fname)
        fetcher = self._opened()
        return FileCacheLazy(store, name, self, fetcher, fetcher.refer(store, name))

    def to_cache(self, data: T, name: str) -> Lazy[T]:
        """A reference to `data`, which is on disk meanwhile; in memory when there is no room."""
        fetcher = self._opened()
        store = HeldStore()
        entry = fetcher.put(data, name, store)
        if entry is None:
            return in_memory(data, name, self)
        return FileCacheLazy(store, name, self, fetcher, entry)

    def close(self) -> None:
        """Remove all files and end the threads. What is referred to is read from its store then.

        A pool that is used after it was closed begins anew.
        """
        with self._lock:
            fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.close()

    def _opened(self) -> Fetcher:
        with self._lock:
            fetcher = self._fetcher
            if fetcher is None or not fetcher.usable:
                fetcher = self._fetcher = Fetcher(self._parent, self._limits)
                if self._end is not None:
                    self._end.detach()
                self._end = weakref.finalize(self, fetcher.abandon)
            return fetcher

    def __getstate__(self) -> dict[str, Any]:
        return {"_parent": self._parent, "_limits": self._limits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        return f"FileStoreCachePool({self._parent})"


class FileCacheLazy(Lazy[T]):
    """A reference to a file that a `FileStoreCachePool` fetches.

    The first `get` uses the reference up: the file goes when all references to it have been. The
    content stays here, so each `get` gives the same.
    """

    def __init__(
        self,
        ds: FileStore[T],
        fname: str,
        pool: FileStoreCachePool,
        fetcher: Fetcher,
        entry: Entry,
    ) -> None:
        self.ds = ds
        self.fname = fname
        self.pool = pool
        self.entry = entry
        self._fetcher = fetcher
        self._counted = True
        self._data: tuple[T, SourceInfo | None] | None = None

    def get(self, sample: Any = None) -> T:
        """The content; its source is added to those of `sample`, if given."""
        if self._data is None:
            self._data = self._taken()
        content, source = self._data
        add_source(sample, source)
        return content

    def _taken(self) -> tuple[T, SourceInfo | None]:
        if self._counted and self._fetcher.usable:
            self._counted = False
            return self._fetcher.take(self.entry)
        return self.ds[self.fname]

    def __del__(self) -> None:
        if getattr(self, "_counted", False) and self._fetcher.usable:
            self._fetcher.drop(self.entry)

    def __reduce__(self) -> tuple[Any, ...]:
        held: tuple[T, SourceInfo | None] | None = None
        if isinstance(self.ds, HeldStore):
            held = (self.get(), None)
        return unpickled_lazy, (self.ds, self.fname, held)


_POOLS: weakref.WeakSet[FileStoreCachePool] = weakref.WeakSet()


def _forked() -> None:
    """A process that was forked has no part in what its parent has fetched."""
    for pool in list(_POOLS):
        pool._begin()


os.register_at_fork(after_in_child=_forked)

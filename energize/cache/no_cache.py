"""Lazy references without a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from energize.cache.base import CachePool, FileStore, Lazy, add_source
from energize.errors import LoaderError
from energize.samples.source_info import SourceInfo

T = TypeVar("T")


class NoCachePool(CachePool):
    """Reads every file when it is needed, and keeps nothing on disk.

    >>> lazy = NoCachePool().to_cache([1, 2], "numbers")
    >>> lazy.get(), lazy.get()
    ([1, 2], [1, 2])
    """

    def get(self, ds: FileStore[T], fname: str, sample: Any = None) -> T:
        """The content of the file `fname` of the store `ds`, now."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore[T], fname: str) -> DirectLazy[T]:
        """A reference to the file, which is read when it is first asked for its content."""
        store, name = ds.resolved(fname)
        return DirectLazy(ds=store, fname=name, pool=self)

    def to_cache(self, data: T, name: str) -> DirectLazy[T]:
        """A reference to `data`, which stays in memory."""
        return in_memory(data, name, self)


class DirectLazy(Lazy[T]):
    """A reference that reads the file itself, once, when it is first asked."""

    def __init__(
        self,
        *,
        ds: FileStore[T],
        fname: str,
        pool: CachePool,
        _data: tuple[T, SourceInfo | None] | None = None,
    ) -> None:
        self.ds = ds
        self.fname = fname
        self.pool = pool
        self._data = _data

    def get(self, sample: Any = None) -> T:
        """The content; its source is added to those of `sample`, if given."""
        if self._data is None:
            self._data = self.ds[self.fname]
        content, source = self._data
        add_source(sample, source)
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        held = self._data if isinstance(self.ds, HeldStore) else None
        return unpickled_lazy, (self.ds, self.fname, held)


def unpickled_lazy(
    ds: FileStore[T], fname: str, data: tuple[T, SourceInfo | None] | None
) -> DirectLazy[T]:
    """What a lazy reference is in the process that it was pickled for."""
    return DirectLazy(ds=ds, fname=fname, pool=NoCachePool(), _data=data)


class MockLazy(Lazy[T]):
    """A reference whose content a function of its name gives: for tests of hooks.

    >>> MockLazy("a.txt", lambda name: name.upper()).get()
    'A.TXT'
    """

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        self.ds = HeldStore()
        self.fname = fname
        self.pool = NoCachePool()
        self.get_fn = get_fn

    def get(self, sample: Any = None) -> T:
        """What the function gives for the name."""
        return self.get_fn(self.fname)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MockLazy):
            return NotImplemented
        return (self.fname, self.get_fn) == (other.fname, other.get_fn)

    def __hash__(self) -> int:
        return hash((self.fname, self.get_fn))


class HeldStore(FileStore[Any]):
    """Stands where a store is asked of something that never was in one."""

    def __getitem__(self, key: str) -> tuple[Any, SourceInfo]:
        raise LoaderError(
            f"{key!r} was put into a cache pool that has been closed, or belongs to another process"
        )

    def get_path(self) -> str:
        """No place."""
        return "memory"

    def __repr__(self) -> str:
        return "memory"


def in_memory(data: T, name: str, pool: CachePool) -> DirectLazy[T]:
    """A reference to what is in memory; equal to no other one."""
    return DirectLazy(ds=HeldStore(), fname=name, pool=pool, _data=(data, None))

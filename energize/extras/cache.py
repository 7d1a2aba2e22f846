"""A cache pool that fetches files to a local disk ahead of their use."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pickle
import shutil
import tempfile
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt

from energize.core.checks import checked_arguments, checked_whole
from energize.core.samples import SourceInfo
from energize.core.stores import (
    CachePool,
    DirectLazy,
    FileStore,
    HeldStore,
    NoCachePool,
    activate,
    active_pool,
)
from energize.data.stores import local_path
from energize.errors import ConfigError

__all__ = ["FileCacheLazy", "FileStoreCachePool", "MockLazy", "activate", "active_pool"]

T = TypeVar("T")
Content = tuple[Any, SourceInfo | None]

_log = logging.getLogger("energize")

_CLOSE_SECONDS = 5.0
"""How long `close` waits for reads that are under way."""
_NEW = f"energize-new-cache-{os.getuid()}-"
_LOCKED = f"energize-cache-{os.getuid()}-"


class FileStoreCachePool(CachePool):
    """Fetches files to a local disk in the background, before they are used.

    Every process has a folder of its own below `parent_cache_dir`. References to a file
    share it; it is removed when the last reference was used or dropped. If the folder
    is full, fetching waits, and a file that is needed is read from its store. The
    folder is removed when the pool is closed and when the process ends; a folder of a
    killed process is removed by the next pool with the same parent. A pool may be used
    by several threads, forked and pickled; every process starts with an empty pool.

    Args:
        parent_cache_dir: Parent folder; None is the folder of temporary files.
        num_workers: Threads that fetch, in the order of the calls of `get_lazy`.
        max_cache_size_gbytes: Capacity in units of 1024**3 bytes, per process.
        max_cache_count: Maximum number of files, per process.
        method: "raw" stores bytes, which are decoded when used; "pickle" stores decoded
            values.

    Raises:
        ConfigError: For invalid arguments and, at first use, if the folder cannot be
            made.

    Example:
        >>> from energize.stores import SystemFileStore
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_text("hello")
        >>> with contextlib.closing(FileStoreCachePool(num_workers=1)) as pool:
        ...     lazy = pool.get_lazy(SystemFileStore(folder), "a.txt")
        ...     lazy.get(), lazy.get()
        (b'hello', b'hello')
    """

    @checked_arguments
    def __init__(
        self,
        *,
        parent_cache_dir: Any = None,
        num_workers: PositiveInt = 8,
        max_cache_size_gbytes: Annotated[float, Field(ge=0, lt=2**40)] = 1024,
        max_cache_count: NonNegativeInt = 10_000_000,
        method: Literal["raw", "pickle"] = "raw",
    ) -> None:
        self._settings = _Settings(
            local_path(
                tempfile.gettempdir() if parent_cache_dir is None else parent_cache_dir
            ),
            num_workers,
            int(max_cache_size_gbytes * 1024**3),
            max_cache_count,
            method == "pickle",
        )
        self._caches: dict[
            int, _Cache
        ] = {}  # by process, as a fork has that of its parent too

    @property
    def max_cache_size(self) -> int:
        """How many bytes may lie on disk at once."""
        return self._settings.size

    @max_cache_size.setter
    def max_cache_size(self, size: int) -> None:
        self._settings.size = checked_whole(
            size, "FileStoreCachePool: max_cache_size", 0
        )

    @property
    def cache_dir(self) -> Path:
        """The folder of this process."""
        return self.opened().folder

    @property
    def current_cache_size(self) -> int:
        """How many bytes lie on disk."""
        return self._held()[0]

    @property
    def current_cache_count(self) -> int:
        """How many files lie on disk."""
        return self._held()[1]

    def get_lazy(self, ds: FileStore[T], fname: str) -> FileCacheLazy[T]:
        """Return a reference to the file, which is fetched from now on."""
        return FileCacheLazy(*ds.resolved(fname), self)

    def to_cache(self, data: T, name: str) -> FileCacheLazy[T]:
        """Return a reference to `data`, put on disk as soon as there is room."""
        return FileCacheLazy(HeldStore(data), name, self)

    def close(self) -> None:
        """Remove all files and end the threads; references read their stores from then
        on.

        A pool that is used after it was closed begins anew.
        """
        cache = self._caches.pop(os.getpid(), None)
        if cache is not None:
            cache.close()

    def _held(self) -> tuple[int, int]:
        cache = self._caches.get(os.getpid())
        return (0, 0) if cache is None else cache.held()

    def opened(self) -> _Cache:
        """Return the files of this process."""
        # Of two threads that begin at once one is given what the other made; its own
        # goes.
        pid = os.getpid()
        return self._caches.get(pid) or self._caches.setdefault(
            pid, _Cache(self._settings)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings, "_caches": {}}


class FileCacheLazy(DirectLazy[T]):
    """A reference to a file that a `FileStoreCachePool` fetches.

    The first `get` uses the reference up: the file is removed when all references to it
    have been. The content stays here, so each `get` returns the same.

    Args:
        ds: The store.
        fname: The file in it.
        pool: The pool.
        entry: The entry of another reference to the file, which this one shares.
    """

    def __init__(
        self,
        ds: FileStore[T],
        fname: str,
        pool: FileStoreCachePool,
        entry: _Entry | None = None,
    ) -> None:
        super().__init__(ds=ds, fname=fname, pool=pool)
        self._cache = pool.opened()
        if entry is not None:
            self.entry = self._cache.refer(entry.store, entry.name)
        else:
            self.entry = self._cache.refer(ds, fname)
        self._counted = True

    @property
    def cache_path(self) -> Path | None:
        """Where the file lies in the cache; None before it was fetched and after it was
        used up.
        """
        return self.entry.stored.path

    def _read(self) -> tuple[T, SourceInfo | None]:
        if self._counted and self._cache.usable:
            self._counted = False
            return self._cache.take(self.entry)
        return self.ds[self.fname]

    def __del__(self) -> None:
        if getattr(self, "_counted", False):
            self._cache.dropped.append(self.entry)


@dataclass(frozen=True)
class _FunctionStore(FileStore[T]):
    function: Callable[[str], T]

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        return self.function(key), None  # type: ignore[return-value]

    def get_path(self) -> str:
        return "mock"


class MockLazy(DirectLazy[T]):
    """A reference with content computed from its name, for tests of hooks.

    Example:
        >>> MockLazy("a.txt", lambda name: name.upper()).get()
        'A.TXT'
    """

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        super().__init__(ds=_FunctionStore(get_fn), fname=fname, pool=NoCachePool())


# The files of a pool in one process.


@dataclass
class _Settings:
    """Folder, threads, capacity and form of the files of a pool."""

    parent: Path
    threads: int
    size: int
    count: int
    decoded: bool


@dataclass(slots=True)
class _Content:
    """Content that was read; `data` is set while it waits for room on disk."""

    data: bytes | None = None
    pickled: bool = True
    source: SourceInfo | None = None


@dataclass(slots=True)
class _StoredFile:
    """A file on disk; `path` is None before it is written and after it is removed."""

    path: Path | None = None
    size: int = 0
    crc: int = 0


@dataclass(eq=False, slots=True)
class _Entry:
    """A file that several references share."""

    key: object
    store: FileStore[Any]
    name: str
    refcount: int = 0
    job: Future[None] | None = None
    content: _Content = field(default_factory=_Content)
    stored: _StoredFile = field(default_factory=_StoredFile)
    send_to_cache_future: Future[None] = field(default_factory=Future)
    """Done when the file has been fetched, or will not be."""


class _Cache:
    """Files of a pool in one process.

    No thread waits for room: content without room on disk is held in memory, at most
    one file per thread. A file that is needed before its turn is read at once, and
    moves to the end of the queue for its other references. Collected references are
    appended to `dropped`, because collection can run anywhere; the next call releases
    them.
    """

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self.folder, lock = _create_folder(settings.parent)
        self._remove = weakref.finalize(self, _remove, self.folder, lock, self._pid)
        self._threads = ThreadPoolExecutor(settings.threads, "energize-cache")
        self._lock = threading.Lock()
        self._entries: dict[object, _Entry] = {}
        self._queue: dict[_Entry, None] = {}
        self.dropped: deque[_Entry] = deque()
        self._names = count()
        self._running = self._size = self._count = 0
        self._closed = self._warned = False

    @property
    def usable(self) -> bool:
        """Whether it is open, and of this process."""
        return not self._closed and self._pid == os.getpid()

    def held(self) -> tuple[int, int]:
        """Return how many bytes and files lie on disk."""
        with self._locked():
            return self._size, self._count

    def refer(self, store: FileStore[Any], name: str) -> _Entry:
        """Return the entry of a file with one more reference; a new one is fetched."""
        # A store without a hash is kept by its entry, so that no other one has its id.
        key = (store if isinstance(store, Hashable) else id(store), name)
        with self._locked():
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(key, store, name)
                self._queue[entry] = None
            entry.refcount += 1
        return entry

    def take(self, entry: _Entry) -> Content:
        """Return the content and source of the file, and end one reference to it."""
        with self._locked():
            early = entry in self._queue
            self._queue.pop(entry, None)
            job = entry.job
        if job is not None:
            wait([job])
        try:
            return self._content(entry)
        finally:
            with self._locked():
                self._release(entry)
                if early and entry.refcount:
                    self._queue[entry] = None
                    entry.content.data = None

    def close(self) -> None:
        """Remove all files and end the threads; references read their stores from then
        on.
        """
        with self._lock:
            self._closed = True
            self._queue.clear()
            for entry in self._entries.values():
                self._done(entry)
            running = [entry.job for entry in self._entries.values() if entry.job]
        wait(running, _CLOSE_SECONDS)
        self._threads.shutdown(wait=False)
        self._remove()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            while self.dropped:
                self._release(self.dropped.popleft())
            yield
            self._start()

    def _content(self, entry: _Entry) -> Content:
        held = entry.content.data
        if held is None and entry.stored.path is not None:
            try:
                held = entry.stored.path.read_bytes()
            except OSError as reason:
                self._warn(
                    f"{entry.stored.path} cannot be read any more ({reason.strerror})"
                )
            if held is not None and zlib.crc32(held) != entry.stored.crc:
                self._warn(
                    f"{entry.stored.path} was changed or cut off since it was written"
                )
                held = None
        if held is None:
            return entry.store[entry.name]
        # Pickled here, in a folder that no other user may write to.
        content = pickle.loads(held) if entry.content.pickled else held  # noqa: S301
        if not self._settings.decoded:
            content = entry.store.decoded(entry.name, content)
        return content, entry.content.source

    # In the threads.

    def _fetch(self, entry: _Entry) -> None:
        """Read a file, unless it was read before, and write it if there is room."""
        waits = False
        try:
            if entry.content.data is None:
                content, entry.content.source = entry.store.raw(entry.name)
                if self._settings.decoded:
                    content = entry.store.decoded(entry.name, content)
                entry.content.pickled = type(content) is not bytes
                entry.content.data = (
                    pickle.dumps(content, -1) if entry.content.pickled else content
                )
            waits = self._write(entry, entry.content.data)
        except Exception:  # noqa: S110 - raised again when the file is read
            pass
        with self._locked():
            self._running -= 1
            entry.job = None
            if entry.refcount == 0:
                self._forget(entry)
            elif waits and not self._closed:
                self._queue = {entry: None, **self._queue}
            else:
                entry.content.data = None
                self._done(entry)

    def _write(self, entry: _Entry, held: bytes) -> bool:
        """Return whether there is too little room now."""
        if len(held) > self._settings.size:
            self._warn(f"{entry.name} of {entry.store} is larger than the whole cache")
            return False
        with self._lock:
            if entry.refcount == 0 or self._closed:
                return False
            if self._size + len(held) > self._settings.size:
                return True
            entry.stored.size, entry.stored.crc = len(held), zlib.crc32(held)
            self._size += entry.stored.size
            self._count += 1
        file = self.folder / f"{next(self._names):x}"
        try:
            file.write_bytes(held)
        except OSError as reason:
            self._warn(f"{file} cannot be written ({reason.strerror})")
            entry.stored.path = file
            with self._lock:
                self._remove_file(entry)
            return False
        entry.stored.path = file
        if isinstance(entry.store, HeldStore):
            entry.store.clear()
        return False

    # With the lock.

    def _start(self) -> None:
        """Fetch files as long as there are threads and room for them."""
        most = self._settings
        while self._queue and self._running < most.threads and not self._closed:
            entry = next(iter(self._queue))
            full = self._count + self._running >= most.count
            if full or self._size + len(entry.content.data or b"-") > most.size:
                return
            del self._queue[entry]
            self._running += 1
            entry.job = self._threads.submit(self._fetch, entry)

    def _done(self, entry: _Entry) -> None:
        if not entry.send_to_cache_future.done():
            entry.send_to_cache_future.set_result(None)

    def _release(self, entry: _Entry) -> None:
        entry.refcount -= 1
        if entry.refcount == 0 and entry.job is None:  # else its thread sees to it
            self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        """Remove files without references."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        self._queue.pop(entry, None)
        self._remove_file(entry)
        self._done(entry)

    def _remove_file(self, entry: _Entry) -> None:
        if entry.stored.path is not None:
            with contextlib.suppress(OSError):
                entry.stored.path.unlink()
            entry.stored.path = None
            self._size -= entry.stored.size
            self._count -= 1

    def _warn(self, reason: str) -> None:
        if not self._warned and not self._closed:
            self._warned = True
            _log.warning(
                "%s: files are read from their place, without the cache", reason
            )


# The folder of one process, locked as long as it lives.


def _create_folder(parent: Path) -> tuple[Path, int]:
    """Make a folder that only this user may enter; return it and the descriptor that
    locks it.

    Those of processes that were killed are removed. Raise `ConfigError` if it cannot be
    made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for path in parent.glob(f"{_LOCKED}*"):
            with contextlib.suppress(OSError):
                _remove(path, _lock(path), os.getpid())
        folder = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
        lock = _lock(folder)
        # Only by this name others look at it, and it is locked by now.
        return folder.rename(parent / folder.name.replace(_NEW, _LOCKED, 1)), lock
    except OSError as reason:
        raise ConfigError(
            f"cannot create a cache folder in {parent}: {reason.strerror}. Set "
            "parent_cache_dir to a folder on a writable local disk"
        ) from reason


def _lock(folder: Path) -> int:
    """Return the descriptor that locks a folder; raise OSError while another process
    does.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):  # what it looks at raises even so
            shutil.rmtree(path, ignore_errors=True)
    os.close(lock)

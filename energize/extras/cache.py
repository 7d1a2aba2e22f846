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
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from energize.core.checks import checked_choice, checked_whole
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
from energize.data.stores import StorePath, local_path
from energize.errors import ConfigError

__all__ = ["FileCacheLazy", "FileStoreCachePool", "MockLazy", "activate", "active_pool"]

T = TypeVar("T")
Found = tuple[Any, SourceInfo | None]

_log = logging.getLogger("energize")

_CLOSE_SECONDS = 5.0
"""How long `close` waits for reads that are under way."""
_NEW = f"energize-new-cache-{os.getuid()}-"
_LOCKED = f"energize-cache-{os.getuid()}-"


class FileStoreCachePool(CachePool):
    """Fetches files to a local disk in the background, from when they are referred to until they
    are used.

    Each process makes a folder of its own below `parent_cache_dir` (by default where temporary
    files are). `num_workers` threads fetch, in the order of the calls of `get_lazy`. `method` says
    what lies there: "raw", the bytes as stored, decoded when they are used, or "pickle", what they
    were decoded to. At most `max_cache_size_gbytes` (of 1024**3 bytes) and `max_cache_count` files
    lie there at once in each process, those of `to_cache` among them. When it is full, fetching
    waits, and who needs a file reads it from its store.

    References to one file share it; it is removed when the last was used or dropped. The folder is
    removed when the pool is closed and when the process ends; that of a killed process by the next
    pool with the same parent. The pool may be used by several threads, forked and pickled; each
    process begins with an empty one.

    Raise `ConfigError` for wrong arguments and, at first use, if the folder cannot be made.

    >>> from energize import SystemFileStore
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
        checked_choice(method, "method", ("raw", "pickle"), "FileStoreCachePool")
        size = max_cache_size_gbytes
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < 2**40:
            raise ConfigError(
                f"FileStoreCachePool: max_cache_size_gbytes={size!r} is no number from 0 on"
            )
        self._settings = _Settings(
            local_path(tempfile.gettempdir() if parent_cache_dir is None else parent_cache_dir),
            checked_whole(num_workers, "FileStoreCachePool: num_workers", 1),
            int(size * 1024**3),
            checked_whole(max_cache_count, "FileStoreCachePool: max_cache_count", 0),
            method == "pickle",
        )
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._cache: _Cache | None = None
        _POOLS.add(self)

    @property
    def max_cache_size(self) -> int:
        """How many bytes may lie on disk at once."""
        return self._settings.size

    @max_cache_size.setter
    def max_cache_size(self, size: int) -> None:
        self._settings.size = checked_whole(size, "FileStoreCachePool: max_cache_size", 0)

    @property
    def cache_dir(self) -> Path:
        """The folder of this process."""
        return self._opened().folder

    @property
    def current_cache_size(self) -> int:
        """How many bytes lie on disk."""
        return 0 if self._cache is None else self._cache.size

    @property
    def current_cache_count(self) -> int:
        """How many files lie on disk."""
        return 0 if self._cache is None else self._cache.count

    def get_lazy(self, ds: FileStore[T], fname: str) -> FileCacheLazy[T]:
        """Return a reference to the file, which is fetched from now on."""
        return self._reference(*ds.resolved(fname))

    def to_cache(self, data: T, name: str) -> FileCacheLazy[T]:
        """Return a reference to `data`, put on disk as soon as there is room."""
        return self._reference(HeldStore(data), name)

    def close(self) -> None:
        """Remove all files and end the threads; references read their stores from then on.

        A pool that is used after it was closed begins anew.
        """
        with self._lock:
            cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()

    def _reference(self, store: FileStore[T], name: str) -> FileCacheLazy[T]:
        cache = self._opened()
        return FileCacheLazy(store, name, self, cache, cache.refer(store, name))

    def _opened(self) -> _Cache:
        with self._lock:
            if self._cache is None:
                self._cache = _Cache(self._settings)
            return self._cache

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


_POOLS: weakref.WeakSet[FileStoreCachePool] = weakref.WeakSet()


def _forked() -> None:
    """Have the pools of a forked process begin anew: what was fetched belongs to its parent."""
    for pool in list(_POOLS):
        pool._begin()


os.register_at_fork(after_in_child=_forked)


class FileCacheLazy(DirectLazy[T]):
    """A reference to a file that a `FileStoreCachePool` fetches.

    The first `get` uses the reference up: the file is removed when all references to it have been.
    The content stays here, so each `get` returns the same.
    """

    def __init__(
        self, ds: FileStore[T], fname: str, pool: FileStoreCachePool, cache: _Cache, entry: _Entry
    ) -> None:
        super().__init__(ds=ds, fname=fname, pool=pool)
        self.entry = entry
        self._cache = cache
        self._counted = True

    def _read(self) -> tuple[T, SourceInfo | None]:
        if self._counted and self._cache.usable:
            self._counted = False
            return self._cache.take(self.entry)
        return self.ds[self.fname]

    def __del__(self) -> None:
        if getattr(self, "_counted", False) and self._cache.usable:
            self._cache.drop(self.entry)


@dataclass(frozen=True)
class _FunctionStore(FileStore[T]):
    function: Callable[[str], T]

    def __getitem__(self, key: str) -> tuple[T, SourceInfo]:
        return self.function(key), None  # type: ignore[return-value]  # it was read nowhere

    def get_path(self) -> str:
        return "mock"


class MockLazy(DirectLazy[T]):
    """A reference whose content is a function of its name, for tests of hooks.

    >>> MockLazy("a.txt", lambda name: name.upper()).get()
    'A.TXT'
    """

    def __init__(self, fname: str, get_fn: Callable[[str], T]) -> None:
        super().__init__(ds=_FunctionStore(get_fn), fname=fname, pool=NoCachePool())


# The files of a pool in one process.


@dataclass
class _Settings:
    """Where files lie, how many threads fetch, and how much may lie there, in which form."""

    parent: Path
    threads: int
    size: int
    count: int
    decoded: bool


@dataclass(eq=False, slots=True)
class _Entry:
    """A file that references share; `file` is where it lies once it is on disk."""

    key: object
    store: FileStore[Any]
    name: str
    refcount: int = 0
    job: Future[None] | None = None
    pickled: bool = False
    source: SourceInfo | None = None
    file: Path | None = None
    size: int = 0


class _Cache:
    """What a pool holds in one process.

    A file is fetched when there is room for one as large as the largest so far, so no thread waits
    for room. One that is needed before its turn is read at once, and goes to the end of the queue
    for others who refer to it.
    """

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self.folder, lock = _own_folder(settings.parent)
        self._remove = weakref.finalize(self, _remove, self.folder, lock, self._pid)
        self._threads = ThreadPoolExecutor(settings.threads, "energize-cache")
        self._lock = threading.Lock()
        self._entries: dict[object, _Entry] = {}
        self._queue: OrderedDict[_Entry, None] = OrderedDict()
        self._dropped: deque[_Entry] = deque()
        self._names = count()
        self._running = 0
        self._largest = 0
        self._closed = False
        self._warned = False
        self.size = 0
        self.count = 0

    @property
    def usable(self) -> bool:
        """Whether it is open, and of this process."""
        return not self._closed and self._pid == os.getpid()

    def refer(self, store: FileStore[Any], name: str) -> _Entry:
        """Return the entry of a file with one more reference; a new one is fetched.

        What was put into the pool comes first, as it is in memory until then.
        """
        # A store without a hash is kept by its entry, so that no other one has its id.
        key = (store if isinstance(store, Hashable) else id(store), name)
        with self._locked():
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(key, store, name)
                self._queue[entry] = None
                if isinstance(store, HeldStore):
                    self._queue.move_to_end(entry, last=False)
            entry.refcount += 1
        return entry

    def take(self, entry: _Entry) -> Found:
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

    def drop(self, entry: _Entry) -> None:
        """End a reference that was collected: anywhere in the program, so without waiting."""
        self._dropped.append(entry)
        self._release_dropped()

    def close(self) -> None:
        """Remove all files and end the threads; references read their stores from then on."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            running = [each.job for each in self._entries.values() if each.job]
        late = wait(running, _CLOSE_SECONDS).not_done
        self._threads.shutdown(wait=not late)
        self._remove()
        with contextlib.suppress(OSError):
            _remove_orphans(self._settings.parent)
        self.size = self.count = 0

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            yield
            self._start()
        self._release_dropped()

    def _release_dropped(self) -> None:
        # Whoever holds the lock looks here once more when it gives it back.
        while self._dropped and self._lock.acquire(blocking=False):
            try:
                while self._dropped:
                    self._release(self._dropped.popleft())
                self._start()
            finally:
                self._lock.release()

    def _content(self, entry: _Entry) -> Found:
        if entry.file is None:
            return entry.store[entry.name]
        try:
            held = entry.file.read_bytes()
        except OSError as reason:
            self._warn(f"{entry.file} cannot be read any more ({reason.strerror})")
            return entry.store[entry.name]
        # Pickled here, in a folder that no other user may write to.
        content = pickle.loads(held) if entry.pickled else held  # noqa: S301
        if not self._settings.decoded:
            content = entry.store.decoded(entry.name, content)
        return content, entry.source

    # In the threads.

    def _fetch(self, entry: _Entry) -> None:
        """Read a file, and write it if there is room."""
        try:
            raw, entry.source = entry.store.raw(entry.name)
            decoded = self._settings.decoded
            held, entry.pickled = _packed(entry.store.decoded(entry.name, raw) if decoded else raw)
            self._write(entry, held)
        except Exception:  # noqa: S110 - who needs the file reads it, and meets the same
            pass
        with self._locked():
            self._running -= 1
            entry.job = None
            if entry.refcount == 0:
                self._forget(entry)

    def _write(self, entry: _Entry, held: bytes) -> None:
        if len(held) > self._settings.size:
            self._warn(f"{entry.name} of {entry.store} is larger than the whole cache")
            return
        with self._locked():
            self._largest = max(self._largest, len(held))
            has_room = self.size + len(held) <= self._settings.size
            if entry.refcount == 0 or self._closed or not has_room:
                return
            entry.size = len(held)
            self.size += entry.size
            self.count += 1
        file = self.folder / f"{next(self._names):x}"
        try:
            file.write_bytes(held)
        except OSError as reason:
            self._warn(f"{file} cannot be written ({reason.strerror})")
            with self._locked():
                file.unlink(missing_ok=True)
                self.size -= entry.size
                self.count -= 1
            return
        entry.file = file
        if isinstance(entry.store, HeldStore):
            entry.store.clear()

    # With the lock.

    def _start(self) -> None:
        """Fetch files as long as there are threads and room for them."""
        most = self._settings
        while self._queue and not self._closed:
            ahead = self._running + 1
            full = ahead > most.threads or self.count + ahead > most.count
            if full or self.size + ahead * max(1, self._largest) > most.size:
                return
            entry, _ = self._queue.popitem(last=False)
            self._running = ahead
            entry.job = self._threads.submit(self._fetch, entry)

    def _release(self, entry: _Entry) -> None:
        entry.refcount -= 1
        if entry.refcount == 0 and entry.job is None:  # else its thread sees to it
            self._forget(entry)

    def _forget(self, entry: _Entry) -> None:
        """Remove what nobody refers to any more."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        self._queue.pop(entry, None)
        if entry.file is not None:
            with contextlib.suppress(OSError):
                entry.file.unlink()
            entry.file = None
            self.size -= entry.size
            self.count -= 1

    def _warn(self, what: str) -> None:
        if not self._warned and not self._closed:
            self._warned = True
            _log.warning("%s: files are read from where they are, without the cache", what)


def _packed(content: Any) -> tuple[bytes, bool]:
    """Return content as bytes, and whether they are a pickle."""
    if type(content) is bytes:
        return content, False
    return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL), True


# The folder of one process, locked as long as it lives.


def _own_folder(parent: Path) -> tuple[Path, int]:
    """Make a folder that only this user may enter; return it and the descriptor that locks it.

    Raise `ConfigError` if it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_orphans(parent)
        made = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks has no orphans removed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Only by this name others look at it, and it is locked by now.
        return made.rename(parent / made.name.replace(_NEW, _LOCKED, 1)), lock
    except OSError as reason:
        raise ConfigError(
            f"no folder for a cache can be made below {parent}: {reason.strerror}; give a "
            "parent_cache_dir on a local disk that can be written to"
        ) from reason


def _remove_orphans(parent: Path) -> None:
    """Remove the folders below `parent` whose processes are dead."""
    for path in parent.glob(f"{_LOCKED}*"):
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(folder).st_uid == os.getuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while one lives
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)

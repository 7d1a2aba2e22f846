"""What stores of files, cache pools and lazy references are."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import pickle
import shutil
import stat
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, Protocol, TypeVar, runtime_checkable

from energize.core.checks import checked_whole
from energize.core.pooling import activate, current_pool
from energize.core.samples import SourceInfo
from energize.data.files import FileStream, LocalFile, OpenFiles
from energize.data.jsonl import IndexedJsonl
from energize.data.nv_meta import META_FOLDER, SQLITE_NAME, is_prepared, read_info
from energize.data.sqlite import ReadOnlyDatabase
from energize.data.tar import BLOCK, members, split_name
from energize.data.writing import check_path, exists, is_path, os_errors_as, own_errors, told
from energize.errors import (
    ConfigError,
    DataError,
    DatasetError,
    DatasetNotFoundError,
    EmptyDatasetError,
    LoaderError,
    NotPreparedError,
    ShardError,
)
from energize.extras.av import MediaMetadataBase, deserialize_media_metadata
from energize.extras.paths import EPath

__all__ = [
    "CachePool",
    "DecodeFileStore",
    "DirectLazy",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "JsonlFileStore",
    "Lazy",
    "MockLazy",
    "NoCachePool",
    "PrimaryFileStore",
    "SystemFileStore",
    "WebdatasetFileStore",
    "activate",
    "active_pool",
    "open_store",
]


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


# Lazy references without a cache.


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


# The cache pool of the loader that is running, for hooks.

_NO_CACHE = NoCachePool()


def active_pool() -> CachePool:
    """The cache pool given to the loader that calls the hook, in its workers too.

    Where there is none, a `NoCachePool`: what is asked for lazily is then read when it is needed.
    """
    pool = current_pool()
    return _NO_CACHE if pool is None else pool


# What a fetcher knows of each file.


@dataclass
class Limits:
    """How much may lie on disk at once, and what is put there: as stored, or decoded."""

    size: int
    count: int
    threads: int
    decoded: bool


class Stage(Enum):
    """How far the fetching of a file has come."""

    IDLE = auto()
    """Nobody fetches it: that failed, or it was read before its turn."""
    QUEUED = auto()
    READING = auto()
    WAITING = auto()
    """Read, and there is no room on disk for it."""
    WRITING = auto()
    CACHED = auto()
    GONE = auto()
    """Nobody refers to it any more."""


class Entry:
    """A file that references share; `send_to_cache_future` is done once it is on disk."""

    __slots__ = (
        "data_size",
        "file",
        "held",
        "key",
        "name",
        "pickled",
        "refcount",
        "send_to_cache_future",
        "source",
        "stage",
        "store",
        "turn",
    )

    def __init__(self, key: object, store: FileStore[Any], name: str) -> None:
        self.key = key
        self.store = store
        self.name = name
        self.refcount = 0
        self.data_size = 0
        self.stage = Stage.IDLE
        self.turn = 0
        self.held: bytes | None = None
        self.pickled = False
        self.source: SourceInfo | None = None
        self.file: Path | None = None
        self.send_to_cache_future: Future[None] = Future()


def packed(content: Any) -> tuple[bytes, bool]:
    """Content as bytes, and whether they are a pickle."""
    if type(content) is bytes:
        return content, False
    return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL), True


def settle(entry: Entry, reason: Exception | None = None) -> None:
    """Tell who waits for an entry that it is on disk, or why it will not be."""
    future = entry.send_to_cache_future
    if future.done():
        return
    if reason is None:
        future.set_result(None)
    else:
        future.set_exception(reason)


# A folder of one process: gone when the process is, however it ends.

_PREFIX = f"energize-cache-{os.getuid()}-"
_NEW = f"energize-new-cache-{os.getuid()}-"
_NEW_SECONDS = 3600.0
_TRIES = 3


class OwnFolder:
    """A new folder below `parent` that only this user may enter.

    It is removed by `close`, or when the process ends by itself. Of a process that was killed, the
    next one that makes or closes a folder below the same parent removes it: the folder is locked as
    long as its process lives. A forked process has no part in it.

    Raises `ConfigError` when it cannot be made.

    >>> folder = OwnFolder(Path(tempfile.mkdtemp()))
    >>> folder.path.is_dir(), folder.close(), folder.path.exists()
    (True, None, False)
    """

    def __init__(self, parent: Path) -> None:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_orphans(parent)
            made = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # Where there are no locks, no orphans are found either: this one may stay behind.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # By this name it is looked at by others, and it is locked already.
            self.path = made.rename(parent / made.name.replace(_NEW, _PREFIX, 1))
        except OSError as reason:
            raise ConfigError(
                f"no folder for a cache can be made below {parent}: {reason.strerror}; give a "
                "parent_cache_dir on a local disk that can be written to"
            ) from reason
        self._parent = parent
        self._removed = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the folder and all that is in it, and what killed processes left beside it."""
        if self._removed.alive:
            self._removed()
            with contextlib.suppress(OSError):
                remove_orphans(self._parent)


def remove_orphans(parent: Path) -> None:
    """Remove the folders below `parent` whose processes are dead."""
    with os.scandir(parent) as found:
        names = [each.name for each in found if each.name.startswith((_PREFIX, _NEW))]
    for name in names:
        with contextlib.suppress(OSError):
            _remove_orphan(parent / name)


def _remove_orphan(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        new = path.name.startswith(_NEW) and time.time() - found.st_mtime < _NEW_SECONDS
        if found.st_uid != os.getuid() or new or not stat.S_ISDIR(found.st_mode):
            return
        # Refused while the process that made it lives.
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        for _ in range(_TRIES):
            # A thread that was writing just now makes it fail once.
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
    with contextlib.suppress(OSError):
        os.close(lock)


# Files fetched to a local disk by threads, ahead of who asks for them.

_log = logging.getLogger("energize")

_LOOK_SECONDS = 1.0
"""How often a waiting thread looks for references that were dropped while all was locked."""

_END_SECONDS = 5.0
"""How long closing waits for reads that are under way."""


class Fetcher:
    """What a cache pool holds in one process; it is used by this process only.

    Files are fetched in the order in which they were asked for. A thread that finds no room keeps
    what it read until there is; a file that is needed before its turn is read at once, and goes to
    the end of the queue for those who will need it later. So limits hold, and nobody who needs a
    file waits for room.
    """

    def __init__(self, parent: Path, limits: Limits) -> None:
        self._limits = limits
        self._pid = os.getpid()
        self._folder = OwnFolder(parent)
        self._changed = threading.Condition(threading.Lock())
        self._entries: dict[object, Entry] = {}
        self._queue: dict[Entry, None] = {}
        self._dropped: deque[Entry] = deque()
        self._threads: list[threading.Thread] = []
        self._names = count()
        self._running = 0
        self._closed = False
        self._warned = False
        self.size = 0
        self.count = 0

    @property
    def path(self) -> Path:
        """Where the files are."""
        return self._folder.path

    @property
    def usable(self) -> bool:
        """Whether it is of this process, and open."""
        return self._pid == os.getpid() and not self._closed

    def refer(self, store: FileStore[Any], name: str) -> Entry:
        """The entry of a file with one reference more; new ones join the queue."""
        # A store that has no hash is another one each time, and is kept by its entry.
        key = (store if isinstance(store, Hashable) else id(store), name)
        with self._locked():
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = Entry(key, store, name)
                self._enqueue(entry)
                self._start_thread()
            entry.refcount += 1
        return entry

    def put(self, content: Any, name: str, store: FileStore[Any]) -> Entry | None:
        """An entry, with one reference, of what is not in a store; None when there is no room."""
        entry = Entry(object(), store, name)
        payload, entry.pickled = packed(content)
        with self._locked():
            if self._closed or not self._room(len(payload)):
                return None
            self._reserve(entry, len(payload))
        if not self._written(entry, payload):
            return None
        with self._locked():
            self._entries[entry.key] = entry
            entry.stage = Stage.CACHED
            entry.refcount = 1
            settle(entry)
        return entry

    def take(self, entry: Entry) -> tuple[Any, SourceInfo | None]:
        """The content and source of the file, for one reference, which ends with it."""
        try:
            return self._content(entry)
        finally:
            with self._locked():
                self._release(entry)
                if entry.stage is Stage.IDLE and not entry.send_to_cache_future.done():
                    self._enqueue(entry)

    def drop(self, entry: Entry) -> None:
        """End a reference that nobody took; called whenever a reference is collected.

        That may be in the middle of anything, so it waits for no lock: who holds it sees to it.
        """
        self._dropped.append(entry)
        if self._changed.acquire(blocking=False):
            try:
                self._release_dropped()
            finally:
                self._changed.release()

    def close(self) -> None:
        """Remove all files and end the threads; references read for themselves from now on."""
        if not self.usable:
            return
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        end = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        self._folder.close()
        for entry in self._entries.values():
            entry.send_to_cache_future.cancel()
        self.size = self.count = 0

    def abandon(self) -> None:
        """As `close`, for when nobody can refer to the pool any more.

        That is found out in the middle of anything, so it waits for nothing: the threads end by
        themselves, and the last one removes the files.
        """
        self._closed = True
        if not self._running:
            self._folder.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._changed:
            self._release_dropped()
            yield
            self._release_dropped()

    def _content(self, entry: Entry) -> tuple[Any, SourceInfo | None]:
        with self._locked():
            while entry.stage is Stage.READING and not self._closed:
                self._changed.wait(_LOOK_SECONDS)
            held, source = entry.held, entry.source
            file = entry.file if entry.stage is Stage.CACHED else None
            if entry.stage in (Stage.QUEUED, Stage.WAITING):
                # Its turn is over; `take` lets it queue again if others refer to it.
                self._queue.pop(entry, None)
                entry.stage = Stage.IDLE
                entry.held = None
                self._changed.notify_all()
        if held is None and file is not None:
            try:
                held = file.read_bytes()
            except OSError as reason:
                self._warn(f"{file} cannot be read any more ({reason.strerror})")
        if held is None:
            return entry.store[entry.name]
        # Pickled here, in a folder that no other user may write to.
        content = pickle.loads(held) if entry.pickled else held  # noqa: S301
        return (
            content if self._limits.decoded else entry.store.decoded(entry.name, content)
        ), source

    def _enqueue(self, entry: Entry) -> None:
        entry.stage = Stage.QUEUED
        self._queue[entry] = None
        self._changed.notify_all()

    def _start_thread(self) -> None:
        if len(self._threads) < self._limits.threads:
            thread = threading.Thread(target=self._run, name="energize-cache", daemon=True)
            self._threads.append(thread)
            self._running += 1
            thread.start()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            with self._changed:
                self._running -= 1
                last = not self._running
            if last:
                self._folder.close()

    def _work(self) -> None:
        """Fetch file after file."""
        while (entry := self._next()) is not None:
            turn = entry.turn
            try:
                raw, source = entry.store.raw(entry.name)
                decoded = self._limits.decoded
                content = entry.store.decoded(entry.name, raw) if decoded else raw
                payload, entry.pickled = packed(content)
            except Exception as reason:
                # Who needs the file reads it again, and meets the same.
                self._give_up(entry, reason)
                continue
            if self._has_room(entry, turn, payload, source) and self._written(entry, payload):
                with self._locked():
                    entry.stage, entry.held = Stage.CACHED, None
                    settle(entry)
                    if entry.refcount == 0:
                        self._forget(entry)

    def _next(self) -> Entry | None:
        """The entry whose turn it is, or None when all is over."""
        with self._locked():
            while not self._queue and not self._closed:
                self._changed.wait(_LOOK_SECONDS)
                self._release_dropped()
            if self._closed:
                return None
            entry = next(iter(self._queue))
            del self._queue[entry]
            entry.stage = Stage.READING
            entry.turn += 1
            return entry

    def _has_room(self, entry: Entry, turn: int, payload: bytes, source: SourceInfo | None) -> bool:
        """Wait for room and reserve it; False when nobody waits for the entry's turn any more."""
        with self._locked():
            if entry.refcount == 0:
                self._forget(entry)
                return False
            entry.stage, entry.held, entry.source = Stage.WAITING, payload, source
            entry.data_size = len(payload)
            self._changed.notify_all()
            while entry.stage is Stage.WAITING and entry.turn == turn and not self._closed:
                if len(payload) > self._limits.size:
                    entry.stage, entry.held = Stage.IDLE, None
                    what = f"{entry.name} of {entry.store} is larger than the whole cache"
                    settle(entry, ValueError(what))
                    self._warn(what)
                    return False
                if self._room(len(payload)):
                    self._reserve(entry, len(payload))
                    return True
                self._changed.wait(_LOOK_SECONDS)
                self._release_dropped()
            return False

    def _room(self, size: int) -> bool:
        return self.size + size <= self._limits.size and self.count < self._limits.count

    def _reserve(self, entry: Entry, size: int) -> None:
        entry.stage = Stage.WRITING
        entry.data_size = size
        entry.file = self.path / f"{next(self._names):x}"
        self.size += size
        self.count += 1

    def _written(self, entry: Entry, payload: bytes) -> bool:
        """Write the file of an entry that has room; without success the room is free again."""
        file: Any = entry.file
        try:
            file.write_bytes(payload)
        except OSError as reason:
            with self._changed:
                closed = self._closed
            if not closed:
                self._warn(f"{file} cannot be written ({reason.strerror})")
            with self._locked():
                self._free(entry)
            self._give_up(entry, reason)
            return False
        return True

    def _give_up(self, entry: Entry, reason: Exception) -> None:
        """Leave an entry to who needs it."""
        with self._locked():
            entry.stage, entry.held = Stage.IDLE, None
            settle(entry, reason)
            if entry.refcount == 0:
                self._forget(entry)
            self._changed.notify_all()

    def _release_dropped(self) -> None:
        while self._dropped:
            self._release(self._dropped.popleft())

    def _release(self, entry: Entry) -> None:
        entry.refcount -= 1
        # One that a thread reads or writes just now is left to the thread.
        if entry.refcount == 0 and entry.stage not in (Stage.READING, Stage.WRITING):
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        """Nobody refers to the entry: what it holds goes."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        self._queue.pop(entry, None)
        if entry.stage is Stage.CACHED:
            self._free(entry)
        entry.stage, entry.held = Stage.GONE, None
        entry.send_to_cache_future.cancel()
        self._changed.notify_all()

    def _free(self, entry: Entry) -> None:
        file, entry.file = entry.file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.unlink()
            self.size -= entry.data_size
            self.count -= 1
            self._changed.notify_all()

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s: files are read from where they are, without the cache", what)


# The media metadata in the database of a folder, for stores.


class MediaTable:
    """The metadata of files by name, in the `.nv-meta` folder `meta` of the folder `path`."""

    def __init__(self, meta: Path, path: str) -> None:
        self._path = path
        self._file = meta / SQLITE_NAME
        self._database = ReadOnlyDatabase(self._file)
        self._found = False

    def of(self, key: str) -> MediaMetadataBase:
        """The metadata of the file `key`.

        Raises `NotPreparedError` when there is no table, and `DataError` when it knows no `key`.
        """
        if not self._found:
            if not (exists(self._file) and self._database.has_table("media_metadata")):
                raise NotPreparedError(
                    f"{self._path} has no media metadata; collect it with: energize prepare-media "
                    f"--media-metadata-by-extension {self._path}"
                )
            self._found = True
        rows = self._database.rows(
            "SELECT metadata_type, metadata_json FROM media_metadata WHERE entry_key = ?", (key,)
        )
        if not rows:
            raise DataError(
                f"{self._path} has no media metadata of {key!r}: it was added later, was left out "
                "by the filter given to prepare-media, or could not be read by it"
            )
        try:
            return deserialize_media_metadata(*rows[0])
        except DatasetError as reason:
            raise DataError(f"{self._file}, {key!r}: {reason}") from reason


# Stores over plain folders and files of JSON lines, and stores around others.

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
    >>> from energize.preparation.jsonl import prepare_jsonl
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


# A cache pool on a local disk.

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


# The files of a prepared folder of tar shards, by name.

_SHORT = 100
"""Bytes of a name that the header right before a payload always has whole."""

_TOLD = 20
_FIND = """
SELECT samples.tar_file_id, content_byte_offset, content_byte_size
FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE sample_key = ? AND part_name = ?
"""

_PARTS = """
SELECT part_name FROM samples JOIN sample_parts USING (tar_file_id, sample_index)
WHERE sample_key = ? ORDER BY content_byte_offset LIMIT 20
"""


class WebdatasetFileStore(FileStore[bytes]):
    """The files of a prepared folder by their full names in the shards, `"000123.jpg"`.

    All shards are searched, whatever their split, by `index.sqlite`, which `energize prepare
    --sqlite` and Energon write. Names are looked up there and are never paths, so none leads out of
    the shards.

    Raises `DatasetNotFoundError` and `NotPreparedError`, which says what makes the index. Asking
    for a file that is not there is a `DataError`; a `ShardError` says that shards were changed
    after they were indexed.

    >>> import tempfile
    >>> from energize.preparation import prepare, write_shards
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_shards([{"__key__": "cat", "txt": "a cat"}], folder)
    >>> _ = prepare(folder, split_ratios={"train": 1}, sqlite=True)
    >>> WebdatasetFileStore(folder).get("cat.txt")
    b'a cat'
    """

    @own_errors
    def __init__(self, path: StorePath) -> None:
        self.path = local_path(path)
        info = read_info(self.path)
        if not (self.path / META_FOLDER / SQLITE_NAME).is_file():
            raise NotPreparedError(
                f"{self.path} has no {META_FOLDER}/{SQLITE_NAME}, by which files are found; write "
                f"it with: energize prepare --tar-index-only --sqlite {self.path}"
            )
        self._shards = tuple(info.shard_counts)

    def __getitem__(self, key: str) -> tuple[bytes, SourceInfo]:
        shard, offset, size = self._find(key)
        source = SourceInfo(
            dataset_path=str(self.path), index=key, shard_name=shard, file_names=(key,)
        )
        return self._payload(shard, offset, size, key), source

    def get_path(self) -> str:
        """The folder."""
        return str(self.path)

    def get_media_metadata(self, key: str) -> MediaMetadataBase:
        """What `energize prepare-media` found of the file; `DataError` when it found none."""
        return self._media.of(key)

    def _find(self, key: str) -> tuple[str, int, int]:
        """The shard of a file, and where its payload lies in it."""
        split = split_name(key)
        if split is None:
            raise DataError(
                f"{self.path}: {key!r} is no name of a file in a shard, such as '000123.jpg': the "
                "key of a sample, a dot and the part"
            )
        rows = self._database.rows(_FIND, split)
        if not rows:
            parts = [part for (part,) in self._database.rows(_PARTS, split[:1])]
            what = (
                f"sample {split[0]!r} has only the parts {', '.join(map(str, parts[:_TOLD]))}"
                if parts
                else f"no sample has the key {split[0]!r}"
            )
            raise DataError(f"{self.path} has no file {key!r}: {what}")
        number, offset, size = rows[0]
        plain = all(type(value) is int and value >= 0 for value in rows[0])
        if not plain or number >= len(self._shards) or offset < BLOCK:
            raise DatasetError(
                f"{self._database.path} says that {key!r} is in shard {number} of "
                f"{len(self._shards)}, at byte {offset}: {self._again}"
            )
        return self._shards[number], offset, size

    def _payload(self, shard: str, offset: int, size: int, key: str) -> bytes:
        path = f"{self.path}/{shard}"
        padded = BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
        try:
            data = self._files.get(path).read(offset - BLOCK, padded)
        except OSError as error:
            raise ShardError(told(error, path)) from error
        stale = f"{path} and {self._database.path} do not belong together: "
        try:
            # The header before the payload tells whether it is the file that the database means.
            (member,) = members(data, path)
        except (ShardError, ValueError) as reason:
            raise ShardError(f"{stale}no file lies at byte {offset}; {self._again}") from reason
        whole = key.isascii() and len(key) <= _SHORT
        if member.size != size or (whole and member.name != key):
            raise ShardError(
                f"{stale}{member.name!r} of {member.size} bytes lies where {key!r} of {size} "
                f"should; {self._again}"
            )
        return data[member.offset : member.offset + size]

    @property
    def _again(self) -> str:
        return f"index the shards again with: energize prepare --tar-index-only {self.path}"

    @cached_property
    def _database(self) -> ReadOnlyDatabase:
        return ReadOnlyDatabase(self.path / META_FOLDER / SQLITE_NAME)

    @cached_property
    def _media(self) -> MediaTable:
        return MediaTable(self.path / META_FOLDER, str(self.path))

    @cached_property
    def _files(self) -> OpenFiles:
        return OpenFiles()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_shards": self._shards}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WebdatasetFileStore) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"WebdatasetFileStore({self.path})"


# From the references of a metadataset's `aux` to stores.

_FOLDER = "filesystem"


def open_store(ref: str | os.PathLike[str], base: str | os.PathLike[str] = ".") -> FileStore[Any]:
    """The store that `ref` means: what `aux` in a metadataset names.

    A path, relative to the folder `base`, is that of a prepared folder, whose files are found by
    name, or of an indexed `.jsonl` file. With `filesystem://` before it, it is that of a plain
    folder. The content is bytes; nothing is read before a file is asked for.

    Raises `ConfigError` for a reference of another kind, `DatasetNotFoundError` and
    `NotPreparedError` for what cannot be opened.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("hello")
    >>> open_store("filesystem://.", folder).get("a.txt")
    b'hello'
    """
    text = os.fspath(ref)
    scheme, separator, rest = text.partition("://")
    if separator and scheme == _FOLDER:
        return SystemFileStore(_below(base, rest))
    if separator and scheme.startswith(f"{_FOLDER}+"):
        local_path(f"{scheme.removeprefix(f'{_FOLDER}+')}://{rest}")
    path = _below(base, str(local_path(text)))
    if path.suffix == ".jsonl":
        return JsonlFileStore(path)
    if path.suffix in (".yaml", ".yml"):
        raise ConfigError(
            f"{text}: aux names one folder or .jsonl file each, not a metadataset; name the "
            "folders that it is made of"
        )
    if not is_prepared(path) and (path / META_FOLDER / SQLITE_NAME).is_file():
        # A plain folder whose media metadata has been collected.
        return SystemFileStore(path)
    return WebdatasetFileStore(path)


def _below(base: str | os.PathLike[str], path: str) -> Path:
    return local_path(base) / path

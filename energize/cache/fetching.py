"""Files fetched to a local disk by threads, ahead of who asks for them."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from energize.cache.base import FileStore
from energize.cache.entries import Entry, Limits, Stage, packed, settle
from energize.cache.own_folder import OwnFolder
from energize.samples.source_info import SourceInfo

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

"""What a fetcher knows of each file."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

from energize.cache.base import FileStore
from energize.samples.source_info import SourceInfo


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

"""Object storage from the view of each process: requests to its fetching process.

The first request starts `energize/data/sidecar.py`, which exits with its parent. A
forked process starts its own. Fetched ranges are stored in the node cache, which is
read first: fully cached ranges need no request.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from energize.core import limits
from energize.data.local import changed, runs_of
from energize.data.nodecache import FOLDER, NodeCache
from energize.data.sidecar import key_of, shown
from energize.errors import legible

_log = logging.getLogger("energize")

# Seconds without a message from the sidecar, which sends one every 5 s.
_SILENCE = 60
_STARTS = 3
_OF_STORES = re.compile(
    "AWS_|AZURE_|GOOGLE_|GCS_|HF_|MSC_|FSSPEC_|ENERGIZE_CACHE|.*_PROXY|HOME|SSL_",
    re.IGNORECASE,
)
_SECONDS_TO_DIE = 1


class Stat(NamedTuple):
    """Size of an object, and its version: ETag, version, or modification time."""

    size: int
    tag: str


def stat(url: str) -> Stat:
    """Return the current size and version of an object.

    Args:
        url: The object.

    Returns:
        Its size and version.

    Raises:
        OSError: FileNotFoundError, PermissionError or others; the message has the URL
            without secrets, and the remedy.
        ConfigError: If the scheme is unknown, or a library is missing.
    """
    return Stat(*_request("call", url, "stat"))


def listing(url: str, recursive: bool = False) -> list[tuple[str, int | None]]:
    """Return the entries of a folder, sorted, with sizes; None for subfolders.

    With `recursive`, returns all objects below the folder. A missing folder is empty.

    Raises:
        OSError: As `stat`, and for more than `limits.OBJECTS` entries.
    """
    most = limits.OBJECTS
    entries = _request("call", url, "listing", recursive, most)
    if len(entries) > most:
        raise OSError(errno.EFBIG, limits.over("OBJECTS"), shown(url))
    return sorted(dict(entries).items())  # an object and a folder may share a name


def is_folder(url: str) -> bool:
    """Return whether any object is below a URL. Raises OSError as `stat`."""
    return bool(_request("call", url, "holds"))


def ranges(
    url: str, object_stat: Stat, starts: Sequence[int], stops: Sequence[int]
) -> list[bytes]:
    """Return the bytes of ranges of an object, in ascending order.

    Temporary failures are retried, up to 2 minutes per range.

    Args:
        url: The object.
        object_stat: Its size and version, by `stat`.
        starts: First bytes of the ranges.
        stops: Ends of the ranges.

    Returns:
        The bytes of each range.

    Raises:
        ShardError: If the object has changed.
        OSError: As `stat`.
    """
    cache = _cache()
    key = key_of(url, *object_stat)
    spans = _spans(starts, stops)
    got: list[Any] = []
    for first, last, begin, end in runs_of(starts, stops):
        run = cache.read(key, begin, end) if last - first > 1 else None
        for start, stop in spans[first:last]:
            got.append(
                cache.read(key, start, stop)
                if run is None
                else run[start - begin : stop - begin]
            )
    if None not in got:
        return got
    # Ranges evicted before they were read are fetched again, bypassing the cache.
    for how in ("", "carried"):
        missing = [row for row, data in enumerate(got) if data is None]
        if missing:
            answers = _fetch(url, object_stat, [spans[row] for row in missing], how)
            for row, data in zip(missing, answers, strict=True):
                got[row] = cache.read(key, *spans[row]) if data is None else data
    return got


def plan(
    url: str, object_stat: Stat | None, starts: Sequence[int], stops: Sequence[int]
) -> None:
    """Start fetching ranges into the cache, after all other requests.

    Failures are reported when the ranges are read.

    Args:
        url: The object.
        object_stat: Its size and version; None to look it up first.
        starts: First bytes, ascending; negative ones count from the end. Empty for the
            whole object.
        stops: Ends of the ranges; 0 and negative ones count from the end.
    """
    spans = _spans(starts, stops)
    if object_stat is not None and spans:
        cache = _cache()
        key = key_of(url, *object_stat)
        spans = [
            span
            for first, last, begin, end in runs_of(starts, stops)
            if not cache.holds(key, begin, end)
            for span in spans[first:last]
            if not cache.holds(key, *span)
        ]
        if not spans:
            return
    (_current or _sidecar()).send(
        None, "plan", url, object_stat and tuple(object_stat), spans
    )


def missing(url: str, object_stat: Stat, spans: Iterable[tuple[int, int]]) -> int:
    """Return the number of bytes of ranges that are not cached, by its records."""
    gaps = partial(_cache().missing, key_of(url, *object_stat), look=False)
    return sum(stop - start for span in spans for start, stop in gaps(*span))


def write(url: str, data: bytes | Path) -> None:
    """Create or atomically replace an object. Raises OSError as `stat`."""
    _request("call", url, "put", data)


def delete(url: str) -> None:
    """Remove an object. Raises OSError as `stat`."""
    _request("call", url, "delete")


def _spans(starts: Sequence[int], stops: Sequence[int]) -> list[tuple[int, int]]:
    # Pickled numpy numbers would make the sidecar import numpy.
    return list(zip(map(int, starts), map(int, stops), strict=True))


def _fetch(
    url: str, object_stat: Stat, spans: Sequence[tuple[int, int]], how: str
) -> list[bytes | None]:
    """Have the sidecar fetch ranges; None for those that it put into the cache."""
    try:
        answers: list[bytes | None] = _request(
            "ranges", url, tuple(object_stat), spans, how
        )
    except OSError as error:
        if error.errno in (errno.ESTALE, errno.ENOENT):
            raise changed(shown(url)) from error
        raise
    return answers


class _Sidecar:
    """Connection to the fetching process; one waiting thread receives for all."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.settings = _settings()
        ours.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SILENCE, 0)
        )
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, sys.path)]
        )
        # The working directory may have changed since the cache was opened.
        named = {FOLDER: _cache().folder} if os.environ.get(FOLDER) else {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "energize.data.sidecar"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # By default, obstore starts a thread per core in each process.
                env={
                    "TOKIO_WORKER_THREADS": "4",
                    **os.environ,
                    **named,
                    "PYTHONPATH": path,
                },
                start_new_session=True,  # only the trainer gets Ctrl-C
            )
        self._connection = Connection(ours.detach())
        self._sending, self._news = threading.Lock(), threading.Condition()
        self._answers: dict[int, tuple[Any, Exception | None]] = {}
        self._numbers = count()
        self._reading = False
        self._ended = ""

    def send(self, *message: Any) -> None:
        """Send a request; if the process has ended, the thread that waits notices."""
        with self._sending:
            try:
                self._connection.send(message)
            except OSError:
                self._process.kill()

    def request(self, *question: Any) -> Any:
        """Return the answer or raise it; EOFError if the process ends first."""
        number = next(self._numbers)
        self.send(number, *question)
        with self._news:
            while number not in self._answers:
                if self._ended:
                    raise EOFError(self._ended)
                if not self._reading:
                    self._receive()
                elif not self._news.wait(2 * _SILENCE):
                    raise EOFError("without a word")
            answer, failed = self._answers.pop(number)
        if failed is not None:
            raise failed
        return answer

    def _receive(self) -> None:
        """Wait for a message without blocking requests of other threads."""
        self._reading = ended = True
        try:
            self._news.release()
            if not self._connection.poll(_SILENCE):
                _log.warning(
                    "the fetching process has not responded for %d s", _SILENCE
                )
                self._process.kill()
            number, *answer = self._connection.recv()
            ended = False
            if number is not None:
                self._answers[number] = answer[0], answer[1]
            elif answer[0]:
                _log.warning("%s", legible(answer[0]))
        except (EOFError, OSError):
            pass
        finally:  # Ctrl-C may interrupt half a message
            self._news.acquire()
            self._ended = self.end() if ended else ""
            self._reading = False
            self._news.notify_all()

    def kill(self) -> None:
        """Kill the process; waiting threads get EOFError."""
        self._process.kill()

    def detach(self) -> None:
        """Drop the connection in a forked child; the process belongs to the parent."""
        self._connection.close()
        self._process.returncode = 0

    def end(self) -> str:
        """Close the connection, wait for the process, and return how it ended."""
        with self._sending:
            self._connection.close()
        for _ in range(2):
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_SECONDS_TO_DIE)
                return f"by signal {-code}" if code < 0 else f"with {code}"
            self._process.kill()
        return "by nothing, as its disk hangs"


_current: _Sidecar | None = None
_starting = threading.RLock()
_cache = lru_cache(NodeCache)


def _settings() -> dict[str, str]:
    """Return the environment variables of stores and of the node cache."""
    return {name: value for name, value in os.environ.items() if _OF_STORES.match(name)}


def _sidecar() -> _Sidecar:
    """Return the fetching process, restarted if its environment has changed."""
    global _current  # noqa: PLW0603 - one for each process
    with _starting:
        if _current is not None and _current.settings != _settings():
            _cache.cache_clear()
            _current.kill()  # waiting threads then ask the next one
            _current = None
        if _current is None:
            _cache()  # raises for wrong settings in this process
            _current = _Sidecar()
        return _current


def _forget(sidecar: _Sidecar) -> bool:
    """Start a new process at the next request; return whether this was current."""
    global _current  # noqa: PLW0603
    with _starting:
        if is_current := _current is sidecar:
            _current = None
        return is_current


def _request(*question: Any) -> Any:
    """Send a request, and retry with a new process if it ends before answering."""
    for _ in range(_STARTS):
        sidecar = _sidecar()
        try:
            return sidecar.request(*question)
        except EOFError as error:
            ended = str(error)
            if _forget(sidecar):
                _log.warning(
                    "the fetching process has ended %s. Starting another one",
                    ended,
                )
    raise OSError(
        errno.EIO,
        f"the fetching process has ended {_STARTS} times, the last time {ended}"
        + ("; out of memory. Use fewer workers" if ended == "by signal 9" else ""),
        shown(question[1]),
    )


def _after_fork() -> None:
    global _current  # noqa: PLW0603
    if _current is not None:  # inherited from the parent
        _current.detach()
    _current = None
    _starting.release()


# Prevent forks while a process is started, so that children inherit no connection.
os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_after_fork,
)

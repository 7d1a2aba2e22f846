"""Object storage, as each process reads it: what is asked of a process of its own that
fetches.

The first question starts `energize/data/sidecar.py`, which ends with the process that
asks, however that ends. A forked process has none and starts its own. What is fetched
lies in the node cache, where it is looked for first: what is all there is read without
a question.
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
from energize.data.local import changed
from energize.data.nodecache import FOLDER, NodeCache
from energize.data.sidecar import key_of, shown
from energize.errors import legible

_log = logging.getLogger("energize")

# Seconds without a word from the sidecar, which says every 5 s that it is well.
_SILENCE = 60
_STARTS = 3
_OF_STORES = re.compile(
    "AWS_|AZURE_|GOOGLE_|GCS_|HF_|MSC_|FSSPEC_|ENERGIZE_CACHE|.*_PROXY|HOME|SSL_",
    re.IGNORECASE,
)
_SECONDS_TO_DIE = 1


class Stat(NamedTuple):
    """The bytes of an object, and what tells it from another one of its name: its ETag
    or version, without both when it was last modified.
    """

    size: int
    tag: str


def stat(url: str) -> Stat:
    """Return what an object is now.

    Raise FileNotFoundError, PermissionError or another OSError, with the URL without
    secrets and what to do; `ConfigError` for a scheme that is not known, and if a
    library is missing.
    """
    return Stat(*_request("call", url, "stat"))


def listing(url: str, recursive: bool = False) -> list[tuple[str, int | None]]:
    """Return the names in a folder, sorted, each with its bytes, or None for a folder;
    with `recursive` all objects below it. Where nothing is, there are none.

    Raise OSError as `stat`, and for more than `limits.OBJECTS`.
    """
    most = limits.OBJECTS
    entries = _request("call", url, "listing", recursive, most)
    if len(entries) > most:
        raise OSError(errno.EFBIG, limits.over("OBJECTS"), shown(url))
    return sorted(
        dict(entries).items()
    )  # a name may be that of an object and of a folder


def is_folder(url: str) -> bool:
    """Return whether anything is below a URL. Raise OSError as `stat`."""
    return bool(_request("call", url, "holds"))


def ranges(
    url: str, object_stat: Stat, starts: Sequence[int], stops: Sequence[int]
) -> list[bytes]:
    """Return the bytes of each range of an object that was `found`, in ascending order.

    What passes by itself is waited for, up to 2 minutes for each range. Raise
    `ShardError` if the object is another one now, OSError as `stat`.
    """
    cache = _cache()
    key = key_of(url, *object_stat)
    got: list[Any] = list(map(partial(cache.read, key), starts, stops))
    if None not in got:
        return got
    spans = _spans(starts, stops)
    # What has left the cache before it was read is brought again, past the cache.
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
    """Have ranges, in ascending order, fetched into the cache before they are asked
    for, after all that is asked for; the whole object without any. Where it was not
    `found`, it is looked at, too. Numbers below 0 count from its end, and so does 0
    where a range ends. What fails is told when it is read.
    """
    spans = _spans(starts, stops)
    if object_stat is not None and spans:
        cache = _cache()
        key = key_of(url, *object_stat)
        spans = [span for span in spans if not cache.holds(key, *span)]
        if not spans:
            return
    (_current or _sidecar()).send(
        None, "plan", url, object_stat and tuple(object_stat), spans
    )


def missing(url: str, object_stat: Stat, spans: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes of ranges the cache does not have, by what it says of
    itself.
    """
    gaps = partial(_cache().missing, key_of(url, *object_stat), look=False)
    return sum(stop - start for span in spans for start, stop in gaps(*span))


def write(url: str, data: bytes | Path) -> None:
    """Make an object of these bytes, or those of a file. Others see the old one or the
    whole new one. Raise OSError as `stat`.
    """
    _request("call", url, "put", data)


def delete(url: str) -> None:
    """Remove an object. Raise OSError as `stat`."""
    _request("call", url, "delete")


def _spans(starts: Sequence[int], stops: Sequence[int]) -> list[tuple[int, int]]:
    # Numbers of numpy would have it imported by the sidecar.
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
    """The fetching process of this one. Of the threads that wait for it, one reads for
    all.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.settings = _settings()
        ours.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SILENCE, 0)
        )
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, sys.path)]
        )
        # This process may have gone into another folder since it named that of the
        # cache.
        named = {FOLDER: _cache().folder} if os.environ.get(FOLDER) else {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "energize.data.sidecar"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # obstore has as many threads as there are cores, in each of these
                # processes.
                env={
                    "TOKIO_WORKER_THREADS": "4",
                    **os.environ,
                    **named,
                    "PYTHONPATH": path,
                },
                start_new_session=True,  # Ctrl-C is for the trainer
            )
        self._connection = Connection(ours.detach())
        self._sending, self._news = threading.Lock(), threading.Condition()
        self._answers: dict[int, tuple[Any, Exception | None]] = {}
        self._numbers = count()
        self._reading = False
        self._ended = ""

    def send(self, *message: Any) -> None:
        """Send a question. That the sidecar has ended is seen by who waits for an
        answer.
        """
        with self._sending:
            try:
                self._connection.send(message)
            except OSError:
                self._process.kill()

    def request(self, *question: Any) -> Any:
        """Return the answer, or raise it; EOFError if the sidecar ends before."""
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
        """Wait for a message, while other threads may ask."""
        self._reading = ended = True
        try:
            self._news.release()
            if not self._connection.poll(_SILENCE):
                _log.warning("the process that fetches said nothing for %d s", _SILENCE)
                self._process.kill()
            number, *answer = self._connection.recv()
            ended = False
            if number is not None:
                self._answers[number] = answer[0], answer[1]
            elif answer[0]:
                _log.warning("%s", legible(answer[0]))
        except (EOFError, OSError):
            pass
        finally:  # Ctrl-C may come when half a message is read
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
        """Let the sidecar end, as it does when nobody has the other end; return how it
        did.
        """
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
    """Return what the environment says of stores and of the node cache."""
    return {name: value for name, value in os.environ.items() if _OF_STORES.match(name)}


def _sidecar() -> _Sidecar:
    """Return the one of this process, which was started with the settings that there
    are now.
    """
    global _current  # noqa: PLW0603 - one for each process
    with _starting:
        if _current is not None and _current.settings != _settings():
            _cache.cache_clear()
            _current.kill()  # waiting threads then ask the next one
            _current = None
        if _current is None:
            _cache()  # what is set wrongly is told by this process
            _current = _Sidecar()
        return _current


def _forget(sidecar: _Sidecar) -> bool:
    """Let the next question start another sidecar; return whether this one was still
    asked.
    """
    global _current  # noqa: PLW0603
    with _starting:
        if is_current := _current is sidecar:
            _current = None
        return is_current


def _request(*question: Any) -> Any:
    """Ask the sidecar, and another one if it ends before it has answered."""
    for _ in range(_STARTS):
        sidecar = _sidecar()
        try:
            return sidecar.request(*question)
        except EOFError as error:
            ended = str(error)
            if _forget(sidecar):
                _log.warning(
                    "the process that fetches has ended %s: another one is started",
                    ended,
                )
    raise OSError(
        errno.EIO,
        f"the process that fetches has ended {_STARTS} times, at last {ended}"
        + ("; memory is short: use fewer workers" if ended == "by signal 9" else ""),
        shown(question[1]),
    )


def _after_fork() -> None:
    global _current  # noqa: PLW0603
    if _current is not None:  # the one of the parent
        _current.detach()
    _current = None
    _starting.release()


# While one is started, nobody forks with its ends in hand.
os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_after_fork,
)

"""SIGTERM and SIGHUP as Ctrl-C: what a block has begun is taken back before the process ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_asked: list[int] = []
"""The signals that have come in the block; there is one at a time, in the main thread."""
_waiting: list[None] = []
"""One for each block that is not to be left in the middle."""


class _Stopped(BaseException):
    """Unwinds a block whose process is asked to end; nothing but the block catches it."""


@contextmanager
def taken_back_when_stopped() -> Iterator[None]:
    """The block is left by an exception when the process is asked to end, and then it ends by the
    same signal, as it would have at once.

    Where the program has handlers of its own for these signals, or outside its main thread, there
    is no difference. One block stands in another: the outer one ends the process.
    """
    mine = threading.current_thread() is threading.main_thread() and [
        each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_DFL
    ]
    if not mine:
        yield
        return
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a process that was forked in the block has nothing to take back
            _end(number)
        _asked.append(number)
        if len(_asked) == 1 and not _waiting:  # it is often sent twice: to a process, to its group
            raise _Stopped

    _asked.clear()
    try:
        for each in mine:
            signal.signal(each, stop)
        yield
    except _Stopped:
        pass
    finally:
        for each in mine:
            signal.signal(each, signal.SIG_DFL)
        if _asked:
            _end(_asked[0])


@contextmanager
def not_stopped_halfway() -> Iterator[None]:
    """Inside such a block, one that is not left in the middle: the exception comes after it.

    Forking is such a thing: Python forgets exceptions that arise in it.
    """
    _waiting.append(None)
    try:
        yield
    finally:
        _waiting.pop()
    if _asked and not _waiting:
        raise _Stopped


def _end(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container is not ended by signals

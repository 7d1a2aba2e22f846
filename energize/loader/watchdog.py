"""Saying that what is waited for does not come, and what is busy; or giving up."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

_LOOK = 1.0
"""Seconds between two looks, at most."""

_log = logging.getLogger("energize")


@dataclass(frozen=True)
class Patience:
    """How many seconds nothing may come before that is said, and before the very first
    item; None for any number. With `fails` it is an error.
    """

    seconds: float | None = None
    first: float | None = None
    fails: bool = False

    def ends(self, waited: float, said: int, *, first: bool) -> bool:
        """Whether it is to be said that somebody has waited so long, each time after
        twice as long; `first` if nothing has come yet.
        """
        limit = self.first if first and self.first is not None else self.seconds
        return limit is not None and waited >= limit * 2**said

    @property
    def limits(self) -> list[float]:
        """Those that there are."""
        return [each for each in (self.seconds, self.first) if each is not None]

    @property
    def shortest(self) -> float | None:
        """The shorter limit."""
        return min(self.limits, default=None)


class LateError(BaseException):
    """Raised in the thread that waits, in the middle of anything; no `except Exception`
    of users' functions holds it up.
    """


class Watchdog:
    """Watches what another thread waits for, from a thread of its own.

    `since` is the time at which the other thread began to wait, None when it has what
    it waits for. In C code a thread cannot be interrupted: where the wait fails, the
    error comes as soon as Python runs again.
    """

    def __init__(self, what: str, patience: Patience) -> None:
        self._what = what
        self._patience = patience
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._closed = False
        self.since: float | None = None
        self.waits = 0
        self.reader = 0
        self.text = ""

    def start(self, since: float) -> None:
        """Watch the thread that calls this, which waits from now on."""
        self.reader = threading.get_ident()
        self.waits = self.waits + 1
        self.since = since
        if self._thread is None and self._patience.shortest is not None:
            self._thread = threading.Thread(
                target=self._watch, name="energize watch", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """Nothing is waited for any more."""
        with (
            self._changed
        ):  # so that no error is on its way to what the thread does next
            self.since = None

    def close(self) -> None:
        """End the watching thread."""
        thread = self._thread
        self._thread = None
        if (
            thread is None or os.getpid() != self._owner
        ):  # its thread did not come through a fork
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if thread is not threading.current_thread():
            thread.join()
        self._closed = False

    def _watch(self) -> None:
        look = min(_LOOK, (self._patience.shortest or _LOOK) / 8)
        began = None
        said = 0
        with self._changed:
            while not self._closed:
                since = self.since
                if since != began:
                    began = since
                    said = 0
                elif since is not None:
                    said += self._looked(time.perf_counter() - since, said)
                self._changed.wait(look)

    def _looked(self, waited: float, said: int) -> bool:
        """Say that it comes late, each time after twice as long, or raise; whether it
        was said.
        """
        if not self._patience.ends(waited, said, first=self.waits <= 1):
            return False
        stack = stack_of(self.reader)
        if self._patience.fails:
            self.text = (
                f"{self._what} for {waited:.1f} s, and fail_on_timeout makes that an "
                "error. "
                f"This process is busy with:\n{stack}"
            )
            late = ctypes.py_object(LateError)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.reader), late
            )
        else:
            text = "%s for %.1f s. This process is busy with:\n%s"
            _log.warning(text, self._what, waited, stack)
        return True


def stack_of(thread: int) -> str:
    """Return what a thread of this process is busy with."""
    frame = sys._current_frames().get(thread)
    return (
        "".join(traceback.format_stack(frame))
        if frame is not None
        else "  it has ended"
    )


@contextmanager
def ctrl_c_later(start_method: str) -> Iterator[None]:
    """Hold Ctrl-C back while a process is started, and let it come afterwards.

    In the middle of a fork Python drops the KeyboardInterrupt, and the program would go
    on. The new process begins with Ctrl-C blocked, until it ignores it, so that it says
    nothing of its own.
    """
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    blocks = (
        start_method != "forkserver"
    )  # its server would hand that on to others' processes
    if start_method == "spawn":
        resource_tracker.ensure_running()  # which unblocks Ctrl-C when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT} if blocks else ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)

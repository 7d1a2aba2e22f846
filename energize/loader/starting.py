"""While a worker process starts: Ctrl-C waits, and the trainer does not wait for ever."""

from __future__ import annotations

import ctypes
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

from energize.errors import LoaderError
from energize.loader.stacks import stack_of
from energize.loader.watching import Patience

_log = logging.getLogger("energize")


@contextmanager
def ctrl_c_later(start_method: str) -> Iterator[None]:
    """Hold Ctrl-C back while a process is started, and let it come afterwards.

    In the middle of a fork Python drops the KeyboardInterrupt, and the program would go on. The new
    process begins with Ctrl-C blocked, until it ignores it, so that it says nothing of its own.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    blocks = start_method != "forkserver"  # its server would hand that on to others' processes
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


def ignore_ctrl_c() -> None:
    """In a worker: Ctrl-C reaches all processes of a terminal, and what it means is for the trainer
    to decide.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class _LateStart(BaseException):
    """Raised in the thread that starts a process, in the middle of anything."""


_SIGNAL = signal.SIGRTMIN + 6 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
"""Wakes the main thread from what it waits for in the kernel."""


@contextmanager
def watched_start(name: str, patience: Patience, timeout: float | None) -> Iterator[None]:
    """Say it when a process takes long to start, and raise `LoaderError` after `timeout` seconds.

    What a trainer waits for there is not a worker that could be replaced: a fork server that was
    stopped, a class of the user that is pickled, what a library has registered to be done at a
    fork. Where that is C code that lets no thread of Python run, nothing can be said.
    """
    watch = _StartWatch(name, patience, timeout)
    try:
        watch.begin()
        yield
    except _LateStart:
        raise LoaderError(watch.said) from None
    finally:
        watch.end()


class _StartWatch:
    """A thread that looks at the one that starts a process."""

    def __init__(self, name: str, patience: Patience, timeout: float | None) -> None:
        self._name, self._limit = name, patience.limit(first=True)
        ends = [timeout, self._limit if patience.fails else None]
        self._end = min((each for each in ends if each is not None), default=None)
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="energize start", daemon=True)
        self._before: Any = None
        self.said = ""

    def begin(self) -> None:
        """From now on the process is waited for."""
        if self._is_main:
            self._before = signal.signal(_SIGNAL, _raise_late)
        self._watch.start()

    def end(self) -> None:
        """No longer."""
        self._over.set()
        try:
            with suppress(_LateStart):  # which may have been on its way
                if self._watch.ident is not None:
                    self._watch.join()
        finally:  # Ctrl-C may come at any moment
            if self._before is not None:
                signal.signal(_SIGNAL, self._before)

    def _look(self) -> None:
        began, limit = time.monotonic(), self._limit
        while True:
            passed = time.monotonic() - began
            waits = [each - passed for each in (limit, self._end) if each is not None]
            if self._over.wait(max(0.0, min(waits)) if waits else None):
                return
            passed = time.monotonic() - began
            text = f"{self._name} has not started within {passed:.1f} s"
            busy = f"The trainer is busy with:\n{stack_of(self._thread)}"
            if self._end is not None and passed >= self._end:
                self.said = f"{text}, and timeout or fail_on_timeout makes that an error. {busy}"
                self._wake()
                return
            if limit is not None and passed >= limit:
                _log.warning("%s. %s", text, busy)
                limit *= 2

    def _wake(self) -> None:
        if self._is_main:
            signal.pthread_kill(self._thread, _SIGNAL)
        else:
            late = ctypes.py_object(_LateStart)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), late)


def _raise_late(*_: object) -> None:
    raise _LateStart

"""Warnings about items that are late, with Python stacks."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

_LOOK = 1.0
"""Maximum seconds between two checks."""

_log = logging.getLogger("energize")


def is_late(waited: float, limit: float | None, warnings: int) -> bool:
    """Return whether to warn after a wait of so many seconds.

    Args:
        waited: Seconds.
        limit: Seconds until the first warning; each further one comes after twice as
            long. None for no warning.
        warnings: How many warnings there have been of this wait.
    """
    return limit is not None and waited >= limit * 2**warnings


class Watchdog:
    """Watches the waits of another thread, from a thread of its own.

    Args:
        text: The beginning of the warning.
        warn_after: Seconds until the first warning; None for no warning.

    Attributes:
        since: The time at which the other thread began to wait; None if it does not
            wait.
    """

    def __init__(self, text: str, warn_after: float | None) -> None:
        self._what = text
        self._warn_after = warn_after
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._closed = False
        self.since: float | None = None
        self.reader = 0

    def start(self, since: float) -> None:
        """Watch the calling thread, which waits from now on."""
        self.reader = threading.get_ident()
        self.since = since
        if self._thread is None and self._warn_after is not None:
            self._thread = threading.Thread(
                target=self._watch, name="energize watch", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """End the wait."""
        with (
            self._changed
        ):  # so that no error is on its way to what the thread does next
            self.since = None

    def close(self) -> None:
        """Signal the watching thread to end.

        It is not joined: the garbage collector may call this in any thread, even in one
        that holds the locks of `threading`.
        """
        if os.getpid() != self._owner:  # its thread did not come through a fork
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _watch(self) -> None:
        look = min(_LOOK, (self._warn_after or _LOOK) / 8)
        began = None
        warnings = 0
        with self._changed:
            while not self._closed:
                since = self.since
                if since != began:
                    began = since
                    warnings = 0
                elif since is not None:
                    warnings += self._warn_if_late(
                        time.perf_counter() - since, warnings
                    )
                self._changed.wait(look)

    def _warn_if_late(self, waited: float, warnings: int) -> bool:
        """Warn if the item is late; return whether it is."""
        if not is_late(waited, self._warn_after, warnings):
            return False
        stack = stack_of(self.reader)
        text = "%s for %.1f s. This process is busy with:\n%s"
        _log.warning(text, self._what, waited, stack)
        return True


def stack_of(thread: int) -> str:
    """Return the stack of a thread of this process."""
    frames = sys._current_frames()  # noqa: SLF001 - documented, without a public name
    frame = frames.get(thread)
    return (
        "".join(traceback.format_stack(frame))
        if frame is not None
        else "  it has ended"
    )


@contextmanager
def ctrl_c_later(start_method: str) -> Iterator[None]:
    """Delay Ctrl-C until a process has started.

    Python drops a KeyboardInterrupt in the middle of a fork, and the program would
    continue. The new process begins with Ctrl-C blocked, until it ignores it, so that
    it prints no traceback.
    """
    previous: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
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
        signal.signal(signal.SIGINT, previous)
        if received:
            signal.raise_signal(signal.SIGINT)

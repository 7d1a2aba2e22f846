"""Ctrl-C while a worker process starts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


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

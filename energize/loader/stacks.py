"""What a worker is busy with, asked from outside: the Python stacks of its threads.

A worker that hangs, in a decoder, a lock or a read that never ends, cannot be asked by a message.
But it still takes signals: faulthandler then writes its stacks to a file that it shares with the
trainer, whatever its threads are waiting for.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from multiprocessing.reduction import DupFd
from typing import IO, Any

_SIGNAL = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""One that no launcher sends."""

_READY = b"\n"
"""What a worker writes once it can be asked; before, the signal would end it."""

_WAIT, _LOOK = 1.0, 0.02
"""Seconds that the trainer waits for stacks, and between two looks."""

_MOST = 20_000
"""Characters of stacks that are shown."""


class StackFile:
    """A file without a name, which trainer and worker share."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = tempfile.TemporaryFile() if file is None else file  # noqa: SIM115

    def __reduce__(self) -> tuple[Any, ...]:
        """While a process is started; the descriptor travels with it."""
        return _received, (DupFd(self._file.fileno()),)

    def answer(self) -> None:
        """In the worker: write stacks whenever the trainer asks."""
        faulthandler.register(_SIGNAL, file=self._file.fileno(), all_threads=True)
        os.write(self._file.fileno(), _READY)

    def ask(self, process: int) -> str:
        """The stacks of a worker, the thread that ran last first; or why there are none."""
        file = self._file.fileno()
        before = os.fstat(file).st_size
        if not before:
            return "  it has not started yet: what it is made of is being imported or unpickled"
        with suppress(OSError):
            os.kill(process, _SIGNAL)
        until, size = time.monotonic() + _WAIT, before
        while time.monotonic() < until:
            time.sleep(_LOOK)
            last, size = size, os.fstat(file).st_size
            if size > before and size == last:
                break
        if size == before:
            return "  it does not say what it is busy with: it is stopped, or waits in the kernel"
        return os.pread(file, _MOST, before).decode(errors="replace").rstrip()

    def close(self) -> None:
        """Close this end."""
        self._file.close()


def _received(descriptor: Any) -> StackFile:
    return StackFile(os.fdopen(descriptor.detach(), "r+b", buffering=0))


def stack_of(thread: int) -> str:
    """What a thread of this process is busy with."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)) if frame is not None else "  it has ended"

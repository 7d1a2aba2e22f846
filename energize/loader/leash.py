"""What ends a worker with its trainer, whatever the worker is busy with.

A worker that still imports what it needs, or computes and lets no other thread run, cannot look for
its trainer. So the kernel does: the trainer has one end of a pipe, the worker the other, and when
the trainer's is closed, which its death does too, the worker gets a signal (SIGIO) that ends it.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from contextlib import suppress
from multiprocessing.connection import Connection


class Leash:
    """The trainer's side: `worker_end` is for the worker, which never reads from it."""

    def __init__(self) -> None:
        self.worker_end: Connection[None, None]
        self.worker_end, self._held = multiprocessing.Pipe(duplex=False)

    def fileno(self) -> int:
        """Of the end that only the trainer may hold."""
        return self._held.fileno()

    def put_on(self, pid: int) -> None:
        """Have the process end with this one, from now on."""
        end = self.worker_end.fileno()
        with suppress(OSError, AttributeError):  # it has ended, or the system has no such signal
            fcntl.fcntl(end, fcntl.F_SETOWN, pid)
            fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
        self.worker_end.close()

    def close(self) -> None:
        """Let go; a worker that still runs is ended by it."""
        self.worker_end.close()
        self._held.close()

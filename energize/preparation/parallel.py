"""A function applied to many names in processes, with results in the order of the names."""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TypeVar

from energize.data.writing import not_stopped_halfway
from energize.errors import PrepareError

_SET_PARENT_DEATH_SIGNAL = 1
_PATIENCE_SECONDS = 10.0
"""A process that waits for a disk that does not answer ends when it does."""
_FILES_EACH = 8
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

N = TypeVar("N")
R = TypeVar("R")


def default_workers() -> int:
    """As many processes as this one may use cores, 16 at most, and fewer where it may not open
    files for so many.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = 16 if files == resource.RLIM_INFINITY else max(1, files // _FILES_EACH)
    return min(16, allowed, len(os.sched_getaffinity(0)))


def map_in_order(
    function: Callable[[N], R], names: Sequence[N], workers: int
) -> Generator[R | Exception, None, None]:
    """`function(name)` for each name, or the exception that it raised, in the order of `names`.

    Worker w of W takes the names w, w + W, ...; none runs further ahead than its pipe holds, so
    memory is bounded. With one worker everything happens in this process.

    Raises `PrepareError` when a worker is killed or cannot be started. Workers end when the
    iterator is closed, and by themselves when this process dies.
    """
    workers = min(workers, len(names))
    if workers <= 1:
        yield from (_attempted(function, name) for name in names)
        return
    # Forked, so that a script needs no `if __name__ == "__main__"` and torch is not imported again
    # by every worker; they do nothing but read files and write to their own.
    context = multiprocessing.get_context("fork")
    processes: list[ForkProcess] = []
    receivers: list[Connection[None, R | Exception]] = []
    try:
        for w in range(workers):
            try:
                receiver, sender = context.Pipe(duplex=False)
                receivers.append(receiver)
                arguments = (os.getpid(), function, names[w::workers], sender, receivers)
                process = context.Process(target=_work, args=arguments, daemon=True)
                with not_stopped_halfway():
                    process.start()
                    processes.append(process)
            except OSError as reason:
                raise PrepareError(
                    f"process {w + 1} of {workers} cannot be started: {_strerror(reason)}. Try "
                    "again with fewer processes (--num-workers), or see `ulimit -n` and `ulimit -u`"
                ) from reason
            # Only the worker holds this end now: when it dies, reading ends instead of waiting.
            sender.close()
        for i, name in enumerate(names):
            try:
                result = receivers[i % workers].recv()
            except (EOFError, OSError) as reason:  # it may have died while it was sending
                raise PrepareError(
                    f"the process that was reading {name} was killed, by the system when memory "
                    "is short for example. Try again with fewer processes (--num-workers)"
                ) from reason
            yield result
    finally:
        for process in processes:
            process.kill()  # which ends one that is stopped, too
        for process in processes:
            process.join(_PATIENCE_SECONDS)
        for receiver in receivers:
            receiver.close()


def _work(
    parent: int,
    function: Callable[[N], R],
    names: Sequence[N],
    sender: Connection[R | Exception, None],
    inherited: Sequence[Connection[None, R | Exception]],
) -> None:
    _end_with(parent)
    # The parent alone decides what an interrupt of the user means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for receiver in inherited:
        receiver.close()
    for name in names:
        try:
            sender.send(_attempted(function, name))
        except BrokenPipeError:
            return


def _end_with(parent: int) -> None:
    """End this process with its parent, whatever it is busy with: until then it holds the lock of
    the folder that it was forked with.
    """
    with suppress(OSError, AttributeError):  # there is no such call: it ends when it next sends
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _attempted(function: Callable[[N], R], name: N) -> R | Exception:
    try:
        return function(name)
    except Exception as reason:
        cause = reason if isinstance(reason, OSError) else reason.__cause__
        if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
            # Nothing is wrong with what was read, whatever who read it made of it.
            return PrepareError(
                f"{cause.filename or name} cannot be read: {_strerror(cause)}. Nothing is wrong "
                "with it: try again with fewer processes (--num-workers), or see `ulimit -n`"
            )
        # Handed to the caller, who raises it.
        return reason


def _strerror(reason: OSError) -> str:
    return reason.strerror or str(reason)

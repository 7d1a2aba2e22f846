"""A function applied to many names in processes, with results in the order of the names.

Each worker has a pipe of its own, which `concurrent.futures` lacks: there a worker that is killed
while it sends leaves the others waiting for ever, nobody knows which name it had, and the workers
of a killed process stay and hold the lock of the folder.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TypeVar

from energize.core.checks import checked_whole
from energize.errors import PrepareError

_MOST_WORKERS = 16
_PARENT_DEATH_SIGNAL = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE_SECONDS = 10.0
"""A process that waits for a disk that does not answer ends when it does."""

N = TypeVar("N")
R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""


def default_workers(workers: int | None = None) -> int:
    """Return the number of workers asked for; by default of the cores that this process may use, at
    most 16.
    """
    if workers is not None:
        return checked_whole(workers, "workers", 1)
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0)))


def map_in_order(
    function: Callable[[N], R], names: Sequence[N], workers: int
) -> Generator[R | Exception, None, None]:
    """Yield `function(name)` for each name, or the exception that it raised, in their order.

    Worker w of W takes the names w, w + W, ...; none runs further ahead than its pipe holds, so
    memory is bounded. With one worker everything happens in this process. Workers end when the
    generator is closed, and by themselves when this process dies.

    Raises `PrepareError` when a worker cannot be started, or is killed: it names what that read.
    """
    workers = min(workers, len(names))
    if workers <= 1:
        yield from (_attempted(function, name) for name in names)
        return
    # Forked: functions need not be picklable, scripts need no `if __name__ == "__main__"`, and
    # torch is not imported again by every worker.
    context = multiprocessing.get_context("fork")
    processes: list[ForkProcess] = []
    receivers: list[Connection[None, R | Exception]] = []
    try:
        for w in range(workers):
            receiver, sender = context.Pipe(duplex=False)
            receivers.append(receiver)
            arguments = (os.getpid(), function, names[w::workers], sender, receivers)
            process = context.Process(target=_work, args=arguments, daemon=True)
            # Python forgets exceptions of signals that come in the middle of a fork.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
            try:
                process.start()
                processes.append(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            # Only the worker holds this end now: when it dies, reading ends instead of waiting.
            sender.close()
        for i in range(len(names)):
            yield receivers[i % workers].recv()
    except (EOFError, OSError) as reason:  # which may come while a result is sent
        if len(processes) < workers:
            what = f"process {len(processes) + 1} of {workers} cannot be started: {reason}"
        else:
            what = f"the process that was reading {names[i]} was killed, for want of memory perhaps"
        raise PrepareError(
            f"{what}. Use fewer processes (--num-workers), or see `ulimit -n` and `ulimit -u`"
        ) from reason
    finally:
        for process in processes:
            process.kill()  # which ends one that is stopped, too
        for process in processes:
            process.join(_PATIENCE_SECONDS)
        for receiver in receivers:
            receiver.close()


def told_in_order(
    function: Callable[[N], R],
    names: Sequence[N],
    workers: int | None,
    on_progress: Progress | None,
) -> Generator[R | Exception, None, None]:
    """Yield what `map_in_order` does, and tell of progress: before the first, and after each."""
    tell = on_progress or (lambda done, total: None)
    tell(0, len(names))
    with closing(map_in_order(function, names, default_workers(workers))) as results:
        for done, result in enumerate(results, 1):
            yield result
            tell(done, len(names))


def _work(
    parent: int,
    function: Callable[[N], R],
    names: Sequence[N],
    sender: Connection[R | Exception, None],
    inherited: Sequence[Connection[None, R | Exception]],
) -> None:
    with suppress(OSError, AttributeError):  # there is no such call: it ends when it next sends
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # The parent alone decides what an interrupt of the user means.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for receiver in inherited:
        receiver.close()
    with suppress(BrokenPipeError):
        for name in names:
            sender.send(_attempted(function, name))


def _attempted(function: Callable[[N], R], name: N) -> R | Exception:
    try:
        return function(name)
    except Exception as reason:
        return reason  # which the caller raises

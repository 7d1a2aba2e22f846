"""A function applied to many names in processes, with results in the order of the names."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from typing import Any, TypeVar

from energize.core.checks import checked_whole
from energize.errors import PrepareError

_MOST_WORKERS = 16
_PARENT_DEATH_SIGNAL = 1

N = TypeVar("N")
R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Called with how many are done, and how many there are."""

_function: Callable[[Any], Any]
"""What a worker applies; inherited, so it need not be picklable."""


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

    At most two names for each worker are ahead of the one whose result is next, so memory is
    bounded. With one worker everything happens in this process. Workers end when the generator is
    closed, and by themselves when this process dies.

    Raises `PrepareError` when a worker cannot be started, or is killed.
    """
    workers = min(workers, len(names))
    if workers <= 1:
        yield from (_attempted(function, name) for name in names)
        return
    told = "the processes cannot be started"
    pool: ProcessPoolExecutor | None = None
    try:
        # Forked: scripts need no `if __name__ == "__main__"`, and torch is not imported again.
        context = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(workers, context, _begin, (function, os.getpid()))
        ahead: deque[tuple[N, Future[Any]]] = deque()
        for name in names:
            ahead.append((name, pool.submit(_call, name)))
            if len(ahead) > 2 * workers:
                told = f"a process was killed that read {ahead[0][0]} or one of the next"
                yield ahead.popleft()[1].result()
        while ahead:
            told = f"a process was killed that read {ahead[0][0]} or one of the next"
            yield ahead.popleft()[1].result()
    except (BrokenProcessPool, OSError) as reason:
        raise PrepareError(
            f"{told}, for want of memory or files perhaps: {reason}. Use fewer processes "
            "(--num-workers), or see `ulimit -n` and `ulimit -u`"
        ) from reason
    finally:
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()  # `kill_workers` of Python 3.14
            pool.shutdown(cancel_futures=True)


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


def _begin(function: Callable[[Any], Any], parent: int) -> None:
    global _function  # noqa: PLW0603
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The workers of a killed process would wait for ever, and hold the lock of the folder.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _call(name: Any) -> Any:
    return _attempted(_function, name)


def _attempted(function: Callable[[N], R], name: N) -> R | Exception:
    try:
        return function(name)
    except Exception as reason:
        return reason  # which the caller raises

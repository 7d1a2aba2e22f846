"""Apply a function to many names in processes, with results in order."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.queues import SimpleQueue
from typing import Any, TypeVar

from energize.core.checks import check_processes, checked_whole
from energize.core.progress import Progress, progress
from energize.errors import PrepareError

_MOST_WORKERS = 16
_PARENT_DEATH_SIGNAL = 1

N = TypeVar("N")
R = TypeVar("R")
_function: Callable[[Any], Any]
"""The function of a worker; inherited, so it need not be picklable."""


def map_in_order(
    function: Callable[[N], R],
    names: Sequence[N],
    workers: int | None = None,
    on_progress: Progress | None = None,
) -> Generator[R | Exception, None, None]:
    """Yield `function(name)` for each name, or its exception, in order.

    At most two names for each worker are ahead of the next result, which bounds the
    memory. Workers end when the generator is closed, and if this process dies.

    Args:
        function: The function.
        names: The names.
        workers: Number of processes; by default the usable cores, at most 16. With 1,
            everything runs in this process.
        on_progress: Called with the names that are done, and with all names: before the
            first, and after each.

    Raises:
        PrepareError: If a worker cannot be started, or is killed.
    """
    report = on_progress or progress("Files")
    report(0, len(names))
    most = min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
    most = min(
        most if workers is None else checked_whole(workers, "workers", 1), len(names)
    )
    check_processes(most, "workers")
    sequential = (_attempted(function, name) for name in names)
    with closing(
        _results(function, names, most) if most > 1 else sequential
    ) as results:
        for done, result in enumerate(results, 1):
            yield result
            report(done, len(names))


class _ResultQueue(SimpleQueue[Any]):
    def close_writer(self) -> None:
        """Close this process's end for writing, so that readers see the end."""
        self._writer.close()  # type: ignore[attr-defined]


class _Context(ForkContext):
    """The context of a pool that keeps its workers and queues, to end them."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[ForkProcess] = []
        self.queues: list[_ResultQueue] = []
        self.Process = self._new_worker  # type: ignore[assignment, misc]

    def _new_worker(self, **options: Any) -> ForkProcess:
        # A daemon: the exit does not wait for a process that the pool does not know
        # because a signal interrupted it.
        worker = ForkProcess(**options, daemon=True)
        self.workers.append(worker)
        return worker

    def SimpleQueue(self) -> Any:  # noqa: N802 - its name in multiprocessing
        queue = _ResultQueue(ctx=self.get_context())
        self.queues.append(queue)
        return queue

    def kill_workers(self) -> None:
        """Kill all workers, as `kill_workers` of Python 3.14 does."""
        for worker in self.workers:
            if worker.is_alive():
                worker.kill()
        # Otherwise the pool waits for the rest of a message of a killed worker.
        for queue in self.queues:
            queue.close_writer()


def _results(
    function: Callable[[N], R], names: Sequence[N], workers: int
) -> Generator[R | Exception, None, None]:
    fault = "the processes cannot be started"
    context = _Context()
    pool: ProcessPoolExecutor | None = None
    try:
        # Forked: scripts need no `if __name__ == "__main__"`, and torch is not imported
        # again.
        pool = ProcessPoolExecutor(workers, context, _begin, (function, os.getpid()))
        ahead: deque[tuple[N, Future[Any]]] = deque()
        for number in range(len(names) + 2 * workers):
            if number < len(names):
                ahead.append((names[number], pool.submit(_call, names[number])))
            if number >= 2 * workers and ahead:
                name, result = ahead.popleft()
                fault = f"a process was killed that read {name} or one of the next"
                yield result.result()
    except (BrokenProcessPool, OSError) as reason:
        raise PrepareError(
            f"{fault}, perhaps from lack of memory or open files: {reason}. Use fewer "
            "processes (--num-workers), or see `ulimit -n` and `ulimit -u`"
        ) from reason
    finally:
        if pool is not None:
            context.kill_workers()
            with suppress(RuntimeError):  # a signal met it before its thread had begun
                pool.shutdown(cancel_futures=True)


def _begin(function: Callable[[Any], Any], parent: int) -> None:
    global _function  # noqa: PLW0603
    _function = function
    gc.freeze()  # what the parent has dropped is finalized there, not waited for here
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The workers of a killed process would wait for ever, and hold the lock of the
    # folder.
    end_with(parent)


def end_with(parent: int) -> None:
    """Kill this process when its parent, the process `parent`, ends."""
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

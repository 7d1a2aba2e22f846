"""A function applied to many names in processes, with results in the order of the names."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TypeVar

from energize.errors import PrepareError

N = TypeVar("N")
R = TypeVar("R")


def map_in_order(
    function: Callable[[N], R], names: Sequence[N], workers: int
) -> Generator[R | Exception, None, None]:
    """`function(name)` for each name, or the exception that it raised, in the order of `names`.

    Worker w of W takes the names w, w + W, ...; none runs further ahead than its pipe holds, so
    memory is bounded. With one worker everything happens in this process.

    Raises `PrepareError` when a worker is killed. Workers end when the iterator is closed, and by
    themselves when this process dies.
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
            receiver, sender = context.Pipe(duplex=False)
            receivers.append(receiver)
            process = context.Process(
                target=_work, args=(function, names[w::workers], sender, receivers), daemon=True
            )
            process.start()
            processes.append(process)
            # Only the worker holds this end now: when it dies, reading ends instead of waiting.
            sender.close()
        for i, name in enumerate(names):
            try:
                yield receivers[i % workers].recv()
            except EOFError as reason:
                raise PrepareError(
                    f"the process that was reading {name} was killed, by the system when memory "
                    "is short for example. Try again with fewer processes (--num-workers)"
                ) from reason
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for receiver in receivers:
            receiver.close()


def _work(
    function: Callable[[N], R],
    names: Sequence[N],
    sender: Connection[R | Exception, None],
    inherited: Sequence[Connection[None, R | Exception]],
) -> None:
    # The parent alone decides what an interrupt of the user means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for receiver in inherited:
        receiver.close()
    for name in names:
        try:
            sender.send(_attempted(function, name))
        except BrokenPipeError:
            return


def _attempted(function: Callable[[N], R], name: N) -> R | Exception:
    try:
        return function(name)
    except Exception as reason:
        # Handed to the caller, who raises it.
        return reason

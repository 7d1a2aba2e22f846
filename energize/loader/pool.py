"""The trainer's side of the worker processes: what is asked of them, and what became of them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from energize.dataset import Dataset
from energize.errors import ConfigError, LoaderError, WorkerDiedError
from energize.loader.shipping import Reply, Request, loads
from energize.loader.slots import ReceivedSlots
from energize.loader.worker import serve

__all__ = ["WorkerPool"]

_SECONDS_TO_STOP = 1.0

_CAUSES = {
    signal.SIGKILL: "Most often the kernel does that when memory runs out (see dmesg): fewer "
    "workers, a smaller prefetch_factor or smaller batches need less",
    signal.SIGBUS: "Most often shared memory ran out: enlarge /dev/shm (docker run --shm-size=8g), "
    "or use fewer workers or a smaller prefetch_factor",
    signal.SIGSEGV: "Native code crashed, in a decoder for example; num_workers=0 with "
    "`python -X faulthandler` shows where",
}


@dataclass(slots=True)
class _Member:
    """A worker process, and the requests it has not answered yet, oldest first."""

    process: BaseProcess
    connection: Connection
    pending: deque[Request] = field(default_factory=deque)
    slots: ReceivedSlots = field(default_factory=ReceivedSlots)

    def has_ended(self) -> bool:
        """Whether the process is gone, or about to be: its pipe has been closed already."""
        self.process.join(_SECONDS_TO_STOP)
        return not self.process.is_alive()

    def obituary(self) -> WorkerDiedError:
        """What is to be said about this worker, which has ended."""
        self.has_ended()
        code = self.process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            cause = _CAUSES.get(
                signal.Signals(-code), "Something outside the loader sent the signal"
            )
        else:
            how = f"ended with exit code {code}"
            cause = (
                "Its own output says why: something called sys.exit(), or it could not start. A "
                'script that spawns workers keeps its work under `if __name__ == "__main__":`'
            )
        work = f" while it had {self.pending[0]} to answer" if self.pending else ""
        return WorkerDiedError(
            f"{self.process.name} (pid {self.process.pid}) {how}{work}. {cause}. The loader's "
            "state is that after the last delivered item; iterating again starts new workers"
        )


class WorkerPool:
    """`count` processes that answer requests; replies are taken in the order of the requests.

    `prefetch` requests per worker are under way or answered ahead. The next one goes to the worker
    with the fewest left, so a slow one holds up the others as little as possible. Any error on the
    way, Ctrl-C included, closes the pool; what a worker raised is part of its reply.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        count: int,
        prefetch: int,
        start_method: str,
        timeout: float | None,
    ) -> None:
        self._owner = os.getpid()
        self._prefetch = prefetch
        self._timeout = timeout
        self._requests: Iterator[Request] = iter(())
        self._tickets = itertools.count()
        self._due: deque[int] = deque()
        self._arrived: dict[int, Reply] = {}
        self._members: list[_Member] = []
        try:
            for number in range(count):
                self._members.append(_started(dataset, number, start_method))
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether this process has no worker of the pool: they are gone, or those of its parent."""
        return not self._members or os.getpid() != self._owner

    def begin(self, requests: Iterator[Request]) -> None:
        """Answer these requests from now on; earlier ones that were not taken are dropped."""
        self._requests = requests
        self._due.clear()
        self._arrived.clear()
        with self._closed_on_error():
            self._send_ahead()

    def take(self) -> Reply:
        """The reply to the oldest request not yet taken; there must be one.

        Raises `WorkerDiedError` as soon as a worker has died, and `LoaderError` when no reply comes
        within the timeout.
        """
        with self._closed_on_error():
            self._send_ahead()
            until = None if self._timeout is None else time.monotonic() + self._timeout
            while self._due[0] not in self._arrived:
                self._receive(until)
            reply = self._arrived.pop(self._due.popleft())
            self._send_ahead()
            return reply

    def close(self) -> None:
        """End the worker processes; those that do not stop within a second are killed."""
        members, self._members = self._members, []
        if os.getpid() != self._owner:
            return  # a forked copy of the pool: the processes are not its children
        for member in members:
            with suppress(OSError):
                member.connection.send(None)
        until = time.monotonic() + _SECONDS_TO_STOP
        for member in members:
            member.process.join(max(0.0, until - time.monotonic()))
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.connection.close()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """A message that was read in part, by Ctrl-C say, leaves its pipe unusable."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _send_ahead(self) -> None:
        while len(self._due) < self._prefetch * len(self._members):
            request = next(self._requests, None)
            if request is None:
                return
            ticket = next(self._tickets)
            member = min(self._members, key=lambda each: len(each.pending))
            member.pending.append(request)
            self._due.append(ticket)
            try:
                member.connection.send((ticket, request))
            except OSError as error:
                raise member.obituary() from error

    def _receive(self, until: float | None) -> None:
        """Wait for something to come, and take one reply from each worker that has one."""
        ended = {each.process.sentinel: each for each in self._members}
        talking = {each.connection: each for each in self._members}
        seconds = None if until is None else max(0.0, until - time.monotonic())
        ready = wait([*talking, *ended], seconds)
        if not ready:
            raise LoaderError(
                f"no answer from the workers within timeout={self._timeout} s; they were asked for "
                f"{', '.join(str(each.pending[0]) for each in self._members if each.pending)}. "
                "Look for a file system that hangs or an encoder that waits for a lock, or give a "
                "longer timeout"
            )
        for handle in ready:
            if isinstance(handle, int):
                raise ended[handle].obituary()
        for handle in ready:
            if isinstance(handle, Connection):
                self._receive_from(talking[handle])

    def _receive_from(self, member: _Member) -> None:
        try:
            data = member.connection.recv_bytes()
            reply: Reply = loads(data, member.slots)
        except (OSError, EOFError) as error:
            if member.has_ended():
                raise member.obituary() from error
            raise LoaderError(
                f"a reply of {member.process.name} cannot be read: {type(error).__name__}: "
                f"{error}. Each piece of shared memory that holds a large tensor takes a file "
                "descriptor; raise the limit (ulimit -n), or keep fewer batches at a time"
            ) from error
        member.pending.popleft()
        if reply.ticket in self._due:
            self._arrived[reply.ticket] = reply


def _started(dataset: Dataset[Any], number: int, start_method: str) -> _Member:
    context: Any = multiprocessing.get_context(start_method)  # its type does not know Process
    ours, theirs = context.Pipe()
    process = context.Process(
        target=serve,
        args=(dataset, theirs),
        name=f"energize worker {number}",
        daemon=True,
    )
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the dataset cannot be pickled for a worker started by {start_method!r}: {error}. "
            "Define functions at the top of a module instead of lambdas or inner functions, or use "
            "multiprocessing_context='fork'"
        ) from error
    finally:
        theirs.close()
    return _Member(process, ours)

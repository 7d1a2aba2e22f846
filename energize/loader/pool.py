"""The trainer's side of worker processes.

A worker that dies, or sends no reply within `timeout` seconds of a request, is
replaced, and its open requests are sent to the new worker. Any worker can read any
lane. A worker ends with its trainer: the trainer holds one end of a pipe, the worker
the other, and the kernel kills the worker when the trainer's end is closed
(`on_leash`).
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.process
import multiprocessing.util  # before _end_at_exit is registered, see there
import os
import pickle
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, BinaryIO, Protocol

from energize.core.checks import check_processes
from energize.errors import ConfigError, LoaderError, WorkerDiedError
from energize.loader.shipping import (
    Channel,
    GarbledError,
    Message,
    Read,
    ReceivedRegions,
    Reply,
    stored,
)
from energize.loader.watchdog import ctrl_c_later, is_late
from energize.loader.worker import STACKS, Task, on_leash, serve

_MOST_ENDS = 3
"""Number of workers that may end in a row, for one number, without a reply."""

_SECONDS_TO_TELL = 1.0
"""Seconds between a closed channel and the exit code of the worker."""

_SECONDS_TO_STOP = 0.5
"""Seconds that all workers together may take to stop, before they are killed."""

_SECONDS_TO_DIE = 5.0
"""Seconds that a killed worker may take to end. The kernel needs time to free
gigabytes. A worker that waits in the kernel, for a lost disk, may never end."""

_LOOK_AROUND = 1.0
"""Seconds between two checks during a wait whether workers still run."""

_STACKS_SECONDS = 1.0
_STACKS_LOOK = 0.02
_STACKS_MOST = 20_000
"""Limits of stacks of a worker: seconds to wait for them, seconds between two checks,
and characters to show."""

_CAUSES = {
    signal.SIGKILL: "Most often the kernel does that when memory runs out (see dmesg): "
    "fewer workers, a smaller prefetch_bytes or smaller batches need "
    "less",
    signal.SIGBUS: "Most often memory ran out, or a file that is mapped was cut: use "
    "fewer workers, or a smaller prefetch_bytes",
    signal.SIGSEGV: "Native code crashed, in a decoder for example; num_workers=0 with "
    "`python -X faulthandler` shows where",
}

_log = logging.getLogger("energize")

_trainer_ends: weakref.WeakSet[Any] = weakref.WeakSet()
"""Ends of pipes that only this process may hold: workers live as long as they are
open."""


def _close_trainer_ends() -> None:
    for end in list(_trainer_ends):
        end.close()


os.register_at_fork(after_in_child=_close_trainer_ends)


@dataclass(slots=True)
class Silence:
    """A wait for the next reply of a worker.

    Attributes:
        seconds: Seconds that the trainer has waited.
        warnings: Number of warnings about this wait.
    """

    seconds: float = 0.0
    warnings: int = 0


@dataclass(slots=True)
class Member:
    """A worker process as its trainer sees it.

    Attributes:
        number: The number of the worker.
        process: The process.
        channel: The trainer's end of the connection.
        leash: The trainer's end of the pipe that the process lives with.
        regions: The shared memory of the worker.
        stacks: The descriptor of the file to which the worker writes its stacks; None
            before it runs.
        silence: The wait for its next reply.
        ends: Number of workers with this number that have ended without a reply in
            between.
    """

    number: int
    process: BaseProcess
    channel: Channel
    leash: Connection[Any, Any]
    regions: ReceivedRegions = field(default_factory=ReceivedRegions)
    stacks: int | None = None
    silence: Silence = field(default_factory=Silence)
    ends: int = 0

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.process.name} (pid {self.process.pid})"

    def post(self, message: Any) -> None:
        """Send a message. A message to a dead worker is dropped."""
        with suppress(OSError):  # which is seen where replies are received
            self.channel.post(pickle.dumps(message))

    def busy_with(self) -> str:
        """Return the stacks of the worker's threads, or why there are none."""
        file = self.stacks
        if file is None:
            return (
                "  it has not started yet: modules are being imported, or the dataset "
                "unpickled"
            )
        start = size = os.fstat(file).st_size
        with suppress(OSError):
            os.kill(self.process.pid or 0, STACKS)
        until = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < until:
            time.sleep(_STACKS_LOOK)
            last = size
            size = os.fstat(file).st_size
            if size > start and size == last:
                break
        if size == start:
            return "  its stacks are unknown: it is stopped, or waits in the kernel"
        return os.pread(file, _STACKS_MOST, start).decode(errors="replace").rstrip()

    def see_off(self) -> None:
        """Kill the worker, and release its resources."""
        self.process.kill()
        self.process.join(_SECONDS_TO_DIE)
        self.leash.close()
        if self.stacks is not None:
            os.close(self.stacks)
            self.stacks = None
        with suppress(OSError):
            self.channel.close()


class Requester(Protocol):
    """Requests items of workers, and receives their replies."""

    def note(self, reply: Reply) -> None:
        """Receive a reply."""

    def note_failures(self, reply: Reply) -> None:
        """Count the failures of a reply to an earlier run."""

    def owed_by(self, worker: int) -> list[Read]:
        """Return the requests to a worker without a reply."""


class WorkerPool:
    """Worker processes that read for a requester.

    Args:
        task: The task of each worker.
        count: Number of workers.
        start_method: "fork", "spawn" or "forkserver".
        timeout: Seconds to wait for a reply, before a worker is replaced. None waits
            forever.
        warn_after: Seconds to wait for a reply, before the stacks of a worker are
            logged. None for no warning.

    Attributes:
        workers: Number of workers.
        replaced: Number of workers that were replaced.
        lanes: Returns the requester, if there is one.
    """

    def __init__(
        self,
        task: Task,
        count: int,
        start_method: str,
        timeout: float | None,
        warn_after: float | None,
    ) -> None:
        check_processes(count, "num_workers")
        self.workers = count
        self.replaced = 0
        self.run = 0
        self._turn = threading.RLock()
        self._closing = False
        self.lanes: Callable[[], Requester | None] = lambda: None
        self._task = task
        self._start_method = start_method
        self._timeout = timeout
        self._warn_after = warn_after
        self._look_around = min(_LOOK_AROUND, (warn_after or 2 * _LOOK_AROUND) / 2)
        self._owner = os.getpid()
        self.members: list[Member] = []
        """The worker processes, by number."""
        self._end = weakref.finalize(self, _end_all, self.members, self._owner)
        self._end.atexit = False  # see _end_at_exit
        _pools.add(self)
        with self._closed_on_error():
            for number in range(count):
                self.members.append(self._started(number))

    @property
    def closed(self) -> bool:
        """Whether this process has no worker of the pool."""
        return self._closing or os.getpid() != self._owner

    def request(self, worker: int, request: Read) -> None:
        """Request items of a lane from a worker."""
        with self._closed_on_error():
            self.members[worker].post(request)

    def look(self) -> None:
        """Receive replies that have arrived, without waiting."""
        with self._closed_on_error():
            self._exchange(0.0)

    def wait(self) -> None:
        """Receive replies, or wait for the next one, and replace workers that do not
        answer.

        Raises:
            WorkerDiedError: If several workers have ended at the same request.
            LoaderError: If several workers did not answer the same request.
        """
        with self._closed_on_error():
            began = time.monotonic()
            heard = self._exchange(self._look_around)
            # No more than that: while the trainer itself was stopped nobody could be
            # heard.
            self._note_silence(heard, min(time.monotonic() - began, self._look_around))

    def close(self) -> None:
        """End the workers, and kill those that do not stop within half a second.

        This also happens when the pool is garbage, and when the trainer ends. Another
        thread that waits for items gets a `LoaderError`.
        """
        forked = os.getpid() != self._owner
        self._closing = True
        with nullcontext() if forked else self._turn:
            self._end()
            self.lanes = lambda: None

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Close the pool at any error, or raise `LoaderError` if it is closed."""
        if not self.closed:
            with self._turn:
                try:
                    yield
                except BaseException:
                    self.close()
                    raise
                if not self.closed:
                    return
        raise LoaderError(
            "the workers of this loop are gone: the loader was closed, or this "
            "process is a fork of the one that has them. Start a new loop to continue "
            "after the last delivered item"
        )

    def _exchange(self, seconds: float) -> set[int]:
        """Send pending messages and receive replies, for at most `seconds`.

        Returns the numbers of the workers that sent a complete reply.
        """
        poll = select.poll()
        by_descriptor = {member.channel.fileno(): member for member in self.members}
        for descriptor, member in by_descriptor.items():
            unsent = False
            with suppress(
                OSError
            ):  # it has died, which is seen where replies are received
                unsent = not member.channel.flush()
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if unsent else 0))
        ready = [
            by_descriptor[descriptor] for descriptor, _ in poll.poll(seconds * 1000)
        ]
        return {member.number for member in ready if self._receive_from(member)}

    def _receive_from(self, member: Member) -> bool:
        """Receive data of a worker; return whether a reply is complete."""
        whole = False
        why = None
        try:
            for message in member.channel.received():
                whole = self._note(member, message) or whole
            return whole
        except (EOFError, ConnectionError):
            pass
        except GarbledError as error:
            member.process.kill()
            why = (
                f"sent {error}",
                "Something writes to file descriptors that are not its own: a function "
                "that it calls, or a process that one has forked",
            )
        except (OSError, MemoryError) as error:
            raise LoaderError(
                f"a reply of {member.name} cannot be received: {type(error).__name__}: "
                f"{error}. Each large tensor in shared memory takes a file descriptor. "
                "Raise the limit (ulimit -n), or keep fewer batches at a time "
                "(prefetch_factor, prefetch_bytes)"
            ) from error
        # Not above: a forked worker would have this error as the context of all of its
        # own.
        self._replace(member, why)
        return whole

    def _note(self, member: Member, message: Message) -> bool:
        """Process a message; return whether it is a reply."""
        if message.descriptor is not None:
            if member.stacks is None:
                member.stacks = message.descriptor
            else:
                member.regions.add(message.descriptor)
            return False
        reply = self._rebuilt(member, message)
        if reply.error is not None and reply.lane is None:
            raise reply.error.rebuilt()
        member.silence = Silence()
        member.ends = 0
        lanes = self.lanes()
        if lanes is not None and reply.run == self.run:
            lanes.note(reply)
        elif lanes is not None and reply.run < self.run:
            lanes.note_failures(reply)  # the worker reports no sample twice
        elif reply.run > self.run:
            raise GarbledError(f"a reply of run {reply.run}, which was not requested")
        return True

    def _rebuilt(self, member: Member, message: Message) -> Reply:
        """Unpickle the reply in a message."""
        reply: Reply
        try:
            reply, size = member.regions.loads(message.data)
            reply.notes.size = size
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise LoaderError(
                f"a reply of {member.name}{self._work(member)} cannot be rebuilt in "
                f"the trainer: {type(error).__name__}: {error}. Items are sent by "
                "pickle. Remove the parts that do not unpickle here, or use "
                "num_workers=0"
            ) from error
        return reply

    def _owed(self, member: Member) -> list[Read]:
        lanes = self.lanes()
        return [] if lanes is None else lanes.owed_by(member.number)

    def _work(self, member: Member) -> str:
        """Describe the current request of a worker, for messages."""
        owed = self._owed(member)
        return f" while it had {owed[0]} to answer" if owed else ""

    def _note_silence(self, heard: set[int], waited: float) -> None:
        """Count the seconds without a reply, and replace workers above the limit."""
        for member in list(self.members):
            if member.number in heard or not self._owed(member):
                continue
            member.silence.seconds += waited
            self._warn_if_late(member)
            if self._timeout is not None and member.silence.seconds >= self._timeout:
                member.process.kill()
                cause = (
                    "It was stopped, or hangs. Check for a file system that does not "
                    "answer or an encoder that waits for a lock, or set a longer "
                    "timeout"
                )
                self._replace(
                    member,
                    (f"gave no answer within timeout={self._timeout:g} s", cause),
                )

    def _warn_if_late(self, member: Member) -> None:
        """Log the stacks of a worker that is late, each time after twice as long."""
        if not is_late(
            member.silence.seconds, self._warn_after, member.silence.warnings
        ):
            return
        member.silence.warnings += 1
        seconds = member.silence.seconds
        text = f"{member.name} gave no item for {seconds:.1f} s{self._work(member)}"
        stacks = member.busy_with()
        _log.warning("%s. It is busy with:\n%s", text, stacks)

    def _replace(self, member: Member, why: tuple[str, str] | None) -> None:
        """Start a worker in place of one that has ended.

        Args:
            member: The worker.
            why: How it ended and the likely cause; None if it ended by itself.
        """
        if self.closed:  # by a handler of a signal
            return
        member.process.join(_SECONDS_TO_TELL)
        how, cause = why or _how_it_ended(member.process)
        text = f"{member.name} {how}{self._work(member)}. {cause}"
        member.see_off()
        if member.ends + 1 == _MOST_ENDS:
            raise (LoaderError if why else WorkerDiedError)(
                f"{text}. It was the last of {_MOST_ENDS} workers that ended so, one "
                "after another. Iterate again to start new workers after the last "
                "delivered item"
            )
        self.replaced += 1
        _log.warning(
            "%s. A new one takes its place (replacement %d)", text, self.replaced
        )
        other = self._started(member.number)
        other.ends = member.ends + 1
        self.members[member.number] = other
        for request in self._owed(other):
            other.post(request)

    def _started(self, number: int) -> Member:
        name = f"energize worker {number}"
        try:
            return self._start(name, number)
        except (EOFError, OSError) as error:
            raise LoaderError(
                f"{name} cannot be started: {type(error).__name__}: {error}. Use fewer "
                "workers, or raise the limits on processes, file descriptors (ulimit "
                "-n) and memory"
            ) from error

    def _start(self, name: str, number: int) -> Member:
        method = self._start_method
        context: Any = multiprocessing.get_context(method)
        # What a process that starts from nothing gets at once, the trainer waits for it
        # to read.
        task, sent = (self._task, None) if method == "fork" else (None, self._stored)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        leash, held = multiprocessing.Pipe(duplex=False)
        ours.setblocking(False)
        _trainer_ends.update((ours, held))
        trainer = 0 if method == "forkserver" else os.getpid()
        arguments = (task, theirs, leash, trainer)
        process = context.Process(target=serve, args=arguments, name=name, daemon=True)
        with theirs, leash:
            try:
                with ctrl_c_later(method):
                    process.start()
                on_leash(leash, process.pid)
            except BaseException:
                ours.close()
                held.close()
                if process.pid is not None:
                    process.kill()
                    process.join(_SECONDS_TO_DIE)
                raise
        member = Member(number, process, Channel(ours), held)
        if sent is not None:
            with suppress(
                OSError
            ):  # it has died, which is seen where replies are received
                member.channel.send(b"", sent.fileno())
        return member

    @cached_property
    def _stored(self) -> BinaryIO:
        """The pickled task for spawned processes; one copy for all of them."""
        try:
            return stored(self._task)
        except OSError:
            raise
        except Exception as error:  # whatever the classes of the user do
            raise ConfigError(
                "the dataset cannot be pickled for a worker started by "
                f"{self._start_method!r}: {type(error).__name__}: {error}. Define "
                "functions at the top of a module instead of lambdas or inner "
                "functions, open files and connections when they are first used, or "
                "use multiprocessing_context='fork'"
            ) from error


def _how_it_ended(process: BaseProcess) -> tuple[str, str]:
    """Return how a worker ended by itself, and the likely cause."""
    code = process.exitcode
    if code is None:
        return "closed its channel and runs on", (
            "Some function that it calls closes file descriptors that are not its own"
        )
    if code < 0:
        ended_by = signal.Signals(-code)
        cause = _CAUSES.get(ended_by, "Something outside the loader sent the signal")
        return f"was killed by {ended_by.name}", cause
    return f"ended with exit code {code}", (
        "Its own output has the reason: something called sys.exit() or closed its "
        "file descriptors, or it could not start. A script that spawns workers keeps "
        'its work under `if __name__ == "__main__":`'
    )


def _end_all(members: list[Member], owner: int) -> None:
    """Stop workers, and kill those that do not stop in time."""
    ending = members.copy()
    members.clear()
    if os.getpid() != owner:
        return  # a forked copy of the pool: the processes are not its children
    try:
        for member in ending:
            member.post(None)
        until = time.monotonic() + _SECONDS_TO_STOP
        for member in ending:
            member.process.join(max(0.0, until - time.monotonic()))
    finally:
        for member in ending:
            member.process.kill()
        for member in ending:
            member.see_off()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _end_at_exit() -> None:
    """End all pools together, in the time of one."""
    members = [member for pool in _pools if not pool.closed for member in pool.members]
    _end_all(members, os.getpid())
    for pool in list(_pools):
        pool.close()


# multiprocessing, at its own exit, would wait for a worker that is stopped, and for
# ever. What is registered later runs earlier, and multiprocessing.util has been
# imported above.
atexit.register(_end_at_exit)

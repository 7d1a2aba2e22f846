"""The trainer's side of the worker processes: what is asked of them, and what became of them."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import pickle
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from energize.errors import LoaderError, WorkerDiedError
from energize.loader.channel import Channel, channel_pair
from energize.loader.obituary import how_it_ended, unpicklable
from energize.loader.shipping import NOT_STARTED, Reply, Request, loads, rebuilt
from energize.loader.slots import ReceivedSlots
from energize.loader.worker import Task, serve

__all__ = ["WorkerPool"]

_SECONDS_TO_STOP = 1.0

_LOOK_AROUND = 1.0
"""Seconds after which a wait looks whether workers still run."""

_MOST_ENDS = 3
"""How many workers may end in one place without an answer before it is given up."""

_log = logging.getLogger("energize")


@dataclass(slots=True)
class _Member:
    """A worker process, and what it has not answered yet, oldest first.

    `silent` is for how many seconds the trainer has waited in vain for a reply of it, `ends` how
    many workers in its place have ended since one of them answered.
    """

    number: int
    process: BaseProcess
    channel: Channel
    pending: deque[tuple[int, Request]] = field(default_factory=deque)
    slots: ReceivedSlots = field(default_factory=ReceivedSlots)
    silent: float = 0.0
    ends: int = 0


class WorkerPool:
    """`count` processes that answer requests. `replaced` counts those whose place others took.

    A worker that dies, or gives no whole reply for `timeout` seconds while one is waited for, is
    replaced, and what it was asked is asked again: requests are answered alike by any worker.
    """

    def __init__(self, task: Task, count: int, start_method: str, timeout: float | None) -> None:
        self.replaced = 0
        self.task = task
        self._start_method = start_method
        self._timeout = timeout
        self._owner = os.getpid()
        self._tickets = itertools.count()
        self._pickled: bytes | None = None
        self._replies: dict[int, Reply] = {}
        self._wanted: set[int] = set()
        self._members: list[_Member] = []
        with self._closed_on_error():
            for number in range(count):
                self._members.append(self._started(number))

    @property
    def closed(self) -> bool:
        """Whether this process has no worker of the pool: they are gone, or those of its parent."""
        return not self._members or os.getpid() != self._owner

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self._members)

    def ask(self, request: Request, worker: int | None = None) -> int:
        """Ask a worker, or the one with the least to do, and return the ticket of the reply."""
        ticket = next(self._tickets)
        self._wanted.add(ticket)
        if worker is None:
            member = min(self._members, key=lambda each: len(each.pending))
        else:
            member = self._members[worker]
        member.pending.append((ticket, request))
        with self._closed_on_error():
            self._post(member, ticket, request)
        return ticket

    def look(self) -> None:
        """Take in what replies have come, without waiting for any."""
        with self._closed_on_error():
            self._exchange(0.0)

    def has(self, ticket: int) -> bool:
        """Whether the reply has come."""
        return ticket in self._replies

    def take(self, ticket: int) -> Reply:
        """The reply, when it has come.

        Raises `WorkerDiedError` when a request has ended several workers, and `LoaderError` when
        several gave no answer to it.
        """
        with self._closed_on_error():
            while ticket not in self._replies:
                began = time.monotonic()
                heard = self._exchange(_LOOK_AROUND)
                # No more than that: while the trainer itself was stopped nobody could be heard.
                waited = min(time.monotonic() - began, _LOOK_AROUND)
                self._note_silence(heard, waited)
        self._wanted.discard(ticket)
        return self._replies.pop(ticket)

    def forget(self) -> None:
        """Drop what was asked and not taken; workers answer it, and nobody listens."""
        self._wanted.clear()
        self._replies.clear()

    def close(self) -> None:
        """End the worker processes; those that do not stop within a second are killed."""
        members, self._members = self._members, []
        if os.getpid() != self._owner:
            return  # a forked copy of the pool: the processes are not its children
        for member in members:
            with suppress(OSError):
                member.channel.post(pickle.dumps(None))
        until = time.monotonic() + _SECONDS_TO_STOP
        for member in members:
            member.process.join(max(0.0, until - time.monotonic()))
            _end(member)

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Whatever breaks, Ctrl-C included, leaves no worker behind."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _post(self, member: _Member, ticket: int, request: Request) -> None:
        with suppress(OSError):  # it has died, which is seen where replies are received
            member.channel.post(pickle.dumps((ticket, request)))

    def _exchange(self, seconds: float) -> set[int]:
        """Send what waits and take what has come, or else comes within `seconds`; the numbers of
        the workers that something came from.
        """
        poll = select.poll()
        by_descriptor = {member.channel.fileno(): member for member in self._members}
        for descriptor, member in by_descriptor.items():
            with suppress(OSError):
                unsent = not member.channel.flush()
                poll.register(descriptor, select.POLLIN | (select.POLLOUT if unsent else 0))
        heard = set()
        for descriptor, _ in poll.poll(seconds * 1000):
            member = by_descriptor[descriptor]
            heard.add(member.number)
            self._receive_from(member)
        return heard

    def _receive_from(self, member: _Member) -> None:
        try:
            for message in member.channel.received():
                reply, size = loads(message.data, message.descriptors, member.slots)
                if reply.error is not None and reply.ticket == NOT_STARTED:
                    raise rebuilt(reply.error)
                reply.size = size
                member.silent, member.ends = 0.0, 0
                member.pending.popleft()
                if reply.ticket in self._wanted:
                    self._replies[reply.ticket] = reply
        except EOFError:
            self._replace(member, None)
        except OSError as error:
            if isinstance(error, ConnectionError):
                self._replace(member, None)
                return
            raise LoaderError(
                f"a reply of {member.process.name} cannot be taken over: {type(error).__name__}: "
                f"{error}. Each piece of shared memory that holds a large tensor takes a file "
                "descriptor; raise the limit (ulimit -n), or keep fewer batches at a time"
            ) from error

    def _note_silence(self, heard: set[int], waited: float) -> None:
        """Count how long workers with something to answer were silent; replace those too long."""
        for member in list(self._members):
            if not member.pending or member.number in heard:
                continue
            member.silent += waited
            if self._timeout is not None and member.silent >= self._timeout:
                self._replace(member, self._timeout)

    def _replace(self, member: _Member, timeout: float | None) -> None:
        """Another worker in place of one that is gone, or that was silent for `timeout` seconds."""
        if timeout is not None:
            member.process.kill()
        member.process.join(_SECONDS_TO_STOP)
        how, cause = how_it_ended(member.process, timeout)
        work = f" while it had {member.pending[0][1]} to answer" if member.pending else ""
        what = f"{member.process.name} (pid {member.process.pid}) {how}{work}. {cause}"
        _end(member)
        if member.ends + 1 == _MOST_ENDS:
            raise (WorkerDiedError if timeout is None else LoaderError)(
                f"{what}. It was the last of {_MOST_ENDS} workers that ended so, one after "
                "another. The loader's state is that after the last delivered item; iterating "
                "again starts new workers"
            )
        self.replaced += 1
        _log.warning("%s. A new one takes its place (replacement %d)", what, self.replaced)
        other = self._started(member.number)
        other.ends = member.ends + 1
        other.pending.extend(member.pending)
        self._members[member.number] = other
        for ticket, request in other.pending:
            self._post(other, ticket, request)

    def _started(self, number: int) -> _Member:
        context: Any = multiprocessing.get_context(self._start_method)
        ours, theirs = channel_pair()
        forked = self._start_method == "fork"
        held = [member.channel.fileno() for member in self._members] if forked else []
        arguments = (
            self.task if forked else self._pickled_task(),
            theirs,
            0 if self._start_method == "forkserver" else os.getpid(),
            [*held, ours.fileno()] if forked else [],
            threading.current_thread() is threading.main_thread()
            and self._start_method != "forkserver",
        )
        name = f"energize worker {number}"
        process = context.Process(target=serve, args=arguments, name=name, daemon=True)
        try:
            process.start()
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise LoaderError(
                    f"{name} cannot be started: {error}. Use fewer workers, or raise the limits on "
                    "processes and memory"
                ) from error
            raise
        finally:
            theirs.close()
        return _Member(number, process, Channel(ours))

    def _pickled_task(self) -> bytes:
        """The task for a process that starts from nothing; pickled once for all of them."""
        if self._pickled is None:
            try:
                self._pickled = pickle.dumps(self.task)
            except Exception as error:  # whatever the classes of the user do
                raise unpicklable(self.task, self._start_method, error) from error
        return self._pickled


def _end(member: _Member) -> None:
    """See a worker off, whatever state it is in."""
    if member.process.is_alive():
        member.process.kill()
    member.process.join()
    with suppress(OSError):
        member.channel.close()

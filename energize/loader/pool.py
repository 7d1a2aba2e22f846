"""The trainer's side of the worker processes: what is asked of them, and what became of them."""

from __future__ import annotations

import atexit
import itertools
import logging
import multiprocessing
import multiprocessing.util
import os
import pickle
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from energize.errors import LoaderError, WorkerDiedError
from energize.loader.channel import Channel, channel_pair
from energize.loader.leash import Leash
from energize.loader.obituary import how_it_ended, unpicklable
from energize.loader.regions import ReceivedRegions
from energize.loader.shipping import NOT_STARTED, Reply, Request, Reread, loads, rebuilt
from energize.loader.stacks import StackFile
from energize.loader.starting import ctrl_c_later
from energize.loader.watching import Patience
from energize.loader.worker import Task, Trainer, serve

_SECONDS_TO_STOP = 0.5
"""How long workers that are told to stop may take, all together; after Ctrl-C somebody waits."""

_SECONDS_TO_DIE = 1.0
"""How long a worker may take from closing its channel to its exit code."""

_LOOK_AROUND = 1.0
"""Seconds after which a wait looks whether workers still run."""

_MOST_ENDS = 3
"""How many workers may end in one place without an answer before it is given up."""

_ANY = Patience()

_log = logging.getLogger("energize")


@dataclass(slots=True)
class _Member:
    """A worker process, and what it has not answered yet, oldest first.

    `silent` is for how many seconds the trainer has waited in vain for a reply of it, `said` how
    often that was told, `heard` whether any reply came, and `ends` how many workers in its place
    have ended since one of them answered.
    """

    number: int
    process: BaseProcess
    channel: Channel
    leash: Leash
    stacks: StackFile
    pending: deque[tuple[int, Request]] = field(default_factory=deque)
    regions: ReceivedRegions = field(default_factory=ReceivedRegions)
    silent: float = 0.0
    said: int = 0
    heard: bool = False
    ends: int = 0


class WorkerPool:
    """`count` processes that answer requests. `replaced` counts those whose place others took.

    A worker that dies, or gives no whole reply for `timeout` seconds while one is waited for, is
    replaced, and what it was asked is asked again: requests are answered alike by any worker. What
    it is busy with is told when the `patience` ends.
    """

    def __init__(
        self,
        task: Task,
        count: int,
        start_method: str,
        timeout: float | None,
        patience: Patience = _ANY,
    ) -> None:
        self.replaced = 0
        self._patience = patience
        shortest = [each / 2 for each in (patience.seconds, patience.first) if each is not None]
        self._look_around = min([_LOOK_AROUND, *shortest])
        self.task = task
        self._start_method = start_method
        self._timeout = timeout
        self._owner = os.getpid()
        self._tickets = itertools.count()
        self._pickle: bytes | None = None
        self._replies: dict[int, Reply] = {}
        self._wanted: set[int] = set()
        self._members: list[_Member] = []
        self._end = weakref.finalize(self, _end_all, self._members, self._owner)
        self._end.atexit = False  # see _end_at_exit
        _pools.add(self)
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
                heard = self._exchange(self._look_around)
                # No more than that: while the trainer itself was stopped nobody could be heard.
                waited = min(time.monotonic() - began, self._look_around)
                self._note_silence(heard, waited)
        self._wanted.discard(ticket)
        return self._replies.pop(ticket)

    def edit(self, task: Task) -> None:
        """Have the workers read for a task that differs in its edits only; what they were asked
        before is dropped.
        """
        self.task, self._pickle = task, None
        for member in list(self._members):
            self.ask(Reread(task.edits), member.number)
        self.forget()

    def forget(self) -> None:
        """Drop what was asked and not taken; workers answer it, and nobody listens."""
        self._wanted.clear()
        self._replies.clear()

    def close(self) -> None:
        """End the worker processes; those that do not stop in half a second are killed. It happens
        at the latest when nobody has the pool any more, or when the trainer ends.
        """
        self._end()
        self.forget()

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
            unsent = False
            with suppress(OSError):  # it has died, which is seen where replies are received
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
                reply, size = loads(message.data, message.descriptors, member.regions)
                if reply.error is not None and reply.ticket == NOT_STARTED:
                    raise rebuilt(reply.error)
                reply.size = size
                member.silent, member.ends, member.said, member.heard = 0.0, 0, 0, True
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
            self._tell_if_late(member)
            if self._timeout is not None and member.silent >= self._timeout:
                self._replace(member, self._timeout)

    def _tell_if_late(self, member: _Member) -> None:
        """Say it, each time after twice as long, or raise an error."""
        limit = self._patience.limit(first=not member.heard)
        if limit is None or member.silent < limit * 2**member.said:
            return
        member.said += 1
        text = (
            f"{member.process.name} (pid {member.process.pid}) gave no item for "
            f"{member.silent:.1f} s while it had {member.pending[0][1]} to answer"
        )
        stacks = member.stacks.ask(member.process.pid or 0)
        if self._patience.fails:
            raise LoaderError(
                f"{text}, which fail_on_timeout makes an error. The loader's state is that after "
                f"the last delivered item. It was busy with:\n{stacks}"
            )
        _log.warning("%s. It is busy with:\n%s", text, stacks)

    def _replace(self, member: _Member, timeout: float | None) -> None:
        """Another worker in place of one that is gone, or that was silent for `timeout` seconds."""
        if timeout is not None:
            member.process.kill()
        member.process.join(_SECONDS_TO_DIE)
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
        # What a process that starts from nothing gets at once, the trainer waits for it to read.
        task, sent = (self.task, b"") if self._start_method == "fork" else (None, self._pickled())
        ours, theirs = channel_pair()
        leash, stacks = Leash(), StackFile()
        forked, served = self._start_method == "fork", self._start_method == "forkserver"
        others = [each for each in self._members if each.number != number]
        ends = [end.fileno() for each in others for end in (each.channel, each.leash)]
        trainer = Trainer(
            0 if served else os.getpid(),
            [*ends, ours.fileno(), leash.fileno()] if forked else [],
            dies=threading.current_thread() is threading.main_thread() and not served,
        )
        arguments = (task, theirs, leash.worker_end, stacks, trainer)
        name = f"energize worker {number}"
        process = context.Process(target=serve, args=arguments, name=name, daemon=True)
        try:
            with ctrl_c_later(self._start_method):
                process.start()
            leash.put_on(process.pid)
        except BaseException as error:
            ours.close()
            leash.close()
            stacks.close()
            if process.pid is not None:
                process.kill()
                process.join()
            if isinstance(error, OSError):
                raise LoaderError(
                    f"{name} cannot be started: {error}. Use fewer workers, or raise the limits on "
                    "processes and memory"
                ) from error
            raise
        finally:
            theirs.close()
        channel = Channel(ours)
        if sent:
            with suppress(OSError):  # it has died, which is seen where replies are received
                channel.post(sent)
        return _Member(number, process, channel, leash, stacks)

    def _pickled(self) -> bytes:
        """The task for a process that starts from nothing; pickled once for all of them."""
        if self._pickle is None:
            try:
                self._pickle = pickle.dumps(self.task)
            except Exception as error:  # whatever the classes of the user do
                raise unpicklable(self.task, self._start_method, error) from error
        return self._pickle


def _end_all(members: list[_Member], owner: int) -> None:
    """End workers, and kill those that do not stop in time; all of them when Ctrl-C cannot wait."""
    ending = members.copy()
    members.clear()
    if os.getpid() != owner:
        return  # a forked copy of the pool: the processes are not its children
    try:
        for member in ending:
            with suppress(OSError):
                member.channel.post(pickle.dumps(None))
        until = time.monotonic() + _SECONDS_TO_STOP
        for member in ending:
            member.process.join(max(0.0, until - time.monotonic()))
    finally:
        for member in ending:
            member.process.kill()
        for member in ending:
            _end(member)


def _end(member: _Member) -> None:
    """See a worker off, whatever state it is in."""
    if member.process.is_alive():
        member.process.kill()
    member.process.join()
    member.leash.close()
    member.stacks.close()
    with suppress(OSError):
        member.channel.close()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _end_at_exit() -> None:
    """End all pools together, so that it takes no longer than for one."""
    members = [member for pool in _pools if not pool.closed for member in pool._members]
    _end_all(members, os.getpid())
    for pool in list(_pools):
        pool.close()


# multiprocessing, at its own exit, would wait for a worker that is stopped, and for ever. What is
# registered later runs earlier, and multiprocessing.util has been imported above.
atexit.register(_end_at_exit)

"""The trainer's side of the worker processes: what is asked of them, and what became of them."""

from __future__ import annotations

import atexit
import itertools
import logging
import multiprocessing.util  # noqa: F401 - see the end of this file
import os
import pickle
import select
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from energize.errors import LoaderError, WorkerDiedError
from energize.loader.channel import GarbledError, Message
from energize.loader.members import Member, Starter, end_all, see_off
from energize.loader.obituary import MOST_ENDS, garbled, how_it_ended, silent
from energize.loader.shipping import NOT_STARTED, Reply, Request, Reread, loads, rebuilt
from energize.loader.watching import Patience
from energize.loader.worker import Task

_SECONDS_TO_TELL = 1.0
"""How long a worker may take from closing its channel to its exit code."""

_LOOK_AROUND = 1.0
"""Seconds after which a wait looks whether workers still run."""

_ANY = Patience()

_log = logging.getLogger("energize")


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
        self._starter = Starter(task, start_method, timeout, patience)
        self._owner = os.getpid()
        self._tickets = itertools.count()
        self._replies: dict[int, Reply] = {}
        self._wanted: set[int] = set()
        self._members: list[Member] = []
        self._end = weakref.finalize(self, end_all, self._members, self._owner)
        self._end.atexit = False  # see _end_at_exit
        _pools.add(self)
        with self._closed_on_error():
            for number in range(count):
                self._members.append(self._starter.started(number, self._members))

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
        self.task = task
        self._starter = Starter(task, self._start_method, self._timeout, self._patience)
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

    def _post(self, member: Member, ticket: int, request: Request) -> None:
        with suppress(OSError):  # it has died, which is seen where replies are received
            member.channel.post(pickle.dumps((ticket, request)))

    def _exchange(self, seconds: float) -> set[int]:
        """Send what waits and take what has come, or else comes within `seconds`; the numbers of
        the workers that a whole reply came from: what trickles is as good as nothing.
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
            if self._receive_from(member):
                heard.add(member.number)
        return heard

    def _receive_from(self, member: Member) -> bool:
        """Take in what has come of a worker; whether that was a whole reply at least."""
        whole, why = False, None
        try:
            for message in member.channel.received():
                self._note(member, self._unpacked(member, message))
                whole = True
            return whole
        except (EOFError, ConnectionError):
            pass
        except GarbledError as error:
            member.process.kill()
            why = garbled(error)
        except (OSError, MemoryError) as error:
            raise LoaderError(
                f"a reply of {member.name} cannot be taken over: {type(error).__name__}: {error}. "
                "Each piece of shared memory that holds a large tensor takes a file descriptor; "
                "raise the limit (ulimit -n), or keep fewer batches at a time (prefetch_factor, "
                "prefetch_bytes)"
            ) from error
        # Not above: a forked worker would have this error as the context of all of its own.
        self._replace(member, why)
        return whole

    def _unpacked(self, member: Member, message: Message) -> Reply:
        reply: Reply
        try:
            reply, size = loads(message.data, message.descriptors, member.regions)
        except Exception as error:  # unpickling runs the code of the user's classes
            if isinstance(error, OSError | MemoryError) and not isinstance(error, ConnectionError):
                raise
            raise LoaderError(
                f"a reply of {member.name}{member.work} cannot be rebuilt in the trainer: "
                f"{type(error).__name__}: {error}. Items travel by pickle; leave out what does not "
                "unpickle here, or use num_workers=0"
            ) from error
        reply.size = size
        return reply

    def _note(self, member: Member, reply: Reply) -> None:
        if reply.error is not None and reply.ticket == NOT_STARTED:
            raise rebuilt(reply.error)
        if not member.pending or member.pending[0][0] != reply.ticket:
            raise GarbledError(f"an answer to request {reply.ticket}, which nobody asked")
        member.silent, member.ends, member.said, member.heard = 0.0, 0, 0, True
        member.pending.popleft()
        if reply.ticket in self._wanted:
            self._replies[reply.ticket] = reply

    def _note_silence(self, heard: set[int], waited: float) -> None:
        """Count how long workers with something to answer were silent; replace those too long."""
        for member in list(self._members):
            if not member.pending or member.number in heard:
                continue
            member.silent += waited
            self._tell_if_late(member)
            timeout = self._timeout
            if timeout is not None and member.silent >= timeout:
                member.process.kill()
                self._replace(member, silent(timeout))

    def _tell_if_late(self, member: Member) -> None:
        """Say it, each time after twice as long, or raise an error."""
        limit = self._patience.limit(first=not member.heard)
        if limit is None or member.silent < limit * 2**member.said:
            return
        member.said += 1
        text = f"{member.name} gave no item for {member.silent:.1f} s{member.work}"
        stacks = member.stacks.ask(member.process.pid or 0)
        if self._patience.fails:
            raise LoaderError(
                f"{text}, which fail_on_timeout makes an error. The loader's state is that after "
                f"the last delivered item. It was busy with:\n{stacks}"
            )
        _log.warning("%s. It is busy with:\n%s", text, stacks)

    def _replace(self, member: Member, why: tuple[str, str] | None = None) -> None:
        """Another worker in place of one that has ended by itself, or is killed for what `why`
        says.
        """
        member.process.join(_SECONDS_TO_TELL)
        how, cause = why or how_it_ended(member.process)
        what = f"{member.name} {how}{member.work}. {cause}"
        see_off(member)
        if member.ends + 1 == MOST_ENDS:
            raise (LoaderError if why else WorkerDiedError)(
                f"{what}. It was the last of {MOST_ENDS} workers that ended so, one after "
                "another. The loader's state is that after the last delivered item; iterating "
                "again starts new workers"
            )
        self.replaced += 1
        _log.warning("%s. A new one takes its place (replacement %d)", what, self.replaced)
        other = self._starter.started(
            member.number, [each for each in self._members if each is not member]
        )
        other.ends = member.ends + 1
        other.pending.extend(member.pending)
        self._members[member.number] = other
        for ticket, request in other.pending:
            self._post(other, ticket, request)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _end_at_exit() -> None:
    """End all pools together, so that it takes no longer than for one."""
    members = [member for pool in _pools if not pool.closed for member in pool._members]
    end_all(members, os.getpid())
    for pool in list(_pools):
        pool.close()


# multiprocessing, at its own exit, would wait for a worker that is stopped, and for ever. What is
# registered later runs earlier, and multiprocessing.util has been imported above.
atexit.register(_end_at_exit)

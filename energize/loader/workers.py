"""Worker processes: what their trainer asks of them, what became of them, and what they
do.

A worker that dies, or gives no whole reply for `timeout` seconds while one is waited
for, is replaced, and what it owes is asked of the new one: lanes are read alike by any
worker. A worker reads the lanes that it is asked for, until it is told to stop. It ends
with its trainer, whatever it is busy with: the trainer has one end of a pipe, the
worker the other, and when the trainer's is closed, which its death does too, the kernel
kills the worker (`on_leash`).
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import gc
import logging
import multiprocessing
import multiprocessing.process
import multiprocessing.util  # before _end_at_exit is registered, see there
import os
import pickle
import queue
import select
import signal
import socket
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, BinaryIO, Generic, TypeVar

from energize.core.blends import NOT_EDITED
from energize.core.checks import check_processes
from energize.core.dataset import Dataset
from energize.core.ignored import kept_lines, said_once
from energize.core.lazy import torch
from energize.core.randomness import generators
from energize.core.stores import activate
from energize.core.stream import INFINITE, PositionLane, State
from energize.core.trace import READY, Failed, FailureMemory, ReadContext
from energize.errors import ConfigError, LoaderError, WorkerDiedError
from energize.loader.failures import Decisions, Failure, FailureLog
from energize.loader.shipping import (
    Channel,
    GarbledError,
    LaneSet,
    Message,
    Read,
    ReceivedRegions,
    Regions,
    Reply,
    ShippedError,
    dumps,
    rebuilt,
    stored,
)
from energize.loader.watchdog import Patience, ctrl_c_later
from energize.report.ledger import LeftOut
from energize.report.levels import NOTHING, Made, flat

T = TypeVar("T")

_MEMORY = 0.7
"""How much of what was known of sizes is kept with each reply."""

_MOST_ENDS = 3
"""How many workers may end in one place without an answer before it is given up."""

_SECONDS_TO_TELL = 1.0
"""How long a worker may take from closing its channel to its exit code."""

_SECONDS_TO_STOP = 0.5
"""How long workers that are told to stop may take, all together; after Ctrl-C somebody
waits."""

_SECONDS_TO_DIE = 5.0
"""How long a worker may take to be gone once it is killed: longer than the kernel needs
to give back gigabytes. One that waits in the kernel, for a disk that is gone, may never
be."""

_LOOK_AROUND = 1.0
"""Seconds after which a wait looks whether workers still run."""

_STACKS_SECONDS = 1.0
_STACKS_LOOK = 0.02
_STACKS_MOST = 20_000
"""How long stacks are waited for, how often they are looked for, and how many
characters shown."""

_CAUSES = {
    signal.SIGKILL: "Most often the kernel does that when memory runs out (see dmesg): "
    "fewer "
    "workers, a smaller prefetch_bytes or smaller batches need less",
    signal.SIGBUS: "Most often memory ran out, or a file that is mapped was cut: use "
    "fewer "
    "workers, or a smaller prefetch_bytes",
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
class Member:
    """A worker process as its trainer sees it.

    `stacks` is the file it writes its stacks to, None before it runs. `silent` is for
    how many seconds the trainer has waited in vain for a reply of it, `said` how often
    that was told, `heard` whether any reply came, and `ends` how many workers in its
    place have ended since one of them answered.
    """

    number: int
    process: BaseProcess
    channel: Channel
    leash: Connection[Any, Any]
    regions: ReceivedRegions = field(default_factory=ReceivedRegions)
    stacks: int | None = None
    silent: float = 0.0
    said: int = 0
    heard: bool = False
    ends: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.process.name} (pid {self.process.pid})"

    def post(self, message: Any) -> None:
        """Send a message, which may wait; one to a worker that has died is dropped."""
        with suppress(OSError):  # which is seen where replies are received
            self.channel.post(pickle.dumps(message))

    def busy_with(self) -> str:
        """Return the stacks of its threads, or why there are none."""
        file = self.stacks
        if file is None:
            return (
                "  it has not started yet: what it is made of is being imported or "
                "unpickled"
            )
        before = size = os.fstat(file).st_size
        with suppress(OSError):
            os.kill(self.process.pid or 0, STACKS)
        until = time.monotonic() + _STACKS_SECONDS
        while time.monotonic() < until:
            time.sleep(_STACKS_LOOK)
            last = size
            size = os.fstat(file).st_size
            if size > before and size == last:
                break
        if size == before:
            return (
                "  it does not say what it is busy with: it is stopped, or waits "
                "in "
                "the kernel"
            )
        return os.pread(file, _STACKS_MOST, before).decode(errors="replace").rstrip()

    def see_off(self) -> None:
        """End it, whatever state it is in, and let go of all that was held for it."""
        self.process.kill()
        self.process.join(_SECONDS_TO_DIE)
        self.leash.close()
        if self.stacks is not None:
            os.close(self.stacks)
            self.stacks = None
        with suppress(OSError):
            self.channel.close()


class WorkerPool:
    """So many processes, `workers`, that read for `lanes`. `replaced` counts those
    whose place others took. What a worker is busy with is told when the `patience`
    ends.
    """

    def __init__(
        self,
        task: Task,
        count: int,
        start_method: str,
        timeout: float | None,
        patience: Patience,
    ) -> None:
        check_processes(count, "num_workers")
        self.workers = count
        self.replaced = 0
        self.run = 0
        self._turn = threading.RLock()
        self._closing = False
        self.lanes: Callable[[], WorkerLanes[Any] | None] = lambda: (
            None
        )  # see WorkerLanes
        self._task = task
        self._start_method = start_method
        self._timeout = timeout
        self._patience = patience
        self._look_around = min(
            _LOOK_AROUND, (patience.shortest or 2 * _LOOK_AROUND) / 2
        )
        self._owner = os.getpid()
        self._members: list[Member] = []
        self._end = weakref.finalize(self, _end_all, self._members, self._owner)
        self._end.atexit = False  # see _end_at_exit
        _pools.add(self)
        with self._closed_on_error():
            for number in range(count):
                self._members.append(self._started(number))

    @property
    def closed(self) -> bool:
        """Whether this process has no worker of the pool: they are gone, or those of
        its parent.
        """
        return self._closing or os.getpid() != self._owner

    def ask(self, worker: int, request: Read) -> None:
        """Ask a worker for items of a lane."""
        with self._closed_on_error():
            self._members[worker].post(request)

    def look(self) -> None:
        """Take in what replies have come, without waiting for any."""
        with self._closed_on_error():
            self._exchange(0.0)

    def wait(self) -> None:
        """Take in what replies have come, or come next; replace workers that are silent
        too long.

        Raise `WorkerDiedError` when a request has ended several workers, and
        `LoaderError` when several gave no answer to it.
        """
        with self._closed_on_error():
            began = time.monotonic()
            heard = self._exchange(self._look_around)
            # No more than that: while the trainer itself was stopped nobody could be
            # heard.
            self._note_silence(heard, min(time.monotonic() - began, self._look_around))

    def close(self) -> None:
        """End the worker processes; those that do not stop in half a second are killed.
        It happens at the latest when nobody has the pool any more, or when the trainer
        ends. Another thread that waits for items is told so.
        """
        forked = os.getpid() != self._owner
        self._closing = True
        with nullcontext() if forked else self._turn:
            self._end()
            self.lanes = lambda: None

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Whatever breaks, Ctrl-C included, leaves no worker behind; `LoaderError`
        where there is none any more.
        """
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
            "the workers of this loop are gone: the loader was closed meanwhile, or "
            "this process "
            "was forked from the one that has them. A new loop goes on after the last "
            "item "
            "delivered"
        )

    def _exchange(self, seconds: float) -> set[int]:
        """Send what waits and take what has come, or else comes within `seconds`; the
        numbers of the workers that a whole reply came from: what trickles is as good as
        nothing.
        """
        poll = select.poll()
        by_descriptor = {member.channel.fileno(): member for member in self._members}
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
        """Take in what has come of a worker; whether that was a whole reply at
        least.
        """
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
                "that it "
                "calls, or a process that one has forked",
            )
        except (OSError, MemoryError) as error:
            raise LoaderError(
                f"a reply of {member.name} cannot be taken over: "
                f"{type(error).__name__}: {error}. "
                "Each piece of shared memory that holds a large tensor takes a file "
                "descriptor; "
                "raise the limit (ulimit -n), or keep fewer batches at a time "
                "(prefetch_factor, "
                "prefetch_bytes)"
            ) from error
        # Not above: a forked worker would have this error as the context of all of its
        # own.
        self._replace(member, why)
        return whole

    def _note(self, member: Member, message: Message) -> bool:
        """Take in a message; whether it was a reply."""
        if message.descriptor is not None:
            if member.stacks is None:
                member.stacks = message.descriptor
            else:
                member.regions.add(message.descriptor)
            return False
        reply: Reply
        try:
            reply, reply.size = member.regions.loads(message.data)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise LoaderError(
                f"a reply of {member.name}{self._work(member)} cannot be rebuilt in "
                "the trainer: "
                f"{type(error).__name__}: {error}. Items travel by pickle; leave out "
                "what does not "
                "unpickle here, or use num_workers=0"
            ) from error
        if reply.error is not None and reply.lane is None:
            raise reply.error.rebuilt()
        member.silent = 0.0
        member.ends = 0
        member.said = 0
        member.heard = True
        lanes = self.lanes()
        if lanes is not None and reply.run == self.run:
            lanes.note(reply)
        elif lanes is not None and reply.run < self.run:
            lanes.note_failures(reply)  # the worker reports no sample twice
        elif reply.run > self.run:
            raise GarbledError(f"an answer of run {reply.run}, which nobody asked")
        return True

    def _owed(self, member: Member) -> list[Read]:
        lanes = self.lanes()
        return [] if lanes is None else lanes.owed_by(member.number)

    def _work(self, member: Member) -> str:
        """Return what it is asked for, for messages."""
        owed = self._owed(member)
        return f" while it had {owed[0]} to answer" if owed else ""

    def _note_silence(self, heard: set[int], waited: float) -> None:
        """Count how long workers with something to answer were silent; replace those
        too long.
        """
        for member in list(self._members):
            if member.number in heard or not self._owed(member):
                continue
            member.silent += waited
            self._tell_if_late(member)
            if self._timeout is not None and member.silent >= self._timeout:
                member.process.kill()
                cause = (
                    "It was stopped, or hangs: look for a file system that does not "
                    "answer or an "
                    "encoder that waits for a lock, or give a longer timeout"
                )
                self._replace(
                    member,
                    (f"gave no answer within timeout={self._timeout:g} s", cause),
                )

    def _tell_if_late(self, member: Member) -> None:
        """Say it, each time after twice as long, or raise an error."""
        if not self._patience.ends(member.silent, member.said, first=not member.heard):
            return
        member.said += 1
        text = (
            f"{member.name} gave no item for {member.silent:.1f} s{self._work(member)}"
        )
        stacks = member.busy_with()
        if self._patience.fails:
            raise LoaderError(
                f"{text}, which fail_on_timeout makes an error. The loader's state is "
                "that after "
                f"the last delivered item. It was busy with:\n{stacks}"
            )
        _log.warning("%s. It is busy with:\n%s", text, stacks)

    def _replace(self, member: Member, why: tuple[str, str] | None) -> None:
        """Another worker in place of one that has ended by itself, or is killed for
        what `why` says.
        """
        if self.closed:  # by a handler of a signal
            return
        member.process.join(_SECONDS_TO_TELL)
        how, cause = why or _how_it_ended(member.process)
        what = f"{member.name} {how}{self._work(member)}. {cause}"
        member.see_off()
        if member.ends + 1 == _MOST_ENDS:
            raise (LoaderError if why else WorkerDiedError)(
                f"{what}. It was the last of {_MOST_ENDS} workers that ended so, one "
                "after "
                "another. The loader's state is that after the last delivered item; "
                "iterating "
                "again starts new workers"
            )
        self.replaced += 1
        _log.warning(
            "%s. A new one takes its place (replacement %d)", what, self.replaced
        )
        other = self._started(member.number)
        other.ends = member.ends + 1
        self._members[member.number] = other
        for request in self._owed(other):
            other.post(request)

    def _started(self, number: int) -> Member:
        name = f"energize worker {number}"
        try:
            return self._start(name, number)
        except (EOFError, OSError) as error:
            raise LoaderError(
                f"{name} cannot be started: {type(error).__name__}: {error}. Use fewer "
                "workers, or "
                "raise the limits on processes, file descriptors (ulimit -n) and memory"
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
        """The task for processes that start from nothing; pickled once for all of
        them.
        """
        try:
            return stored(self._task)
        except OSError:
            raise
        except Exception as error:  # whatever the classes of the user do
            raise ConfigError(
                "the dataset cannot be pickled for a worker started by "
                f"{self._start_method!r}"
                f": {type(error).__name__}: {error}. Define functions at the top of a "
                "module "
                "instead of lambdas or inner functions, open files and connections "
                "when they are "
                "first used, or use multiprocessing_context='fork'"
            ) from error


def _how_it_ended(process: BaseProcess) -> tuple[str, str]:
    """Return how a worker ended by itself, and what the cause may be."""
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
        "Its own output says why: something called sys.exit() or closed its file "
        "descriptors, or "
        "it could not start. A script that spawns workers keeps its work under "
        '`if __name__ == "__main__":`'
    )


def _end_all(members: list[Member], owner: int) -> None:
    """End workers, and kill those that do not stop in time; all of them when Ctrl-C
    cannot wait.
    """
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
    """End all pools together, so that it takes no longer than for one."""
    members = [member for pool in _pools if not pool.closed for member in pool._members]
    _end_all(members, os.getpid())
    for pool in list(_pools):
        pool.close()


# multiprocessing, at its own exit, would wait for a worker that is stopped, and for
# ever. What is registered later runs earlier, and multiprocessing.util has been
# imported above.
atexit.register(_end_at_exit)


class ReadAhead:
    """How many items workers may have ready or in work: `items` for each worker, and no
    more bytes than `size` together, as far as those that came before tell. Each has one
    to do in any case.
    """

    def __init__(self, workers: int, items: int | None, size: int) -> None:
        self._workers = workers
        self._size = size
        self._items = (items or READY) * workers
        self._bytes = 0.0
        self.most = workers
        """The number of items."""

    def learn(self, reply: Reply) -> None:
        """Take note of what the items of a reply took."""
        if reply.items:
            size = reply.size / len(reply.items)
            # The largest item of a mix decides, and is forgotten only slowly.
            self._bytes = max(size, _MEMORY * self._bytes + (1 - _MEMORY) * size)
            room = int(self._size / max(self._bytes, 1.0))
            self.most = max(self._workers, min(self._items, room))


@dataclass(slots=True)
class _Lane:
    """What is known of a lane.

    `taken` is its state after what was taken, `read` the one after what came; `waiting`
    what lies between, each item with the state after it and what it is made of. `came`
    counts what came, `owed` what else was asked for, and `left` what may still be.
    `end` is the state after the last item, once that came, and `error` what came
    instead of the next one.
    """

    worker: int
    taken: State | None
    read: State | None
    left: int
    waiting: deque[tuple[Any, State | None, Made]] = field(default_factory=deque)
    came: int = 0
    owed: int = 0
    end: State | None = None
    error: ShippedError | None = None


class WorkerLanes(Generic[T]):
    """Lanes that are read by workers, ahead of what is taken, each by one of them. They
    keep their pool, and not the other way round: workers end with the last reference to
    a loader.

    `states` has their states, in the order in which the lanes are taken in turn. Of an
    indexed dataset `left` items are read in each.
    """

    def __init__(
        self,
        pool: WorkerPool,
        ahead: ReadAhead,
        lanes: LaneSet,
        states: Mapping[int, State | None],
        failures: FailureLog,
        *,
        left: Sequence[int],
    ) -> None:
        self._pool = pool
        self._ahead = ahead
        self._set = lanes
        self._failures = failures
        self.made: Made = NOTHING
        self._lanes = {
            lane: _Lane(
                turn % pool.workers, state, state, left[turn] if left else INFINITE
            )
            for turn, (lane, state) in enumerate(states.items())
        }
        self._outstanding = 0
        pool.lanes = weakref.ref(self)
        pool.run = pool.run + 1
        self._ask()

    def has(self, lane: int, after: int = 0) -> bool:
        known = self._lanes[lane]
        while len(known.waiting) <= after:
            if known.error is not None:
                raise known.error.rebuilt()
            if known.end is not None:
                if not known.waiting:
                    known.taken = known.end
                return False
            if not known.owed:
                self._ask_for(lane, known, 1)
            self._pool.wait()
            self._ask()
        return True

    def take(self, lane: int) -> T:
        if not self.has(lane):
            raise StopIteration
        known = self._lanes[lane]
        item: T
        item, known.taken, self.made = known.waiting.popleft()
        self._lanes[lane] = self._lanes.pop(
            lane
        )  # its turn comes again after all others
        self._outstanding -= 1
        self._ask()
        return item

    def state(self, lane: int) -> State | None:
        return self._lanes[lane].taken

    def close(self) -> None:
        if self._pool.lanes() is self:
            self._pool.lanes = lambda: None

    def owed_by(self, worker: int) -> list[Read]:
        """Return what a worker was asked for and has not given."""
        return [
            self._request(lane, known, known.owed)
            for lane, known in self._lanes.items()
            if known.worker == worker and known.owed
        ]

    def note(self, reply: Reply) -> None:
        """Take in a reply."""
        known = self._lanes.get(-1 if reply.lane is None else reply.lane)
        count = len(reply.items)
        if known is None or count > known.owed:
            raise GarbledError(f"an answer for lane {reply.lane}, which nobody asked")
        made = reply.made or [NOTHING] * count
        states: Sequence[State | None] = reply.states or [None] * count
        known.waiting.extend(zip(reply.items, states, made, strict=True))
        known.read = states[-1] if states else known.read
        known.end = reply.end
        known.error = reply.error
        over = reply.end is not None or reply.error is not None
        known.came = known.came + count
        known.owed = 0 if over else known.owed - count
        self._outstanding = sum(
            len(each.waiting) + each.owed for each in self._lanes.values()
        )
        self._ahead.learn(reply)
        self.note_failures(reply)

    def note_failures(self, reply: Reply) -> None:
        """Count what failed in a reply, also in one whose items are no longer
        wanted.
        """
        self._failures.add_all(reply.failures, reply.left_out)
        for line in reply.lines:
            said_once(*line)

    def _ask(self) -> None:
        """Keep the workers busy, first with the lanes that are taken next."""
        if 4 * self._outstanding > 3 * self._ahead.most:
            return
        self._pool.look()
        most = self._ahead.most
        idle = {
            lane: known
            for lane, known in self._lanes.items()
            if known.left and known.end is None and known.error is None
        }
        share = max(1, most // max(1, len(idle)))
        for lane, known in idle.items():
            has = len(known.waiting) + known.owed
            items = min(share - has, most - self._outstanding, known.left)
            if items > 0 and 2 * has <= share:
                self._ask_for(lane, known, items)

    def _ask_for(self, lane: int, known: _Lane, items: int) -> None:
        request = self._request(lane, known, items)
        known.owed = known.owed + items
        known.left = known.left - items
        self._outstanding += items
        self._pool.ask(known.worker, request)

    def _request(self, lane: int, known: _Lane, items: int) -> Read:
        return Read(self._pool.run, self._set, lane, known.came, known.read, items)


# The life of a worker.

STACKS = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""Asks a worker for the Python stacks of its threads; no launcher sends it. A worker
that hangs cannot be asked by a message, but faulthandler writes its stacks whatever it
waits for."""

_REPLY_SECONDS = 0.02
"""How long items are gathered into one reply: long against the cost of sending it."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is started for: to read `dataset`, with the `cache_pool` of its
    hooks.
    """

    dataset: Dataset[Any]
    decisions: Decisions
    cache_pool: Any = None


def on_leash(leash: Connection[Any, Any], pid: int) -> None:
    """Have a process killed by the kernel when the other end of a pipe is closed, from
    now on.
    """
    with suppress(
        OSError, AttributeError
    ):  # it has ended, or the system has no such signal
        fcntl.fcntl(leash, fcntl.F_SETOWN, pid)
        fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(
            leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC
        )


def serve(
    task: Task | None, end: socket.socket, leash: Connection[Any, Any], trainer: int
) -> None:
    """The whole life of a worker process: it ends when told to, or with its trainer.

    Without a `task` that is the first message. The first thing it sends is the file
    that it writes its stacks to.
    """
    on_leash(leash, os.getpid())
    if leash.poll() or trainer not in (0, os.getppid()):
        os._exit(1)  # the trainer died before anybody looked
    stacks = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    # Ctrl-C reaches all processes of a terminal, and what it means is for the trainer
    # to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # a forked process has the trainer's handler
    torch.set_num_threads(1)
    generators.owned = True
    gc.freeze()
    # A process that a user's function forks may not read or write here, nor keep this
    # end open when the worker is gone.
    os.register_at_fork(after_in_child=end.close)
    channel = Channel(end)
    outbox: queue.SimpleQueue[tuple[memoryview | bytes, int | None]] = (
        queue.SimpleQueue()
    )
    with suppress(EOFError, OSError):
        channel.send(b"", stacks.fileno())
        threading.Thread(target=_send_all, args=(outbox, channel), daemon=True).start()
        regions = Regions()
        task = task or _rebuilt_task(channel)
        with activate(task.cache_pool):
            try:
                _read_all(_Worker(task), channel, outbox, regions)
            finally:
                if task.cache_pool is not None:
                    task.cache_pool.close()


def _read_all(worker: _Worker, channel: Channel, outbox: Any, regions: Regions) -> None:
    while True:
        while not worker.asked or channel.ready():
            message = pickle.loads(channel.wait().data)  # noqa: S301 - from the trainer
            if message is None:
                return
            worker.told(message)
        data = _packed(worker.reply(), regions)
        for descriptor in regions.made:
            outbox.put((b"", descriptor))
        regions.made = []
        outbox.put((data, None))


def _send_all(outbox: Any, channel: Channel) -> None:
    """In a thread of its own, so that the next reply is made while this one waits to be
    taken.
    """
    while True:
        data, descriptor = outbox.get()
        try:
            channel.send(data, descriptor)
        except OSError:
            return
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _rebuilt_task(channel: Channel) -> Task:
    """Return the task that the trainer has sent; tell it if it cannot be rebuilt, and
    end.
    """
    try:
        task: Task = rebuilt(channel.wait().descriptor or 0)
        return task
    except (EOFError, OSError):
        raise
    except Exception as error:  # a class that is not there in this process, for example
        wrong = LoaderError(
            f"the dataset cannot be rebuilt in a worker: {type(error).__name__}: "
            f"{error}. Define "
            "what it is made of in modules that can be imported, not in the script "
            "itself or in an "
            "interactive session, or use multiprocessing_context='fork'"
        )
        wrong.__cause__ = error
        channel.send(dumps(Reply(0, None, error=ShippedError.of(wrong)), Regions()))
        raise EOFError from error


def _packed(reply: Reply, regions: Regions) -> memoryview:
    try:
        return dumps(reply, regions)
    except Exception as error:  # pickling runs the code of the user's classes
        unsendable = LoaderError(
            "items cannot be sent from a worker to the trainer: "
            f"{type(error).__name__}: {error}. "
            "Items travel by pickle, and tensors and arrays above 512 KiB through "
            "shared memory. "
            "If an item cannot be pickled (a lambda, an open file), leave that part "
            "out in the "
            "encoder, or use num_workers=0; if memory is full, use fewer workers, or a "
            "smaller "
            "prefetch_factor or prefetch_bytes"
        )
        unsendable.__cause__ = error
        return dumps(
            Reply(reply.run, reply.lane, error=ShippedError.of(unsendable)), regions
        )


@dataclass(slots=True)
class _Held:
    """A lane, what reads it once it was opened, and how many of its items are asked
    for.
    """

    cursor: Any = None
    asked: int = 0


class _Worker:
    """Reads lanes of one run after another; the lanes that are `asked` for are read in
    turn.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._dataset = task.dataset
        self._edits = NOT_EDITED
        self._run = -1
        self._held: dict[int, _Held] = {}
        self._failures: list[Failure] = []
        self._left_out = LeftOut()
        self._reading: ReadContext = task.decisions.reading(
            self._report, self._left_out, FailureMemory()
        )
        self.asked: deque[Read] = deque()
        kept_lines()

    def told(self, request: Read) -> None:
        """Take note of a request; one of another run ends what was asked before."""
        if request.run != self._run:
            self._run = request.run
            for held in self._held.values():
                if held.cursor is not None:
                    held.cursor.close()
            self._held.clear()
            self.asked.clear()
        held = self._held.setdefault(request.lane, _Held())
        if not held.asked:
            self.asked.append(request)
        held.asked += request.items

    def reply(self) -> Reply:
        """Return the next items of the lane whose turn it is; what goes wrong is part
        of it.
        """
        request = self.asked.popleft()
        reply = Reply(request.run, request.lane)
        held = self._held[request.lane]
        try:
            if held.cursor is None:
                lanes = request.lanes
                at = request.at
                if lanes.edits != self._edits:
                    given = self._task.dataset, self._edits, self._dataset
                    self._dataset = lanes.edits.applied(*given)
                    self._edits = lanes.edits
                held.cursor = lanes.open(
                    self._dataset, request.lane, at, request.state, self._reading
                )
            self._read(held, reply)
            if held.asked:
                self.asked.append(request)
        except (SystemExit, KeyboardInterrupt):
            raise
        except (
            BaseException
        ) as error:  # raised again in the trainer; panics of Rust are no more
            reply.error = ShippedError.of(error)
        reply.failures = self._failures
        self._failures = []
        reply.left_out = self._left_out.drained()
        reply.lines = kept_lines()
        return reply

    def _read(self, held: _Held, reply: Reply) -> None:
        cursor = held.cursor
        if type(cursor) is PositionLane:
            self._read_positions(cursor, held, reply)
            return
        try:
            found = cursor.several(held.asked, _REPLY_SECONDS)
        except StopIteration:
            reply.end = cursor.state()
            held.asked = 0
            return
        held.asked -= len(found)
        for item, state, origin in found:
            reply.items.append(item)
            reply.states.append(state)
            reply.made.append(flat(origin))

    def _read_positions(
        self, cursor: PositionLane[Any], held: _Held, reply: Reply
    ) -> None:
        cursor.left = max(held.asked - cursor.waiting, 0)
        until = time.monotonic() + _REPLY_SECONDS
        while held.asked and (not reply.items or time.monotonic() < until):
            reply.items.append(next(cursor))
            held.asked -= 1

    def _report(self, failed: Failed) -> None:
        self._failures.append(Failure.of(failed))

"""A worker process as its trainer sees it: started, and seen off whatever state it is in."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.process
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

from energize.errors import LoaderError
from energize.loader.channel import Channel, channel_pair
from energize.loader.leash import Leash
from energize.loader.obituary import MOST_ENDS, unpicklable
from energize.loader.regions import ReceivedRegions
from energize.loader.shipping import Request
from energize.loader.stacks import StackFile
from energize.loader.starting import ctrl_c_later, watched_start
from energize.loader.watching import Patience
from energize.loader.worker import Task, Trainer, serve

_SECONDS_TO_STOP = 0.5
"""How long workers that are told to stop may take, all together; after Ctrl-C somebody waits."""

_SECONDS_TO_DIE = 5.0
"""How long a worker may take to be gone once it is killed: longer than the kernel needs to give
back gigabytes. One that waits in the kernel, for a disk that is gone, may never be.
"""

_GONE = (ConnectionError, EOFError)
"""What starting a process raises when the new process, or the fork server, has died meanwhile."""

_log = logging.getLogger("energize")


@dataclass(slots=True)
class Member:
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

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.process.name} (pid {self.process.pid})"

    @property
    def work(self) -> str:
        """What it is asked for, for messages."""
        return f" while it had {self.pending[0][1]} to answer" if self.pending else ""


class Starter:
    """Starts the workers of one `task`; `LoaderError` for one that does not start within `timeout`
    seconds, which is told as `patience` has it.
    """

    def __init__(
        self, task: Task, start_method: str, timeout: float | None, patience: Patience
    ) -> None:
        self._task, self._start_method = task, start_method
        self._timeout, self._patience = timeout, patience
        self._pickle: bytes | None = None

    def started(self, number: int, others: Sequence[Member]) -> Member:
        """Worker `number`, beside `others`."""
        name = f"energize worker {number}"
        for attempt in range(1, MOST_ENDS + 1):
            try:
                with watched_start(name, self._patience, self._timeout):
                    return self._started(name, number, others)
            except _GONE as error:
                what = f"{name} was gone before it had started: {type(error).__name__}: {error}"
                if attempt == MOST_ENDS:
                    raise LoaderError(
                        f"{what}. So were {MOST_ENDS} one after another: look whether something "
                        "outside the loader kills processes, the kernel for want of memory (dmesg)"
                    ) from error
                _log.warning("%s. It is started again", what)
            except OSError as error:
                raise LoaderError(
                    f"{name} cannot be started: {error}. Use fewer workers, or raise the limits on "
                    "processes, file descriptors (ulimit -n) and memory"
                ) from error
        raise AssertionError("unreachable")

    def _started(self, name: str, number: int, others: Sequence[Member]) -> Member:
        context: Any = multiprocessing.get_context(self._start_method)
        forked, served = self._start_method == "fork", self._start_method == "forkserver"
        # What a process that starts from nothing gets at once, the trainer waits for it to read.
        task, sent = (self._task, b"") if forked else (None, self._pickled())
        ours, theirs = channel_pair()
        leash, stacks = Leash(), StackFile()
        ends = [end.fileno() for each in others for end in (each.channel, each.leash)]
        trainer = Trainer(
            0 if served else os.getpid(),
            [*ends, ours.fileno(), leash.fileno()] if forked else [],
            dies=threading.current_thread() is threading.main_thread() and not served,
        )
        arguments = (task, theirs, leash.worker_end, stacks, trainer)
        process = context.Process(target=serve, args=arguments, name=name, daemon=True)
        try:
            with ctrl_c_later(self._start_method):
                process.start()
            leash.put_on(process.pid)
        except BaseException:
            ours.close()
            leash.close()
            stacks.close()
            if process.pid is not None:
                process.kill()
                _wait_for(process)
            raise
        finally:
            theirs.close()
        channel = Channel(ours)
        if sent:
            with suppress(OSError):  # it has died, which is seen where replies are received
                channel.post(sent)
        return Member(number, process, channel, leash, stacks)

    def _pickled(self) -> bytes:
        """The task for a process that starts from nothing; pickled once for all of them."""
        if self._pickle is None:
            try:
                self._pickle = pickle.dumps(self._task)
            except Exception as error:  # whatever the classes of the user do
                raise unpicklable(self._task, self._start_method, error) from error
        return self._pickle


def end_all(members: list[Member], owner: int) -> None:
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
            see_off(member)


def see_off(member: Member) -> None:
    """End a worker, whatever state it is in, and let go of all that was held for it."""
    if member.process.is_alive():
        member.process.kill()
    _wait_for(member.process)
    member.leash.close()
    member.stacks.close()
    with suppress(OSError):
        member.channel.close()


def _wait_for(process: BaseProcess) -> None:
    """Until a killed process is gone; but not for one that even the kernel cannot end now."""
    process.join(_SECONDS_TO_DIE)
    if process.is_alive():
        _log.warning(
            "%s (pid %s) was killed, and is not gone after %g s: it waits in the kernel, for a "
            "file system that does not answer say. It ends when that does",
            process.name,
            process.pid,
            _SECONDS_TO_DIE,
        )
        # At the end of the program multiprocessing would wait for it, and for ever.
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]

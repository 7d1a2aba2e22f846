"""The worker's side of worker processes: it reads the requested lanes."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import gc
import os
import pickle
import queue
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from energize.core import tree
from energize.core.arrays import batch_memory
from energize.core.blends import NOT_EDITED
from energize.core.dataset import Dataset
from energize.core.failures import Failed, FailureMemory, LeftOut
from energize.core.ignored import drain_lines
from energize.core.lazy import torch
from energize.core.randomness import generators
from energize.core.reader import DatasetReader
from energize.core.stores import activate
from energize.core.trace import ReadContext
from energize.errors import LoaderError
from energize.loader.failures import Failure
from energize.loader.shipping import (
    Channel,
    Read,
    Regions,
    Reply,
    ShippedError,
    dumps,
    rebuilt,
)

STACKS = signal.SIGRTMIN + 5 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
"""The signal that makes a worker write the Python stacks of its threads. No launcher
sends it, and faulthandler handles it even if the worker hangs."""

_REPLY_SECONDS = 0.02
"""Seconds of items in one reply; long against the cost of sending it."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a worker.

    Attributes:
        dataset: The dataset to read.
        context: How samples are read.
        cache_pool: The pool that functions use.
    """

    dataset: Dataset[Any]
    context: ReadContext
    cache_pool: Any = None


def on_leash(leash: Connection[Any, Any], pid: int) -> None:
    """Have the kernel kill a process when the other end of a pipe is closed."""
    with suppress(
        OSError, AttributeError
    ):  # it has ended, or the system has no such signal
        fcntl.fcntl(leash, fcntl.F_SETOWN, pid)
        fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(
            leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC
        )


def _keep_freed_memory() -> None:
    """Reuse freed memory for the next batch: the kernel clears every new page."""
    with suppress(AttributeError):  # not glibc
        for threshold, size in _MALLOC_THRESHOLDS.items():
            ctypes.CDLL(None).mallopt(threshold, size)


_MALLOC_THRESHOLDS = {-3: 2**25, -1: 2**30}
"""M_MMAP_THRESHOLD, its largest value in all versions of glibc, and M_TRIM_THRESHOLD:
bytes up to which freed memory is not returned to the kernel."""


def serve(
    task: Task | None, end: socket.socket, leash: Connection[Any, Any], trainer: int
) -> None:
    """Run a worker process, until it is stopped or its trainer ends.

    Args:
        task: The task; None to receive it as the first message.
        end: The worker's end of the channel, to which it first sends the file of its
            stacks.
        leash: The worker's end of the pipe that it lives with.
        trainer: The process id of the trainer; 0 if it is not the parent.
    """
    on_leash(leash, os.getpid())
    if leash.poll() or trainer not in (0, os.getppid()):
        os._exit(1)  # the trainer died before anybody looked
    stacks = tempfile.TemporaryFile()  # noqa: SIM115 - never closed
    faulthandler.register(STACKS, file=stacks, all_threads=True)
    # Ctrl-C reaches all processes of a terminal, and what it means is for the trainer
    # to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # a forked process has the trainer's handler
    torch.set_num_threads(1)
    _keep_freed_memory()
    generators.owned = True
    gc.freeze()
    # A process that a user's function forks may not read or write here, nor keep this
    # end open when the worker is gone.
    os.register_at_fork(after_in_child=end.close)
    channel = Channel(end)
    outbox: queue.SimpleQueue[tuple[bytes, int | None]] = queue.SimpleQueue()
    with suppress(EOFError, OSError):
        channel.send(b"", stacks.fileno())
        threading.Thread(target=_send_all, args=(outbox, channel), daemon=True).start()
        regions = Regions()
        batch_memory.lend = regions.lend
        os.register_at_fork(after_in_child=batch_memory.reset)
        task = task or _rebuilt_task(channel)
        with activate(task.cache_pool):
            try:
                _read_all(_Worker(task), channel, outbox, regions)
            finally:
                if task.cache_pool is not None:
                    task.cache_pool.close()


def _read_all(worker: _Worker, channel: Channel, outbox: Any, regions: Regions) -> None:
    while True:
        while not worker.requested or channel.ready():
            message = pickle.loads(channel.wait().data)  # noqa: S301 - from the trainer
            if message is None:
                return
            worker.receive(message)
        data = _packed(worker.reply(), regions)
        for descriptor in regions.drain_new():
            outbox.put((b"", descriptor))
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
    """Return the task that the trainer has sent; if that fails, report it and end."""
    try:
        task: Task = rebuilt(channel.wait().descriptor or 0)
        return task
    except (EOFError, OSError):
        raise
    except Exception as error:  # a class that is not there in this process, for example
        wrong = LoaderError(
            f"the dataset cannot be rebuilt in a worker: {type(error).__name__}: "
            f"{error}. Define what it is made of in modules that can be imported, not "
            "in the script itself or in an interactive session, or use "
            "multiprocessing_context='fork'"
        )
        wrong.__cause__ = error
        channel.send(dumps(Reply(0, None, error=ShippedError.of(wrong)), Regions()))
        raise EOFError from error


def _packed(reply: Reply, regions: Regions) -> bytes:
    try:
        return dumps(reply, regions)
    except Exception as error:  # pickling runs the code of the user's classes
        unsendable = LoaderError(
            "items cannot be sent from a worker to the trainer: "
            f"{type(error).__name__}: {error}. Items travel by pickle, and tensors and "
            "arrays above 512 KiB through shared memory. If an item cannot be pickled "
            "(a lambda, an open file), leave that part out in the encoder, or use "
            "num_workers=0; if memory is full, use fewer workers, or a smaller "
            "prefetch_factor or prefetch_bytes"
        )
        unsendable.__cause__ = error
        return dumps(
            Reply(reply.run, reply.lane, error=ShippedError.of(unsendable)), regions
        )


@dataclass(slots=True)
class _OpenLane:
    """A lane of the current run.

    Attributes:
        reader: The reader; None before the lane is opened.
        owed: Number of items that are requested and not sent.
    """

    reader: DatasetReader[Any] | None = None
    owed: int = 0


class _Worker:
    """Reads lanes of one run after another.

    Attributes:
        requested: Requests for lanes, which are read in turn.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._dataset = task.dataset
        self._edits = NOT_EDITED
        self._anchored: tree.Anchored | None = None
        self._run = -1
        self._lanes: dict[int, _OpenLane] = {}
        self._failures: list[Failure] = []
        self._left_out = LeftOut()
        self._context: ReadContext = task.context.counted_by(
            self._report, self._left_out, FailureMemory()
        )
        self.requested: deque[Read] = deque()
        drain_lines()

    def receive(self, request: Read) -> None:
        """Add a request. A request of another run ends earlier ones."""
        if request.run != self._run:
            self._run = request.run
            for lane in self._lanes.values():
                if lane.reader is not None:
                    lane.reader.close()
            self._lanes.clear()
            self.requested.clear()
        lane = self._lanes.setdefault(request.lane, _OpenLane())
        if not lane.owed:
            self.requested.append(request)
        lane.owed += request.items

    def reply(self) -> Reply:
        """Return the next items of the first requested lane, or the error."""
        request = self.requested.popleft()
        reply = Reply(request.run, request.lane)
        lane = self._lanes[request.lane]
        try:
            if lane.reader is None:
                lane.reader = self._open(request)
            self._read(lane.reader, lane, reply)
            if lane.owed:
                self.requested.append(request)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            # It is raised again in the trainer. Panics of Rust are no Exception.
            reply.error = ShippedError.of(error)
        left_out = self._left_out.drained()
        reply.notes.failures = self._failures
        reply.notes.left_out = left_out
        reply.notes.lines = drain_lines()
        self._failures = []
        return reply

    def _open(self, request: Read) -> DatasetReader[Any]:
        lanes = request.lanes
        if lanes.edits != self._edits or request.anchored != self._anchored:
            self._dataset = lanes.edits.applied(
                self._task.dataset, self._edits, self._dataset, request.anchored
            )
            self._edits = lanes.edits
            self._anchored = request.anchored
        return lanes.open(
            self._dataset, request.lane, request.at, request.state, self._context
        )

    def _read(
        self,
        reader: DatasetReader[Any],
        lane: _OpenLane,
        reply: Reply,
    ) -> None:
        until = time.monotonic() + _REPLY_SECONDS
        left = _REPLY_SECONDS
        while lane.owed and (left > 0 or not reply.items):
            try:
                items, states, origins = reader.several(lane.owed, left)
            except StopIteration:
                reply.end = reader.state()
                lane.owed = 0
                return
            reply.items.extend(items)
            reply.states.extend(states)
            reply.origins.extend(origins)
            lane.owed -= len(items)
            left = until - time.monotonic()
        reply.notes.anchored = reader.anchored()

    def _report(self, failed: Failed) -> None:
        self._failures.append(Failure.of(failed))

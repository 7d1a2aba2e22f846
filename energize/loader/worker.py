"""What a worker process does: it answers requests, one after another, until it is told to stop."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np

from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import Lane
from energize.core.lazy import torch
from energize.core.reading import Failed, Reading
from energize.core.stores import activate
from energize.core.stream import Cursor
from energize.core.trace import read_items
from energize.errors import LoaderError
from energize.ledger.left_out import LeftOut
from energize.ledger.places import flat
from energize.loader.channel import Channel
from energize.loader.deciding import Decisions
from energize.loader.edits import NOT_EDITED, Edits
from energize.loader.failures import Failure
from energize.loader.regions import Regions
from energize.loader.shipping import NOT_STARTED, Reply, Request, Reread, StreamOn, dumps, shipped
from energize.loader.stacks import StackFile
from energize.loader.starting import ignore_ctrl_c

_LOOK_FOR_TRAINER = 0.5
"""Seconds between two looks whether the trainer is still there."""

_STREAM_SECONDS = 0.02
"""How long items of a stream are gathered into one reply: long against the cost of sending it."""

_SET_PARENT_DEATH_SIGNAL = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is started for: the `dataset` with what became of it since the run began, in so
    many `lanes` if it is a stream; and the `cache_pool` of its hooks.
    """

    dataset: Dataset[Any]
    decisions: Decisions
    cache_pool: Any = None
    lanes: int = 1
    endless: bool = False
    edits: Edits = NOT_EDITED


@dataclass(frozen=True, slots=True)
class Trainer:
    """Who has started a worker.

    `process` has to be its parent; it is 0 where that is a fork server. `held` are descriptors that
    a forked process has inherited and must not hold. `dies` has the kernel end the worker with its
    parent, which it may when the thread that started it lives as long.
    """

    process: int
    held: Sequence[int]
    dies: bool


def serve(
    task: Task | None,
    end: socket.socket,
    leash: Connection[None, None],
    stacks: StackFile,
    trainer: Trainer,
) -> None:
    """The whole life of a worker process: it ends when told to, or when the trainer is gone, for
    which it is on a `leash` (see `Leash`). Where no `task` is given it is the first message. Asked
    by a signal, it writes what it is busy with to `stacks`.
    """
    _watch(leash, trainer)
    stacks.answer()
    _settle(trainer.held)
    # A process that a user's function forks may not read or write here, nor keep this end open when
    # the worker is gone.
    os.register_at_fork(after_in_child=end.close)
    channel = Channel(end)
    outbox: queue.SimpleQueue[tuple[memoryview, list[int]]] = queue.SimpleQueue()
    threading.Thread(target=_send_all, args=(outbox, channel), daemon=True).start()
    regions = Regions()
    with suppress(EOFError, OSError):
        started = task or _rebuilt_task(channel.wait().data, channel)
        if started is None:
            return
        worker = _Worker(started)
        with activate(started.cache_pool), closed_at_end(started.cache_pool):
            while True:
                message = pickle.loads(channel.wait().data)  # noqa: S301 - from the trainer
                if message is None:
                    return
                outbox.put(_packed(worker.answered(*message), regions))


@contextmanager
def closed_at_end(pool: Any) -> Iterator[None]:
    """Close a cache pool, if there is one, when this process needs it no more."""
    try:
        yield
    finally:
        if pool is not None:
            pool.close()


def _rebuilt_task(data: memoryview, channel: Channel) -> Task | None:
    """The task that the trainer has sent; None when it is told that it cannot be rebuilt."""
    try:
        return cast("Task", pickle.loads(data))  # noqa: S301 - from the trainer
    except Exception as error:  # a class that is not there in this process, for example
        wrong = LoaderError(
            f"the dataset cannot be rebuilt in a worker: {type(error).__name__}: {error}. Define "
            "what it is made of in modules that can be imported, not in the script itself or in an "
            "interactive session, or use multiprocessing_context='fork'"
        )
        wrong.__cause__ = error
        channel.send(*dumps(Reply(NOT_STARTED, error=shipped(wrong)), Regions()))
        return None


def _watch(leash: Connection[None, None], trainer: Trainer) -> None:
    """See to it that this process does not outlive the trainer, whatever it is busy with."""
    if trainer.dies:
        with suppress(OSError, AttributeError):  # not on this system
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    parent = os.getppid()
    if leash.poll() or trainer.process not in (0, parent):
        os._exit(1)  # it died before anybody looked

    def watch() -> None:
        while os.getppid() == parent and not leash.poll(_LOOK_FOR_TRAINER):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _settle(held: Sequence[int]) -> None:
    """Undo what a forked process has inherited of the trainer, its handler of SIGTERM too, and
    leave the cores to others.
    """
    ignore_ctrl_c()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in held:
        with suppress(OSError):
            os.close(descriptor)
    torch.set_num_threads(1)
    gc.freeze()


def _send_all(outbox: queue.SimpleQueue[tuple[memoryview, list[int]]], channel: Channel) -> None:
    """In a thread of its own, so that the next reply is made while this one waits to be taken."""
    while True:
        data, descriptors = outbox.get()
        try:
            channel.send(data, descriptors)
        except OSError:
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _packed(reply: Reply, regions: Regions) -> tuple[memoryview, list[int]]:
    try:
        return dumps(reply, regions)
    except Exception as error:  # pickling runs the code of the user's classes
        unsendable = LoaderError(
            f"items cannot be sent from a worker to the trainer: {type(error).__name__}: {error}. "
            "Items travel by pickle, and tensors and arrays above 512 KiB through shared memory. "
            "If an item cannot be pickled (a lambda, an open file), leave that part out in the "
            "encoder, or use num_workers=0; if memory is full, use fewer workers, or a smaller "
            "prefetch_factor or prefetch_bytes"
        )
        unsendable.__cause__ = error
        return dumps(Reply(reply.ticket, error=shipped(unsendable)), regions)


@dataclass(slots=True)
class _OpenLane:
    """A lane of a stream, and how many of its items were asked for since the run began."""

    cursor: Cursor[Any]
    at: int


@dataclass(slots=True)
class _Worker:
    """Answers requests. Only streams have a place here, and the trainer is told it."""

    task: Task
    lanes: dict[int, _OpenLane] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    dataset: Dataset[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.dataset = self.task.edits.applied(self.task.dataset)

    def answered(self, ticket: int, request: Request) -> Reply:
        """The reply to a request; what goes wrong on the way is part of it."""
        reply = Reply(ticket)
        began = time.perf_counter()
        try:
            if isinstance(request, Reread):
                self._reread(request)
            elif isinstance(request, StreamOn):
                self._stream_on(request, reply)
            else:
                positions = np.array(request.positions, dtype=np.int64)
                dataset = cast("IndexedDataset[Any]", self.dataset)
                reply.items = read_items(dataset, positions, self._reading())
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # raised again in the trainer; panics of Rust are no more
            reply.error = shipped(error)
        reply.failures, self.failures = self.failures, []
        reply.left_out = self.left_out.drained()
        reply.seconds = time.perf_counter() - began
        return reply

    def _reading(self) -> Reading:
        return self.task.decisions.reading(self._report, self.left_out)

    def _report(self, failed: Failed) -> None:
        self.failures.append(Failure.of(failed))

    def _reread(self, request: Reread) -> None:
        for held in self.lanes.values():
            held.cursor.close()
        self.lanes.clear()
        self.dataset = request.edits.applied(self.task.dataset)

    def _stream_on(self, request: StreamOn, reply: Reply) -> None:
        cursor = self._opened(request)
        until = time.monotonic() + _STREAM_SECONDS
        while not reply.items or (time.monotonic() < until and len(reply.items) < request.items):
            try:
                reply.items.append(next(cursor))
            except StopIteration:
                reply.end = cursor.state()
                del self.lanes[request.lane]
                return
            reply.states.append(cursor.state())
            reply.made.append(flat(cursor.origin))
        self.lanes[request.lane].at += len(reply.items)

    def _opened(self, request: StreamOn) -> Cursor[Any]:
        held = self.lanes.get(request.lane)
        if held is None or held.at != request.at:
            if held is not None:
                held.cursor.close()
            lane = Lane(request.lane, self.task.lanes)
            dataset, endless = self.dataset, self.task.endless
            cursor = dataset._open_lane(lane, request.state, self._reading(), endless=endless)
            held = self.lanes[request.lane] = _OpenLane(cursor, request.at)
        return held.cursor

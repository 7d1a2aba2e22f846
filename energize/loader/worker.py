"""What a worker process does: it answers requests, one after another, until it is told to stop."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np

from energize.cursor import Cursor, State
from energize.dataset import Dataset, IndexedDataset
from energize.errors import LoaderError
from energize.fetching import Attempt, Failed, resolve
from energize.late import torch
from energize.loader.shipping import ContinueStream, Reply, Request, dumps, shipped
from energize.loader.slots import Slots

__all__ = ["serve"]

_LOOK_FOR_TRAINER = 2.0
"""Seconds between two looks whether the trainer is still there."""

_STREAM_SECONDS = 0.005
"""How long items of a stream are gathered into one reply: long against the cost of sending it."""

_STREAM_ITEMS = 64


def serve(dataset: Dataset[Any], connection: Connection) -> None:
    """The whole life of a worker process: it ends when told to, or when the trainer is gone."""
    _settle()
    outbox: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    threading.Thread(target=_send_all, args=(outbox, connection), daemon=True).start()
    worker = _Worker(dataset)
    slots = Slots()
    trainer = os.getppid()
    while (message := _next_message(connection, trainer)) is not None:
        outbox.put(_packed(worker.answered(*message), slots))


def _settle() -> None:
    """Undo what a forked process has inherited of the trainer, and leave the cores to others.

    Ctrl-C reaches all processes of a terminal; what it means is for the trainer to decide. A
    handler of SIGTERM is the trainer's as well.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    gc.freeze()


def _next_message(connection: Connection, trainer: int) -> tuple[int, Request] | None:
    """The next ticket and request; None when there will be no more."""
    try:
        # A sibling forked later may hold the other end open, so a dead trainer need not be an EOF.
        while not connection.poll(_LOOK_FOR_TRAINER):
            if os.getppid() != trainer:
                return None
        return cast("tuple[int, Request] | None", connection.recv())
    except (EOFError, OSError):
        return None


def _send_all(outbox: queue.SimpleQueue[memoryview], connection: Connection) -> None:
    """In a thread of its own, so that the next reply is made while this one waits to be taken."""
    while True:
        try:
            connection.send_bytes(outbox.get())
        except OSError:
            return


def _packed(reply: Reply, slots: Slots) -> memoryview:
    try:
        return dumps(reply, slots)
    except Exception as error:  # pickling runs the code of the user's classes
        unsendable = LoaderError(
            f"items cannot be sent from a worker to the trainer: {type(error).__name__}: {error}. "
            "Items travel by pickle, and tensors above 512 KiB through shared memory. If an item "
            "cannot be pickled (a lambda, an open file), leave that part out in the encoder, or "
            "use num_workers=0; if shared memory is full, enlarge /dev/shm (docker run "
            "--shm-size=8g), or use fewer workers or a smaller prefetch_factor"
        )
        unsendable.__cause__ = error
        return dumps(Reply(reply.ticket, error=shipped(unsendable)), slots)


class _Worker:
    """Answers requests. Only a stream has a position here, and the trainer is told it."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset
        self._stream: Cursor[Any] | None = None
        self._failures: list[str] = []

    def answered(self, ticket: int, request: Request) -> Reply:
        """The reply to a request; what goes wrong on the way is part of it."""
        reply = Reply(ticket)
        try:
            if isinstance(request, ContinueStream):
                self._answer_stream(request, reply)
            else:
                self._answer_positions(request, reply)
        except Exception as error:  # raised again in the trainer
            reply.error = shipped(error)
        reply.failures, self._failures = self._failures, []
        return reply

    def _report(self, failed: Failed) -> None:
        self._failures.append(str(failed))

    def _answer_positions(self, request: range, reply: Reply) -> None:
        positions = np.arange(request.start, request.stop, request.step, dtype=np.int64)
        dataset = cast("IndexedDataset[Any]", self._dataset)
        reply.items = resolve(dataset, positions, Attempt(0, self._report))

    def _answer_stream(self, request: ContinueStream, reply: Reply) -> None:
        if request.reopen:
            self._reopen(request.state)
        if self._stream is None:
            raise LoaderError("more was asked of a stream that is not open")
        until = time.monotonic() + _STREAM_SECONDS
        while not reply.items or (time.monotonic() < until and len(reply.items) < _STREAM_ITEMS):
            try:
                reply.items.append(next(self._stream))
            except StopIteration:
                reply.end = self._stream.state()
                return
            reply.states.append(self._stream.state())

    def _reopen(self, state: State | None) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._dataset.open(state=state, on_failure=self._report)

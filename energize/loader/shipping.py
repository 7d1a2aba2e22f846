"""Transport between a trainer and its workers: messages, shared memory, items and
errors.

Large tensors and arrays are sent in shared memory. Creating it is much slower than
copying, since the kernel clears and maps every page, so a worker reuses its regions.
The first byte of a region is a flag: the worker sets it, and the trainer clears it when
the last array over it is gone. A region is an unnamed file (memfd), and its descriptor
is sent once. So nothing is left over, and the size of /dev/shm is no limit.

Large batches are made in regions (`Regions.lend`), and sent without a copy, unless
something in the worker still refers to them.
"""

from __future__ import annotations

import copyreg
import errno
import io
import itertools
import mmap
import os
import pickle
import select
import socket
import struct
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from energize.core.arrays import is_plain
from energize.core.blends import NOT_EDITED, Edits
from energize.core.failures import LeftOut
from energize.core.ignored import Line
from energize.core.lanes import Lane
from energize.core.lazy import torch
from energize.core.node import INFINITE
from energize.core.reader import (
    DatasetReader,
    ItemOrigin,
    PositionReader,
    StreamReader,
    open_lane,
)
from energize.core.stream import EpochPlan, State
from energize.core.trace import ReadContext
from energize.core.tree import Anchored
from energize.data.source import Source
from energize.errors import LoaderError
from energize.loader.failures import Failure

SMALL = 512 * 1024
"""Maximum bytes of a tensor or array that is copied through the socket."""

_MESSAGE = struct.Struct("!8sQ")
"""The header of a message: the mark, and the number of bytes."""

_MARK = b"energize"

_LENGTH = struct.Struct("!Q")

_PIECE = 2**20

_HEADER = 64
"""Bytes of a region before the data: the flag, padded to a cache line."""

_FREE_REGIONS = 16
"""Minimum number of unused regions that a worker keeps."""

_MOST_WASTE = 2
"""Maximum size of a region relative to its content."""

Bytes = npt.NDArray[np.uint8]

T = TypeVar("T")


class GarbledError(Exception):
    """Data on a channel is not a message: another process wrote to it."""


class Message(NamedTuple):
    """Bytes, or a file descriptor.

    Attributes:
        data: The bytes.
        descriptor: The descriptor, which the receiver closes.
    """

    data: memoryview
    descriptor: int | None


class Channel:
    """One end of a socket pair between a trainer and a worker.

    `send`, `wait` and `ready` block; the worker uses them. The trainer never blocks: it
    receives what has arrived, keeps incomplete messages, and sends as much as the
    socket accepts. So a worker that is stopped inside a message blocks no one.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unsent = bytearray()
        self._head = b""
        self._body: memoryview | None = None
        self._filled = 0
        self._descriptor: int | None = None

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end, and the descriptor of an incomplete message."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._socket.close()

    def send(self, data: memoryview | bytes, descriptor: int | None = None) -> None:
        """Send a message, waiting until the other side has taken it."""
        header = _MESSAGE.pack(_MARK, len(data))
        if descriptor is not None:
            header = header[socket.send_fds(self._socket, [header], [descriptor]) :]
        self._socket.sendall(header)
        self._socket.sendall(data)

    def wait(self) -> Message:
        """Return the next message, however long it takes; raise `EOFError` if the other
        side is gone.
        """
        while True:
            for message in self._received():
                return message

    def ready(self) -> bool:
        """Return whether something has come."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def post(self, data: bytes) -> None:
        """Send a message, or keep it until `flush` can."""
        self._unsent += _MESSAGE.pack(_MARK, len(data)) + data
        self.flush()

    def flush(self) -> bool:
        """Send as much as the socket accepts; return whether nothing is left."""
        while self._unsent:
            try:
                del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                return False
        return True

    def received(self) -> Iterator[Message]:
        """Yield the messages that have arrived.

        Raises:
            EOFError: After the last message, if the other end is closed.
        """
        with suppress(BlockingIOError):
            while True:
                yield from self._received()

    def _received(self) -> Iterator[Message]:
        """Receive one more piece, and yield the message if it is complete."""
        if self._body is None:
            wanted = _MESSAGE.size - len(self._head)
            piece, descriptors, flags, _ = socket.recv_fds(self._socket, wanted, 1)
            if descriptors:
                self._descriptor = descriptors[0]
            if (
                flags & socket.MSG_CTRUNC
            ):  # the kernel has dropped one that there is no room for
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if not piece:
                raise EOFError
            self._head += piece
            if len(piece) < wanted:
                return
            mark, length = _MESSAGE.unpack(self._head)
            if mark != _MARK:
                raise GarbledError(f"data that is not a message, {self._head[:20]!r}")
            self._body = memoryview(bytearray(length))
            self._filled = 0
        elif self._filled < len(self._body):
            count = self._socket.recv_into(
                self._body[self._filled : self._filled + _PIECE]
            )
            if not count:
                raise EOFError
            self._filled += count
        if self._filled == len(self._body):
            message = Message(self._body, self._descriptor)
            self._body = None
            self._head = b""
            self._descriptor = None
            yield message


@dataclass(frozen=True, slots=True)
class LaneSet:
    """The lanes of a dataset.

    Attributes:
        count: Number of lanes.
        edits: The edits of the dataset since the run began.
        endless: Whether the epoch of a stream never ends.
        plan: The positions to read of an indexed dataset; None for a stream.
        world_size: Number of ranks that share the plan.
        anchored: The anchors of the first item; None if the dataset needs none.
    """

    count: int
    edits: Edits = NOT_EDITED
    endless: bool = False
    plan: EpochPlan | None = None
    world_size: int = 1
    anchored: Anchored | None = None

    def open(
        self,
        dataset: Any,
        lane: int,
        at: int,
        state: State | None,
        context: ReadContext,
    ) -> DatasetReader[Any]:
        """Open a lane.

        Args:
            dataset: The dataset, to which the edits were applied.
            lane: The number of the lane.
            at: The first item of the lane to read of an indexed dataset.
            state: The state of the lane of a stream.
            context: How samples are read.

        Returns:
            The reader of the lane.
        """
        part = Lane(lane, self.count)
        if self.plan is None:
            reader: StreamReader[Any] = open_lane(
                dataset, part, state, context, endless=self.endless
            )
            return reader
        turns = self.turns(lane)
        return PositionReader(dataset, self.plan, part, context, turn=at, turns=turns)

    def turns(self, lane: int) -> int:
        """Return the number of items in a lane of an indexed dataset."""
        if self.plan is None:
            return INFINITE
        first = lane // self.world_size
        return len(range(first, self.plan.steps, self.count // self.world_size))


@dataclass(frozen=True, slots=True)
class Read:
    """A request for items of a lane.

    Attributes:
        run: The run.
        lanes: All lanes of the dataset.
        lane: The lane.
        at: Number of items before the first request of the lane in this run.
        state: The state of the lane there.
        items: Number of items.
        anchored: The anchors of an item before; None if the dataset needs none.
    """

    run: int
    lanes: LaneSet
    lane: int
    at: int
    state: State | None
    items: int
    anchored: Anchored | None = None

    def __str__(self) -> str:
        if self.lanes.plan is None:
            return f"lane {self.lane} of a stream, from its item {self.at} on"
        first = self.lanes.plan[0] + self.lane + self.at * self.lanes.count
        many = f" and {self.items - 1} more" if self.items > 1 else ""
        return f"the items at {first}{many}"


@dataclass(frozen=True, slots=True)
class ShippedError:
    """An exception with its causes; picklable.

    Attributes:
        chain: The exception and its causes, each pickled separately.
        trace: The traceback as text.
    """

    chain: tuple[bytes, ...]
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> ShippedError:
        """Pack an exception. Links that cannot be pickled become their text."""
        chain = []
        link: BaseException | None = error
        while link is not None:
            chain.append(_pickled(link))
            link = link.__cause__
        return cls(tuple(chain), "".join(traceback.format_exception(error)))

    def rebuilt(self) -> BaseException:
        """Return the exception with its causes and the traceback as a note."""
        # The data come from a worker of this loader.
        chain: list[BaseException] = [
            pickle.loads(data)  # noqa: S301
            for data in self.chain
        ]
        for effect, cause in itertools.pairwise(chain):
            effect.__cause__ = cause
        chain[0].add_note(f"\nin a worker process:\n{self.trace}")
        return chain[0]


def _pickled(error: BaseException) -> bytes:
    # An exception whose constructor takes more than its message pickles, but does not
    # come back.
    with suppress(Exception):  # whatever the class of the user's exception does
        data = pickle.dumps(error)
        if type(pickle.loads(data)) is type(error):  # noqa: S301 - made one line above
            return data
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return pickle.dumps(LoaderError(f"{name}: {error}"))


@dataclass(slots=True)
class ReplyNotes:
    """Failures, log lines and anchors of a worker, and the size of a reply.

    Attributes:
        failures: The samples that failed.
        left_out: The samples that were left out; None if there are none.
        lines: Lines for the log.
        anchored: The anchors of the next item; None if the dataset needs none.
        size: Bytes that the items take, set by the receiver.
    """

    failures: list[Failure] = field(default_factory=list)
    left_out: LeftOut | None = None
    lines: list[Line] = field(default_factory=list)
    anchored: Anchored | None = None
    size: int = 0


@dataclass(slots=True)
class Reply:
    """Items of a lane.

    Attributes:
        run: The run that the items were requested for.
        lane: The lane; None for an error of the worker itself.
        items: The items.
        states: The state after each item of a stream. Empty for an indexed dataset.
        origins: The origin of each item.
        end: The state after the last item of the epoch of a stream, if it was reached.
        error: The error that ended reading after these items.
        notes: Failures, log lines and anchors.
    """

    run: int
    lane: int | None
    items: list[Any] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    origins: list[ItemOrigin] = field(default_factory=list)
    end: State | None = None
    error: ShippedError | None = None
    notes: ReplyNotes = field(default_factory=ReplyNotes)


@dataclass(frozen=True, slots=True)
class RegionBytes:
    """A reference to bytes in a region, sent in their place.

    Attributes:
        region: Number of the region.
        start: Number of bytes before them.
        size: Number of bytes.
    """

    region: int
    start: int
    size: int


class Regions:
    """The worker's side of shared memory.

    Functions of users may make batches in several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._regions, self._numbers = dict[int, Bytes](), itertools.count()
        self._lent = dict[int, weakref.ref[Bytes]]()
        self._held = dict[int, weakref.ref[Bytes]]()  # of `_lent`, in the next message
        self._new: list[int] = []
        self._dropped: list[int] = []

    def lend(self, size: int) -> memoryview:
        """Return memory that is in use until the last array over it is gone."""
        with self._lock:
            number = self._free_region(size)
            lease = self._regions[number][_HEADER : _HEADER + size]
            self._lent[number] = weakref.ref(lease)
        return lease.data  # what is made of it keeps this very object

    def put(self, *pieces: memoryview | bytes) -> RegionBytes:
        """Copy contiguous bytes to a region, which is in use until the trainer frees
        it.

        Args:
            *pieces: The bytes, in any number of pieces.
        """
        size = sum(map(len, pieces))
        with self._lock:
            number = self._free_region(size)
            memory = self._regions[number].data
            memory[0] = 1
        end = _HEADER
        for piece in pieces:
            start = end
            end += len(piece)
            memory[start:end] = piece
        return RegionBytes(number, _HEADER, size)

    def place(self, raw: memoryview) -> RegionBytes:
        """Return where bytes are in a region: their own place in memory that is lent,
        else that of a copy.
        """
        address = _address(raw)
        for number, lease in list(self._lent.items()):
            start = address - _address(self._regions[number].data)
            room = len(self._regions[number])
            if 0 <= start < room <= _MOST_WASTE * len(raw):
                self._held[number] = lease
                self._regions[number][0] = 1
                return RegionBytes(number, start, len(raw))
        return self.put(raw)

    def settled(self, places: list[RegionBytes]) -> list[RegionBytes]:
        """Return the places for the trainer, with copies of lent memory that arrays
        here still refer to, and of bytes that share a region.
        """
        settled = []
        shared = set()
        for place in places:
            number = place.region
            lease = self._held.get(number)
            if lease is not None and (number in shared or lease() is not None):
                end = place.start + place.size
                settled.append(self.put(self._regions[number].data[place.start : end]))
            else:
                shared.add(number)
                settled.append(place)
        for number in self._held.keys() - shared:
            self._regions[number][0] = 0
        self._held.clear()
        return settled

    def drain_new(self) -> list[int]:
        """Return descriptors of regions that are new to the trainer, by their
        numbers.
        """
        with self._lock:
            descriptors = self._new
            self._new = []
        return descriptors

    def drain_dropped(self) -> list[int]:
        """Return the numbers of regions that were released since."""
        with self._lock:
            dropped = self._dropped
            self._dropped = []
        return dropped

    def _new_region(self, size: int) -> int:
        # At most an eighth more, so that batches of slightly different sizes share
        # regions.
        step = 1 << max(0, size.bit_length() - 4)
        whole = _HEADER + -(-size // step) * step
        descriptor = os.memfd_create("energize", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(
                descriptor, 0, whole
            )  # an error now, not a bus error later
            memory = np.frombuffer(mmap.mmap(descriptor, whole), dtype=np.uint8)
        except BaseException:
            os.close(descriptor)
            raise
        number = next(self._numbers)
        self._regions[number] = memory
        self._new.append(descriptor)
        return number

    def _free_region(self, size: int) -> int:
        """Return the smallest free region that fits, or a new one, and release surplus
        ones.
        """
        for number in [n for n, lease in self._lent.items() if lease() is None]:
            del self._lent[number]
        free = [
            number
            for number, memory in self._regions.items()
            if not memory[0] and number not in self._lent
        ]
        room = {number: len(self._regions[number]) - _HEADER for number in free}
        fitting = [n for n in free if size <= room[n] <= max(size, 1) * _MOST_WASTE]
        best = min(fitting, key=room.__getitem__, default=None)
        limit = max(_FREE_REGIONS, len(self._regions) - len(free))
        for number in [n for n in free if n != best][: max(0, len(free) - limit)]:
            del self._regions[number]
            self._dropped.append(number)
        return self._new_region(size) if best is None else best


class ReceivedRegions:
    """The trainer's side of one worker's shared memory."""

    def __init__(self) -> None:
        self._regions, self._numbers = dict[int, Bytes](), itertools.count()

    def add(self, descriptor: int) -> None:
        """Map a new region, and close its descriptor."""
        with open(descriptor, "rb"):
            memory = mmap.mmap(descriptor, 0)
        self._regions[next(self._numbers)] = np.frombuffer(memory, dtype=np.uint8)

    def view(self, sent: RegionBytes) -> Bytes:
        """Return bytes of a region, which is freed with the last array over them."""
        memory = self._regions[sent.region]
        # What is made of it keeps this very object.
        lease = memory[sent.start : sent.start + sent.size]
        weakref.finalize(lease, _free, memory, os.getpid()).atexit = False
        return lease

    def loads(self, data: memoryview) -> tuple[Any, int]:
        """Return a value that `dumps` packed, and its size in bytes."""
        end = len(data) - _LENGTH.size
        (length,) = _LENGTH.unpack(data[end:])
        buffers, dropped = pickle.loads(data[length:end])  # noqa: S301 - own worker
        for number in dropped:
            self._regions.pop(number, None)
        views = [self.view(buffer).data for buffer in buffers]
        pickled = data[:length] if length else views.pop()
        value = pickle.loads(pickled, buffers=views)  # noqa: S301 - own worker
        return value, len(data) + sum(buffer.size for buffer in buffers)


def _address(data: memoryview) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


def _free(memory: Bytes, owner: int) -> None:
    # A process forked from the trainer has copies of its tensors, but may not free
    # their region.
    if os.getpid() == owner:
        memory[0] = 0


class _Writable(Protocol):
    """A file that a pickler writes to."""

    def write(self, piece: Any, /) -> int:
        """Write bytes, and return their number."""


def _tensor_pickler(
    file: _Writable, protocol: int, buffer_callback: Callable[[Any], object]
) -> pickle.Pickler:
    """Return a pickler that pickles tensors as buffers, like numpy arrays.

    A dispatch table is looked up in C; `reducer_override` would be called for every
    object.
    """
    pickler = pickle.Pickler(file, protocol, buffer_callback=buffer_callback)
    pickler.dispatch_table = {**copyreg.dispatch_table, torch.Tensor: _reduced}
    return pickler


def _reduced(tensor: torch.Tensor) -> Any:
    if not is_plain(tensor):
        return tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    buffer = pickle.PickleBuffer(flat.numpy().data)
    return _tensor, (buffer, tensor.dtype, tuple(tensor.shape))


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _dump_buffers(
    value: Any,
    pickler: Callable[..., pickle.Pickler],
    file: _Writable,
    put: Callable[[memoryview], T],
) -> list[T]:
    """Pickle a value to a file; return where each large buffer was put."""
    places: list[T] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes > SMALL:
            places.append(put(raw))
        return raw.nbytes <= SMALL

    pickler(file, 5, buffer_callback=stays).dump(value)
    return places


class _Pieces(list[bytes]):
    """A file for a pickler that keeps the pieces as they are written."""

    def write(self, piece: Any) -> int:
        """Add a piece, and return its size."""
        content = bytes(piece)  # a pickler may write a PickleBuffer, without a length
        self.append(content)
        return len(content)


def dumps(reply: Reply, regions: Regions) -> bytes:
    """Pack a reply for the trainer, with large buffers in regions, and empty it.

    A large pickle is a region itself: through the socket, the kernel would copy it
    twice.
    """
    regions.settled([])  # those of a reply that could not be pickled
    pickled = _Pieces()
    places = _dump_buffers(reply, _tensor_pickler, pickled, regions.place)
    reply.items.clear()
    sent = regions.settled(places)
    length = sum(map(len, pickled))
    if length > SMALL:
        sent.append(regions.put(*pickled))
        pickled.clear()
        length = 0
    pickled.append(pickle.dumps((sent, regions.drain_dropped()), 5))
    pickled.append(_LENGTH.pack(length))
    return b"".join(pickled)


# What workers that start from nothing are given: one file in memory for all of them.


class _DatasetPickler(pickle.Pickler):
    """Pickles sources with their column cache, so that workers need not read it."""

    def reducer_override(self, obj: Any) -> Any:
        columns = vars(obj).get("_column_cache") if isinstance(obj, Source) else None
        reduced: tuple[Any, ...] = tuple(obj.__reduce_ex__(5)) if columns else ()
        if len(reduced) < 3 or not isinstance(reduced[2], dict):
            return NotImplemented
        return *reduced[:2], {**reduced[2], "_column_cache": columns}


def stored(value: Any) -> BinaryIO:
    """Return an in-memory file for `rebuilt`, which maps large arrays."""
    file = os.fdopen(os.memfd_create("energize", os.MFD_CLOEXEC), "wb")
    head = io.BytesIO()

    def put(raw: memoryview) -> tuple[int, int]:
        file.write(bytes(-file.tell() % _HEADER))
        return file.tell(), file.write(raw)

    places = _dump_buffers(value, _DatasetPickler, head, put)
    data = pickle.dumps((head.getbuffer().tobytes(), places))
    file.write(data + _LENGTH.pack(len(data)))
    file.flush()
    return file


def rebuilt(descriptor: int) -> Any:
    """Return the value in a file of `stored`, and close the file.

    Its large arrays are shared by all processes, copy-on-write.
    """
    with open(descriptor, "rb"):
        memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    end = len(memory) - _LENGTH.size
    (length,) = _LENGTH.unpack(memory[end:])
    head, places = pickle.loads(memory[end - length : end])  # noqa: S301 - trainer
    buffers = [memory[start : start + size] for start, size in places]
    return pickle.loads(head, buffers=buffers)  # noqa: S301 - trainer

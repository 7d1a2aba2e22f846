"""Whole messages between trainer and worker, with file descriptors, over a pair of sockets.

The trainer's end never waits: it takes what has come, keeps what is not yet a whole message, and
sends what the other side has room for. So a worker that is stopped in the middle of a message holds
up nobody.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_HEADER = struct.Struct("!8sQI")
"""The mark of a message, its bytes, and how many file descriptors come with it."""

_MARK = b"energize"

_DESCRIPTORS_AT_ONCE = 64
"""Below the number that the kernel passes in one piece (SCM_MAX_FD, 253)."""

_PIECE = 2**20


class GarbledError(Exception):
    """What came is no message: somebody else has written to the other end."""


class Message(NamedTuple):
    """Bytes, and the file descriptors that came with them, which are the receiver's to close."""

    data: memoryview
    descriptors: list[int]


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, for the trainer and for a worker."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    return ours, theirs


class Channel:
    """One end: `send` and `wait` of a blocking socket are the worker's, the rest the trainer's."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._unsent: deque[memoryview] = deque()
        self._head = bytearray()
        self._body: memoryview | None = None
        self._filled = 0
        self._expected = 0
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """For `select` and the like."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end, and descriptors that came with half a message."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._socket.close()

    def send(self, data: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, waiting until the other side has taken it."""
        payload = memoryview(data).cast("B")
        header = _HEADER.pack(_MARK, len(payload), len(descriptors))
        if not descriptors:
            self._socket.sendall(header)
        for first in range(0, len(descriptors), _DESCRIPTORS_AT_ONCE):
            some = array.array("i", descriptors[first : first + _DESCRIPTORS_AT_ONCE])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)]
            # Descriptors travel with bytes: the header, then bytes that only carry them.
            carrier = header if first == 0 else b"\0"
            sent = self._socket.sendmsg([carrier], rights)
            if sent < len(carrier):
                self._socket.sendall(carrier[sent:])
        self._socket.sendall(payload)

    def wait(self) -> Message:
        """The next message, however long it takes; `EOFError` when the other side is gone."""
        while True:
            for message in self._received():
                return message

    def post(self, data: bytes) -> None:
        """Send a message, or keep it until `flush` can."""
        self._unsent.append(memoryview(_HEADER.pack(_MARK, len(data), 0) + data))
        self.flush()

    def flush(self) -> bool:
        """Send what the other side has room for; whether nothing is left."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0])
            except BlockingIOError:
                return False
            rest = self._unsent[0][sent:]
            if rest:
                self._unsent[0] = rest
            else:
                self._unsent.popleft()
        return True

    def received(self) -> Iterator[Message]:
        """The messages that are there; `EOFError` when the other side is gone and all are taken."""
        while True:
            try:
                yield from self._received()
            except BlockingIOError:
                return

    def _received(self) -> Iterator[Message]:
        """One more piece of a message, which may complete it."""
        if self._body is None:
            wanted = max(_HEADER.size - len(self._head), 1)
            piece = self._piece(wanted)
            self._head += piece
            if len(self._head) >= _HEADER.size:
                mark, length, self._expected = _HEADER.unpack_from(self._head)
                if mark != _MARK:
                    raise GarbledError(f"what is no message, {bytes(self._head[:20])!r}")
                carriers = max(0, -(-self._expected // _DESCRIPTORS_AT_ONCE) - 1)
                if len(self._head) < _HEADER.size + carriers:
                    return
                self._body, self._filled = memoryview(bytearray(length)), 0
        elif self._filled < len(self._body):
            room = self._body[self._filled : self._filled + _PIECE]
            count = self._socket.recv_into(room)
            if not count:
                raise EOFError
            self._filled += count
        if self._body is not None and self._filled == len(self._body):
            data, self._body, self._head = self._body, None, bytearray()
            yield Message(data, [self._descriptors.popleft() for _ in range(self._expected)])

    def _piece(self, wanted: int) -> bytes:
        room = socket.CMSG_SPACE(_DESCRIPTORS_AT_ONCE * array.array("i").itemsize)
        piece, ancillary, flags, _ = self._socket.recvmsg(wanted, room)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                self._descriptors.extend(found)
        if flags & socket.MSG_CTRUNC:  # the kernel has dropped those that there is no room for
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if not piece:
            raise EOFError
        return piece

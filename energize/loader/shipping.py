"""What travels between trainer and workers, and how items and errors are packed for the way."""

from __future__ import annotations

import io
import itertools
import pickle
import struct
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from energize.core.lazy import torch
from energize.core.stream import State
from energize.errors import LoaderError
from energize.ledger.left_out import LeftOut
from energize.ledger.places import Made
from energize.loader.edits import Edits
from energize.loader.failures import Failure
from energize.loader.regions import ReceivedRegions, RegionBytes, Regions

NOT_STARTED = -1
"""The ticket of what a worker sends that cannot start."""

SMALL = 512 * 1024
"""Bytes up to which a tensor or an array is copied through the socket; a larger one goes through a
region of shared memory."""

_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for the items at some positions of an indexed dataset."""

    positions: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.positions[:3]))
        return f"the items at {shown}{', ...' if len(self.positions) > 3 else ''}"

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class StreamOn:
    """Asks for the next items of a lane of a stream.

    They are those after `state`, which a worker that is `at` the same place already has open.
    """

    lane: int
    at: int
    state: State | None
    items: int

    def __str__(self) -> str:
        return f"lane {self.lane} of a stream, from its item {self.at} on"

    def __len__(self) -> int:
        return self.items


@dataclass(frozen=True, slots=True)
class Reread:
    """Tells a worker what has become of its dataset; what it has begun to read is of no use."""

    edits: Edits

    def __str__(self) -> str:
        return "to learn of other weights"


Request = Fetch | StreamOn | Reread


@dataclass(frozen=True, slots=True)
class ShippedError:
    """An exception and its causes, each pickled by itself, and the traceback as text."""

    chain: tuple[bytes, ...]
    trace: str


@dataclass(slots=True)
class Reply:
    """What a worker answers.

    `states` has the stream's state after each item, `made` what it is made of, and `end` the state
    after the last; they stay empty for positions. With an `error` the items are those that came
    before it. `seconds` is what it took, and `size`, set by the receiver, the bytes that the items
    take.
    """

    ticket: int
    items: list[Any] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    end: State | None = None
    failures: list[Failure] = field(default_factory=list)
    left_out: LeftOut | None = None
    error: ShippedError | None = None
    seconds: float = 0.0
    size: int = 0


def shipped(error: BaseException) -> ShippedError:
    """`error` ready to travel; an exception that cannot be rebuilt is replaced by its text."""
    chain = []
    link: BaseException | None = error
    while link is not None:
        chain.append(_pickled(link))
        link = link.__cause__
    return ShippedError(tuple(chain), "".join(traceback.format_exception(error)))


def _pickled(error: BaseException) -> bytes:
    # An exception whose constructor takes more than its message pickles, but does not come back.
    try:
        data = pickle.dumps(error)
        if type(pickle.loads(data)) is type(error):  # noqa: S301 - made one line above
            return data
    except Exception:  # noqa: S110 - whatever the class of the user's exception does
        pass
    return pickle.dumps(
        LoaderError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    )


def rebuilt(error: ShippedError) -> BaseException:
    """The exception with its causes, and the original traceback as a note."""
    chain: list[BaseException] = [
        pickle.loads(data)  # noqa: S301 - from a worker of this very loader
        for data in error.chain
    ]
    for effect, cause in itertools.pairwise(chain):
        effect.__cause__ = cause
    chain[0].add_note(f"\nin a worker process:\n{error.trace}")
    return chain[0]


class _Buffers:
    """Keeps large buffers of a pickle in regions: `sent`, in their order."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self.sent: list[RegionBytes] = []

    def keep_in_pickle(self, buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer stays in the pickle; else it is in a region now."""
        raw = buffer.raw()
        if raw.nbytes <= SMALL:
            return True
        self.sent.append(self._regions.put(np.frombuffer(raw, dtype=np.uint8)))
        return False


class _Pickler(pickle.Pickler):
    """Tensors as buffers, as numpy's arrays are anyway; large buffers in regions.

    It must not refer to itself: with a method of its own as callback it would live, and hold the
    whole batch, until garbage is collected, and new memory costs more than copying a batch.
    """

    def __init__(self, file: Any, buffers: _Buffers) -> None:
        super().__init__(file, 5, buffer_callback=buffers.keep_in_pickle)

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return NotImplemented
        flat = obj.contiguous().reshape(-1).view(torch.uint8)
        return _tensor, (pickle.PickleBuffer(flat.numpy().data), obj.dtype, tuple(obj.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.numel() > 0
    )


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def dumps(value: Any, regions: Regions) -> tuple[memoryview, list[int]]:
    """`value` packed for the process at the other end, large buffers in regions; and the
    descriptors of regions that are new.
    """
    buffer = io.BytesIO()
    buffers = _Buffers(regions)
    _Pickler(buffer, buffers).dump(value)
    length = buffer.tell()
    made, descriptors, dropped = regions.news()
    pickle.dump((buffers.sent, made, dropped), buffer, 5)
    buffer.write(_LENGTH.pack(length))
    return buffer.getbuffer(), descriptors


def loads(data: memoryview, descriptors: list[int], regions: ReceivedRegions) -> tuple[Any, int]:
    """What `dumps` packed, and the bytes that it takes; large buffers lie in the worker's regions
    until they are let go.
    """
    end = len(data) - _LENGTH.size
    (length,) = _LENGTH.unpack(data[end:])
    buffers: list[RegionBytes]
    buffers, made, dropped = pickle.loads(data[length:end])  # noqa: S301 - from our own worker
    regions.update(made, descriptors, dropped)
    views = [regions.view(each).data for each in buffers]
    value = pickle.loads(data[:length], buffers=views)  # noqa: S301 - from our own worker
    return value, len(data) + sum(each.size for each in buffers)

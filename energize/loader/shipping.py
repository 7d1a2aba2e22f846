"""What travels between trainer and workers, and how errors and tensors are packed for the way."""

from __future__ import annotations

import io
import itertools
import pickle
import traceback
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

from energize.cursor import State
from energize.errors import LoaderError
from energize.late import torch
from energize.loader.slots import ReceivedSlots, Slots, SlotTensor

__all__ = ["ContinueStream", "Reply", "Request", "ShippedError", "dumps", "rebuilt", "shipped"]

SMALL_TENSOR = 512 * 1024
"""Bytes up to which a tensor is copied through the pipe. A larger one goes through a slot of shared
memory, each of which holds a file descriptor."""


@dataclass(frozen=True, slots=True)
class ContinueStream:
    """Asks for the next items of a stream; `reopen` first opens it at `state`."""

    reopen: bool = False
    state: State | None = None


Request = range | ContinueStream
"""The positions to fetch, or a call for more of a stream."""


@dataclass(frozen=True, slots=True)
class ShippedError:
    """An exception and its causes, each pickled by itself, and the traceback as text."""

    chain: tuple[bytes, ...]
    trace: str


@dataclass(slots=True)
class Reply:
    """What a worker answers.

    `states` has the stream's state after each item, and `end` the one after its last; both stay
    empty for positions. With an `error` the items are those that came before it.
    """

    ticket: int
    items: list[Any] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    end: State | None = None
    failures: list[str] = field(default_factory=list)
    error: ShippedError | None = None


def shipped(error: Exception) -> ShippedError:
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


class _Pickler(ForkingPickler):
    def __init__(self, buffer: Any, slots: Slots) -> None:
        super().__init__(buffer, 5)
        self._slots = slots
        self._sent: dict[int, tuple[torch.Tensor, SlotTensor]] = {}

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _is_plain(obj) or _is_small(obj):
            return None
        if id(obj) not in self._sent:
            # The tensor is kept as well: were it let go, its id would become another one's.
            self._sent[id(obj)] = obj, self._slots.put(obj)
        return self._sent[id(obj)][1]

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and _is_small(obj):
            flat = obj.contiguous().reshape(-1).view(torch.uint8)
            return _tensor, (bytearray(flat.numpy()), obj.dtype, tuple(obj.shape))
        return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.requires_grad
        and tensor.numel() > 0
    )


def _is_small(tensor: torch.Tensor) -> bool:
    return _is_plain(tensor) and tensor.numel() * tensor.element_size() <= SMALL_TENSOR


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def dumps(value: Any, slots: Slots) -> memoryview:
    """`value` pickled for the process at the other end of a pipe, large tensors in slots."""
    buffer = io.BytesIO()
    _Pickler(buffer, slots).dump(value)
    _Pickler(buffer, slots).dump(slots.dropped)
    slots.dropped = []
    return buffer.getbuffer()


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: Any, slots: ReceivedSlots) -> None:
        super().__init__(buffer)
        self._slots = slots
        self._loaded: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        if pid.slot not in self._loaded:
            self._loaded[pid.slot] = self._slots.tensor(pid)
        return self._loaded[pid.slot]


def loads(data: bytes, slots: ReceivedSlots) -> Any:
    """What `dumps` packed; large tensors lie in the worker's slots until they are let go."""
    unpickler = _Unpickler(io.BytesIO(data), slots)
    value = unpickler.load()
    slots.forget(unpickler.load())
    return value

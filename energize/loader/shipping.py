"""What travels between trainer and workers, and how errors and tensors are packed for the way."""

from __future__ import annotations

import io
import itertools
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # registers how large tensors travel through shared memory

from energize.cursor import State
from energize.errors import LoaderError

__all__ = ["ContinueStream", "Reply", "Request", "ShippedError", "dumps", "rebuilt", "shipped"]

SMALL_TENSOR = 512 * 1024
"""Bytes up to which a tensor is copied through the pipe. A larger one goes through shared memory,
which costs a file descriptor and a connection for each tensor, whatever its size."""


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
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and _is_small(obj):
            flat = obj.contiguous().reshape(-1).view(torch.uint8)
            return _tensor, (bytearray(flat.numpy()), obj.dtype, tuple(obj.shape))
        return NotImplemented


def _is_small(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.requires_grad
        and 0 < tensor.numel() * tensor.element_size() <= SMALL_TENSOR
    )


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


def dumps(value: Any) -> memoryview:
    """`value` pickled for the process at the other end of a pipe, large tensors by handle."""
    buffer = io.BytesIO()
    pickler: Callable[..., Any] = _Pickler
    pickler(buffer, 5).dump(value)
    return buffer.getbuffer()

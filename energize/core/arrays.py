"""The arrays that are handed on inside energize, by what they hold; and rows by their
value.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.lazy import torch

BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]

Rows: TypeAlias = Int64Array | slice
"""Some rows of an array; all of them as a slice."""

_MANY = 512
"""Largest number of values to search for their range."""


def rows_by_value(values: Int64Array) -> list[tuple[int, Int64Array]]:
    """Return each distinct value, ascending, and the rows that contain it.

    Example:
        >>> [
        ...     (value, rows.tolist())
        ...     for value, rows in rows_by_value(np.array([7, 5, 7]))
        ... ]
        [(5, [1]), (7, [0, 2])]
    """
    if len(values) and (values == values[0]).all():  # mostly
        return [(int(values[0]), np.arange(len(values)))]
    # 16 bits are sorted by radix, in a fraction of the time.
    narrow = (
        len(values) >= _MANY and int(values.min()) >= 0 and int(values.max()) < 2**16
    )
    order = np.argsort(values.astype(np.uint16) if narrow else values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1)).tolist()
    bounds = pairwise([*starts, len(order)])
    return [(int(ordered[start]), order[start:end]) for start, end in bounds]


def pairs_by_value(
    values: Int64Array, find: Callable[[int, Rows], tuple[Int64Array, Int64Array]]
) -> tuple[Int64Array, Int64Array]:
    """Return two columns, found by `find(value, rows)` for the rows of each value.

    >>> slots = np.array([70, 71, 50])
    >>> pairs_by_value(
    ...     slots // 10, lambda ten, rows: (slots[rows] * 0 + ten, slots[rows] % 10)
    ... )
    (array([7, 7, 5]), array([0, 1, 0]))
    """
    if len(values) and (values == values[0]).all():  # mostly
        return find(int(values[0]), slice(None))
    first, second = np.empty((2, len(values)), dtype=np.int64)
    for value, rows in rows_by_value(values):
        first[rows], second[rows] = find(value, rows)
    return first, second


POOLED = 2**19
"""Bytes from which the memory of an array is reused."""

_MOST_FREE = 2**28
"""Bytes of freed memory that a process keeps for its next arrays."""


class _Pool:
    """Freed memory for arrays: the kernel clears and maps every page of new memory.

    Without a lock: arrays are also released by the garbage collector, in any thread.
    """

    def __init__(self) -> None:
        self._free = dict[int, list[npt.NDArray[np.uint8]]]()

    def take(self, size: int) -> memoryview:
        """Return memory, which is given back with the last array over it."""
        # At most an eighth more, so that arrays of slightly different sizes share it.
        step = 1 << max(0, size.bit_length() - 4)
        whole = -(-size // step) * step
        try:
            memory = self._free[whole].pop()
        except LookupError:
            memory = np.empty(whole, dtype=np.uint8)
        lease = memory[:size]  # what is made of it keeps this very object
        weakref.finalize(lease, self._release, memory).atexit = False
        return lease.data

    def _release(self, memory: npt.NDArray[np.uint8]) -> None:
        free = self._free
        while self.free_bytes() + len(memory) > _MOST_FREE:
            stale_sizes = [size for size in list(free) if size != len(memory)]
            if not stale_sizes or len(memory) > _MOST_FREE:
                return
            free.pop(stale_sizes[0], None)
        free.setdefault(len(memory), []).append(memory)

    def free_bytes(self) -> int:
        """Return the bytes of memory that no array uses."""
        return sum(size * len(pieces) for size, pieces in list(self._free.items()))


pool = _Pool()


class BatchMemory:
    """Where the memory of large batches comes from.

    Attributes:
        lend: Returns memory of a number of bytes, which is in use until the last array
            over it is gone. None takes it from `pool`. A worker lends memory that it
            shares with the trainer.
    """

    def __init__(self) -> None:
        self.lend: Callable[[int], memoryview] | None = None

    def reset(self) -> None:
        """Take memory from `pool` again, as in a process that a worker forks."""
        self.lend = None


batch_memory = BatchMemory()


def empty(
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    lend: Callable[[int], memoryview] | None = None,
) -> npt.NDArray[Any]:
    """Return a new array without setting values, in reused memory if it is large.

    Args:
        shape: The shape.
        dtype: The type of values.
        lend: Returns the memory of a large array; None takes it from `pool`.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < POOLED:
        return np.empty(shape, dtype=dtype)
    memory = pool.take(size) if lend is None else lend(size)
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def as_tensor(value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return numbers as a tensor in the memory of this machine, whatever the program's
    default device is; a tensor where it is.
    """
    device = value.device if isinstance(value, torch.Tensor) else "cpu"
    return torch.as_tensor(value, dtype=dtype, device=device)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a part of this machine's memory and nothing more."""
    strided = tensor.device.type == "cpu" and tensor.layout is torch.strided
    odd = (
        tensor.is_quantized
        or tensor.requires_grad
        or tensor.is_conj()
        or tensor.is_neg()
    )
    return type(tensor) is torch.Tensor and strided and not odd and tensor.numel() > 0

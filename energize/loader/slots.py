"""Shared memory in which large tensors travel from a worker to the trainer.

Making shared memory costs far more than copying into it: the kernel clears every page, and both
sides map it anew. So a worker keeps the pieces, called slots, and writes into one again as soon as
the trainer has let go of all tensors in it. Their first byte says whether they have: the worker
sets it, the trainer clears it, and no message is needed.
"""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from energize.late import torch

__all__ = ["ReceivedSlots", "SlotTensor", "Slots"]

_HEADER = 64
"""Bytes before the data: the flag, and the rest of a cache line, to which data are aligned."""

_FREE_SLOTS = 16
"""How many unused slots a worker keeps, or as many as are in use."""

_MOST_WASTE = 2
"""A slot this many times as large as a tensor is left to larger ones."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SlotTensor:
    """What travels in place of a tensor; `storage` only when the slot is new to the trainer."""

    slot: int
    storage: torch.UntypedStorage | None
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(slots=True)
class _Slot:
    """A piece of shared memory: a flag, then data."""

    storage: torch.UntypedStorage
    memory: Bytes = field(init=False)

    def __post_init__(self) -> None:
        self.memory = torch.tensor([], dtype=torch.uint8).set_(self.storage).numpy()

    @property
    def capacity(self) -> int:
        return len(self.memory) - _HEADER

    @property
    def taken(self) -> bool:
        return bool(self.memory[0])


class Slots:
    """The worker's side: puts tensors into slots, made as they are needed.

    `dropped` are slots given up since it was last emptied, for the trainer to forget.
    """

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._made = 0
        self.dropped: list[int] = []

    def put(self, tensor: torch.Tensor) -> SlotTensor:
        """A copy of a dense CPU tensor in a slot, which is taken until the trainer frees it."""
        size = tensor.numel() * tensor.element_size()
        storage = None
        number = self._free_slot(size)
        if number is None:
            storage = _shared(_HEADER + _rounded(size))
            number, self._made = self._made, self._made + 1
            self._slots[number] = _Slot(storage)
        memory = self._slots[number].memory
        memory[0] = 1
        target = torch.from_numpy(memory[_HEADER : _HEADER + size])
        target.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return SlotTensor(number, storage, tensor.dtype, tuple(tensor.shape))

    def _free_slot(self, size: int) -> int | None:
        """The smallest free slot that fits. Of other free ones, too many are not kept."""
        free = [number for number, slot in self._slots.items() if not slot.taken]
        fitting = [n for n in free if size <= self._slots[n].capacity <= size * _MOST_WASTE]
        best = min(fitting, key=lambda n: self._slots[n].capacity, default=None)
        kept = max(_FREE_SLOTS, len(self._slots) - len(free))
        for number in [n for n in free if n != best][: max(0, len(free) - kept)]:
            del self._slots[number]
            self.dropped.append(number)
        return best


class ReceivedSlots:
    """The trainer's side of one worker's slots."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}

    def tensor(self, sent: SlotTensor) -> torch.Tensor:
        """The tensor; its slot is freed when the last tensor that shares its memory is gone."""
        if sent.storage is not None:
            self._slots[sent.slot] = _Slot(sent.storage)
        memory = self._slots[sent.slot].memory
        size = sent.dtype.itemsize * math.prod(sent.shape)
        lease = memory[_HEADER : _HEADER + size]  # the tensor's storage keeps this very object
        weakref.finalize(lease, _free, memory, os.getpid()).atexit = False
        return torch.from_numpy(lease).view(sent.dtype).view(sent.shape)

    def forget(self, dropped: list[int]) -> None:
        """Let go of slots that the worker has given up."""
        for number in dropped:
            self._slots.pop(number, None)


def _rounded(size: int) -> int:
    """At most an eighth more, so that batches of slightly different sizes share slots."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


def _shared(size: int) -> torch.UntypedStorage:
    return torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call,no-any-return]


def _free(memory: Bytes, owner: int) -> None:
    # A process forked from the trainer has copies of its tensors, but the slot is not its to free.
    if os.getpid() == owner:
        memory[0] = 0

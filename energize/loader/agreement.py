"""What ranks tell each other: few numbers, seldom, and never without an end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.description import digest
from energize.core.lanes import Ranks
from energize.core.lazy import torch
from energize.errors import ConfigError, LoaderError

_LOOK = 0.0005
"""Seconds between two looks whether all ranks have answered."""


class Agreement:
    """The ranks of a process group. Each method is called by all of them at the same point.

    Raises `LoaderError` when not all ranks answer within `timeout` seconds (None: ever).
    """

    def __init__(self, ranks: Ranks, timeout: float | None) -> None:
        self._ranks = ranks
        self._timeout = timeout

    def numbers(self, values: Sequence[int], what: str) -> list[list[int]]:
        """Return the numbers of each rank, as many from each, all of them below 2**63.

        `what` is what they are for, in messages.
        """
        distributed, group = torch.distributed, self._ranks.group
        mine = torch.tensor(list(values), dtype=torch.int64, device=self._device)
        found = [torch.empty_like(mine) for _ in range(self._ranks.world_size)]
        work = distributed.all_gather(found, mine, group=group, async_op=True)
        self._wait(work, what)
        return [each.tolist() for each in found]

    def summed(self, values: FloatArray, what: str) -> FloatArray:
        """Return the sum over all ranks of float64 numbers, as many from each."""
        distributed, group = torch.distributed, self._ranks.group
        mine = torch.tensor(values, dtype=torch.float64, device=self._device)
        work = distributed.all_reduce(mine, group=group, async_op=True)
        self._wait(work, what)
        total: FloatArray = mine.cpu().numpy()
        return total

    @property
    def _device(self) -> torch.device:
        """Where tensors that are told lie."""
        backend = torch.distributed.get_backend(self._ranks.group)
        on_host = "gloo" in backend or not torch.cuda.is_available()
        return torch.device("cpu") if on_host else torch.device("cuda")

    def _wait(self, work: Any, what: str) -> None:
        until = None if self._timeout is None else time.monotonic() + self._timeout
        while not work.is_completed():
            if until is not None and time.monotonic() > until:
                raise LoaderError(
                    f"{what}: not all {self._ranks.world_size} ranks answered within "
                    f"timeout={self._timeout} s. Every rank has to make the same calls and the "
                    f"same number of steps; this is rank {self._ranks.rank}"
                )
            time.sleep(_LOOK)
        work.wait()

    @property
    def first(self) -> bool:
        """Whether this rank is the one that speaks for all."""
        return self._ranks.rank == 0

    def groups(self, said: str, what: str) -> list[list[int]]:
        """Return the ranks that say the same, in groups; one group if all do."""
        found: dict[int, list[int]] = {}
        number = int(digest(said)[:12], 16)
        for rank, (each,) in enumerate(self.numbers([number], what)):
            found.setdefault(each, []).append(rank)
        return list(found.values())

    def told_by(self, source: int | None, value: Any, what: str) -> Any:
        """Return a JSON-able tree that the rank of this number in the world tells all others, the
        first of the group for None; None if it has none.
        """
        distributed, group = torch.distributed, self._ranks.group
        members = distributed.get_process_group_ranks(group)
        source = members[0] if source is None else source
        if source not in members:
            raise ConfigError(
                f"{what}: rank {source} is not among the ranks of the data-parallel group, which "
                f"are {members}"
            )
        mine = value if torch.distributed.get_rank() == source else None
        return self.trees(mine, what)[members.index(source)]

    def trees(self, value: Any, what: str) -> list[Any]:
        """Return a JSON-able tree of each rank."""
        data = json.dumps(value).encode()
        lengths = [length for (length,) in self.numbers([len(data)], what)]
        words = -(-max(lengths) // 8)
        padded = data.ljust(words * 8, b" ")
        parts = self.numbers(np.frombuffer(padded, dtype=np.int64).tolist(), what)
        return [json.loads(np.array(part, dtype=np.int64).tobytes()) for part in parts]

"""Small collectives between ranks, with timeouts."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.description import digest
from energize.core.lanes import Ranks, current_ranks
from energize.core.lazy import torch
from energize.data.files import Documents
from energize.errors import ConfigError, LoaderError

T = TypeVar("T")

_LOOK = 0.0005
"""Seconds between two looks whether all ranks have answered."""

_HEAD = 8
"""Number of integers in each exchange. It is constant, so that ranks that make
different calls can detect it."""

_PATIENCE = 5.0
"""Seconds after which a wait is logged."""

_log = logging.getLogger("energize")


class Agreement:
    """Collective calls of the ranks of a process group.

    All ranks call each method at the same point. Any method raises `LoaderError` if a
    rank does not answer in time.

    Args:
        ranks: This rank.
        timeout: Seconds to wait for the other ranks. None waits forever.

    Attributes:
        first: Whether this is the first rank.
    """

    def __init__(self, ranks: Ranks, timeout: float | None) -> None:
        self._ranks = ranks
        self.first = ranks.rank == 0
        self._timeout = timeout

    def numbers(self, values: Sequence[int], purpose: str) -> list[list[int]]:
        """Exchange integers.

        Args:
            values: At most seven numbers below 2**63, equally many on each rank.
            purpose: The purpose, for messages.

        Returns:
            The numbers of each rank.

        Raises:
            LoaderError: If the ranks call this for different purposes.
        """
        head = [int(digest(purpose)[:12], 16), *values]
        rows = self._gather(head + [0] * (_HEAD - len(head)), purpose)
        if any(row[0] != head[0] for row in rows):
            texts = self._gather(_words(purpose, 8 * _HEAD), purpose)
            shown = "; ".join(
                f"rank {rank}: {_text(words)}" for rank, words in enumerate(texts)
            )
            raise LoaderError(
                f"the ranks make different calls: {shown}. Make the same calls on all "
                "ranks"
            )
        return [row[1 : len(head)] for row in rows]

    def _gather(self, values: Sequence[int], purpose: str) -> list[list[int]]:
        mine = torch.tensor(list(values), dtype=torch.int64, device=self._device)
        rows = [torch.empty_like(mine) for _ in range(self._ranks.world_size)]
        self._wait(purpose, torch.distributed.all_gather, rows, mine)
        return [row.tolist() for row in rows]

    def summed(self, values: FloatArray, purpose: str) -> FloatArray:
        """Sum float64 arrays of equal length over all ranks."""
        self.numbers((), purpose)
        mine = torch.tensor(values, dtype=torch.float64, device=self._device)
        self._wait(purpose, torch.distributed.all_reduce, mine)
        return cast("FloatArray", mine.cpu().numpy())

    @property
    def _group(self) -> Any:
        group = self._ranks.group and self._ranks.group()
        if group is None:
            raise LoaderError(
                "the process group was destroyed before the last use of a loader. "
                "Destroy it after that"
            )
        return group

    @property
    def _device(self) -> torch.device:
        """The device of exchanged tensors."""
        backend = torch.distributed.get_backend(self._group)
        on_host = "gloo" in backend or not torch.cuda.is_available()
        return torch.device("cpu") if on_host else torch.device("cuda")

    def _wait(
        self, purpose: str, collective: Callable[..., Any], *tensors: Any
    ) -> None:
        work = collective(*tensors, group=self._group, async_op=True)
        began = time.monotonic()
        has_warned = False
        rank = self._ranks.rank
        world = self._ranks.world_size
        while not work.is_completed():
            waited = time.monotonic() - began
            if self._timeout is not None and waited > self._timeout:
                raise LoaderError(
                    f"{purpose}: not all {world} ranks answered within "
                    f"timeout={self._timeout} s. This is rank {rank}. Make the same "
                    "calls and the same number of steps on every rank"
                )
            if waited > _PATIENCE and not has_warned:
                has_warned = True
                text = (
                    "rank %d of %d has waited %.0f s for the other ranks: %s. All of "
                    "them have to make this call; what one rank reads alone has its "
                    "own WorkerConfig(rank=0, world_size=1)"
                )
                _log.warning(text, rank, world, waited, purpose)
            time.sleep(_LOOK)
        try:
            work.wait()
        except RuntimeError as reason:
            raise LoaderError(
                f"{purpose}: another rank, or the connection to it, has ended (this is "
                f"rank {rank} of {world}): {reason}"
            ) from reason

    def broadcast(self, source: int | None, value: Any, purpose: str) -> Any:
        """Send a JSON-able tree from one rank to all ranks.

        Args:
            source: The global rank that sends; None for the first rank of the group.
            value: The tree. Ignored on all other ranks.
            purpose: The purpose, for messages.

        Returns:
            The tree.

        Raises:
            ConfigError: If `source` is not in the group.
        """
        members = torch.distributed.get_process_group_ranks(self._group)
        source = members[0] if source is None else source
        if source not in members:
            raise ConfigError(
                f"{purpose}: rank {source} is not in the data-parallel group. Its "
                f"ranks are {members}"
            )
        data = (
            json.dumps(value).encode()
            if torch.distributed.get_rank() == source
            else b""
        )
        (length,) = self.numbers([len(data)], purpose)[members.index(source)]
        tensor = torch.frombuffer(bytearray(data.ljust(length)), dtype=torch.uint8).to(
            self._device
        )
        self._wait(purpose, torch.distributed.broadcast, tensor, source)
        return json.loads(tensor.cpu().numpy().tobytes())

    def trees(self, value: Any, purpose: str) -> list[Any]:
        """Gather a JSON-able tree from each rank."""
        text = json.dumps(value)
        longest = max(length for (length,) in self.numbers([len(text)], purpose))
        parts = self._gather(_words(text, longest), purpose)
        return [json.loads(_text(part)) for part in parts]


def ranks_by_value(values: Sequence[T]) -> dict[T, list[int]]:
    """Return the ranks that have each of these values."""
    return {
        value: [rank for rank, other in enumerate(values) if other == value]
        for value in values
    }


def _words(text: str, length: int) -> list[int]:
    """Return the first characters of a text as integers, padded with blanks."""
    data = text.encode("ascii", "replace")[:length].ljust(-(-length // 8) * 8)
    return cast("list[int]", np.frombuffer(data, dtype=np.int64).tolist())


def _text(words: Sequence[int]) -> str:
    return np.array(words, dtype=np.int64).tobytes().decode().rstrip()


@contextmanager
def shared_reading(group: Any = None, timeout: float | None = 600.0) -> Iterator[None]:
    """Open datasets on all ranks, and read their metadata on the first rank only.

    The first rank runs the block alone and broadcasts the texts of all `.nv-meta` files
    and metadatasets that it read. The other ranks then run the block with these texts.
    Each rank reads the columns and shards that it needs itself. The block must not
    communicate with other ranks. Without torch.distributed the block just runs.

    Args:
        group: The process group or device mesh of the ranks. By default all ranks of
            torch.distributed.
        timeout: Seconds to wait for the other ranks. None waits forever.

    Raises:
        LoaderError: On the other ranks, if the first rank raises an error in the block.
            On any rank, if another rank ends or does not reach the block in time.

    Example:
        >>> with shared_reading():
        ...     pass  # dataset = get_train_dataset("mix.yaml", batch_size=32)
    """
    ranks = current_ranks(group)
    if ranks.group is None or ranks.world_size == 1:
        yield
        return
    agreement = Agreement(ranks, timeout)
    message = {}
    purpose = "shared_reading"
    if not agreement.first:
        message = agreement.broadcast(None, None, purpose)
        if "error" in message:
            raise LoaderError(
                f"rank 0 reads for all ranks and failed: {message['error']}"
            )
    documents = Documents(message.get("texts"))
    try:
        with documents.used():
            yield
        message = {"texts": documents.texts}
    except BaseException as error:
        message = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        if agreement.first:
            agreement.broadcast(None, message, purpose)

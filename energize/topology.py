"""Who delivers what: lanes, ranks and workers. None of it changes what there is to deliver."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from energize.errors import ConfigError

__all__ = ["SINGLE_LANE", "Lane", "WorkerConfig"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One of `count` interleaved parts of a stream: the items k with k mod count = index."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise ConfigError(
                f"a lane is given as 0 <= index < count, got index {self.index}, count {self.count}"
            )


SINGLE_LANE = Lane()


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Which part of a run this process delivers, and with how many worker processes.

    Rank r of `world_size` delivers the micro batches r, r + world_size, ... of one global stream.
    The stream is the same for every `world_size` and `num_workers`; only `seed_offset` names
    another one. `num_workers=0` reads in the training process itself.

    Raises `ConfigError` when a number is out of range.

    >>> WorkerConfig(rank=0, world_size=2, num_workers=4)
    WorkerConfig(rank=0, world_size=2, num_workers=4, seed_offset=0)
    """

    rank: int = 0
    world_size: int = 1
    num_workers: int = 0
    seed_offset: int = 0

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                "a worker config needs 0 <= rank < world_size, got "
                f"rank {self.rank}, world_size {self.world_size}"
            )
        if self.num_workers < 0:
            raise ConfigError(f"num_workers counts processes, 0 or more; got {self.num_workers}")

    @property
    def lane(self) -> Lane:
        """The part of an indexed dataset's stream that this rank delivers."""
        return Lane(self.rank, self.world_size)

    @classmethod
    def default_worker_config(cls, num_workers: int = 4) -> WorkerConfig:
        """Rank and world size of torch.distributed when it is initialised, else one process.

        Started by torchrun without an initialised process group, the RANK and WORLD_SIZE of the
        environment are taken, so that ranks never read the same data by mistake.
        """
        distributed = sys.modules.get("torch.distributed")  # nobody initialised it without
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            rank = int(os.environ.get("RANK", "0"))
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
        return cls(rank=rank, world_size=world_size, num_workers=num_workers)

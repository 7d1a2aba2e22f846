"""The worker config of Megatron-Energon: ranks, workers, values for logs and seeds."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.data import get_worker_info

from energize.core import lanes
from energize.core.call_context import call_context
from energize.core.checks import checked_function
from energize.core.os_errors import is_url
from energize.data.files import path_of
from energize.energon.failures import ErrorHandler
from energize.errors import ConfigError, log_exception, reraise_exception


class _ActiveConfig:
    """The class attribute `WorkerConfig.active_worker_config`."""

    def __get__(
        self, instance: Any, owner: type[EnergonWorkerConfig]
    ) -> lanes.WorkerConfig | None:
        if owner.activated:
            return owner.activated[0]
        config: lanes.WorkerConfig | None = call_context.get().config
        return config


@dataclass(frozen=True, init=False, repr=False, eq=False)
class EnergonWorkerConfig(lanes.WorkerConfig):
    """Ranks and workers, with the methods that Megatron-Energon has.

    The datasets and loaders of `energize.energon` log a sample for which a function
    raises, and leave it out, unless `global_error_handler` decides otherwise.

    Args:
        rank: As in `energize.WorkerConfig`, like `world_size`, `num_workers`,
            `data_parallel_group` and `seed_offset`.
        world_size: Number of ranks.
        num_workers: Worker processes per rank.
        data_parallel_group: Process group or device mesh of the ranks.
        seed_offset: Selects the order.
        worker_debug_path: File that `worker_log` appends to; `{worker_id}` and `{pid}`
            are replaced. None prints.
        worker_log_level: Level up to which `should_log` returns True.
        global_error_handler: Decides about exceptions of functions.
        restore_error_handler: The same for `restore_sample`.

    Raises:
        ConfigError: As `energize.WorkerConfig`, and for a `worker_debug_path` in a
            remote store.

    Example:
        >>> from energize import ListSource
        >>> from energize.energon import MapDataset, WorkerConfig
        >>> config = WorkerConfig(rank=1, world_size=2, num_workers=0)
        >>> letters = MapDataset(ListSource("abcdef"), str.upper, worker_config=config)
        >>> len(letters), list(letters)
        (3, ['B', 'D', 'F'])
    """

    active_worker_config: ClassVar[Any] = _ActiveConfig()
    """The config between `worker_activate` and `worker_deactivate`; else the config of
    the loader that called a function of yours last in this process, or None."""

    activated: ClassVar[list[EnergonWorkerConfig]] = []
    """The config between `worker_activate` and `worker_deactivate`, if any."""

    global_error_handler: ErrorHandler | None
    restore_error_handler: ErrorHandler | None
    worker_debug_path: str | None
    worker_log_level: int

    def __init__(  # noqa: PLR0913
        self,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        data_parallel_group: Any = None,
        seed_offset: int = 0,
        *,
        worker_debug_path: str | None = None,
        worker_log_level: int = 0,
        global_error_handler: ErrorHandler | None = log_exception,
        restore_error_handler: ErrorHandler | None = reraise_exception,
    ) -> None:
        super().__init__(
            rank,
            world_size,
            num_workers,
            data_parallel_group,
            seed_offset,
        )
        handlers = {
            "global_error_handler": global_error_handler,
            "restore_error_handler": restore_error_handler,
        }
        for name, handler in handlers.items():
            if handler is not None:
                checked_function(handler, f"WorkerConfig: {name}")
            object.__setattr__(self, name, handler)
        if is_url(worker_debug_path):
            raise ConfigError(
                f"worker_debug_path: {path_of(str(worker_debug_path))} is in a remote "
                "store, which cannot append lines. Pass a local file"
            )
        object.__setattr__(self, "worker_debug_path", worker_debug_path)
        object.__setattr__(self, "worker_log_level", worker_log_level)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the ranks of torch.distributed as numbers."""
        make, arguments = super().__reduce__()
        if arguments[0] is None and self.ranks().group is not None:
            arguments = (self.rank, self.world_size, *arguments[2:])
        options: dict[str, Any] = {
            "worker_debug_path": self.worker_debug_path,
            "worker_log_level": self.worker_log_level,
            "global_error_handler": self.global_error_handler,
            "restore_error_handler": self.restore_error_handler,
        }
        return partial(make, **options), arguments

    def worker_activate(
        self,
        sample_index: int,
        override_global_rank: int | None = None,
        cache_pool: Any = None,
    ) -> None:
        """Make this config the `active_worker_config`. Reading does not need it.

        Args:
            sample_index: Has no use, like the other arguments.
            override_global_rank: Has no use.
            cache_pool: Has no use.
        """
        self.activated[:] = [self]

    def worker_deactivate(self) -> None:
        """Undo `worker_activate`."""
        self.activated.clear()

    def global_rank(self) -> int:
        """Return the rank in the world; `rank` is the rank in the group."""
        group = self.data_parallel_group
        if group is None:
            return self.rank
        return torch.distributed.get_global_rank(group, self.rank)

    def rank_worker_id(self) -> int:
        """Return the worker number in a torch DataLoader; 0 outside of its workers."""
        info = get_worker_info()
        return 0 if info is None else info.id

    def assert_worker(self) -> None:
        """Do nothing: datasets can be read in any process."""

    def global_worker_id(self, override_local_worker_id: int | None = None) -> int:
        """Return `rank * num_workers` plus the number of the worker.

        Args:
            override_local_worker_id: The worker; by default the current one.
        """
        worker = override_local_worker_id
        if worker is None:
            worker = self.rank_worker_id()
        return self.rank * self.num_workers + worker

    def worker_seed(self, override_local_worker_id: int | None = None) -> int:
        """Return Energon's seed of a worker, for programs that draw with it.

        It is the last 32 bits of the SHA-1 of "<global worker>,<seed_offset>". energize
        itself does not use it.

        Args:
            override_local_worker_id: The worker; by default the current one.
        """
        worker = self.rank
        if self.num_workers:
            worker = self.global_worker_id(override_local_worker_id)
        text = f"{worker},{self.seed_offset}"
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).digest()
        return int.from_bytes(digest[-4:], "big")

    def config(self) -> dict[str, Any]:
        """Return rank, world size, workers and the group size (None without a
        group).
        """
        group = self.data_parallel_group
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": None if group is None else group.size(),
        }

    def should_log(self, level: int) -> bool:
        """Return whether `worker_log_level` includes `level`."""
        return level <= self.worker_log_level

    def worker_log(self, data: dict[str, Any]) -> None:
        """Print `data` as a line of JSON, or append it to `worker_debug_path`."""
        line = json.dumps(data)
        if self.worker_debug_path is None:
            print(line, flush=True)
            return
        worker = self.rank * (self.num_workers + 1) + self.rank_worker_id()
        worker += get_worker_info() is not None
        path = Path(self.worker_debug_path.format(worker_id=worker, pid=os.getpid()))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(line + "\n")


WorkerConfig = EnergonWorkerConfig
"""The name that programs for Megatron-Energon import."""

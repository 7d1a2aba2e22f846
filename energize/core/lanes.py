"""Who delivers what: lanes, ranks and workers. None of it changes what there is to deliver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from energize.core.checks import checked_whole
from energize.core.ignored import accepted
from energize.core.ranks import Ranks, current_ranks
from energize.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Lane:
    """Every `count`-th item of each epoch of a dataset: the items index, index + count, ...

    What an indexed dataset delivers does not depend on the number of lanes. A stream, such as a
    filter, whose items can only be found one after another, is divided where it reads: each lane
    has its own part of the input. So which items a stream yields, and in which order, depends on
    the number of lanes; on nothing else of who reads them.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise ConfigError(
                f"a lane is given as 0 <= index < count, got index {self.index}, count {self.count}"
            )


SINGLE_LANE = Lane()

ErrorHandler = Callable[[Exception, Any, Any], None]
"""Is given what a function raised, what it was called with, and the sources of that, if they are
known. It raises, or returns to have the sample left out as a failed one."""

_HANDLERS = ("global_error_handler", "restore_error_handler")


class WorkerConfig:
    """Which part of a run this process delivers, and with how many worker processes.

    Rank r of `world_size` delivers the micro batches r, r + world_size, ... of one global stream.
    The stream is the same for every `world_size` and `num_workers`; only `seed_offset` names
    another one. `num_workers=0` reads in the training process itself.

    Without `rank` and `world_size` they are those of `data_parallel_group` (a process group, or a
    device mesh of the data-parallel dimensions), else of torch.distributed, torchrun, MPI or SLURM,
    taken whenever they are asked for: a loader asks when its first item is asked for, so it may be
    made before the process group is. Ranks of one data-parallel group's other dimensions (tensor
    parallel, say) get the same data.

    `global_error_handler(exception, sample, sources)` decides what becomes of exceptions in
    functions of yours, and is told of damaged samples, as an `on_error` of the loader: it raises,
    or returns to have the sample left out and counted (`energize.errors.log_exception`,
    `reraise_exception`). Without one the loader's `on_error` holds. `restore_error_handler` does
    the same for `Loader.restore_sample`, which else goes by what held when the item was made.
    `worker_debug_path` and `worker_log_level` have no effect.

    Raises `ConfigError` for a number out of range, for a handler that cannot be called, and when
    the rank given is not that of the group given.

    >>> WorkerConfig(rank=0, world_size=2, num_workers=4)
    WorkerConfig(rank=0, world_size=2, num_workers=4, seed_offset=0)
    """

    __slots__ = (
        "_chosen",
        "data_parallel_group",
        "global_error_handler",
        "num_workers",
        "restore_error_handler",
        "seed_offset",
    )

    num_workers: int
    seed_offset: int
    data_parallel_group: Any
    global_error_handler: ErrorHandler | None
    restore_error_handler: ErrorHandler | None
    _chosen: Ranks | None

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        data_parallel_group: Any = None,
        seed_offset: int = 0,
        *,
        worker_debug_path: str | None = None,
        worker_log_level: int = 0,
        global_error_handler: ErrorHandler | None = None,
        restore_error_handler: ErrorHandler | None = None,
    ) -> None:
        accepted(
            "WorkerConfig",
            worker_debug_path=worker_debug_path,
            worker_log_level=worker_log_level or None,
        )
        if (rank is None) != (world_size is None):
            raise ConfigError(
                "a worker config has both rank and world_size, or neither (they are then those of "
                f"torch.distributed or of the launcher); got rank={rank!r}, "
                f"world_size={world_size!r}"
            )
        chosen = None
        if rank is not None:
            chosen = Ranks(
                checked_whole(rank, "WorkerConfig: rank", 0),
                checked_whole(world_size, "WorkerConfig: world_size", 1),
            )
        values = (
            chosen,
            data_parallel_group,
            _checked_handler(global_error_handler, "global_error_handler"),
            checked_whole(num_workers, "WorkerConfig: num_workers", 0),
            _checked_handler(restore_error_handler, "restore_error_handler"),
            checked_whole(seed_offset, "WorkerConfig: seed_offset"),
        )
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def rank(self) -> int:
        """The rank that was given, or the one of this process now."""
        return self.ranks().rank

    @property
    def world_size(self) -> int:
        """The world size that was given, or the one of this process now."""
        return self.ranks().world_size

    def ranks(self) -> Ranks:
        """Rank, world size, and the process group in which these ranks can talk, if there is one.

        Raises `ConfigError` when sources disagree.
        """
        if self._chosen is None:
            return current_ranks(self.data_parallel_group)
        try:
            found = current_ranks(self.data_parallel_group)
        except ConfigError:
            if self.data_parallel_group is not None:
                raise
            return self._chosen  # which is what the message of the error asks for
        if found == self._chosen:
            return found
        if self.data_parallel_group is not None:
            raise ConfigError(
                f"WorkerConfig: rank {self._chosen.rank} of {self._chosen.world_size} is given, and"
                f" this process is rank {found.rank} of {found.world_size} in data_parallel_group; "
                "give one of the two"
            )
        return self._chosen

    @classmethod
    def default_worker_config(
        cls, num_workers: int = 4, data_parallel_group: Any = None
    ) -> WorkerConfig:
        """Ranks as torch.distributed, the launcher, or the group say; `num_workers` for each."""
        return cls(num_workers=num_workers, data_parallel_group=data_parallel_group)

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(f"WorkerConfig.{name} cannot be changed; make a new one")

    def _key(self) -> tuple[Any, ...]:
        group = self.data_parallel_group
        return (
            self._chosen,
            self.num_workers,
            self.seed_offset,
            None if group is None else id(group),
        )

    @property
    def _handlers(self) -> tuple[ErrorHandler | None, ErrorHandler | None]:
        return self.global_error_handler, self.restore_error_handler

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkerConfig):
            return NotImplemented
        return self._key() == other._key() and self._handlers == other._handlers

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        chosen = self._chosen
        named = "" if chosen is None else f"rank={chosen.rank}, world_size={chosen.world_size}, "
        handlers = "".join(
            f", {name}={getattr(handler, '__qualname__', handler)}"
            for name, handler in zip(_HANDLERS, self._handlers, strict=True)
            if handler is not None
        )
        return (
            f"WorkerConfig({named}num_workers={self.num_workers}, seed_offset={self.seed_offset}"
            f"{handlers})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the ranks of a process group, which cannot follow, are numbers."""
        handlers: dict[str, Any] = dict(zip(_HANDLERS, self._handlers, strict=True))
        rest = (self.num_workers, None, self.seed_offset)
        if self.data_parallel_group is None and self._chosen is None:
            return partial(WorkerConfig, **handlers), (None, None, *rest)
        ranks = self.ranks()
        return partial(WorkerConfig, **handlers), (ranks.rank, ranks.world_size, *rest)


def _checked_handler(handler: ErrorHandler | None, name: str) -> ErrorHandler | None:
    if handler is not None and not callable(handler):
        raise ConfigError(
            f"WorkerConfig: {name} is a function of an exception, a sample and its sources, which "
            f"raises or returns; got {handler!r}"
        )
    return handler

"""Lanes, ranks and workers: the partition of a run, independent of its content."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from energize.core.checks import checked_whole
from energize.core.ignored import accepted, log_once, was_logged
from energize.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Lane:
    """Every `count`-th item of each epoch of a dataset: index, index + count, ...

    The items of an indexed dataset do not depend on the number of lanes. A stream, such
    as a filter, is divided where it reads: each lane has a part of the input. So the
    items of a stream and their order depend on the number of lanes, which loaders
    derive from the dataset, not from ranks or workers.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise ConfigError(
                f"a lane must have 0 <= index < count, got index {self.index}, count "
                f"{self.count}"
            )


SINGLE_LANE = Lane()

_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "MPI": ("PMI_RANK", "PMI_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
"""Variables that launchers set for each process: rank and world size.

A launcher may start another one on each node, which then numbers the processes, so the
first match counts. SLURM sets the second variable for `srun` only: a batch script
itself is one process, whatever its job has requested.
"""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of a process, the number of ranks, and their process group.

    Attributes:
        rank: The rank, from 0.
        world_size: The number of ranks.
        group: Returns the process group; None without one. It is looked up on demand,
            since holding a group past `destroy_process_group` can abort the interpreter
            at exit.
    """

    rank: int = 0
    world_size: int = 1
    group: Callable[[], Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"a rank must have 0 <= rank < world_size, got rank {self.rank}, "
                f"world_size {self.world_size}"
            )


ALONE = Ranks()


def current_ranks(
    group: Any = None, environment: Mapping[str, str] | None = None
) -> Ranks:
    """Return the current rank of this process.

    Args:
        group: A torch process group or a device mesh of the ranks that read different
            data. None: the default group of torch.distributed if it is initialised,
            else the variables of torchrun, MPI or SLURM, else a single process. If
            RANK is missing, it is computed from LOCAL_RANK, NODE_RANK and
            LOCAL_WORLD_SIZE.
        environment: Environment variables; None: those of this process.

    Raises:
        ConfigError: If variables are invalid, or torch.distributed and torchrun
            disagree.
    """
    if group is not None:
        return _in_group(group)
    environment = os.environ if environment is None else environment
    distributed = _initialised()
    if distributed is None:
        launched = (_launched_by(launcher, environment) for launcher in _LAUNCHERS)
        return next((ranks for ranks in launched if ranks is not None), ALONE)
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), _world)
    complete = all(environment.get(name) is not None for name in _LAUNCHERS["torchrun"])
    if complete:
        _check_torchrun(ranks, _launched_by("torchrun", environment))
    return ranks


def _check_torchrun(ranks: Ranks, by_torchrun: Ranks | None) -> None:
    if by_torchrun is not None and by_torchrun != ranks:
        raise ConfigError(
            f"this process is rank {ranks.rank} of {ranks.world_size} in "
            f"torch.distributed, but the environment has RANK={by_torchrun.rank}, "
            f"WORLD_SIZE={by_torchrun.world_size}. Set the ranks that read different "
            "data: WorkerConfig(rank=..., world_size=...), or "
            "WorkerConfig(data_parallel_group=...)"
        )


def is_first_rank() -> bool:
    """Return whether this process is rank 0, which logs for all ranks."""
    try:
        return not current_ranks().rank
    except ConfigError:  # raised when a loop begins
        return True


def log_whole_reading(name: str) -> None:
    """Log once that each rank reads a whole dataset of a class."""
    if was_logged(name, "ranks"):
        return
    with suppress(ConfigError):  # raised when a loader begins
        world_size = current_ranks().world_size
        if world_size > 1:
            text = (
                f"`for` over a dataset reads all of it on each of {world_size} ranks, "
                "and no checkpoint has the position. Training loops take "
                "get_loader(dataset)"
            )
            log_once(name, "ranks", text, logging.WARNING)


def _world() -> Any:
    return sys.modules["torch.distributed"].group.WORLD


def _initialised() -> Any:
    """Return torch.distributed if it is imported and initialised, else None."""
    distributed = sys.modules.get("torch.distributed")
    if (
        distributed is None
        or not distributed.is_available()
        or not distributed.is_initialized()
    ):
        return None
    return distributed


def _in_group(group: Any) -> Ranks:
    """Return the rank within a process group or a device mesh."""
    if hasattr(group, "get_coordinate"):
        if group.ndim > 1:
            group = group._flatten()  # noqa: SLF001 - torch has no public name
        group = group.get_group()
    distributed = _initialised()
    rank = -1 if distributed is None else distributed.get_rank(group)
    if rank < 0:
        raise ConfigError(
            "data_parallel_group must be a process group or device mesh of "
            f"torch.distributed with this process as a member, got {group!r}"
        )
    return Ranks(rank, distributed.get_world_size(group), weakref.ref(group))


def _launched_by(launcher: str, environment: Mapping[str, str]) -> Ranks | None:
    names = _LAUNCHERS[launcher]
    values = [environment.get(name) for name in names]
    if values == [None, None] or (launcher != "torchrun" and None in values):
        return None
    if launcher == "torchrun" and values[0] is None:
        values[0] = _rank_on_node(environment)
    rank, world_size = _checked_ranks(launcher, values)
    try:
        return Ranks(rank, world_size)
    except ConfigError as error:
        raise ConfigError(
            f"{' and '.join(names)} of the environment: {error}"
        ) from error


def _checked_ranks(launcher: str, values: Sequence[str | None]) -> tuple[int, int]:
    if None in values or not all(str(value).isdecimal() for value in values):
        names = _LAUNCHERS[launcher]
        shown = ", ".join(f"{n}={v!r}" for n, v in zip(names, values, strict=True))
        raise ConfigError(
            f"both must be whole numbers, as {launcher} sets them, but the environment "
            f"has {shown}. Set both, or neither, or pass WorkerConfig(rank=..., "
            "world_size=...)"
        )
    rank, world_size = values
    return int(str(rank)), int(str(world_size))


def _rank_on_node(environment: Mapping[str, str]) -> str | None:
    """Return the rank of a process that knows its place on its node: Lightning sets no
    RANK.
    """
    local = environment.get("LOCAL_RANK")
    per_node = environment.get("LOCAL_WORLD_SIZE", "0")
    node = environment.get("NODE_RANK") or environment.get("GROUP_RANK") or "0"
    if local is None or not (local + node + per_node).isdecimal():
        return None
    if int(node) and not int(per_node):
        return None
    return str(int(node) * int(per_node) + int(local))


@dataclass(frozen=True, init=False, repr=False)
class WorkerConfig:
    """The part of a run that this process delivers, and its number of workers.

    Rank r of `world_size` delivers the micro batches r, r + world_size, ... of one
    global stream. The stream is the same for every `world_size` and `num_workers`; only
    `seed_offset` selects another one. Ranks that differ only in other dimensions (such
    as tensor parallel) get the same data.

    Args:
        rank: The rank; None: that of `data_parallel_group`, else of torch.distributed,
            torchrun, MPI or SLURM, looked up when a loader begins. So a loader may be
            created before the process group.
        world_size: The number of ranks; None as for `rank`.
        num_workers: Number of worker processes; 0 reads in the training process.
        data_parallel_group: A process group, or a device mesh of the data-parallel
            dimensions.
        seed_offset: Selects another stream.
        worker_debug_path: Has no effect.
        worker_log_level: Has no effect.

    Raises:
        ConfigError: If a number is out of range; later, if `rank` is not that of
            `data_parallel_group`.

    Example:
        >>> WorkerConfig(rank=0, world_size=2, num_workers=4)
        WorkerConfig(rank=0, world_size=2, num_workers=4, seed_offset=0)
    """

    num_workers: int
    seed_offset: int
    data_parallel_group: Any
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
    ) -> None:
        level = worker_log_level or None
        accepted(
            "WorkerConfig", worker_debug_path=worker_debug_path, worker_log_level=level
        )
        if (rank is None) != (world_size is None):
            raise ConfigError(
                "a worker config must have both rank and world_size, or neither (then "
                "those of torch.distributed or of the launcher apply), got "
                f"rank={rank!r}, world_size={world_size!r}"
            )
        chosen = None
        if rank is not None:
            number = checked_whole(rank, "WorkerConfig: rank", 0)
            chosen = Ranks(
                number, checked_whole(world_size, "WorkerConfig: world_size", 1)
            )
        values = {
            "num_workers": checked_whole(num_workers, "WorkerConfig: num_workers", 0),
            "seed_offset": checked_whole(seed_offset, "WorkerConfig: seed_offset"),
            "data_parallel_group": data_parallel_group,
            "_chosen": chosen,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def rank(self) -> int:
        """The configured rank, or the current one of this process."""
        return self.ranks().rank

    @property
    def world_size(self) -> int:
        """The configured world size, or the current one of this process."""
        return self.ranks().world_size

    def ranks(self) -> Ranks:
        """Return rank, world size and process group.

        Raises:
            ConfigError: If the configured rank and `data_parallel_group` disagree.
        """
        try:
            current = current_ranks(self.data_parallel_group)
        except ConfigError:
            if self._chosen is None or self.data_parallel_group is not None:
                raise
            return self._chosen  # the remedy in the message of the error
        if self._chosen is None or current == self._chosen:
            return current
        if self.data_parallel_group is not None:
            raise ConfigError(
                f"WorkerConfig: rank {self._chosen.rank} of {self._chosen.world_size} "
                f"is given, but this process is rank {current.rank} of "
                f"{current.world_size} in data_parallel_group. Pass one of the two"
            )
        if current.world_size == self._chosen.world_size:
            return replace(self._chosen, group=current.group)  # which the ranks compare
        return self._chosen

    def with_workers(self, num_workers: int) -> Self:
        """Return a copy with another number of workers."""
        other = object.__new__(type(self))
        vars(other).update(
            vars(self), num_workers=checked_whole(num_workers, "num_workers", 0)
        )
        return other

    @classmethod
    def default_worker_config(
        cls, num_workers: int = 4, data_parallel_group: Any = None
    ) -> WorkerConfig:
        """Create a config for the current ranks.

        Args:
            num_workers: Number of worker processes of each rank.
            data_parallel_group: As in `WorkerConfig`.
        """
        return cls(num_workers=num_workers, data_parallel_group=data_parallel_group)

    def __repr__(self) -> str:
        chosen = self._chosen
        named = (
            ""
            if chosen is None
            else f"rank={chosen.rank}, world_size={chosen.world_size}, "
        )
        return (
            f"WorkerConfig({named}num_workers={self.num_workers}, "
            f"seed_offset={self.seed_offset})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the ranks of a process group, which cannot follow, are
        numbers.
        """
        ranks: tuple[int | None, int | None] = (None, None)
        if self.data_parallel_group is not None or self._chosen is not None:
            ranks = (self.rank, self.world_size)
        return type(self), (*ranks, self.num_workers, None, self.seed_offset)


def checked_config(value: Any) -> WorkerConfig:
    """Return a worker config, or raise `ConfigError` for another value."""
    if not isinstance(value, WorkerConfig):
        raise ConfigError(
            "worker_config must be a WorkerConfig, such as "
            "WorkerConfig(num_workers=4), "
            f"got {value!r:.80}"
        )
    return value

"""Which rank of how many this process is, as torch.distributed or the launcher says."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from energize.errors import ConfigError

_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "MPI": ("PMI_RANK", "PMI_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
"""The variables that launchers set for each process. A launcher may start another one on each node,
which then numbers the processes, so the first that is found counts. SLURM sets the second variable
for `srun` only: in a batch script itself there is one process, whatever its job has asked for."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank `rank` of `world_size`; `group` is the process group in which they can talk, if any."""

    rank: int = 0
    world_size: int = 1
    group: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"a rank is one of 0 <= rank < world_size; got rank {self.rank}, world_size "
                f"{self.world_size}"
            )


ALONE = Ranks()


def current_ranks(group: Any = None, environment: Mapping[str, str] | None = None) -> Ranks:
    """The rank of this process at this moment.

    `group`: a torch process group or a device mesh of the ranks that read different data. Without
    one it is the default group of torch.distributed when that is initialised, else what the
    variables of torchrun, MPI or SLURM say, else one process alone.

    Raises `ConfigError` for variables that are no ranks, and when torch.distributed and torchrun
    disagree.
    """
    if group is not None:
        return _in_group(group)
    launched = _launched(os.environ if environment is None else environment)
    distributed = _initialised()
    if distributed is None:
        return launched or ALONE
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size(), distributed.group.WORLD)
    by_torchrun = _launched_by("torchrun", os.environ if environment is None else environment)
    if by_torchrun not in (None, ranks):
        raise ConfigError(
            f"torch.distributed says that this is rank {ranks.rank} of {ranks.world_size}, and the "
            f"environment says RANK={by_torchrun.rank}, WORLD_SIZE={by_torchrun.world_size}. Say "
            "which ranks read different data: WorkerConfig(rank=..., world_size=...), or "
            "WorkerConfig(data_parallel_group=...)"
        )
    return ranks


def _initialised() -> Any:
    """torch.distributed when it is initialised; nobody has initialised it without importing it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _in_group(group: Any) -> Ranks:
    """The rank within a process group or a device mesh."""
    if hasattr(group, "get_coordinate"):
        group = group.get_group() if group.ndim == 1 else group._flatten().get_group()
    distributed = _initialised()
    rank = -1 if distributed is None else distributed.get_rank(group)
    if rank < 0:
        raise ConfigError(
            "data_parallel_group is a process group or device mesh of torch.distributed that this "
            f"process is a member of; got {group!r}"
        )
    return Ranks(rank, distributed.get_world_size(group), group)


def _launched(environment: Mapping[str, str]) -> Ranks | None:
    found = (_launched_by(launcher, environment) for launcher in _LAUNCHERS)
    return next((ranks for ranks in found if ranks is not None), None)


def _launched_by(launcher: str, environment: Mapping[str, str]) -> Ranks | None:
    names = _LAUNCHERS[launcher]
    values = [environment.get(name) for name in names]
    if launcher != "torchrun" and None in values:
        return None
    if values == [None, None]:
        return None
    if None in values or not all(str(value).isdecimal() for value in values):
        shown = ", ".join(f"{n}={v!r}" for n, v in zip(names, values, strict=True))
        raise ConfigError(
            f"the environment has {shown}: both are whole numbers, as {launcher} sets them. Set "
            "both, or neither, or give WorkerConfig(rank=..., world_size=...)"
        )
    rank, world_size = (int(str(value)) for value in values)
    try:
        return Ranks(rank, world_size)
    except ConfigError as error:
        raise ConfigError(f"{' and '.join(names)} of the environment: {error}") from error

"""One state for all ranks: kept by one of them, told to the others."""

from __future__ import annotations

from abc import ABC, abstractmethod

from energize.core.lanes import WorkerConfig
from energize.core.lazy import torch
from energize.core.stream import State
from energize.errors import ConfigError, StateError
from energize.loader.agreement import Agreement


class GlobalStates(ABC):
    """A loader's global states, over the states that each rank can give and take."""

    worker_config: WorkerConfig

    @abstractmethod
    def state_dict(self) -> State:
        """The state after the last delivered item."""

    @abstractmethod
    def load_state_dict(
        self, state_dict: State, strict: bool = True, *, on_mismatch: str = "error"
    ) -> None:
        """Go on from a state at the next `iter()`."""

    @property
    @abstractmethod
    def _timeout(self) -> float | None:
        """Seconds to wait for other ranks."""

    def save_state_global(self, global_dst_rank: int) -> State | None:
        """The state on the rank of this number, None on all others; all ranks call it at the same
        step. The number is that of torch.distributed, in the world and not in a group.

        There is one state for all ranks: `restore_state_global` takes it on any number of them.
        """
        state = self.state_dict()
        return state if global_dst_rank == self._number_in_world() else None

    def restore_state_global(
        self, state: State | None, *, src_rank: int | None = None, on_mismatch: str = "error"
    ) -> None:
        """Go on from a global state at the next `iter()`, on all ranks.

        With `src_rank`, a number as in `save_state_global`, that rank alone has the state and tells
        the others, whose `state` is not looked at. Else each rank has it. `on_mismatch` is that of
        `load_state_dict`. Raises as that does, on all ranks; `StateError` where there is no state.
        """
        if src_rank is not None:
            ranks = self.worker_config.ranks()
            mine = self._number_in_world() == src_rank
            if ranks.group is not None and ranks.world_size > 1:
                agreement = Agreement(ranks, self._timeout)
                given = state if mine else None
                state = agreement.told_by(src_rank, given, "restore_state_global")
            elif not mine:
                raise ConfigError(
                    f"restore_state_global: rank {src_rank} has the state, and this process, rank "
                    f"{ranks.rank} of {ranks.world_size}, cannot talk with it: torch.distributed "
                    "is not initialised. Load the state on each rank, without src_rank"
                )
        if state is None:
            raise StateError(
                "restore_state_global: there is no state. Give it on all ranks, or on one of them "
                "and its number as src_rank"
            )
        self.load_state_dict(state, on_mismatch=on_mismatch)

    def _number_in_world(self) -> int:
        ranks = self.worker_config.ranks()
        return ranks.rank if ranks.group is None else int(torch.distributed.get_rank())

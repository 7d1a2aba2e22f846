"""Megatron-Energon's savable loader, stopped and resumed; run in an environment of its
own.
"""

from __future__ import annotations

import gc
from typing import Any

from megatron.energon import (
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)

from benchmarks.programs.resuming import BATCH, Asked, Place, main, read_to

_LEAST = 10 * BATCH


class Energon:
    """Batches of prepared folders."""

    name = "energon"

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def describe(self) -> Any:
        """The mix, as a new process makes it."""
        return get_train_dataset(
            self._asked.data,
            worker_config=WorkerConfig(
                rank=0, world_size=1, num_workers=self._asked.workers
            ),
            batch_size=BATCH,
            shuffle_buffer_size=100,
            max_samples_per_sequence=None,
            task_encoder=DefaultTaskEncoder(),
        )

    def loader(self, described: Any) -> Any:
        """The loader of a single rank."""
        return get_savable_loader(described)

    def state(self, loader: Any) -> Any:
        """As it is saved."""
        return loader.save_state_rank()

    def load(self, loader: Any, state: Any) -> None:
        """Go on from a state."""
        loader.restore_state_rank(state)

    def close(self, loader: Any) -> None:
        """It has no such method: workers end when nothing is left of it."""
        del loader
        gc.collect()

    def look(self, batch: Any) -> list[Any]:
        """The keys of samples."""
        return list(batch.__key__)

    def reach(self, position: int, seconds: float) -> Place:
        """Where it comes to by reading: at least a few batches, as the state before the
        first one is not returned with workers.
        """
        return read_to(self, max(position, _LEAST), seconds)


if __name__ == "__main__":
    main(Energon)

"""torchdata's StatefulDataLoader, stopped and resumed; run in an environment of its
own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch.utils.data import ConcatDataset, Dataset

from benchmarks.programs.resuming import BATCH, Asked, Place, main, read_to

StatefulDataLoader: Any = import_module(
    "torchdata.stateful_dataloader"
).StatefulDataLoader

EPOCH = 2 * 10**6
"""Samples of all sources together: it has no mix, and makes a permutation of them."""


class Numbers(Dataset[int]):
    """So many samples, which are their indices."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


class Torchdata:
    """Batches of sources one after another, in random order."""

    name = "torchdata"

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def describe(self) -> Any:
        """The data, as a new process describes them."""
        count = EPOCH // self._asked.sources
        return ConcatDataset([Numbers(count) for _ in range(self._asked.sources)])

    def loader(self, described: Any) -> Any:
        """The loader of a single rank."""
        return StatefulDataLoader(
            described, batch_size=BATCH, shuffle=True, num_workers=self._asked.workers
        )

    def state(self, loader: Any) -> Any:
        """As it is saved."""
        return loader.state_dict()

    def load(self, loader: Any, state: Any) -> None:
        """Go on from a state."""
        loader.load_state_dict(state)

    def close(self, loader: Any) -> None:
        """It has no such method: workers end when nothing is left of it."""
        del loader

    def look(self, batch: Any) -> list[Any]:
        """The numbers."""
        return list(batch.tolist())

    def reach(self, position: int, seconds: float) -> Place:
        """Where it comes to by reading; its state holds no more than a place in an
        epoch.
        """
        return read_to(self, min(position, EPOCH // 2), seconds)


if __name__ == "__main__":
    main(Torchdata)

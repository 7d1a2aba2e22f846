"""Collecting garbage between items."""

from __future__ import annotations

import gc
from typing import Any, TypeVar

from energize.dataset import Dataset
from energize.ignored import accepted
from energize.numbers import checked_whole
from energize.topology import WorkerConfig
from energize.wrappers.map import MapDataset

T = TypeVar("T")


class GcDataset(MapDataset[T]):
    """Passes items through, and runs the garbage collector after every `every_n_iter` of them.

    Each process that reads counts its own items. Loaders here add none by themselves; where
    samples refer to each other in circles, one of these keeps their memory from piling up. It may
    be added or left out in the middle of a run.

    Raises `ConfigError` for less than 1.

    >>> from energize import ListSource
    >>> list(GcDataset(ListSource("ab"), every_n_iter=1))
    ['a', 'b']
    """

    def __init__(
        self,
        dataset: Dataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        every_n_iter: int = 10,
        freeze: bool | None = None,
    ) -> None:
        accepted("GcDataset", freeze=freeze)
        collecting = _Collecting(checked_whole(every_n_iter, "GcDataset: every_n_iter", 1))
        super().__init__(dataset, collecting, seeded=False, worker_config=worker_config)


class _Collecting:
    """Hands on what it is given, and collects garbage now and then."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._count = 0

    def __call__(self, item: Any) -> Any:
        self._count += 1
        if self._count % self.every == 0:
            gc.collect()
        return item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Collecting) and other.every == self.every

    def __hash__(self) -> int:
        return hash(self.every)

"""Indexed datasets for torch's DataLoader and for frameworks that bring a sampler.

`MapView` is a map-style dataset, `RankSampler` divides it among ranks as a `Loader`
does. For streams use `as_torch_dataset` (`energize.integrations.torch_data`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Sampler

from energize.core.checks import checked_whole
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.core.node import INFINITE
from energize.core.padding import marked
from energize.errors import ConfigError

T = TypeVar("T")


class ViewPosition(NamedTuple):
    """A position counted over all epochs, as in `IndexedDataset.at`.

    Attributes:
        position: The position, from 0.
        is_padding: Whether the item fills a step and is marked as padding.
    """

    position: int
    is_padding: bool = False


class MapView(TorchDataset[T]):
    """One epoch of an indexed dataset, as a map-style dataset of torch.

    For frameworks that sample positions themselves. An integer is a position of the
    current epoch (`set_epoch`). A `RankSampler` gives positions of any epoch.

    Args:
        dataset: A dataset with random access and a finite epoch.

    Raises:
        ConfigError: If the dataset is a stream, or never ends.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from energize import ListSource, ShuffleDataset
        >>> view = MapView(ShuffleDataset(ListSource("abcd")))
        >>> loader = DataLoader(view, batch_size=None, sampler=RankSampler(view))
        >>> sorted(loader)
        ['a', 'b', 'c', 'd']
    """

    def __init__(self, dataset: Dataset[T]) -> None:
        if not isinstance(dataset, Dataset):
            name = type(dataset).__name__
            raise ConfigError(f"MapView takes an energize Dataset, got {name}")
        if not dataset.indexed:
            raise ConfigError(
                "MapView: a stream has no random access. Use as_torch_dataset of "
                "energize.integrations.torch_data, or get_loader"
            )
        if dataset.size == INFINITE:
            raise ConfigError(
                "MapView: the dataset has no end. Limit it with LimitDataset, or use "
                "get_loader"
            )
        self.dataset = dataset
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that integer positions belong to.

        Args:
            epoch: Number of the epoch, from 0.
        """
        self.epoch = checked_whole(epoch, "MapView.set_epoch", 0)

    def __len__(self) -> int:
        return self.dataset.size

    def __getitem__(self, position: int | ViewPosition) -> T:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int | ViewPosition]) -> list[T]:
        """Return the items at several positions, read at once."""
        absolute = [self._absolute(position) for position in positions]
        dataset = cast("IndexedDataset[T]", self.dataset)
        items = dataset.at([entry.position for entry in absolute])
        pairs = zip(absolute, items, strict=True)
        return [marked(item) if entry.is_padding else item for entry, item in pairs]

    def _absolute(self, position: int | ViewPosition) -> ViewPosition:
        if isinstance(position, ViewPosition):
            return position
        size = len(self)
        index = operator.index(position)
        if not -size <= index < size:
            raise IndexError(f"position {index} of an epoch of {size} items")
        return ViewPosition(self.epoch * size + index % size)


class RankSampler(Sampler[ViewPosition]):
    """Samples the positions of a rank: rank, rank + world_size, ... of each epoch.

    All ranks make the same number of steps. If the ranks do not divide the epoch, the
    last position of some ranks is a copy that `is_padding` recognises. The state of its
    iterator counts the items of all ranks, so that `StatefulDataLoader` resumes with
    any number of ranks.

    Args:
        view: The view to sample.
        worker_config: Rank and world size; by default those of torch.distributed.

    Example:
        >>> from energize import ListSource, WorkerConfig
        >>> view = MapView(ListSource("abc"))
        >>> sampler = RankSampler(view, WorkerConfig(rank=1, world_size=2))
        >>> [tuple(position) for position in sampler]
        [(1, False), (2, True)]
    """

    def __init__(
        self, view: MapView[Any], worker_config: WorkerConfig | None = None
    ) -> None:
        self.size = len(view)
        self.epoch = 0
        self.worker_config = worker_config or WorkerConfig()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next loop, as for a `DistributedSampler`.

        Args:
            epoch: Number of the epoch, from 0.
        """
        self.epoch = checked_whole(epoch, "RankSampler.set_epoch", 0)

    def __len__(self) -> int:
        return math.ceil(self.size / self.worker_config.world_size)

    def __iter__(self) -> RankPositions:
        ranks = self.worker_config.ranks()
        start = self.epoch * self.size
        return RankPositions(start, start + self.size, ranks.rank, ranks.world_size)


class RankPositions(Iterator[ViewPosition]):
    """The positions of a rank in one loop; made by `RankSampler`.

    Args:
        position: The items of all ranks before the next step.
        end: The items of all ranks up to the end of the epoch.
        rank: The rank.
        world_size: The number of ranks.
    """

    def __init__(self, position: int, end: int, rank: int, world_size: int) -> None:
        self.position = position
        self.end = end
        self.rank = rank
        self.world_size = world_size

    def __next__(self) -> ViewPosition:
        if self.position >= self.end:
            raise StopIteration
        position = self.position + self.rank
        self.position += self.world_size
        if position < self.end:
            return ViewPosition(position)
        return ViewPosition(self.end - 1, is_padding=True)

    def state_dict(self) -> dict[str, int]:
        """Return the position, which is the same on all ranks."""
        return {"position": min(self.position, self.end), "end": self.end}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume from a state of any rank and world size."""
        self.position = state["position"]
        self.end = state["end"]

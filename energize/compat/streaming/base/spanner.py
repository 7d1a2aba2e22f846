"""The shards of streams, and the shard of every sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.dataset import IndexedDataset
from energize.data.mds import MdsShard, MdsSource
from energize.data.source import ShardedSource

__all__ = ["Shard", "Spanner", "shards_of"]


class Spanner:
    """The shard of every sample.

    Args:
        shard_sizes: Number of samples of each shard.

    Example:
        >>> Spanner([4, 2])[5]
        (1, 1)
    """

    def __init__(self, shard_sizes: Sequence[int] | Int64Array) -> None:
        self.shard_sizes = np.array(shard_sizes, dtype=np.int64)
        self.shard_bounds = np.append(0, self.shard_sizes.cumsum())
        self.num_samples = int(self.shard_bounds[-1])

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the shard of a sample, and the number of the sample in it."""
        if not 0 <= index < self.num_samples:
            raise IndexError(
                f"sample {index} is out of range: the shards have {self.num_samples}"
            )
        shard = int(self.shard_bounds.searchsorted(index, side="right")) - 1
        return shard, int(index - self.shard_bounds[shard])


@dataclass(frozen=True)
class Shard:
    """A shard of a folder that is not MDS, or all samples of another stream."""

    name: str
    samples: int

    def __len__(self) -> int:
        return self.samples


def shards_of(samples: IndexedDataset[Any]) -> list[Shard | MdsShard]:
    """Return the shards of a stream; a single one if it is not a list of shards.

    Args:
        samples: The samples of the stream.
    """
    shards: list[Shard | MdsShard] = []
    for source in samples.sources:
        if isinstance(source, MdsSource):
            shards += source.entries
        elif isinstance(source, ShardedSource):
            shards += map(Shard, source.shards, source.counts)
    if sum(shard.samples for shard in shards) != samples.size:
        return [Shard("", samples.size)]
    return shards

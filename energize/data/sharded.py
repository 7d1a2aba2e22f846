"""Sources whose samples lie in shards, or in one file, and are read shard by shard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.trace import Failed, SamplePlace
from energize.data.source import Source, Window, narrowed, read_by_file

T_co = TypeVar("T_co", covariant=True)


class ShardedSource(Source[T_co]):
    """The samples of some shards, one after the other; or of these a `window`: the first sample and
    the one after the last.

    Subclasses give `shards`, the names that tell them apart, `counts`, the samples in each,
    `location`, the folder or file, and `_read_shard`.
    """

    shards: Sequence[str]
    counts: Sequence[int]
    window: Window | None = None

    @abstractmethod
    def _read_shard(self, shard: int, numbers: list[int]) -> Sequence[T_co | Failed]:
        """Return samples of one shard, numbers ascending."""

    def _key(self, shard: int, number: int) -> str | None:
        """Return the key of a sample."""
        return None

    def part(self, start: int, stop: int) -> Self:
        """Return the same source with the samples from `start` to before `stop` only.

        Raise `ConfigError` for numbers beyond `stored_count`, `EmptyDatasetError` if none is left.
        """
        return self._replace(window=narrowed(self._told_name, self._bounds, start, stop))

    @cached_property
    def count(self) -> int:
        return self.stored_count

    @cached_property
    def stored_count(self) -> int:
        """How many samples there are, excluded ones too."""
        start, stop = self._bounds
        return stop - start

    @property
    def run_length(self) -> int:
        return max(1, self.count // max(1, len(self.counts)))

    def where(self, index: int) -> str:
        return self._where(*(int(each[0]) for each in self.locate(np.array([index]))))

    def _where(self, shard: int, number: int) -> str:
        """What messages call a sample."""
        return f"{self.location}/{self.shards[shard]}, sample {number}"

    def place(self, index: int) -> SamplePlace:
        located = self.locate(np.array([index], dtype=np.int64))
        shard, number = (int(each[0]) for each in located)
        name, key = self.shards[shard], self._key(shard, number)
        return SamplePlace(self.location, name, number, key, self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        if shard not in self.shards:
            return None
        at = self.shards.index(shard)
        if not 0 <= index < self.counts[at]:
            return None
        found = int(self.indices(np.array([at]), np.array([index]))[0])
        return None if found < 0 else found

    def locate(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return for each sample its shard, a position in `shards`, and its number in the shard;
        read nothing.
        """
        return self._located(self._stored(indices))

    def indices(self, shards: Int64Array, numbers: Int64Array) -> Int64Array:
        """Return the samples that lie at these numbers of these shards, the inverse of `locate`; -1
        for one outside of the part that is read.
        """
        start, stop = self._bounds
        stored = self._firsts[shards] + numbers
        return np.where((stored >= start) & (stored < stop), stored - start, -1)

    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        return read_by_file(self._stored(indices), self._located, self._read_shard)

    def _stored(self, indices: Int64Array) -> Int64Array:
        """Samples as they are numbered in all shards."""
        return indices + self._bounds[0] if self._bounds[0] else indices

    def _located(self, stored: Int64Array) -> tuple[Int64Array, Int64Array]:
        shards = np.searchsorted(self._firsts, stored, side="right") - 1
        return shards, stored - self._firsts[shards]

    @cached_property
    def _firsts(self) -> Int64Array:
        """The number of samples before each shard."""
        counts = np.array(self.counts, dtype=np.int64)
        return np.cumsum(counts) - counts

    @cached_property
    def _bounds(self) -> Window:
        return self.window or (0, sum(self.counts))

    def settings(self) -> dict[str, Any]:
        subset = {} if self.window is None else {"subset": list(self.window)}
        return super().settings() | {"identity": self.identity} | subset

"""Sources of examples in named shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.utils.data

from energize.compat.checks import checked_list
from energize.compat.hugging_face import to_iterable_dataset
from energize.cursor import Cursor, State
from energize.dataset import Dataset, IndexedDataset
from energize.errors import ConfigError, NotIndexedError, nearest
from energize.sources.adapting import as_dataset
from energize.sources.json_rows import JsonSource
from energize.sources.parquet import ParquetSource
from energize.sources.row_files import DataFiles, RowFiles
from energize.topology import SINGLE_LANE, Lane
from energize.wrappers.concat import ConcatDataset

if TYPE_CHECKING:
    import datasets

__all__ = [
    "CompositeShardedSource",
    "HFDatasetShardedSource",
    "JsonShardedSource",
    "ParquetShardedSource",
    "ShardedDataSource",
]

Example = dict[str, Any]


class ShardedDataSource(torch.utils.data.IterableDataset[Example], ABC):
    """Examples in shards that are opened by name; `dataset` is all of them as one.

    It is an iterable torch dataset: iterating gives all examples, in the workers of a DataLoader a
    part each. Ranks are not divided among: `to_iterable_dataset()` is for trainers, which do that.
    """

    @property
    @abstractmethod
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, all different."""

    @property
    @abstractmethod
    def dataset(self) -> Dataset[Example]:
        """The examples of all shards, shard after shard, as an energize dataset."""

    @abstractmethod
    def shard(self, shard_name: str) -> Dataset[Example]:
        """The examples of one shard; `ConfigError` for a name that is not there."""

    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self.shard_names)

    def open_shard(self, shard_name: str, state: State | None = None) -> Cursor[Example]:
        """One pass over a shard, or the rest of one from the `state()` of such a pass."""
        return self.shard(shard_name).open(state=state)

    def open_shard_at_row(self, shard_name: str, row: int) -> Cursor[Example]:
        """A pass that begins at example `row`; in a shard with random access nothing is skipped."""
        if isinstance(row, bool) or not isinstance(row, int) or row < 0:
            raise ConfigError(f"open_shard_at_row: row is a whole number, 0 or more; got {row!r}")
        shard = self.shard(shard_name)
        if shard.indexed:
            return shard.open(state={"position": row})
        cursor = shard.open()
        for _ in islice(cursor, row):
            pass
        return cursor

    def iter_shards(self) -> Iterator[Example]:
        """The examples of all shards."""
        for name in self.shard_names:
            yield from self.open_shard(name)

    def __iter__(self) -> Iterator[Example]:
        worker = torch.utils.data.get_worker_info()
        lane = SINGLE_LANE if worker is None else Lane(worker.id, worker.num_workers)
        return self.dataset.open(lane)

    def to_iterable_dataset(self) -> datasets.IterableDataset:
        """The examples as a Hugging Face iterable dataset, with a state and parts for ranks."""
        return to_iterable_dataset(self.dataset)

    def __len__(self) -> int:
        """Examples in all shards; `NotIndexedError` (a TypeError) when there is no such number."""
        dataset = self.dataset
        if isinstance(dataset, IndexedDataset):
            return len(dataset)
        raise NotIndexedError(f"{type(self).__name__} is a stream, whose length is not known")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"

    def _number_of(self, shard_name: str) -> int:
        names = list(self.shard_names)
        if shard_name not in names:
            raise ConfigError(
                f"{type(self).__name__} has no shard {shard_name!r}"
                f"{nearest(str(shard_name), names) or '.'} "
                f"It has {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            )
        return names.index(shard_name)


class HFDatasetShardedSource(ShardedDataSource):
    """A Hugging Face dataset, map-style or streaming, as one shard called "<name>:0".

    Anything else that `as_dataset` takes will do as well. Map-style datasets are read when examples
    are asked for.

    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    >>> source = HFDatasetShardedSource(rows)
    >>> list(source.open_shard(source.shard_names[0]))
    [{'text': 'a'}, {'text': 'b'}]
    """

    def __init__(self, dataset: Any, name: str | None = None) -> None:
        self._name = name or "hf_dataset"
        self._dataset = as_dataset(dataset, self._name)

    @property
    def shard_names(self) -> Sequence[str]:
        return (f"{self._name}:0",)

    @property
    def dataset(self) -> Dataset[Example]:
        return self._dataset

    def shard(self, shard_name: str) -> Dataset[Example]:
        self._number_of(shard_name)
        return self._dataset


class _FileShards(ShardedDataSource):
    """Every file is a shard, called by its path."""

    _kind: type[ParquetSource | JsonSource]

    def __init__(self, data_files: DataFiles, name: str | None = None) -> None:
        self._name = name or ""
        self._files: RowFiles = self._kind(data_files, name=self._name)

    @property
    def shard_names(self) -> Sequence[str]:
        return tuple(map(str, self._files.files))

    @property
    def dataset(self) -> Dataset[Example]:
        return self._files

    def shard(self, shard_name: str) -> Dataset[Example]:
        self._number_of(shard_name)
        return self._kind(Path(shard_name), name=f"{self._name}:{Path(shard_name).name}")


class ParquetShardedSource(_FileShards):
    """Parquet files, given by path, pattern, or a list of them; every file is a shard."""

    _kind = ParquetSource


class JsonShardedSource(_FileShards):
    """JSON files (an object per line, or an array of objects); every file is a shard."""

    _kind = JsonSource


class CompositeShardedSource(ShardedDataSource):
    """The shards of several sources one after another, without mixing.

    A shard name that several sources have gets the number of its source, from 0, behind it:
    "hf_dataset:0@1".

    >>> parts = [HFDatasetShardedSource([{"x": 1}]), HFDatasetShardedSource([{"x": 2}])]
    >>> combined = CompositeShardedSource(parts)
    >>> [(name, list(combined.open_shard(name))) for name in combined.shard_names]
    [('hf_dataset:0@0', [{'x': 1}]), ('hf_dataset:0@1', [{'x': 2}])]
    """

    def __init__(self, sources: Sequence[ShardedDataSource]) -> None:
        self._sources = checked_list(
            sources,
            ShardedDataSource,  # type: ignore[type-abstract]  # only asked about, not made
            "CompositeShardedSource: sources",
        )
        if not sources:
            raise ConfigError("CompositeShardedSource: there are no sources to combine")
        self._parts = [(part, name) for part in sources for name in part.shard_names]
        often = Counter(name for _, name in self._parts)
        self._names = tuple(
            f"{name}@{number}" if often[name] > 1 else name
            for number, part in enumerate(sources)
            for name in part.shard_names
        )

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    @cached_property
    def dataset(self) -> Dataset[Example]:
        return ConcatDataset(*(each.dataset for each in self._sources))

    def shard(self, shard_name: str) -> Dataset[Example]:
        part, name = self._parts[self._number_of(shard_name)]
        return part.shard(name)

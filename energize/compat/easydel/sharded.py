"""Sources of examples in named shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch.utils.data
from pydantic import InstanceOf

from energize.compat.checks import checked
from energize.compat.hugging_face import to_iterable_dataset
from energize.cursor import Cursor, State
from energize.dataset import Dataset
from energize.errors import ConfigError, nearest
from energize.numbers import checked_whole
from energize.sources.adapting import as_dataset
from energize.sources.json_rows import JsonSource
from energize.sources.parquet import ParquetSource
from energize.sources.row_files import DataFiles
from energize.topology import SINGLE_LANE, Lane
from energize.wrappers.concat import ConcatDataset

if TYPE_CHECKING:
    import datasets

Example = dict[str, Any]
Shard = Dataset[Example] | Callable[[], Dataset[Example]]


class ShardedDataSource(torch.utils.data.IterableDataset[Example]):
    """Examples in shards that are opened by name; `dataset` is all of them as one.

    `shards` has the dataset of each shard by its name, or what makes it.

    It is an iterable torch dataset: iterating yields all examples, in the workers of a DataLoader a
    part each. Ranks are not divided among: `to_iterable_dataset()` is for trainers, which do that.
    """

    def __init__(self, dataset: Dataset[Example], shards: Mapping[str, Shard]) -> None:
        self._dataset = dataset
        self._shards = dict(shards)

    @property
    def dataset(self) -> Dataset[Example]:
        """The examples of all shards, shard after shard, as an energize dataset."""
        return self._dataset

    @property
    def shard_names(self) -> Sequence[str]:
        """The names of the shards, all different."""
        return tuple(self._shards)

    def num_shards(self) -> int:
        """How many shards there are."""
        return len(self.shard_names)

    def shard(self, shard_name: str) -> Dataset[Example]:
        """The examples of one shard; `ConfigError` for a name that is not there."""
        names = self.shard_names
        if shard_name not in names:
            raise ConfigError(
                f"{type(self).__name__} has no shard {shard_name!r}"
                f"{nearest(str(shard_name), names) or '.'} "
                f"It has {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            )
        found = self._shards[shard_name]
        return found if isinstance(found, Dataset) else found()

    def open_shard(self, shard_name: str, state: State | None = None) -> Cursor[Example]:
        """One pass over a shard, or the rest of one from the `state()` of such a pass."""
        return self.shard(shard_name).open(state=state)

    def open_shard_at_row(self, shard_name: str, row: int) -> Cursor[Example]:
        """A pass that begins at example `row`; in a shard with random access nothing is skipped."""
        row = checked_whole(row, "open_shard_at_row: row", 0)
        shard = self.shard(shard_name)
        if shard.indexed:
            return shard.open(state={"position": row})
        cursor = shard.open()
        next(islice(cursor, row, row), None)
        return cursor

    def iter_shards(self) -> Iterator[Example]:
        """The examples of all shards."""
        return self.dataset.open()

    def __iter__(self) -> Iterator[Example]:
        worker = torch.utils.data.get_worker_info()
        lane = SINGLE_LANE if worker is None else Lane(worker.id, worker.num_workers)
        return self.dataset.open(lane)

    def to_iterable_dataset(self) -> datasets.IterableDataset:
        """The examples as a Hugging Face iterable dataset, with a state and parts for ranks."""
        return to_iterable_dataset(self.dataset)

    def __len__(self) -> int:
        """Examples in all shards; `NotIndexedError` (a TypeError) when there is no such number."""
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"


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
        name = name or "hf_dataset"
        whole = as_dataset(dataset, name)
        super().__init__(whole, {f"{name}:0": whole})


class _FileShards(ShardedDataSource):
    """Every file is a shard, called by its path."""

    _kind: type[ParquetSource | JsonSource]

    def __init__(self, data_files: DataFiles, name: str | None = None) -> None:
        whole = self._kind(data_files, name=name or "")
        shards: dict[str, Shard] = {
            str(path): partial(self._kind, path, name=f"{name or ''}:{path.name}")
            for path in whole.files
        }
        super().__init__(whole, shards)


class ParquetShardedSource(_FileShards):
    """Parquet files, given by path, pattern, or a list of them; every file is a shard."""

    _kind = ParquetSource


class JsonShardedSource(_FileShards):
    """JSON files (an object per line, or an array of objects); every file is a shard."""

    _kind = JsonSource


class CompositeShardedSource(ShardedDataSource):
    """The shards of several sources one after another, without mixing.

    A shard name that several sources have gets the number of its source, from 0, after it:
    "hf_dataset:0@1".

    >>> parts = [HFDatasetShardedSource([{"x": 1}]), HFDatasetShardedSource([{"x": 2}])]
    >>> combined = CompositeShardedSource(parts)
    >>> [(name, list(combined.open_shard(name))) for name in combined.shard_names]
    [('hf_dataset:0@0', [{'x': 1}]), ('hf_dataset:0@1', [{'x': 2}])]
    """

    @checked
    def __init__(self, sources: Sequence[InstanceOf[ShardedDataSource]]) -> None:
        if not sources:
            raise ConfigError("CompositeShardedSource: there are no sources to combine")
        self._sources = sources
        often = Counter(name for part in sources for name in part.shard_names)
        self._shards: dict[str, Shard] = {
            f"{name}@{number}" if often[name] > 1 else name: partial(part.shard, name)
            for number, part in enumerate(sources)
            for name in part.shard_names
        }

    @cached_property
    def dataset(self) -> Dataset[Example]:
        return ConcatDataset(*(each.dataset for each in self._sources))

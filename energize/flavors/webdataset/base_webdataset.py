"""Factories of datasets over prepared folders of shards."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from energize.cache.webdataset_store import WebdatasetFileStore
from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.flavors.base_dataset import BaseCoreDatasetFactory
from energize.flavors.webdataset.prepare import WebdatasetPreparator
from energize.ignored import accepted
from energize.samples.crude import CrudeSample
from energize.sources.base import Source
from energize.sources.subset import Subset
from energize.sources.webdataset import WebdatasetSource
from energize.task_encoder.folder_code import PartFilter
from energize.task_encoder.loading import SampleLoader
from energize.topology import WorkerConfig
from energize.wrappers.map import MapDataset
from energize.wrappers.shuffle import ShuffleDataset

S = TypeVar("S", bound=Source[Any])
T_co = TypeVar("T_co", covariant=True)


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T_co], WebdatasetPreparator):
    """A split part of a prepared folder, as it is asked for; `build()` makes the dataset.

    A subclass sets `__sample_type__` and makes a sample of the raw one in `load_sample`. What is
    read is shuffled where `training`, over `shuffle_over_epochs` passes at once (None: not at all,
    -1: drawn with replacement), in runs of at most `max_samples_per_sequence` samples; else it is
    as stored. `part_filter` says which parts are read at all, `subset` which samples.

    Raises `ConfigError` without `__sample_type__`, and what `WebdatasetSource` raises.
    """

    path: Path

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | None = None,
        split_config: str | None = None,
        part_filter: PartFilter | None = None,
    ) -> None:
        owner = type(self).__name__
        if getattr(self, "__sample_type__", None) is None:
            raise ConfigError(f"{owner}: set the class attribute __sample_type__")
        accepted(owner, parallel_shard_iters=parallel_shard_iters)
        self.path = Path(path)
        self.paths = [self.path]
        self.subflavors = getattr(self, "subflavors", {})
        self.split_part = split_part
        self.split_config = split_config
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = subset
        self.part_filter = part_filter
        _ = self.source  # the folder is looked at now, not at the first sample

    @cached_property
    def source(self) -> Source[dict[str, Any]]:
        """What is read, as stored."""
        source = WebdatasetSource(
            self.path,
            split_part=self.split_part,
            split_config=self.split_config,
            seed=self.worker_config.seed_offset,
        )
        return part_of(source, self.subset)

    def __len__(self) -> int:
        return self.source.count

    @cached_property
    def raw_samples(self) -> Dataset[dict[str, Any]]:
        """The raw samples, in the order in which they are read."""
        return ordered(
            self.source,
            training=self.training,
            shuffle_over_epochs=self.shuffle_over_epochs,
            max_samples_per_sequence=self.max_samples_per_sequence,
        )

    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        accepted(type(self).__name__, worker_rotation_offset=worker_rotation_offset or None)
        samples = MapDataset(self.raw_samples, self._loading(), seeded=False)
        return samples.with_worker_config(self.worker_config)

    def _loading(self) -> Callable[[dict[str, Any]], T_co]:
        """What makes a sample of a raw one."""
        return RawLoading(self.load_sample, self.part_filter)

    def as_file_store(self) -> WebdatasetFileStore:
        return WebdatasetFileStore(self.path)

    @abstractmethod
    def load_sample(self, raw_data: dict[str, Any]) -> T_co:
        """The sample of a raw one: a dict of `__key__`, `__restore_key__`, `__sources__`, and of
        the bytes of its parts by name.
        """

    def config(self) -> dict[str, Any]:
        """What the dataset is made of, as a tree of plain values."""
        return self.build().describe()

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


def part_of(source: S, subset: Subset | None) -> S:
    """The samples of a source that belong to `subset`."""
    if subset is None:
        return source
    if not isinstance(subset, Subset):
        raise ConfigError(
            f"subset is an energize.sources.subset.Subset, such as Subset(ratios=(0.0, 0.5)); got "
            f"{subset!r}"
        )
    stored: Any = source
    return cast("S", stored.part(*subset.bounds(stored.stored_count)))


def ordered(
    source: Source[Any],
    *,
    training: bool,
    shuffle_over_epochs: int | None,
    max_samples_per_sequence: int | None,
) -> Dataset[Any]:
    """A source in the order of training, or as stored."""
    if not training or shuffle_over_epochs is None:
        return source
    return ShuffleDataset(
        source, max_samples_per_sequence=max_samples_per_sequence, over_epochs=shuffle_over_epochs
    )


class RawLoading:
    """Gives a raw sample to `load_sample` in Megatron-Energon's form."""

    loads_stored = True
    """What it returns for a stored sample is what the key of that sample restores."""

    def __init__(
        self, load_sample: Callable[[dict[str, Any]], Any], part_filter: PartFilter | None
    ) -> None:
        self.load_sample = load_sample
        self._crude = SampleLoader(sample_type=CrudeSample, decoder=None, part_filter=part_filter)

    def __call__(self, raw: dict[str, Any]) -> Any:
        crude: dict[str, Any] = self._crude(raw)
        return self.load_sample({**crude, "__dataset__": raw["__dataset__"]})

"""Factories of datasets over prepared folders of shards."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from energize.cache.webdataset_store import WebdatasetFileStore
from energize.errors import ConfigError
from energize.flavors.source_factory import SourceFactory
from energize.flavors.webdataset.prepare import WebdatasetPreparator
from energize.samples.crude import CrudeSample
from energize.sources.subset import Subset
from energize.sources.webdataset import WebdatasetSource
from energize.task_encoder.folder_code import PartFilter
from energize.task_encoder.loading import SampleLoader
from energize.topology import WorkerConfig

T_co = TypeVar("T_co", covariant=True)


class BaseWebdatasetFactory(SourceFactory[T_co], WebdatasetPreparator):
    """A split part of a prepared folder, as it is asked for; `build()` makes the dataset.

    A subclass sets `__sample_type__` and makes a sample of the raw one in `load_sample`. What is
    read is shuffled where `training`, over `shuffle_over_epochs` passes at once (None: not at all,
    -1: drawn with replacement), in runs of at most `max_samples_per_sequence` samples; else it is
    as stored. `part_filter` says which parts are read at all, `subset` which samples. With
    `checksums` every sample is compared with the one that `energize prepare --checksums` wrote.

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
        checksums: bool = False,
    ) -> None:
        if getattr(self, "__sample_type__", None) is None:
            raise ConfigError(f"{type(self).__name__}: set the class attribute __sample_type__")
        self.path = Path(path)
        self.paths = [self.path]
        self.subflavors = getattr(self, "subflavors", {})
        self.split_part = split_part
        self.split_config = split_config
        self.part_filter = part_filter
        self.checksums = checksums
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            parallel_shard_iters=parallel_shard_iters,
        )

    def _stored(self, seed: int) -> WebdatasetSource:
        return WebdatasetSource(
            self.path,
            split_part=self.split_part,
            split_config=self.split_config,
            checksums=self.checksums,
            seed=seed,
        )

    def _loading(self) -> Callable[[dict[str, Any]], T_co]:
        return RawLoading(self.load_sample, self.part_filter)

    def as_file_store(self) -> WebdatasetFileStore:
        return WebdatasetFileStore(self.path)

    @abstractmethod
    def load_sample(self, raw_data: dict[str, Any]) -> T_co:
        """The sample of a raw one: a dict of `__key__`, `__restore_key__`, `__sources__`, and of
        the bytes of its parts by name.
        """

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


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

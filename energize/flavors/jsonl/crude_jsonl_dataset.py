"""Factories of datasets over indexed files of JSON lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from energize.cache.stores import JsonlFileStore
from energize.dataset import Dataset
from energize.flavors.base_dataset import BaseCoreDatasetFactory
from energize.flavors.webdataset.base_webdataset import ordered, part_of
from energize.ignored import accepted
from energize.prepare.jsonl import prepare_jsonl
from energize.samples.crude import CrudeSample
from energize.sources.jsonl import JsonlSource
from energize.sources.subset import Subset
from energize.task_encoder.loading import SampleLoader
from energize.topology import WorkerConfig
from energize.wrappers.map import MapDataset


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory[CrudeSample]):
    """The lines of an indexed `.jsonl` file as crude samples: dicts with the parsed line as `json`.

    The arguments are those of `BaseWebdatasetFactory`; there are no splits.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "texts.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}')
    >>> CrudeJsonlDatasetFactory.prepare_dataset(path)
    2
    >>> lines = CrudeJsonlDatasetFactory(path, training=False, worker_config=WorkerConfig())
    >>> [sample["json"]["text"] for sample in lines.build()]
    ['a', 'b']
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | None = None,
        part_filter: Any = None,
    ) -> None:
        owner = type(self).__name__
        accepted(owner, parallel_shard_iters=parallel_shard_iters, part_filter=part_filter)
        self.path = Path(path)
        self.paths = [self.path]
        self.subflavors = dict(subflavors or {})
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = subset
        _ = self.source  # the file is looked at now, not at the first sample

    @staticmethod
    def prepare_dataset(path: str | os.PathLike[str]) -> int:
        """Write the index of a `.jsonl` file; returns how many samples it has.

        Raises what `energize.prepare.jsonl.prepare_jsonl` raises.
        """
        return prepare_jsonl(Path(path))

    @cached_property
    def source(self) -> JsonlSource:
        """What is read, as stored."""
        source = JsonlSource(self.path, seed=self.worker_config.seed_offset)
        return part_of(source, self.subset)

    def __len__(self) -> int:
        return self.source.count

    def build(self, worker_rotation_offset: int = 0) -> Dataset[CrudeSample]:
        accepted(type(self).__name__, worker_rotation_offset=worker_rotation_offset or None)
        raw = ordered(
            self.source,
            training=self.training,
            shuffle_over_epochs=self.shuffle_over_epochs,
            max_samples_per_sequence=self.max_samples_per_sequence,
        )
        loader = SampleLoader(sample_type=CrudeSample, subflavors=self.subflavors)
        return MapDataset(raw, loader, seeded=False).with_worker_config(self.worker_config)

    def as_file_store(self) -> JsonlFileStore:
        return JsonlFileStore(self.path)

    def config(self) -> dict[str, Any]:
        """What the dataset is made of, as a tree of plain values."""
        return self.build().describe()

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """What Megatron-Energon makes of a `.jsonl` file; the same as `CrudeJsonlDatasetFactory`."""

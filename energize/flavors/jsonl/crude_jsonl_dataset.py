"""Factories of datasets over indexed files of JSON lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energize.cache.stores import JsonlFileStore
from energize.flavors.source_factory import SourceFactory
from energize.prepare.jsonl import prepare_jsonl
from energize.samples.crude import CrudeSample
from energize.sources.jsonl import JsonlSource
from energize.sources.subset import Subset
from energize.task_encoder.loading import SampleLoader
from energize.topology import WorkerConfig


class CrudeJsonlDatasetFactory(SourceFactory[CrudeSample]):
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
        checksums: bool = False,
    ) -> None:
        self.path = Path(path)
        self.paths = [self.path]
        self.checksums = checksums
        self.subflavors = dict(subflavors or {})
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            parallel_shard_iters=parallel_shard_iters,
            part_filter=part_filter,
        )

    @staticmethod
    def prepare_dataset(path: str | os.PathLike[str], *, checksums: bool = False) -> int:
        """Write the index of a `.jsonl` file, and its checksums if asked; returns how many samples
        it has.

        Raises what `energize.prepare.jsonl.prepare_jsonl` raises.
        """
        return prepare_jsonl(Path(path), checksums=checksums)

    def _stored(self, seed: int) -> JsonlSource:
        return JsonlSource(self.path, checksums=self.checksums, seed=seed)

    def _loading(self) -> SampleLoader[CrudeSample]:
        return SampleLoader(sample_type=CrudeSample, subflavors=self.subflavors)

    def as_file_store(self) -> JsonlFileStore:
        return JsonlFileStore(self.path)

    def __str__(self) -> str:
        return f"{type(self).__name__}(path={self.path})"


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """What Megatron-Energon makes of a `.jsonl` file; the same as `CrudeJsonlDatasetFactory`."""

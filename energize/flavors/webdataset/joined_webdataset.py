"""Factories of datasets that join several prepared folders by the keys of their samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from energize.errors import ConfigError
from energize.flavors.source_factory import SourceFactory
from energize.flavors.webdataset.base_webdataset import BaseWebdatasetFactory
from energize.samples.sample import Sample
from energize.sources.joined import JoinedSource
from energize.sources.subset import Subset
from energize.sources.webdataset import WebdatasetSource
from energize.task_encoder.joined_loading import JoinLoader
from energize.topology import WorkerConfig

T_co = TypeVar("T_co", covariant=True)


class JoinedWebdatasetFactory(SourceFactory[T_co]):
    """Samples of a first dataset, each with those of others that have its key, made one.

    `inner_datasets` is a list, whose samples `joiner` is given by place, or a mapping, by name. A
    `joiner` that is a type of samples joins by its `from_joined`. `nonmatch` says for each dataset
    but the first what happens to samples without a partner there: "error", "skip" or "none". What
    belongs together comes from the `index.sqlite` of the folders, and from `cache`, see
    `JoinedSource`; a `join_index` that Megatron-Energon wrote is not needed.

    Raises `ConfigError` for a joiner that is none, and what `JoinedSource` raises.
    """

    def __init__(
        self,
        inner_datasets: Sequence[BaseWebdatasetFactory[Any]]
        | Mapping[str, BaseWebdatasetFactory[Any]],
        *,
        training: bool,
        worker_config: WorkerConfig,
        joiner: Callable[..., T_co],
        nonmatch: Sequence[str] = (),
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | None = None,
        join_index: str | os.PathLike[str] | None = None,
        cache: Path | None = None,
    ) -> None:
        self.inner_dataset_keys: list[str] | None = None
        if isinstance(inner_datasets, Mapping):
            self.inner_dataset_keys = list(inner_datasets)
            inner_datasets = list(inner_datasets.values())
        self.inner_datasets = list(inner_datasets)
        self.paths = [each.path for each in self.inner_datasets]
        self.subflavors = self.inner_datasets[0].subflavors if self.inner_datasets else {}
        self.joiner = _function(type(self).__name__, joiner)
        self.nonmatch = tuple(nonmatch)
        self.cache = cache
        super().__init__(
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            parallel_shard_iters=parallel_shard_iters,
            join_index=join_index,
        )

    @property
    def split_part(self) -> str:
        """The split part of the first dataset."""
        return self.inner_datasets[0].split_part

    def _stored(self, seed: int) -> JoinedSource:
        parts = [cast("WebdatasetSource", each.source) for each in self.inner_datasets]
        return JoinedSource(*parts, nonmatch=self.nonmatch, cache=self.cache, seed=seed)

    def _loading(self) -> JoinLoader:
        names = None if self.inner_dataset_keys is None else tuple(self.inner_dataset_keys)
        loaders = tuple(each._loading() for each in self.inner_datasets)
        return JoinLoader(loaders, names, self.joiner)

    def as_file_store(self) -> NoReturn:
        """`ConfigError`: the files of a join are those of its datasets."""
        raise ConfigError("a join has no files of its own; take the stores of its datasets")

    def __str__(self) -> str:
        return f"{type(self).__name__}(paths={self.paths})"


def _function(owner: str, joiner: Any) -> Callable[..., Any]:
    if isinstance(joiner, type) and issubclass(joiner, Sample):
        return joiner.from_joined
    if isinstance(joiner, type) or not callable(joiner):
        raise ConfigError(
            f"{owner}: joiner is a type that extends energize.Sample, or a function; got {joiner!r}"
        )
    return cast("Callable[..., Any]", joiner)

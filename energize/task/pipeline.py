"""Datasets as they are asked for, before they are made: what task encoders are
given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.core.stores import FileStore
from energize.data.source import Source, Subset
from energize.data.stores import open_store
from energize.data.webdataset import WebdatasetSource
from energize.datasets.order import ShuffleDataset
from energize.datasets.transform import MapDataset, SampleWeightDataset
from energize.errors import ConfigError
from energize.task.load import SampleLoader

T_co = TypeVar("T_co", covariant=True)


class BaseCoreDatasetFactory(ABC, Generic[T_co]):
    """A dataset as it is asked for, before it is made: `build()` makes it.

    `len` is the number of samples in one pass, on all ranks together. `paths` are the
    folders or files that it is read from.
    """

    __sample_type__: ClassVar[type[Any]]
    paths: list[Any]
    subflavors: dict[str, Any]
    sample_weight: float | None = None
    """How much its samples count in the loss, as the metadataset says that it was
    loaded from."""

    @abstractmethod
    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        """Return one pass over the samples, in a new order each time where
        `training`.
        """

    @abstractmethod
    def as_file_store(self) -> FileStore[Any]:
        """Return the files of the dataset, by name."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples in one pass."""


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order in which the samples of a source are read; see `ShuffleDataset`.

    `over_epochs`: so many passes are shuffled at once; -1: drawn with replacement;
    None: in stored order, shuffled within windows of `shuffle_buffer_size` only, if
    that is given.
    """

    over_epochs: int | None = 1
    max_samples_per_sequence: int | None = None
    shuffle_buffer_size: int | None = None


STORED = SampleOrder(None)
"""As stored, the same in every pass."""


def select_subset(source: Any, subset: Subset | None) -> Any:
    """Return the samples of a source that a subset selects, all for None."""
    if subset is None:
        return source
    if not isinstance(subset, Subset):
        raise ConfigError(
            "subset is an energize.data.source.Subset, such as "
            f"Subset(ratios=(0.0, 0.5)); got {subset!r}"
        )
    return source.part(*subset.bounds(source.stored_count))


class SourceFactory(BaseCoreDatasetFactory[T_co]):
    """Samples of one source, read in an order and converted by `load`."""

    def __init__(
        self,
        source: Any,
        load: Callable[[Any], T_co],
        sample_type: type[Any],
        paths: Sequence[Any],
        subflavors: Mapping[str, Any],
        *,
        order: SampleOrder,
        worker_config: WorkerConfig | None = None,
        sample_weight: float | None = None,
    ) -> None:
        self.source: Source[Any] = source
        self.load = load
        if isinstance(load, SampleLoader) and isinstance(source, WebdatasetSource):
            self.load = replace(load, numbered=source)
        self.__sample_type__ = sample_type  # type: ignore[misc]  # of this object
        self.paths, self.subflavors = list(paths), dict(subflavors)
        self.order = order
        self.worker_config = worker_config
        self.sample_weight = sample_weight

    @property
    def shuffle_over_epochs(self) -> int | None:
        """Over how many passes samples are shuffled at once."""
        return self.order.over_epochs

    def __len__(self) -> int:
        return self.source.count

    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        raw: Dataset[Any] = self.source
        order = self.order
        if order.over_epochs is not None:
            raw = ShuffleDataset(
                raw,
                shuffle_buffer_size=order.shuffle_buffer_size,
                max_samples_per_sequence=order.max_samples_per_sequence,
                over_epochs=order.over_epochs,
            )
        elif order.shuffle_buffer_size is not None:
            # One run of all samples: stored order, shuffled within the windows of the
            # buffer only.
            raw = ShuffleDataset(
                raw,
                shuffle_buffer_size=order.shuffle_buffer_size,
                max_samples_per_sequence=self.source.size,
            )
        samples: Dataset[T_co] = MapDataset(raw, self.load)
        if self.sample_weight is not None:
            samples = SampleWeightDataset(samples, self.sample_weight)
        config = self.worker_config
        return samples if config is None else samples.with_worker_config(config)

    def as_file_store(self) -> FileStore[Any]:
        if len(self.paths) > 1:
            raise ConfigError(
                "a join has no files of its own; take the stores of its datasets"
            )
        return open_store(self.paths[0])

    def config(self) -> dict[str, Any]:
        """Return what the dataset is made of, as a tree of plain values."""
        return self.build().describe()

    def __str__(self) -> str:
        return f"{type(self).__name__}(paths={list(map(str, self.paths))})"


class DatasetBlendMode(Enum):
    """What the numbers of loaded datasets say: nothing, weights, or passes in an
    epoch.
    """

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@dataclass(slots=True, kw_only=True)
class LoadedDataset:
    """A dataset of a metadataset, with its share of the whole (all weights sum to 1),
    or how often an epoch reads it, and the stores that its cookers may read from.
    """

    dataset: BaseCoreDatasetFactory[Any]
    weight: float | None = None
    repetitions: float | None = None
    aux: dict[str, FileStore[Any]] | None = None


@dataclass(slots=True, kw_only=True)
class LoadedDatasetList:
    """The datasets of a metadataset, in the order of the file, and what their numbers
    say.
    """

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE

"""Factories of datasets, which task encoders get before datasets are built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.core.stores import FileStore
from energize.data.selection import subset_of
from energize.data.source import Source, Subset
from energize.data.stores import open_store
from energize.data.webdataset import WebdatasetSource
from energize.datasets.order import ShuffleDataset
from energize.datasets.transform import MapDataset, SampleWeightDataset
from energize.errors import ConfigError
from energize.task.load import SampleLoader

T_co = TypeVar("T_co", covariant=True)


class BaseCoreDatasetFactory(ABC, Generic[T_co]):
    """A description of a dataset; `build()` returns the dataset.

    `len` is the number of samples of a pass, on all ranks together. `paths` are the
    folders or files that are read.
    """

    __sample_type__: ClassVar[type[Any]]
    paths: list[Any]
    subflavors: dict[str, Any]
    sample_weight: float | None = None
    """Loss weight of its samples from the metadataset, or None."""

    @abstractmethod
    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        """Return one pass over the samples; for training, in a new order each time.

        Args:
            worker_rotation_offset: Has no use.
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

    Args:
        over_epochs: Passes that are shuffled together; -1 draws with replacement; None
            reads in stored order, shuffled only within windows of
            `shuffle_buffer_size`.
        max_samples_per_sequence: Length of runs that are read in sequence.
        shuffle_buffer_size: Size of the windows of a local shuffle.
    """

    over_epochs: int | None = 1
    max_samples_per_sequence: int | None = None
    shuffle_buffer_size: int | None = None


STORED = SampleOrder(None)
"""Stored order, the same in every pass."""


def select_subset(source: Any, subset: Subset | None) -> Any:
    """Return the samples of a source that a subset selects, all for None."""
    if subset is None:
        return source
    if not isinstance(subset, Subset):
        raise ConfigError(
            "subset must be an energize.data.source.Subset, like "
            f"Subset(ratios=(0.0, 0.5)), got {subset!r}"
        )
    return subset_of(source, subset)


class SourceFactory(BaseCoreDatasetFactory[T_co]):
    """A factory of the samples of one source.

    Args:
        source: The source.
        load: Makes a sample of a raw one.
        sample_type: The type of the samples.
        paths: The folders or files that are read.
        subflavors: Labels of the samples.
        order: The order of the samples.
        worker_config: The ranks and the seed.
        sample_weight: Loss weight of the samples, or None.
    """

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
            self.load = load.numbered_by(source)
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
                "a join has no files of its own. Use the stores of its datasets"
            )
        return open_store(self.paths[0])

    def config(self) -> dict[str, Any]:
        """Return what the dataset is made of, as a tree of plain values."""
        return self.build().describe()

    def __str__(self) -> str:
        return f"{type(self).__name__}(paths={list(map(str, self.paths))})"


class DatasetBlendMode(Enum):
    """Meaning of the numbers of datasets: none, weights, or passes per epoch."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@dataclass(slots=True, kw_only=True)
class LoadedDataset:
    """A dataset of a metadataset, with its number in the mix.

    Args:
        dataset: The factory of its samples.
        weight: Its share of the mix; all weights sum to 1.
        repetitions: Its passes in an epoch.
        aux: Stores for cookers, by name.
    """

    dataset: BaseCoreDatasetFactory[Any]
    weight: float | None = None
    repetitions: float | None = None
    aux: dict[str, FileStore[Any]] | None = None


@dataclass(slots=True, kw_only=True)
class LoadedDatasetList:
    """The datasets of a metadataset in file order, and the blend mode."""

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE

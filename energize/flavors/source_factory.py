"""What the factories of datasets over one source have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast

from energize.dataset import Dataset
from energize.errors import ConfigError
from energize.flavors.base_dataset import BaseCoreDatasetFactory
from energize.ignored import accepted
from energize.sources.base import Source
from energize.sources.subset import Subset
from energize.topology import WorkerConfig
from energize.wrappers.map import MapDataset
from energize.wrappers.sample_weight import SampleWeightDataset
from energize.wrappers.shuffle import ShuffleDataset

T_co = TypeVar("T_co", covariant=True)


class SourceFactory(BaseCoreDatasetFactory[T_co]):
    """A dataset read from one source: in the order asked for, each raw sample made a sample.

    What is read is shuffled where `training`, over `shuffle_over_epochs` passes at once (None: not
    at all, -1: drawn with replacement), in runs of at most `max_samples_per_sequence` samples; else
    it is as stored. `subset` says which samples. `unused` are arguments that have no use here.

    The source is looked at when the factory is made, not at the first sample: a subclass calls this
    `__init__` when it has all that `_stored` needs. Raises what that raises.
    """

    def __init__(
        self,
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None,
        max_samples_per_sequence: int | None,
        subset: Subset | None,
        **unused: Any,
    ) -> None:
        accepted(type(self).__name__, **unused)
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = subset
        _ = self.source

    @abstractmethod
    def _stored(self, seed: int) -> Source[Any]:
        """All that is there, as stored."""

    @abstractmethod
    def _loading(self) -> Callable[[Any], T_co]:
        """What makes a sample of a raw one."""

    @cached_property
    def source(self) -> Source[Any]:
        """What is read, as stored."""
        source = self._stored(self.worker_config.seed_offset)
        if self.subset is None:
            return source
        if not isinstance(self.subset, Subset):
            raise ConfigError(
                "subset is an energize.sources.subset.Subset, such as Subset(ratios=(0.0, 0.5)); "
                f"got {self.subset!r}"
            )
        stored: Any = source
        return cast("Source[Any]", stored.part(*self.subset.bounds(stored.stored_count)))

    def __len__(self) -> int:
        return self.source.count

    @cached_property
    def raw_samples(self) -> Dataset[Any]:
        """The raw samples, in the order in which they are read."""
        if not self.training or self.shuffle_over_epochs is None:
            return self.source
        return ShuffleDataset(
            self.source,
            max_samples_per_sequence=self.max_samples_per_sequence,
            over_epochs=self.shuffle_over_epochs,
        )

    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        accepted(type(self).__name__, worker_rotation_offset=worker_rotation_offset or None)
        samples: Dataset[T_co] = MapDataset(self.raw_samples, self._loading(), seeded=False)
        if self.sample_weight is not None:
            samples = SampleWeightDataset(samples, self.sample_weight)
        return samples.with_worker_config(self.worker_config)

    def config(self) -> dict[str, Any]:
        """What the dataset is made of, as a tree of plain values."""
        return self.build().describe()

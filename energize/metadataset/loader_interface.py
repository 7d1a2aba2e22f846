"""What a metadataset, or a single dataset, can be asked for in Megatron-Energon's way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from energize.core.lanes import WorkerConfig
from energize.core.lazy import paths
from energize.core.stores import FileStore
from energize.data.source import Subset
from energize.energon.factories import BaseCoreDatasetFactory
from energize.energon.names import edataclass


class DatasetBlendMode(Enum):
    """What the numbers of loaded datasets say: nothing, weights, or passes in an epoch."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@edataclass
class LoadedDataset:
    """A dataset of a metadataset, with its share of the whole (all weights sum to 1), or how often
    an epoch reads it, and the stores that its cookers may read from.
    """

    dataset: BaseCoreDatasetFactory[Any]
    weight: float | None = None
    repetitions: float | None = None
    aux: dict[str, FileStore[Any]] | None = None


@edataclass
class LoadedDatasetList:
    """The datasets of a metadataset, in the order of the file, and what their numbers say."""

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE


@dataclass
class TraversedDatasetReference:
    """A dataset that a metadataset leads to: which split part of which folder is read, with which
    subflavors and over how many epochs shuffled, and the paths of the stores that its cookers may
    read from.
    """

    path: paths.EPath
    split_part: str
    aux: dict[str, paths.EPath] = field(default_factory=dict)
    subflavors: dict[str, Any] = field(default_factory=dict)
    shuffle_over_epochs_multiplier: int | None = 1


class DatasetLoaderInterface(ABC):
    """A metadataset or a single dataset, whose files were read and whose datasets can be made."""

    def post_initialize(self, mds_path: Path | None = None) -> None:  # noqa: B027
        """Nothing: what there is to check was checked when the object was made."""

    @abstractmethod
    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: Subset | None = None,
        **kwargs: Any,
    ) -> LoadedDatasetList:
        """The datasets of a split with their weights or repetitions, each to be made by `build()`.

        Weights are normalised in each blend and multiplied on the way down, repetitions are
        multiplied. What is given here wins over what files say, and is combined with it like the
        settings of an entry that names them; `kwargs` go to the factories of the datasets.

        Raises what `resolve` raises, and `ConfigError` for mixes that such numbers cannot tell.
        """

    @abstractmethod
    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """All datasets of a split in the order of the file, those of joins included; neither they
        nor their stores need to exist.
        """

    @abstractmethod
    def prepare(self, split_part: str | None = None) -> Sequence[Path]:
        """Write down which samples joins put together, for one split or for all; see
        `prepare_metadataset`. Returns the files of the split.
        """

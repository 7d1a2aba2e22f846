"""The datasets that task encoders make: of samples loaded, cooked, encoded, packed and batched."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from energize.core.dataset import Dataset
from energize.core.description import function_name, generates
from energize.core.lanes import WorkerConfig
from energize.core.samples import CrudeSample
from energize.core.stores import DecodeFileStore, FileStore
from energize.data.source import Source, Subset
from energize.data.stores import open_store
from energize.data.webdataset import WebdatasetSource
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset
from energize.datasets.group import GroupBatchDataset
from energize.datasets.order import (
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    RepeatDataset,
    ShuffleDataset,
)
from energize.datasets.packing import PackingDataset
from energize.datasets.quota import QuotaDataset
from energize.datasets.transform import MapDataset, SampleWeightDataset
from energize.errors import ConfigError
from energize.order.quota import Quota
from energize.task.hooks import Cook, Hook, active_hooks, cooker_for, needs_of
from energize.task.load import SampleLoader

T_co = TypeVar("T_co", covariant=True)

_log = logging.getLogger("energize")

_PACKING = ("select_samples_to_pack", "pack_selected_samples")


class BaseCoreDatasetFactory(ABC, Generic[T_co]):
    """A dataset as it is asked for, before it is made: `build()` makes it.

    `len` is the number of samples in one pass, on all ranks together. `paths` are the folders or
    files that it is read from.
    """

    __sample_type__: ClassVar[type[Any]]
    paths: list[Any]
    subflavors: dict[str, Any]
    sample_weight: float | None = None
    """How much its samples count in the loss, as the metadataset says that it was loaded from."""

    @abstractmethod
    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        """Return one pass over the samples, in a new order each time where `training`."""

    @abstractmethod
    def as_file_store(self) -> FileStore[Any]:
        """Return the files of the dataset, by name."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples in one pass."""


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order in which the samples of a source are read; see `ShuffleDataset`.

    `over_epochs`: so many passes are shuffled at once; None: not at all, -1: drawn with
    replacement.
    """

    over_epochs: int | None = 1
    max_samples_per_sequence: int | None = None
    shuffle_buffer_size: int | None = None


STORED = SampleOrder(None)
"""As stored, the same in every pass."""


class SourceFactory(BaseCoreDatasetFactory[T_co]):
    """Samples of one source, which `load` makes of the raw ones.

    What is read comes in an order; `subset` says which samples.
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
        subset: Subset | None = None,
        sample_weight: float | None = None,
    ) -> None:
        if subset is not None:
            if not isinstance(subset, Subset):
                raise ConfigError(
                    "subset is an energize.data.source.Subset, such as Subset(ratios=(0.0, 0.5)); "
                    f"got {subset!r}"
                )
            source = source.part(*subset.bounds(source.stored_count))
        self.source: Source[Any] = source
        self.load = load
        if isinstance(load, SampleLoader) and isinstance(source, WebdatasetSource):
            object.__setattr__(load, "numbered", source)  # its own, and nothing compares it
        self.__sample_type__ = sample_type  # type: ignore[misc]  # of this object
        self.paths, self.subflavors = list(paths), dict(subflavors)
        self.order, self.worker_config = order, worker_config
        self.sample_weight = sample_weight

    @property
    def shuffle_over_epochs(self) -> int | None:
        """Over how many passes samples are shuffled at once."""
        return self.order.over_epochs

    def __len__(self) -> int:
        return self.source.count

    def build(self, worker_rotation_offset: int = 0) -> Dataset[T_co]:
        raw: Dataset[Any] = self.source
        if self.order.over_epochs is not None:
            raw = ShuffleDataset(
                raw,
                shuffle_buffer_size=self.order.shuffle_buffer_size,
                max_samples_per_sequence=self.order.max_samples_per_sequence,
                over_epochs=self.order.over_epochs,
            )
        samples: Dataset[T_co] = MapDataset(raw, self.load, seeded=False)
        if self.sample_weight is not None:
            samples = SampleWeightDataset(samples, self.sample_weight)
        config = self.worker_config
        return samples if config is None else samples._with_worker_config(config)

    def as_file_store(self) -> FileStore[Any]:
        if len(self.paths) > 1:
            raise ConfigError("a join has no files of its own; take the stores of its datasets")
        return open_store(self.paths[0])

    def config(self) -> dict[str, Any]:
        """Return what the dataset is made of, as a tree of plain values."""
        return self.build().describe()

    def __str__(self) -> str:
        return f"{type(self).__name__}(paths={list(map(str, self.paths))})"


class DatasetBlendMode(Enum):
    """What the numbers of loaded datasets say: nothing, weights, or passes in an epoch."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@dataclass(slots=True, kw_only=True)
class LoadedDataset:
    """A dataset of a metadataset, with its share of the whole (all weights sum to 1), or how often
    an epoch reads it, and the stores that its cookers may read from.
    """

    dataset: BaseCoreDatasetFactory[Any]
    weight: float | None = None
    repetitions: float | None = None
    aux: dict[str, FileStore[Any]] | None = None


@dataclass(slots=True, kw_only=True)
class LoadedDatasetList:
    """The datasets of a metadataset, in the order of the file, and what their numbers say."""

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE


def loading(
    encoder: Any, loaded: LoadedDataset, worker_config: WorkerConfig | None
) -> Dataset[Any]:
    """Return the samples of a loaded dataset, cooked where that has to be."""
    factory = loaded.dataset
    samples: Dataset[Any] = factory.build()
    if factory.__sample_type__ is not CrudeSample or not encoder.cookers:
        return samples
    cooked: Dataset[Any] = encoder.build_cook_crude_sample(
        samples,
        worker_config=worker_config,
        subflavors=factory.subflavors,
        get_primary_aux=factory.as_file_store,
        aux=loaded.aux,
    )
    return cooked


def cooking(
    encoder: Any,
    dataset: Dataset[Any],
    subflavors: Mapping[str, Any],
    get_primary: Callable[[], FileStore[Any]] | None,
    aux: Mapping[str, FileStore[Any]],
) -> Dataset[Any]:
    """Return the samples of a crude dataset, cooked by the first cooker that fits."""
    chosen = cooker_for(encoder.cookers, subflavors, f"{dataset.sources[0].name}")
    primary = None
    if "primary" in needs_of(chosen.cook) and "primary" not in aux:
        if get_primary is None:
            raise ConfigError(
                f"{function_name(chosen.cook)} needs the files of its own dataset; give "
                "get_primary_aux, a function that returns their store"
            )
        primary = _decoding(encoder, get_primary())
    stores = {name: _decoding(encoder, store) for name, store in aux.items()}
    return MapDataset(dataset, Cook(encoder, "cook_crude_sample", chosen, stores, primary))


def _decoding(encoder: Any, store: FileStore[Any]) -> FileStore[Any]:
    decoder = encoder.decoder
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)


def encoding(encoder: Any, samples: Dataset[Any]) -> Dataset[Any]:
    """Return samples after the first of the hooks; one that does nothing costs nothing."""
    active = active_hooks(encoder)
    for name in ("preencode_sample", "encode_sample"):
        if name in active:
            return MapDataset(samples, Hook(encoder, name))
    return samples


def batching(
    encoder: Any,
    samples: Dataset[Any],
    batch_size: int | None,
    drop_last: bool,
    packing_buffer_size: int | None,
) -> Dataset[Any]:
    """Return encoded samples as packs, and as batches."""
    active = active_hooks(encoder)
    if packing_buffer_size is not None:
        samples = _packed(encoder, samples, packing_buffer_size, active)
    else:
        if active.issuperset(_PACKING):
            _log.warning(
                "%s has hooks that pack, and packing_buffer_size is not given: nothing is packed",
                type(encoder).__name__,
            )
        if "postencode_sample" in active:
            samples = MapDataset(samples, Hook(encoder, "postencode_sample"))
    batch = Hook(encoder, "batch")
    if "batch_group_criterion" in active:
        criterion = Hook(encoder, "batch_group_criterion")
        batches: Dataset[Any] = GroupBatchDataset(
            samples, batch_size, criterion, batch, drop_last=drop_last
        )
    elif batch_size is None:
        return samples
    else:
        batches = BatchDataset(samples, batch_size, batch, drop_last=drop_last)
    return after_batch(encoder, batches)


def after_batch(encoder: Any, batches: Dataset[Any]) -> Dataset[Any]:
    """Return raw batches after the last hook."""
    if "encode_batch" in active_hooks(encoder):
        return MapDataset(batches, Hook(encoder, "encode_batch"))
    return batches


def _packed(
    encoder: Any, samples: Dataset[Any], buffer_size: int, active: frozenset[str]
) -> Dataset[Any]:
    missing = [name for name in _PACKING if name not in active]
    if missing:
        raise ConfigError(
            f"packing_buffer_size={buffer_size} is given, and {type(encoder).__name__} has no "
            f"{' and no '.join(missing)}: packing needs both"
        )
    post = Hook(encoder, "postencode_sample") if "postencode_sample" in active else None
    if post is not None and generates(post):
        raise ConfigError(
            f"{function_name(post)} is a generator "
            "function: under packing it returns the sample of a pack, and what yields is "
            "preencode_sample or pack_selected_samples"
        )
    select, pack = (Hook(encoder, name) for name in _PACKING)
    return PackingDataset(samples, buffer_size, select, pack, sample_encoder=post)


def training(
    encoder: Any,
    datasets: Sequence[LoadedDataset],
    batch_size: int | None,
    *,
    worker_config: WorkerConfig | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_buffer_size: int | None = None,
    blend_mode: Any = None,
    repeat: bool = True,
) -> Dataset[Any]:
    """Return loaded datasets by their weights or repetitions, through all hooks.

    What each is shuffled like was said when it was loaded, and `blend_mode` shows in which of the
    two numbers they have.
    """
    samples = [encoder._load_dataset(each, 0, worker_config) for each in datasets]
    mixed: Dataset[Any] = samples[0]
    if len(samples) > 1 and all(each.repetitions is not None for each in datasets):
        passes = [Quota(repeat=each.repetitions) for each in datasets]
        mixed = QuotaDataset(list(zip(samples, passes, strict=True)), shuffle=True)
    elif len(samples) > 1:
        weights = [1 if each.weight is None else each.weight for each in datasets]
        mixed, repeat = BlendDataset(list(zip(samples, weights, strict=True))), False
    mixed = RepeatDataset(mixed) if repeat else mixed
    batches = _through(encoder, mixed, batch_size, batch_drop_last, packing_buffer_size)
    if virtual_epoch_length:
        batches = EpochizeDataset(batches, virtual_epoch_length)
    return batches._with_worker_config(worker_config)


def validation(
    encoder: Any,
    datasets: Sequence[LoadedDataset],
    batch_size: int | None,
    *,
    worker_config: WorkerConfig | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
) -> Dataset[Any]:
    """Return loaded datasets one after the other, through all hooks."""
    samples = ConcatDataset(*(encoder._load_dataset(each, 0, worker_config) for each in datasets))
    batches = _through(encoder, samples, batch_size, batch_drop_last, packing_buffer_size)
    batches = batches._with_worker_config(worker_config)
    return batches if limit is None else LimitDataset(batches, limit)


def _through(
    encoder: Any,
    samples: Dataset[Any],
    batch_size: int | None,
    drop_last: bool,
    packing_buffer_size: int | None,
) -> Dataset[Any]:
    batches: Dataset[Any] = encoder.build_batch(
        encoder.build_encode_sample(samples),
        batch_size=batch_size,
        batch_drop_last=drop_last,
        packing_buffer_size=packing_buffer_size,
    )
    return batches

"""The datasets that the hooks of a task encoder make, one on top of another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from energize.core.call import function_name, generates
from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.core.samples import CrudeSample
from energize.core.stores import DecodeFileStore, FileStore
from energize.datasets.batch import BatchDataset
from energize.datasets.blend import BlendDataset
from energize.datasets.group import GroupBatchDataset
from energize.datasets.order import ConcatDataset, EpochizeDataset, LimitDataset, RepeatDataset
from energize.datasets.packing import PackingDataset
from energize.datasets.quota import QuotaDataset
from energize.datasets.transform import MapDataset
from energize.errors import ConfigError
from energize.order.quota import Quota
from energize.task.cook import Cook, cooker_for, needs_of
from energize.task.hooks import Hook, active_hooks

_log = logging.getLogger("energize")

_PACKING = ("select_samples_to_pack", "pack_selected_samples")


def cooking(
    encoder: Any,
    dataset: Dataset[Any],
    subflavors: Mapping[str, Any],
    get_primary: Callable[[], FileStore[Any]],
    aux: Mapping[str, FileStore[Any]],
) -> Dataset[Any]:
    """The samples of a crude dataset, cooked by the first cooker that fits."""
    chosen = cooker_for(encoder.cookers, subflavors, f"{dataset.sources[0].name}")
    primary = None
    if "primary" in needs_of(chosen.cook) and "primary" not in aux:
        primary = _decoding(encoder, get_primary())
    stores = {name: _decoding(encoder, store) for name, store in aux.items()}
    return MapDataset(dataset, Cook(encoder, "cook_crude_sample", chosen, stores, primary))


def encoding(encoder: Any, samples: Dataset[Any]) -> Dataset[Any]:
    """Samples through the first of the hooks; one that does nothing costs nothing."""
    for name in ("preencode_sample", "encode_sample"):
        if name in active_hooks(encoder):
            return MapDataset(samples, Hook(encoder, name))
    return samples


def batching(
    encoder: Any,
    samples: Dataset[Any],
    batch_size: int | None,
    drop_last: bool,
    packing_buffer_size: int | None,
) -> Dataset[Any]:
    """Encoded samples as packs, and as batches."""
    active = active_hooks(encoder)
    if packing_buffer_size is not None:
        samples = _packed(encoder, samples, packing_buffer_size)
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
    elif batch_size is not None:
        batches = BatchDataset(samples, batch_size, batch, drop_last=drop_last)
    else:
        return samples
    return after_batch(encoder, batches)


def after_batch(encoder: Any, batches: Dataset[Any]) -> Dataset[Any]:
    """Raw batches through the last hook."""
    if "encode_batch" in active_hooks(encoder):
        return MapDataset(batches, Hook(encoder, "encode_batch"))
    return batches


def _packed(encoder: Any, samples: Dataset[Any], buffer_size: int) -> Dataset[Any]:
    active = active_hooks(encoder)
    missing = [name for name in _PACKING if name not in active]
    if missing:
        raise ConfigError(
            f"packing_buffer_size={buffer_size} is given, and {type(encoder).__name__} has no "
            f"{' and no '.join(missing)}: packing needs both select_samples_to_pack and "
            "pack_selected_samples"
        )
    post = None
    if "postencode_sample" in active:
        post = Hook(encoder, "postencode_sample")
        if generates(post):
            raise ConfigError(
                f"{function_name(post)} is a generator "
                "function: under packing it returns the sample of a pack, and what yields is "
                "preencode_sample or pack_selected_samples"
            )
    select, pack = (Hook(encoder, name) for name in _PACKING)
    return PackingDataset(samples, buffer_size, select, pack, sample_encoder=post)


def _decoding(encoder: Any, store: FileStore[Any]) -> FileStore[Any]:
    decoder = encoder.decoder
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)


def training(
    encoder: Any,
    datasets: Sequence[Any],
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
    """Loaded datasets by their weights or repetitions, through all hooks.

    What each is shuffled like was said when it was loaded, and `blend_mode` shows in which of the
    two numbers they have.
    """
    samples = [encoder._load_dataset(each, 0, worker_config) for each in datasets]
    if len(samples) == 1:
        mixed = RepeatDataset(samples[0]) if repeat else samples[0]
    elif all(each.repetitions is not None for each in datasets):
        passes = [Quota(repeat=each.repetitions) for each in datasets]
        mixed = QuotaDataset(list(zip(samples, passes, strict=True)), shuffle=True)
        mixed = RepeatDataset(mixed) if repeat else mixed
    else:
        weights = [1 if each.weight is None else each.weight for each in datasets]
        mixed = BlendDataset(list(zip(samples, weights, strict=True)))
    batches = _through(encoder, mixed, batch_size, batch_drop_last, packing_buffer_size)
    if virtual_epoch_length:
        batches = EpochizeDataset(batches, virtual_epoch_length)
    return batches._with_worker_config(worker_config)


def validation(
    encoder: Any,
    datasets: Sequence[Any],
    batch_size: int | None,
    *,
    worker_config: WorkerConfig | None = None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
) -> Dataset[Any]:
    """Loaded datasets one after the other, through all hooks."""
    samples = ConcatDataset(*(encoder._load_dataset(each, 0, worker_config) for each in datasets))
    batches = _through(encoder, samples, batch_size, batch_drop_last, packing_buffer_size)
    if limit is not None:
        batches = LimitDataset(batches, limit)
    return batches._with_worker_config(worker_config)


def loading(encoder: Any, loaded: Any, worker_config: WorkerConfig | None) -> Dataset[Any]:
    """The samples of a loaded dataset, cooked where that has to be."""
    samples: Dataset[Any] = loaded.dataset.build()
    if loaded.dataset.__sample_type__ is not CrudeSample or not encoder.cookers:
        return samples
    cooked: Dataset[Any] = encoder.build_cook_crude_sample(
        samples,
        worker_config=worker_config,
        subflavors=loaded.dataset.subflavors,
        get_primary_aux=loaded.dataset.as_file_store,
        aux=loaded.aux,
    )
    return cooked


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

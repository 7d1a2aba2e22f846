"""Datasets that a task encoder puts together itself, of those of a metadataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from energize.core.dataset import Dataset
from energize.core.lanes import WorkerConfig
from energize.errors import ConfigError
from energize.metadataset.blending import Mixer
from energize.metadataset.loader import load_dataset
from energize.metadataset.loader_interface import LoadedDatasetList
from energize.metadataset.nodes import Blend, Leaf, Staged
from energize.task.hooks import check_encoder

GivenMix = str | os.PathLike[str] | Mapping[str, Any] | Leaf | Blend | Staged


def trained_by(
    encoder: Any,
    path: GivenMix,
    split_part: str,
    mixer: Mixer,
    *,
    virtual_epoch_length: int,
    repeat: bool,
) -> Dataset[Any]:
    """What `encoder.build_train_datasets` makes."""
    order = mixer.order
    loaded = _loaded(
        encoder,
        path,
        split_part,
        mixer,
        training=True,
        shuffle_over_epochs_multiplier=order.shuffle_over_epochs_multiplier,
        max_samples_per_sequence=order.max_samples_per_sequence,
    )
    built = encoder.build_train_datasets(
        **_given(loaded, mixer),
        shuffle_buffer_size=order.shuffle_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        blend_mode=loaded.blend_mode,
        repeat=repeat,
    )
    return cast("Dataset[Any]", built)


def validated_by(
    encoder: Any, path: GivenMix, split_part: str, mixer: Mixer, *, limit: int | None
) -> Dataset[Any]:
    """What `encoder.build_val_datasets` makes."""
    loaded = _loaded(encoder, path, split_part, mixer, training=False)
    built = encoder.build_val_datasets(**_given(loaded, mixer), limit=limit)
    return cast("Dataset[Any]", built)


def _loaded(
    encoder: Any, path: GivenMix, split_part: str, mixer: Mixer, **options: Any
) -> LoadedDatasetList:
    check_encoder(encoder)
    if isinstance(path, Leaf | Blend | Staged):
        raise ConfigError(
            f"{type(encoder).__name__} builds its dataset itself, of the datasets of a file; here "
            "the mix has been read already, or is one stage of several. Give the path, or leave "
            "building to get_train_dataset"
        )
    return load_dataset(path).get_datasets(
        split_part=split_part,
        worker_config=mixer.worker_config or WorkerConfig(),
        decoder=encoder.decoder,
        **options,
    )


def _given(loaded: LoadedDatasetList, mixer: Mixer) -> dict[str, Any]:
    """What both are given."""
    return {
        "datasets": loaded.datasets,
        "worker_config": mixer.worker_config or WorkerConfig(),
        "batch_size": mixer.batch_size,
        "batch_drop_last": mixer.drop_last,
        "packing_buffer_size": mixer.packing_buffer_size,
    }

"""From the leaves of a metadataset to datasets of typed samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from energize.dataset import Dataset
from energize.errors import EnergizeError
from energize.metadataset.resolving import Leaf, combined_multiplier
from energize.samples.crude import CrudeSample
from energize.samples.registry import sample_type_named
from energize.sources.webdataset import WebdatasetSource
from energize.storage.nv_meta import CRUDE, DatasetConfig, read_dataset_yaml
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.loading import SampleLoader
from energize.wrappers.map import MapDataset
from energize.wrappers.shuffle import ShuffleDataset

__all__ = ["ordered_source", "sample_type_of", "typed_samples"]


def ordered_source(
    leaf: Leaf,
    *,
    seed: int,
    shuffle: bool,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
) -> Dataset[dict[str, Any]]:
    """The raw samples of a leaf: in stored order, or in a new order each epoch."""
    with _place_noted(leaf):
        source = WebdatasetSource(
            leaf.path, split_part=leaf.split_part, split_config=leaf.split_config, seed=seed
        )
    over_epochs = combined_multiplier(
        shuffle_over_epochs_multiplier, leaf.shuffle_over_epochs_multiplier
    )
    if not shuffle or over_epochs is None:
        return source
    return ShuffleDataset(
        source,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        over_epochs=over_epochs,
    )


def sample_type_of(leaf: Leaf) -> type[Any]:
    """The type of samples that the folder's dataset.yaml names."""
    with _place_noted(leaf):
        config = _config(leaf)
        if config.sample_class == CRUDE:
            return CrudeSample
        return sample_type_named(config.sample_module, config.sample_class)


def typed_samples(
    raw: Dataset[dict[str, Any]], leaf: Leaf, decoder: SampleDecoder | None
) -> Dataset[Any]:
    """Samples of the type that the folder's dataset.yaml names, decoded."""
    sample_type = sample_type_of(leaf)
    with _place_noted(leaf):
        config = _config(leaf)
        loader: SampleLoader[Any] = SampleLoader(
            sample_type=sample_type,
            field_map=None if sample_type is CrudeSample else config.field_map,
            decoder=decoder,
            subflavors={**config.subflavors, **leaf.subflavors},
        )
    return MapDataset(raw, loader, seeded=False)


def _config(leaf: Leaf) -> DatasetConfig:
    return read_dataset_yaml(leaf.path, leaf.dataset_config or "dataset.yaml")


@contextmanager
def _place_noted(leaf: Leaf) -> Iterator[None]:
    """Says in errors where the folder was asked for."""
    try:
        yield
    except EnergizeError as error:
        if not leaf.place:
            raise
        raise type(error)(f"{error}\n  asked for at {leaf.place}") from error

"""From the leaves of a metadataset to datasets of typed samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from energize.dataset import Dataset
from energize.errors import ConfigError, DatasetError, EnergizeError
from energize.metadataset.resolving import Leaf, combined_multiplier
from energize.samples.crude import CrudeSample
from energize.samples.registry import sample_type_named
from energize.sources.webdataset import WebdatasetSource
from energize.storage.nv_meta import CRUDE, DatasetConfig, read_dataset_yaml
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.loading import SampleLoader
from energize.wrappers.map import MapDataset
from energize.wrappers.shuffle import ShuffleDataset

__all__ = ["TrainingOrder", "ordered_source", "place_noted", "sample_type_of", "typed_samples"]


def ordered_source(
    leaf: Leaf,
    *,
    seed: int,
    shuffle: bool,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
) -> Dataset[dict[str, Any]]:
    """The raw samples of a leaf: in stored order, or in a new order each epoch.

    What the folder's dataset.yaml says of the order holds where nothing else was asked.
    """
    with place_noted(leaf.place):
        options = _config(leaf).options
        source = WebdatasetSource(
            leaf.path, split_part=leaf.split_part, split_config=leaf.split_config, seed=seed
        )
    over_epochs = combined_multiplier(
        shuffle_over_epochs_multiplier, leaf.shuffle_over_epochs_multiplier
    )
    over_epochs = combined_multiplier(over_epochs, options.get("shuffle_over_epochs", 1))
    if not shuffle or over_epochs is None:
        return source
    if max_samples_per_sequence is None:
        max_samples_per_sequence = options.get("max_samples_per_sequence")
    return ShuffleDataset(
        source,
        shuffle_buffer_size=shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        over_epochs=over_epochs,
    )


@dataclass(frozen=True, slots=True)
class TrainingOrder:
    """The order in which training reads leaves; see `ShuffleDataset`."""

    seed: int = 0
    shuffle_buffer_size: int | None = None
    max_samples_per_sequence: int | None = None
    shuffle_over_epochs_multiplier: int | None = 1

    def source(self, leaf: Leaf, *, by_quota: bool) -> Dataset[dict[str, Any]]:
        """The raw samples of a leaf; in stored order for a quota, which decides the order.

        Raises `ConfigError` when another order was asked of that.
        """
        if by_quota:
            self._check_unordered(leaf)
        return ordered_source(
            leaf,
            seed=self.seed,
            shuffle=not by_quota,
            shuffle_buffer_size=self.shuffle_buffer_size,
            max_samples_per_sequence=self.max_samples_per_sequence,
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs_multiplier,
        )

    def _check_unordered(self, leaf: Leaf) -> None:
        over_epochs = "shuffle_over_epochs_multiplier"
        for name, value, allowed in (
            ("shuffle_buffer_size", self.shuffle_buffer_size, (None,)),
            ("max_samples_per_sequence", self.max_samples_per_sequence, (None,)),
            (over_epochs, self.shuffle_over_epochs_multiplier, (None, 1)),
            (over_epochs, leaf.shuffle_over_epochs_multiplier, (1,)),
        ):
            if value not in allowed:
                with place_noted(leaf.place):
                    raise ConfigError(
                        f"{name}={value} says in which order a dataset is read, but here a quota "
                        "does: each pass over it is in a random order of its own; leave it out"
                    )


def sample_type_of(leaf: Leaf) -> type[Any]:
    """The type of samples that the folder's dataset.yaml names."""
    with place_noted(leaf.place):
        config = _config(leaf)
        if config.sample_class == CRUDE:
            return CrudeSample
        return sample_type_named(config.sample_module, config.sample_class)


def typed_samples(
    raw: Dataset[dict[str, Any]], leaf: Leaf, decoder: SampleDecoder | None
) -> Dataset[Any]:
    """Samples of the type that the folder's dataset.yaml names, decoded."""
    sample_type = sample_type_of(leaf)
    with place_noted(leaf.place):
        config = _config(leaf)
        if sample_type is CrudeSample and "part_filter" in config.options:
            raise DatasetError(
                f"{leaf.path}: the part_filter in dataset.yaml is not applied to samples that stay "
                "dicts of their parts; remove it, and let the task encoder leave parts out"
            )
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
def place_noted(place: str) -> Iterator[None]:
    """Says in errors where what they are about was asked for: `file:line (path)`."""
    try:
        yield
    except EnergizeError as error:
        if not place:
            raise
        raise type(error)(f"{error}\n  asked for at {place}") from error

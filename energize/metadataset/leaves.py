"""From the leaves of a metadataset to datasets of typed samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from energize.dataset import Dataset
from energize.errors import ConfigError, DatasetError
from energize.metadataset.problems import place_noted
from energize.metadataset.resolving import Leaf, combined_multiplier
from energize.samples.crude import CrudeSample
from energize.sources.webdataset import WebdatasetSource
from energize.task_encoder.decoding import SampleDecoder
from energize.task_encoder.loading import SampleLoader
from energize.wrappers.map import MapDataset
from energize.wrappers.shuffle import ShuffleDataset


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """The order in which leaves are read; see `ShuffleDataset`.

    What the folder's dataset.yaml says of the order holds where nothing else was asked.
    """

    seed: int = 0
    shuffle_buffer_size: int | None = None
    max_samples_per_sequence: int | None = None
    shuffle_over_epochs_multiplier: int | None = 1

    def source(self, leaf: Leaf) -> Dataset[dict[str, Any]]:
        """The raw samples of a leaf."""
        options = leaf.config.options
        with place_noted(leaf.place):
            source = WebdatasetSource(
                leaf.path,
                split_part=leaf.split_part,
                split_config=leaf.split_config,
                seed=self.seed,
            )
        over_epochs = combined_multiplier(
            combined_multiplier(
                self.shuffle_over_epochs_multiplier, leaf.shuffle_over_epochs_multiplier
            ),
            options.get("shuffle_over_epochs", 1),
        )
        if over_epochs is None:
            return source
        per_sequence = self.max_samples_per_sequence
        if per_sequence is None:
            per_sequence = options.get("max_samples_per_sequence")
        with place_noted(leaf.place):
            return ShuffleDataset(
                source,
                shuffle_buffer_size=self.shuffle_buffer_size,
                max_samples_per_sequence=per_sequence,
                over_epochs=over_epochs,
            )

    def source_by_quota(self, leaf: Leaf) -> Dataset[dict[str, Any]]:
        """The raw samples in stored order, since a quota decides the order.

        Raises `ConfigError` when another order was asked.
        """
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
        return replace(self, shuffle_over_epochs_multiplier=None).source(leaf)


STORED = ReadingOrder(shuffle_over_epochs_multiplier=None)
"""As stored, the same in every epoch."""


def typed_samples(
    raw: Dataset[dict[str, Any]], leaf: Leaf, decoder: SampleDecoder | None
) -> Dataset[Any]:
    """Samples of the type that the folder's dataset.yaml names, decoded."""
    sample_type, config = leaf.sample_type, leaf.config
    crude = sample_type is CrudeSample
    with place_noted(leaf.place):
        if crude and "part_filter" in config.options:
            raise DatasetError(
                f"{leaf.path}: the part_filter in dataset.yaml is not applied to samples that stay "
                "dicts of their parts; remove it, and let the task encoder leave parts out"
            )
        loader: SampleLoader[Any] = SampleLoader(
            sample_type=sample_type,
            field_map=None if crude else config.field_map,
            decoder=decoder,
            subflavors={**config.subflavors, **leaf.subflavors},
        )
    return MapDataset(raw, loader, seeded=False)

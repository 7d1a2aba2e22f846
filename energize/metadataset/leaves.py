"""From the leaves of a metadataset to datasets of typed samples."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, cast

from energize.core.dataset import Dataset
from energize.core.samples import CrudeSample
from energize.data.join import JoinedSource
from energize.data.jsonl import JsonlSource
from energize.data.selection import PropertySource
from energize.data.webdataset import WebdatasetSource
from energize.datasets.order import ShuffleDataset
from energize.datasets.transform import MapDataset, SampleWeightDataset
from energize.errors import ConfigError
from energize.metadataset.inheriting import combined_multiplier
from energize.metadataset.joiners import joining_function
from energize.metadataset.nodes import JoinedLeaf, Leaf
from energize.metadataset.problems import place_noted
from energize.task.decode import SampleDecoder
from energize.task.load import NO_CODE, JoinLoader, LoadingCode, SampleLoader

_BY_QUOTA = (
    "says in which order a dataset is read, but here a quota does: each pass over it is in a "
    "random order of its own"
)

Leaves = WebdatasetSource | JsonlSource | JoinedSource | PropertySource[Any]
"""The sources that a leaf may be read from."""

_log = logging.getLogger("energize")


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """The order in which leaves are read; see `ShuffleDataset`.

    What the folder's dataset.yaml says of the order holds where nothing else was asked.
    """

    seed: int = 0
    shuffle_buffer_size: int | None = None
    max_samples_per_sequence: int | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    checksums: bool = False
    """Whether every sample is compared with its checksum; no order depends on it."""

    def source(self, leaf: Leaf) -> Dataset[Any]:
        """The raw samples of a leaf."""
        options = leaf.config.options
        source: Dataset[Any] = source_of(leaf, self.seed, checksums=self.checksums)
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

    def source_by_quota(self, leaf: Leaf) -> Dataset[Any]:
        """The raw samples in stored order, since a quota decides the order.

        What the program asks of orders is logged and left out. Raises `ConfigError` when the file
        asks for another order.
        """
        for name in ("shuffle_buffer_size", "max_samples_per_sequence"):
            if getattr(self, name) is not None:
                _log.info("%s: %s=%s %s", leaf.path, name, getattr(self, name), _BY_QUOTA)
        over_epochs = "shuffle_over_epochs_multiplier"
        for value, allowed in (
            (self.shuffle_over_epochs_multiplier, (None, 1)),
            (leaf.shuffle_over_epochs_multiplier, (1, None)),
        ):
            if value not in allowed:
                with place_noted(leaf.place):
                    raise ConfigError(f"{over_epochs}={value} {_BY_QUOTA}; leave it out")
        return replace(self, shuffle_over_epochs_multiplier=None).source(leaf)


STORED = ReadingOrder(shuffle_over_epochs_multiplier=None)
"""As stored, the same in every epoch."""


def source_of(leaf: Leaf, seed: int = 0, *, checksums: bool = False) -> Leaves:
    """The raw samples of a leaf as they are stored; of a join, tuples of them."""
    with place_noted(leaf.place):
        source = _whole(leaf, seed, checksums)
        if leaf.subset is not None:
            source = source.part(*leaf.subset.bounds(source.stored_count))
        return source if leaf.chosen is None else PropertySource(source, leaf.chosen)


def _whole(leaf: Leaf, seed: int, checksums: bool) -> WebdatasetSource | JsonlSource | JoinedSource:
    if isinstance(leaf, JoinedLeaf):
        parts = [
            cast("WebdatasetSource", source_of(each.leaf, checksums=checksums))
            for each in leaf.parts
        ]
        nonmatch = [each.nonmatch for each in leaf.parts[1:]]
        return JoinedSource(*parts, nonmatch=nonmatch, cache=leaf.cache, seed=seed)
    if leaf.is_jsonl:
        return JsonlSource(leaf.path, checksums=checksums, seed=seed)
    return WebdatasetSource(
        leaf.path,
        split_part=leaf.split_part,
        split_config=leaf.split_file,
        checksums=checksums,
        seed=seed,
    )


def typed_samples(
    raw: Dataset[Any], leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode = NO_CODE
) -> Dataset[Any]:
    """Samples of the type that the folder's dataset.yaml names, decoded; of a join, those that its
    joiner makes of them; with the weight that files give them. `code` is what the program allows
    of functions that it names.
    """
    samples = _loaded(raw, leaf, decoder, code)
    if leaf.sample_weight is None:
        return samples
    return SampleWeightDataset(samples, leaf.sample_weight)


def _loaded(
    raw: Dataset[Any], leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode
) -> Dataset[Any]:
    if not isinstance(leaf, JoinedLeaf):
        return MapDataset(raw, loader_of(leaf, decoder, code), seeded=False)
    with place_noted(leaf.place):
        loaders = [loader_of(each.leaf, decoder, code) for each in leaf.parts]
        names = tuple(each.name for each in leaf.parts if each.name is not None)
        function = joining_function(leaf.joiner, leaf.place)
        loader = JoinLoader(tuple(loaders), names or None, function)
    return MapDataset(raw, loader, seeded=False)


def loader_of(
    leaf: Leaf, decoder: SampleDecoder | None, code: LoadingCode = NO_CODE
) -> SampleLoader[Any]:
    """What makes typed samples of the raw ones of a leaf that is no join."""
    sample_type, config = leaf.sample_type, leaf.config
    crude = sample_type is CrudeSample
    with place_noted(leaf.place):
        sample_loader, part_filter = code.of(leaf.path, config.code, crude=crude)
        loader: SampleLoader[Any] = SampleLoader(
            sample_type=sample_type,
            field_map=None if crude or sample_loader is not None else config.field_map,
            decoder=decoder,
            subflavors={**config.subflavors, **leaf.subflavors},
            sample_loader=sample_loader,
            part_filter=part_filter,
        )
    return loader

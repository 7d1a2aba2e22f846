"""From the tree of a metadataset to one dataset of training batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.errors import ConfigError
from energize.metadataset.flattening import leaves_of, parts_with_shares
from energize.metadataset.leaves import TrainingOrder, place_noted, typed_samples
from energize.metadataset.resolving import Blend, Leaf, Node
from energize.order.epochs.quotas import Quota
from energize.task_encoder.encoder import TaskEncoder, active_hooks
from energize.wrappers.batch import BatchDataset
from energize.wrappers.blend import BlendDataset
from energize.wrappers.composed import ComposedDataset
from energize.wrappers.map import MapDataset
from energize.wrappers.quota import QuotaDataset
from energize.wrappers.repeat import RepeatDataset

__all__ = ["Mixer", "batched", "encoded", "ends"]


@dataclass(frozen=True)
class Mixer:
    """Makes batches of a tree.

    A node whose leaves share one task encoder is mixed sample by sample and batched once. In a node
    above such ones, whole batches of its entries are mixed; when it is plain, entries of one
    encoder count as one.
    """

    order: TrainingOrder
    encoder_of: Callable[[Leaf], TaskEncoder[Any, Any, Any, Any]]
    batch_size: int | None
    drop_last: bool

    def batches(self, node: Node, *, repeat: bool) -> Dataset[Any]:
        """The batches of a node; with `repeat`, one that ends begins anew for ever."""
        encoders = self._encoders(node)
        if len(encoders) > 1 and isinstance(node, Blend):
            return self._mixed_batches(node)
        encoder = encoders[0]
        if isinstance(node, Blend) and node.mixing.composition is not None:
            return self._composed(node, encoder)
        samples = self.samples(node)
        if repeat and ends(samples):
            samples = RepeatDataset(samples)
        return batched(encoded(samples, encoder), encoder, self.batch_size, self.drop_last)

    def samples(self, node: Node, *, by_quota: bool = False) -> Dataset[Any]:
        """The samples of a node, which has one encoder; in stored order for a quota."""
        if isinstance(node, Leaf):
            source = self.order.source(node, by_quota=by_quota)
            return typed_samples(source, node, self.encoder_of(node).decoder)
        if node.plain:
            parts = parts_with_shares(node)
            return _blended([self.samples(part) for part, _ in parts], [w for _, w in parts])
        if node.mixing.composition is not None:
            with place_noted(node.place):
                raise ConfigError(
                    "composition says what a global batch is made of, and this blend is a part of "
                    "another; give it to the outermost one"
                )
        if node.mixing.quotas is not None:
            return self._by_quotas(node, node.mixing.quotas)
        return _mixed([self.samples(child) for child, _ in node.children], node)

    def _mixed_batches(self, node: Blend) -> Dataset[Any]:
        if node.plain:
            groups = self._by_encoder(parts_with_shares(node))
            batches = [self.batches(group, repeat=True) for group, _ in groups]
            return _blended(batches, [share for _, share in groups])
        if node.mixing.quotas is not None:
            with place_noted(node.place):
                raise ConfigError(
                    "quotas and composition count samples, and the entries of this blend go "
                    "through several task encoders, each with batches of its own; mix these by "
                    "weight"
                )
        limits = node.mixing.max_epochs or (None,) * len(node.children)
        endless = node.mixing.stop in (None, "restart")
        batches = [
            self.batches(child, repeat=endless and most is None)
            for (child, _), most in zip(node.children, limits, strict=True)
        ]
        return _mixed(batches, node)

    def _by_quotas(self, node: Blend, quotas: Sequence[Quota]) -> Dataset[Any]:
        streams = [self.samples(child, by_quota=True) for child, _ in node.children]
        with place_noted(node.place):
            return QuotaDataset(
                list(zip(streams, quotas, strict=True)),
                epoch_size=node.mixing.epoch_size,
                sampling_method=node.mixing.sampling_method,
                shuffle=self._shuffle,
            )

    def _composed(self, node: Blend, encoder: TaskEncoder[Any, Any, Any, Any]) -> Dataset[Any]:
        streams = [
            encoded(self.samples(child, by_quota=True), encoder) for child, _ in node.children
        ]
        mixing = node.mixing
        with place_noted(node.place):
            if self.batch_size is None or mixing.composition is None or mixing.quotas is None:
                raise ConfigError("composition is about batches, and batch_size is None")
            drop_last = mixing.composition.drop_last
            batches: Dataset[Any] = ComposedDataset(
                list(zip(streams, mixing.quotas, strict=True)),
                batch_size=self.batch_size,
                global_batch_size=mixing.composition.global_batch_size,
                batching_method=mixing.composition.method,
                batcher=encoder.batch,
                epoch_size=mixing.epoch_size,
                sampling_method=mixing.sampling_method,
                shuffle=self._shuffle,
                drop_last=self.drop_last if drop_last is None else drop_last,
            )
        return _after_batch(batches, encoder)

    @property
    def _shuffle(self) -> bool:
        return self.order.shuffle_over_epochs_multiplier is not None

    def _encoders(self, node: Node) -> list[TaskEncoder[Any, Any, Any, Any]]:
        """The encoders of the leaves, each once."""
        encoders = [self.encoder_of(leaf) for leaf in leaves_of(node)]
        return list({id(encoder): encoder for encoder in encoders}.values())

    def _by_encoder(self, parts: Sequence[tuple[Node, Fraction]]) -> list[tuple[Node, Fraction]]:
        """Parts of one encoder as one plain blend."""
        groups: dict[int, list[tuple[Node, Fraction]]] = {}
        for number, (part, share) in enumerate(parts):
            encoders = self._encoders(part)
            key = id(encoders[0]) if len(encoders) == 1 else -1 - number
            groups.setdefault(key, []).append((part, share))
        return [
            (_plain(group), sum((share for _, share in group), Fraction(0)))
            for group in groups.values()
        ]


def encoded(samples: Dataset[Any], encoder: TaskEncoder[Any, Any, Any, Any]) -> Dataset[Any]:
    """Samples through `encode_sample`; a hook that does nothing costs nothing."""
    if "encode_sample" in active_hooks(encoder):
        return MapDataset(samples, encoder.encode_sample)
    return samples


def batched(
    samples: Dataset[Any],
    encoder: TaskEncoder[Any, Any, Any, Any],
    batch_size: int | None,
    drop_last: bool,
) -> Dataset[Any]:
    """Encoded samples as batches, through the hooks for these."""
    if batch_size is None:
        return samples
    batches = BatchDataset(samples, batch_size, encoder.batch, drop_last=drop_last)
    return _after_batch(batches, encoder)


def ends(dataset: Dataset[Any]) -> bool:
    """Whether it has an end, where the next epoch begins."""
    return not (
        isinstance(dataset, IndexedDataset) and dataset.indexed and dataset.size == INFINITE
    )


def _after_batch(batches: Dataset[Any], encoder: TaskEncoder[Any, Any, Any, Any]) -> Dataset[Any]:
    if "encode_batch" in active_hooks(encoder):
        return MapDataset(batches, encoder.encode_batch)
    return batches


def _plain(group: Sequence[tuple[Node, Fraction]]) -> Node:
    if len(group) == 1:
        return group[0][0]
    weights = _whole([share for _, share in group])
    return Blend(tuple(zip((part for part, _ in group), weights, strict=True)))


def _blended(datasets: Sequence[Dataset[Any]], shares: Sequence[Fraction]) -> Dataset[Any]:
    """Datasets in the exact ratio of their shares, for ever."""
    if len(datasets) == 1:
        return datasets[0]
    return BlendDataset(list(zip(datasets, _whole(shares), strict=True)))


def _mixed(datasets: Sequence[Dataset[Any]], node: Blend) -> Dataset[Any]:
    """Datasets mixed as a node says."""
    weights = [weight for _, weight in node.children]
    limits = node.mixing.max_epochs or ()
    with place_noted(node.place):
        for number, (dataset, most) in enumerate(zip(datasets, limits, strict=False)):
            if most is not None and not ends(dataset):
                raise ConfigError(
                    f"max_epochs of entry [{number}] is {most}, but that blend never ends, so it "
                    "has no epochs; give max_epochs to the datasets in it, or give it a `stop`"
                )
        return BlendDataset(list(zip(datasets, weights, strict=True)), **node.mixing.of_blend)


def _whole(shares: Sequence[Fraction]) -> list[int]:
    common = math.lcm(*(share.denominator for share in shares))
    return [int(share * common) for share in shares]

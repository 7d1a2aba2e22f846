"""From the tree of a metadataset to one dataset of training batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from energize.dataset import INFINITE, Dataset, IndexedDataset
from energize.errors import ConfigError
from energize.metadataset.keys import Composed
from energize.metadataset.leaves import ReadingOrder, typed_samples
from energize.metadataset.problems import place_noted
from energize.metadataset.resolving import Blend, Leaf, Node
from energize.metadataset.shares import leaves_of, plain_parts
from energize.task_encoder.encoder import TaskEncoder, active_hooks
from energize.wrappers.batch import BatchDataset
from energize.wrappers.blend import BlendDataset
from energize.wrappers.composed import ComposedDataset
from energize.wrappers.map import MapDataset
from energize.wrappers.quota import QuotaDataset
from energize.wrappers.repeat import RepeatDataset


@dataclass(frozen=True)
class Mixer:
    """Makes batches of a tree.

    A node whose leaves share one task encoder is mixed sample by sample and batched once. In a node
    above such ones, whole batches of its entries are mixed; when it is plain, entries of one
    encoder count as one.
    """

    order: ReadingOrder
    encoder_of: Callable[[Leaf], TaskEncoder[Any, Any, Any, Any]]
    batch_size: int | None
    drop_last: bool

    def batches(self, node: Node, *, repeat: bool) -> Dataset[Any]:
        """The batches of a node; with `repeat`, one that ends begins anew for ever."""
        encoders = self._encoders(node)
        if len(encoders) > 1 and isinstance(node, Blend):
            return self._mixed_batches(node)
        encoder = encoders[0]
        if isinstance(node, Blend) and node.composition is not None:
            return self._composed(node, node.composition, encoder)
        samples = self.samples(node)
        if repeat and ends(samples):
            samples = RepeatDataset(samples)
        return batched(encoded(samples, encoder), encoder, self.batch_size, self.drop_last)

    def samples(self, node: Node, *, by_quota: bool = False) -> Dataset[Any]:
        """The samples of a node, which has one encoder; in stored order for a quota."""
        if isinstance(node, Leaf):
            source = self.order.source_by_quota(node) if by_quota else self.order.source(node)
            return typed_samples(source, node, self.encoder_of(node).decoder)
        if node.composition is not None:
            with place_noted(node.place):
                raise ConfigError(
                    "composition says what a global batch is made of, and this blend is a part of "
                    "another; give it to the outermost one"
                )
        if node.plain:
            return _blended([(self.samples(part), share) for part, share in plain_parts(node)])
        if node.quotas is None:
            return _mixed([self.samples(child) for child, _ in node.children], node)
        streams = [self.samples(child, by_quota=True) for child, _ in node.children]
        with place_noted(node.place):
            pairs = list(zip(streams, node.quotas, strict=True))
            return QuotaDataset(pairs, shuffle=self._shuffle, **node.options)

    def _mixed_batches(self, node: Blend) -> Dataset[Any]:
        if node.plain:
            groups = self._by_encoder(node)
            return _blended([(self.batches(group, repeat=True), share) for group, share in groups])
        if node.quotas is not None:
            with place_noted(node.place):
                raise ConfigError(
                    "quotas and composition count samples, and the entries of this blend go "
                    "through several task encoders, each with batches of its own; mix these by "
                    "weight"
                )
        limits = node.options.get("max_epochs") or [None] * len(node.children)
        endless = node.options.get("stop", "restart") == "restart"
        batches = [
            self.batches(child, repeat=endless and most is None)
            for (child, _), most in zip(node.children, limits, strict=True)
        ]
        return _mixed(batches, node)

    def _composed(
        self, node: Blend, composed: Composed, encoder: TaskEncoder[Any, Any, Any, Any]
    ) -> Dataset[Any]:
        streams = [
            encoded(self.samples(child, by_quota=True), encoder) for child, _ in node.children
        ]
        with place_noted(node.place):
            if self.batch_size is None or node.quotas is None:
                raise ConfigError("composition is about batches, and batch_size is None")
            drop_last = composed.drop_last
            batches: Dataset[Any] = ComposedDataset(
                list(zip(streams, node.quotas, strict=True)),
                batch_size=self.batch_size,
                global_batch_size=composed.global_batch_size,
                batching_method=composed.method,
                batcher=encoder.batch,
                shuffle=self._shuffle,
                drop_last=self.drop_last if drop_last is None else drop_last,
                **node.options,
            )
        return _after_batch(batches, encoder)

    @property
    def _shuffle(self) -> bool:
        return self.order.shuffle_over_epochs_multiplier is not None

    def _encoders(self, node: Node) -> list[TaskEncoder[Any, Any, Any, Any]]:
        """The encoders of the leaves, each once."""
        encoders = [self.encoder_of(leaf) for leaf in leaves_of(node)]
        return list({id(encoder): encoder for encoder in encoders}.values())

    def _by_encoder(self, node: Blend) -> list[tuple[Node, Fraction]]:
        """The parts of plain blends in each other, those of one encoder as one plain blend, with
        their shares.
        """
        groups: dict[int, list[tuple[Node, Fraction]]] = {}
        for number, (part, share) in enumerate(plain_parts(node)):
            encoders = self._encoders(part)
            key = id(encoders[0]) if len(encoders) == 1 else -1 - number
            groups.setdefault(key, []).append((part, share))
        return [
            (
                group[0][0] if len(group) == 1 else Blend(tuple(group)),
                sum((share for _, share in group), Fraction(0)),
            )
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


def _blended(parts: Sequence[tuple[Dataset[Any], Fraction]]) -> Dataset[Any]:
    """Datasets by their shares, for ever; one alone as it is."""
    return BlendDataset(parts) if len(parts) > 1 else parts[0][0]


def _mixed(datasets: Sequence[Dataset[Any]], node: Blend) -> Dataset[Any]:
    """Datasets mixed as a node says."""
    limits = node.options.get("max_epochs", ())
    with place_noted(node.place):
        for number, (dataset, most) in enumerate(zip(datasets, limits, strict=False)):
            if most is not None and not ends(dataset):
                raise ConfigError(
                    f"max_epochs of entry [{number}] is {most}, but that blend never ends, so it "
                    "has no epochs; give max_epochs to the datasets in it, or give it a `stop`"
                )
        weights = [weight for _, weight in node.children]
        return BlendDataset(list(zip(datasets, weights, strict=True)), **node.options)

"""From the tree of a metadataset to one dataset of training batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import WorkerConfig
from energize.core.samples import CrudeSample
from energize.core.stream import INFINITE
from energize.data.stores import open_store
from energize.datasets.blend import BlendDataset
from energize.datasets.item_cost import ItemCost
from energize.datasets.order import ConcatDataset, RepeatDataset
from energize.datasets.quota import ComposedDataset, QuotaDataset
from energize.errors import ConfigError
from energize.metadataset.leaves import ReadingOrder, typed_samples
from energize.metadataset.problems import place_noted
from energize.metadataset.resolving import Blend, Leaf, Node
from energize.metadataset.shares import PlainPart, leaves_of, plain_parts
from energize.metadataset.tables import Composed
from energize.task.build import Level, PackingEncoder
from energize.task.encoder import TaskEncoder
from energize.task.hooks import Hook, check_takes
from energize.task.load import NO_CODE, LoadingCode
from energize.task.pipeline import after_batch


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
    packing_buffer_size: int | None = None
    worker_config: WorkerConfig | None = None
    code: LoadingCode = NO_CODE
    encoded: bool = False
    """Whether samples are encoded below the blends, as these count what encoded samples cost."""
    level: Level | None = None

    def batches(self, node: Node, *, repeat: bool) -> Dataset[Any]:
        """The batches of a node; with `repeat`, one that ends begins anew for ever."""
        if node.packing is not None or node.level is not None:
            plain = replace(node, packing=None, level=None)
            return self.as_told(node).batches(plain, repeat=repeat)
        encoders = self._encoders(node)
        if self.level is not None:
            _check_level(node, len(encoders))
        if len(encoders) > 1 and isinstance(node, Blend):
            return self._mixed_batches(node)
        encoder = encoders[0]
        if isinstance(node, Blend) and node.composition is not None:
            return self._composed(node, node.composition, encoder)
        mixer = replace(self, encoded=_counts_encoded(node))
        samples = mixer.samples(node)
        if repeat and ends(samples):
            samples = RepeatDataset(samples)
        with place_noted("" if self.level is None else node.place):
            return mixer.batched(samples, encoder)

    def batched(
        self, samples: Dataset[Any], encoder: TaskEncoder[Any, Any, Any, Any]
    ) -> Dataset[Any]:
        """Samples through the hooks of their encoder, to batches."""
        if not self.encoded:
            samples = encoder.build_encode_sample(samples, worker_config=self.worker_config)
        if self.level is not None:
            return self.level.batches(
                encoder,
                samples,
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                packing_buffer_size=self.packing_buffer_size,
            )
        return encoder.build_batch(
            samples,
            batch_size=self.batch_size,
            batch_drop_last=self.drop_last,
            packing_buffer_size=self.packing_buffer_size,
            worker_config=self.worker_config,
        )

    def as_told(self, node: Node) -> Mixer:
        """One that packs the samples of a node, and levels its batches, as it says."""
        mixer = self._packing_as(node)
        if node.level is None:
            return mixer
        with place_noted(node.place):
            if self.level is not None:
                raise ConfigError(
                    "level is said here and by the program that reads the file; give one of the two"
                )
        return replace(mixer, level=node.level.level)

    def _packing_as(self, node: Node) -> Mixer:
        if node.packing is None:
            return self
        encoders, packed = self._encoders(node), node.packing
        with place_noted(node.place):
            if self.packing_buffer_size is not None or len(encoders) > 1:
                raise ConfigError(
                    "packing says how samples are packed, and "
                    + (
                        "so does packing_buffer_size; give one of the two"
                        if self.packing_buffer_size is not None
                        else f"there are {len(encoders)} task encoders, each with batches of its "
                        "own; give one encoder for all samples"
                    )
                )
            encoder = PackingEncoder(encoders[0], packed.packer, *packed.joined)
        return replace(self, encoder_of=lambda _: encoder, packing_buffer_size=packed.buffer_size)

    def samples(self, node: Node, *, by_quota: bool = False) -> Dataset[Any]:
        """The samples of a node, which has one encoder; in stored order for a quota."""
        if isinstance(node, Leaf):
            source = self.order.source_by_quota(node) if by_quota else self.order.source(node)
            samples = self.typed(source, node)
            if not self.encoded:
                return samples
            encoder = self.encoder_of(node)
            return encoder.build_encode_sample(samples, worker_config=self.worker_config)
        if node.composition is not None:
            with place_noted(node.place):
                raise ConfigError(
                    "composition says what a global batch is made of, and this blend is a part of "
                    "another; give it to the outermost one"
                )
        if node.plain:
            parts = [(self.samples(part.node), part) for part in plain_parts(node)]
            return _blended(parts, node)
        if node.kind == "concat":
            with place_noted(node.place):
                return ConcatDataset(*(self.samples(child) for child, _ in node.children))
        if node.quotas is None:
            return _mixed([self.samples(child) for child, _ in node.children], node)
        streams = [self.samples(child, by_quota=True) for child, _ in node.children]
        with place_noted(node.place):
            pairs = list(zip(streams, node.quotas, strict=True))
            shuffle = self._shuffle and _shuffled(node)
            return QuotaDataset(pairs, shuffle=shuffle, **node.options)

    def typed(self, source: Dataset[dict[str, Any]], leaf: Leaf) -> Dataset[Any]:
        """The samples of a leaf: of its type, cooked if they are crude and the encoder does it."""
        encoder = self.encoder_of(leaf)
        samples = typed_samples(source, leaf, encoder.decoder, self.code)
        with place_noted(leaf.place):
            if leaf.sample_type is CrudeSample and encoder.cookers:
                return encoder.build_cook_crude_sample(
                    samples,
                    worker_config=self.worker_config,
                    subflavors={**leaf.config.subflavors, **leaf.subflavors},
                    get_primary_aux=partial(open_store, leaf.path),
                    aux={name: open_store(ref) for name, ref in leaf.aux.items()},
                )
            if leaf.aux:
                raise ConfigError(
                    f"{leaf.path}: aux gives files to cookers of crude samples, and "
                    + (
                        f"{type(encoder).__name__} has no cookers"
                        if leaf.sample_type is CrudeSample
                        else f"these samples are of type {leaf.sample_type.__name__}"
                    )
                )
            for name in ("preencode_sample", "encode_sample"):
                check_takes(encoder, name, leaf.sample_type, str(leaf.path))
        return samples

    def _mixed_batches(self, node: Blend) -> Dataset[Any]:
        if node.plain:
            groups = self._by_encoder(node)
            mixed = [(self.batches(group.node, repeat=True), group) for group in groups]
            return _blended(mixed, node)
        if node.kind == "concat":
            with place_noted(node.place):
                parts = [self.batches(child, repeat=False) for child, _ in node.children]
                return ConcatDataset(*parts)
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
            encoder.build_encode_sample(
                self.samples(child, by_quota=True), worker_config=self.worker_config
            )
            for child, _ in node.children
        ]
        with place_noted(node.place):
            if self.batch_size is None or node.quotas is None:
                raise ConfigError("composition is about batches, and batch_size is None")
            if self.packing_buffer_size is not None:
                raise ConfigError(
                    "composition says of which samples a batch is made, and packing_buffer_size "
                    "leaves that to the packer; give one of the two"
                )
            drop_last = composed.drop_last
            batches: Dataset[Any] = ComposedDataset(
                list(zip(streams, node.quotas, strict=True)),
                batch_size=self.batch_size,
                global_batch_size=composed.global_batch_size,
                batching_method=composed.method,
                batcher=Hook(encoder, "batch"),
                shuffle=self._shuffle,
                drop_last=self.drop_last if drop_last is None else drop_last,
                **node.options,
            )
        return after_batch(encoder, batches)

    @property
    def _shuffle(self) -> bool:
        return self.order.shuffle_over_epochs_multiplier is not None

    def _encoders(self, node: Node) -> list[TaskEncoder[Any, Any, Any, Any]]:
        """The encoders of the leaves, each once."""
        encoders = [self.encoder_of(leaf) for leaf in leaves_of(node)]
        return list({id(encoder): encoder for encoder in encoders}.values())

    def _by_encoder(self, node: Blend) -> list[PlainPart]:
        """The parts of plain blends in each other, those of one encoder as one plain blend, with
        their shares.
        """
        groups: dict[int, list[PlainPart]] = {}
        for number, part in enumerate(plain_parts(node)):
            encoders = self._encoders(part.node)
            key = id(encoders[0]) if len(encoders) == 1 else -1 - number
            groups.setdefault(key, []).append(part)
        return [group[0] if len(group) == 1 else _together(group) for group in groups.values()]


def _check_level(node: Node, encoders: int) -> None:
    """Raise `ConfigError` for what has no batches that could be levelled."""
    with place_noted(node.place):
        if isinstance(node, Blend) and node.composition is not None:
            raise ConfigError(
                "composition says which samples share a batch, and so does level; give one of the "
                "two"
            )
        if encoders > 1:
            raise ConfigError(
                f"level chooses among all samples of a global batch, and there are {encoders} task "
                "encoders, each with batches of its own; give one encoder for all samples"
            )


def ends(dataset: Dataset[Any]) -> bool:
    """Whether it has an end, where the next epoch begins."""
    return not (
        isinstance(dataset, IndexedDataset) and dataset.indexed and dataset.size == INFINITE
    )


def _counts_encoded(node: Node) -> bool:
    """Whether a blend in a tree counts what encoded samples cost."""
    if isinstance(node, Leaf):
        return False
    own = isinstance(node.options.get("unit"), ItemCost)
    return own or any(_counts_encoded(child) for child, _ in node.children)


def _shuffled(node: Blend) -> bool:
    """Whether a blend by quotas may be shuffled; `ConfigError` for some of its datasets only."""
    stored = {leaf.shuffle_over_epochs_multiplier is None for leaf in leaves_of(node)}
    if len(stored) > 1:
        raise ConfigError(
            "some datasets of this blend have shuffle_over_epochs_multiplier: null and others do "
            "not; a blend by quotas shuffles all of them or none"
        )
    return not stored.pop()


def _together(parts: Sequence[PlainPart]) -> PlainPart:
    """Several parts of a blend as one, which is a blend."""
    targets = [part.target for part in parts if part.target is not None]
    children = tuple((part.node, part.share) for part in parts)
    own = tuple(map(float, targets)) if any(targets) else None
    share = sum((part.share for part in parts), Fraction(0))
    target = sum(targets, Fraction(0)) if targets else None
    return PlainPart(Blend(children, targets=own), share, target)


def _blended(parts: Sequence[tuple[Dataset[Any], PlainPart]], node: Blend) -> Dataset[Any]:
    """Datasets by their shares, for ever; one alone as it is."""
    if len(parts) == 1:
        return parts[0][0]
    targets = [part.target for _, part in parts if part.target is not None]
    with place_noted(node.place):
        return BlendDataset(
            [(dataset, part.share) for dataset, part in parts],
            target_weights=targets or None,
            max_correction=node.max_correction,
        )


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
        return BlendDataset(
            list(zip(datasets, weights, strict=True)),
            target_weights=node.targets,
            max_correction=node.max_correction,
            **node.options,
        )

"""From a resolved mix to a dataset of batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

from energize.core.checks import checked_whole
from energize.core.costs import ItemCost
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lanes import WorkerConfig, checked_config
from energize.core.node import INFINITE
from energize.core.samples import CrudeSample
from energize.datasets.blend import BlendDataset
from energize.datasets.mix_args import MixEntry
from energize.datasets.order import (
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    RepeatDataset,
)
from energize.datasets.quota import ComposedDataset, QuotaDataset
from energize.datasets.stage_plan import Stage, stage_label
from energize.datasets.stages import StagedDataset
from energize.errors import ConfigError, EnergizeError
from energize.metadataset.factories import loaded_dataset, loaded_datasets
from energize.metadataset.leaves import Share, mix_weights, plain_shares
from energize.metadataset.located import noted, place_noted
from energize.metadataset.models import CompositionKeys, Packing
from energize.metadataset.nodes import (
    Blend,
    Concat,
    Leaf,
    Mix,
    MixNode,
    Stages,
    every_leaf,
    leaves_of,
)
from energize.metadataset.resolver import not_staged
from energize.task.encoder import (
    DefaultTaskEncoder,
    Level,
    PackingEncoder,
    TaskEncoder,
    apply_encode_batch,
)
from energize.task.hooks import Hook, check_encoder
from energize.task.load import LoadingCode
from energize.task.pipeline import STORED, SampleOrder
from energize.task.planning import BatchBudget, PackPlan

MISSING: Any = object()
"""The default of a batch size, which has to be set."""

T_batch = TypeVar("T_batch")
_log = logging.getLogger("energize")

Encoder: TypeAlias = TaskEncoder[Any, Any, Any, T_batch]
Encoders: TypeAlias = Encoder[T_batch] | Mapping[type[Any], Encoder[T_batch]]
"""One task encoder for all samples, or one for each sample type."""

_BY_QUOTA = (
    "has no effect in a blend by quotas: each pass over a dataset has a random order "
    "of its own"
)


def encoder_chooser(encoders: Any) -> Callable[[Leaf], Encoder[Any]]:
    """Return the function that chooses the task encoder of a leaf.

    Args:
        encoders: One task encoder, or one for each sample type; None for the default.
    """
    if not isinstance(encoders, Mapping):
        only = _checked(DefaultTaskEncoder() if encoders is None else encoders)
        return lambda _: only
    by_type = {
        sample_class: _checked(encoder) for sample_class, encoder in encoders.items()
    }

    def choose(leaf: Leaf) -> Encoder[Any]:
        sample_class = leaf.sample_class
        if sample_class not in by_type:
            raise ConfigError(
                f"{leaf.path} has samples of type {sample_class.__name__}, but the "
                "task encoder for it is missing. The task encoders are for "
                f"{', '.join(name.__name__ for name in by_type)}"
            )
        return by_type[sample_class]

    return choose


def _checked(encoder: object) -> Encoder[Any]:
    if not isinstance(encoder, TaskEncoder):
        hint = ". Call the class to create one" if isinstance(encoder, type) else ""
        expected = "a TaskEncoder, or a dict of sample types and task encoders"
        raise ConfigError(f"task_encoder must be {expected}, got {encoder!r}{hint}")
    check_encoder(encoder)
    return encoder


def batch_size_of(
    stage: Stage[Any], default: int | BatchBudget | None
) -> int | BatchBudget | None:
    """Return the `batch_size` in the stage's `batch`, else the one for all stages.

    Args:
        stage: A stage of a run.
        default: The batch size of stages without their own.

    Raises:
        ConfigError: If it is not a whole number above 0.

    >>> batch_size_of(Stage("long", dataset=None, batch={"batch_size": 2}), 8)
    2
    """
    if "batch_size" not in stage.batch:
        return default
    location = f"{stage_label(stage)}: batch_size in its batch"
    return checked_whole(stage.batch["batch_size"], location, 1)


def check_one_epoch(
    location: object, *, repeat: bool = True, virtual_epoch_length: int = 0
) -> None:
    """Check that a run with stages, which is one epoch, is not cut into epochs.

    Args:
        location: The location of the request, for messages.
        repeat: Whether the run repeats.
        virtual_epoch_length: After how many batches a loop ends.

    Raises:
        ConfigError: If an option cuts epochs.
    """
    cut = "" if repeat else "repeat=False reads once what is there"
    if virtual_epoch_length:
        cut = f"virtual_epoch_length={virtual_epoch_length} cuts epochs"
    if cut:
        raise ConfigError(
            f"{location}: {cut}, but stages are one epoch, the whole run. Remove it"
        )


@dataclass(frozen=True, slots=True)
class Batching:
    """How samples become batches.

    Attributes:
        batch_size: Samples of a batch, or a budget; None for encoded samples.
        drop_last: Whether a short last batch is dropped.
        packing: Samples that the encoder packs at a time, or a plan of packs; None for
            no packing.
    """

    batch_size: int | BatchBudget | None
    drop_last: bool = False
    packing: int | PackPlan | None = None

    def __post_init__(self) -> None:
        if self.drop_last and isinstance(self.batch_size, BatchBudget):
            raise ConfigError(
                "batch_drop_last has no effect with batch_budget, whose batches have "
                "any number of samples. Remove batch_drop_last"
            )

    @classmethod
    def of_arguments(
        cls,
        batch_size: Any,
        drop_last: bool,
        packing_buffer_size: int | None,
        packing: PackPlan | Mapping[str, Any] | None,
        batch_budget: BatchBudget | Mapping[str, int] | None,
    ) -> Batching:
        """Return the batching of arguments of a dataset.

        Raises:
            ConfigError: For arguments that exclude each other, or a missing size.
        """
        if batch_budget is not None:
            if batch_size not in (MISSING, None):
                raise ConfigError(
                    f"batch_size={batch_size} and batch_budget are both set. Remove "
                    "one of them"
                )
            batch_size = BatchBudget.of_argument(batch_budget)
        if batch_size is MISSING:
            raise ConfigError(
                "batch_size is missing. Set batch_size=32 for example, None for single "
                "samples, or batch_budget={'tokens': 32768}"
            )
        if packing is None:
            return cls(batch_size, drop_last, packing_buffer_size)
        if packing_buffer_size is not None:
            raise ConfigError(
                "packing plans packs by columns, and packing_buffer_size packs a "
                "stream. Remove one of them"
            )
        return cls(batch_size, drop_last, PackPlan.of_argument(packing))

    def with_budget(self, budget: Mapping[str, int]) -> Batching:
        """Return the same with the budget of a file; raise if a size is set, too."""
        if self.batch_size is not None:
            raise ConfigError(
                f"batch_budget is set here, and batch_size={self.batch_size} by the "
                "program. Pass batch_size=None, or remove batch_budget"
            )
        return replace(self, batch_size=BatchBudget.of_argument(budget))

    def in_order(self) -> Batching:
        """Return the same for validation: batches keep the order of samples."""
        if not isinstance(self.batch_size, BatchBudget):
            return self
        return replace(self, batch_size=replace(self.batch_size, keep_order=True))

    def options(self) -> dict[str, Any]:
        """Return the arguments of `TaskEncoder.build_batch`."""
        return {
            "batch_size": self.batch_size,
            "batch_drop_last": self.drop_last,
            "packing_buffer_size": self.packing,
        }


@dataclass(frozen=True, slots=True)
class Builder:
    """Builder of the batches of a resolved mix.

    A node with one task encoder is mixed sample by sample and batched once. Above such
    nodes, whole batches are mixed; in a plain blend, entries with the same encoder are
    merged. The order in the dataset.yaml of a folder is a default.

    Args:
        encoder_of: Chooses the task encoder of a leaf.
        order: The order of samples; `over_epochs=None` is the stored order.
        code: Code of folders that may run.
        checksums: Whether each sample is compared with its checksum.
        worker_config: Passed to the dataset; `seed_offset` seeds the order.
        batching: How samples become batches.
        level: How batches are levelled.
        encoded: Whether samples are encoded below blends, which count encoded samples.
    """

    encoder_of: Callable[[Leaf], Encoder[Any]]
    order: SampleOrder
    code: LoadingCode
    checksums: bool
    worker_config: WorkerConfig | None
    batching: Batching
    level: Level | None = None
    encoded: bool = False

    def __post_init__(self) -> None:
        if self.worker_config is not None:
            checked_config(self.worker_config)

    # Whole runs

    def built_by(
        self,
        encoder: Any,
        node: MixNode | Stages,
        location: object,
        *,
        training: bool,
        **options: Any,
    ) -> Dataset[Any]:
        """Return the dataset of an encoder that builds it itself.

        Args:
            encoder: The task encoder.
            node: A resolved mix.
            location: The location of the request, for messages.
            training: Whether the encoder builds a dataset for training.
            options: Other arguments of its method.
        """
        check_encoder(encoder)
        node = not_staged(node, location, "get_datasets makes datasets")
        config = self.worker_config or WorkerConfig()
        loaded = loaded_datasets(
            node,
            replace(self.order, shuffle_buffer_size=None),
            decoder=encoder.decoder,
            seed=config.seed_offset,
            worker_config=config,
        )
        build = encoder.build_val_datasets
        if training:
            build = encoder.build_train_datasets
            options["blend_mode"] = loaded.blend_mode
        dataset: Dataset[Any] = build(
            datasets=loaded.datasets,
            **self.batching.options(),
            **options,
            worker_config=config,
        )
        return dataset

    def trained(
        self,
        node: MixNode | Stages,
        location: object,
        *,
        repeat: bool,
        virtual_epoch_length: int,
    ) -> Dataset[Any]:
        """Return the batches of a mix for training.

        Args:
            node: A resolved mix.
            location: The location of the request, for messages.
            repeat: Whether it repeats without end.
            virtual_epoch_length: After how many batches a loop ends; 0 for its end.
        """
        if isinstance(node, Stages):
            check_one_epoch(
                location, repeat=repeat, virtual_epoch_length=virtual_epoch_length
            )
            return self._staged(node, location)
        batches = (
            self.endless_batches(node) if repeat else self.batches(node, repeat=False)
        )
        if not (repeat or _ends(batches)):
            raise ConfigError(
                f"{location}: repeat=False needs a mix that ends, and a blend of "
                f"{len(leaves_of(node))} weighted parts never ends. Remove repeat, "
                "or set virtual_epoch_length"
            )
        if virtual_epoch_length:
            batches = EpochizeDataset(batches, virtual_epoch_length)
        return batches.with_worker_config(self.worker_config)

    def _staged(self, node: Stages, location: object) -> Dataset[Any]:
        plan = node.plan.with_datasets(self._stage)
        streams = [stage.name for stage in plan.stages if not stage.dataset.indexed]
        if streams:
            _log.warning(
                "%s: stage %s is a stream, so every stage starts its sources at the "
                "beginning",
                location,
                streams[0],
            )
        return StagedDataset(
            plan, carry_over=not streams, worker_config=self.worker_config
        )

    def _stage(self, stage: Stage[MixNode]) -> Dataset[Any]:
        size = batch_size_of(stage, self.batching.batch_size)
        builder = replace(self, batching=replace(self.batching, batch_size=size))
        with place_noted(stage.dataset.location):
            return builder.endless_batches(stage.dataset)

    def endless_batches(self, node: MixNode) -> Dataset[Any]:
        """Return the batches of a node, without end unless the file sets one."""
        return self.batches(node, repeat=not isinstance(node, Mix) or node.repeated)

    def validated(
        self, leaves: Sequence[Leaf], node: MixNode, limit: int | None
    ) -> Dataset[Any]:
        """Return the batches of leaves for validation, one encoder after the other.

        Args:
            leaves: The leaves that are read.
            node: The mix, which sets packing and level.
            limit: The number of batches; None for all.
        """
        groups: dict[int, list[Leaf]] = {}
        for leaf in leaves:
            groups.setdefault(id(self.encoder_of(leaf)), []).append(leaf)
        builder = self._for_node(node)
        builder = replace(builder, batching=builder.batching.in_order())
        parts = []
        for group in groups.values():
            samples = [builder.samples(leaf) for leaf in group]
            whole = samples[0] if len(samples) == 1 else ConcatDataset(*samples)
            parts.append(builder.make_batches(whole, builder.encoder_of(group[0])))
        # Also around one part: fingerprints of saved states include it.
        batches: Dataset[Any] = ConcatDataset(*parts, worker_config=self.worker_config)
        return batches if limit is None else LimitDataset(batches, limit)

    # Batches

    def batches(self, node: MixNode, *, repeat: bool) -> Dataset[Any]:
        """Return the batches of a node.

        Args:
            node: A node of a resolved mix.
            repeat: Whether a node that ends begins again.
        """
        builder = self._for_node(node)
        encoders = builder.encoders_of(node)
        composition = node.composition if isinstance(node, Blend) else None
        if composition is not None or len(encoders) > 1:
            builder.check_no_level(node)
        if isinstance(node, Mix) and len(encoders) > 1:
            return builder.mix_batches(node)
        if isinstance(node, Blend) and composition is not None:
            return builder.compose_batches(node, composition, encoders[0])
        return builder.batches_of_samples(node, encoders[0], repeat=repeat)

    def batches_of_samples(
        self, node: MixNode, encoder: Encoder[Any], *, repeat: bool
    ) -> Dataset[Any]:
        """Return the batches of a node that is mixed sample by sample."""
        builder = replace(self, encoded=True) if _counts_encoded(node) else self
        samples = builder.samples(node)
        if repeat and _ends(samples):
            samples = RepeatDataset(samples)
        with place_noted("" if builder.level is None else node.location):
            return builder.make_batches(samples, encoder)

    def check_no_level(self, node: MixNode) -> None:
        """Raise `ConfigError` if batches are levelled."""
        if self.level is not None:
            with place_noted(node.location):
                raise ConfigError(
                    f"{self.level.keys} cannot be combined with composition or several "
                    "task encoders. Remove one of them"
                )

    def make_batches(
        self, samples: Dataset[Any], encoder: Encoder[Any]
    ) -> Dataset[Any]:
        """Return samples through the hooks of their encoder, as batches."""
        if not self.encoded:
            samples = self._encoded(samples, encoder)
        if self.level is not None:
            return self.level.batches(encoder, samples, **self.batching.options())
        return encoder.build_batch(
            samples, **self.batching.options(), worker_config=self.worker_config
        )

    def _encoded(self, samples: Dataset[Any], encoder: Encoder[Any]) -> Dataset[Any]:
        return encoder.build_encode_sample(samples, worker_config=self.worker_config)

    def _for_node(self, node: MixNode) -> Builder:
        """Return a builder with the packing and the level of a node."""
        builder = self
        if node.packing is not None:
            with place_noted(node.location):
                builder = self._packed(node, node.packing)
        if node.batch_budget is not None:
            with place_noted(node.location):
                builder = replace(
                    builder, batching=builder.batching.with_budget(node.batch_budget)
                )
        if node.level is None:
            return builder
        if self.level is not None:
            with place_noted(node.location):
                raise ConfigError(
                    f"{node.level.keys} is set here, and {self.level.keys} by the "
                    "program. Remove one of them"
                )
        return replace(builder, level=node.level)

    def _packed(self, node: MixNode, packing: Packing) -> Builder:
        encoders = self.encoders_of(node)
        if self.batching.packing is not None or len(encoders) > 1:
            raise ConfigError(
                "packing needs one task encoder for all samples and no packing by the "
                f"program, got {len(encoders)} task encoders"
            )
        packer = packing.packer
        plan = packing.plan
        encoder = PackingEncoder(encoders[0], packer, *packing.joined, plan)
        size = plan if packer is None else packing.buffer_size
        batching = replace(self.batching, packing=size)
        return replace(self, encoder_of=lambda _: encoder, batching=batching)

    def mix_batches(self, node: Mix) -> Dataset[Any]:
        """Return the batches of a mix with several encoders."""
        if node.plain:
            groups: dict[int, list[Share]] = {}
            for number, part in enumerate(plain_shares(node)):
                encoders = self.encoders_of(part.node)
                key = id(encoders[0]) if len(encoders) == 1 else -1 - number
                groups.setdefault(key, []).append(part)
            node = _flat([*map(_together, groups.values())], node)
        if node.by_quotas and not isinstance(node, Concat):
            with place_noted(node.location):
                raise ConfigError(
                    "quotas and composition count samples, and the entries of this "
                    "blend have several task encoders. Mix their batches by weight"
                )
        stop = node.options.get("stop", "restart")
        endless = isinstance(node, Blend) and stop == "restart"
        batches = [
            self.batches(child, repeat=endless and child.max_epochs is None)
            for child in node.children
        ]
        return self._mixed(batches, node)

    def compose_batches(
        self, node: Blend, composition: CompositionKeys, encoder: Encoder[Any]
    ) -> Dataset[Any]:
        """Return global batches that are composed by quotas."""
        streams = [
            self._encoded(self.samples(child, by_quota=True), encoder)
            for child in node.children
        ]
        batching = self.batching
        with place_noted(node.location):
            if not isinstance(batching.batch_size, int) or batching.packing is not None:
                raise ConfigError(
                    "composition needs a batch_size and cannot be combined with "
                    "packing. Set batch_size and remove packing"
                )
            drop_last = composition.drop_last
            batches: Dataset[Any] = ComposedDataset(
                list(zip(streams, node.quotas, strict=True)),
                batch_size=batching.batch_size,
                global_batch_size=composition.global_batch_size,
                batching_method=composition.method,
                batcher=Hook(encoder, "batch"),
                shuffle=self.order.over_epochs is not None,
                drop_last=batching.drop_last if drop_last is None else drop_last,
                **node.options,
            )
        return apply_encode_batch(encoder, batches)

    def encoders_of(self, node: MixNode) -> list[Encoder[Any]]:
        """Return the distinct encoders of the leaves."""
        encoders = map(self.encoder_of, every_leaf(node))
        return list({id(encoder): encoder for encoder in encoders}.values())

    # Samples

    def samples(self, node: MixNode, *, by_quota: bool = False) -> Dataset[Any]:
        """Return the samples of a node, which has one encoder.

        Args:
            node: A node of a resolved mix.
            by_quota: Whether a quota reads them, in stored order.
        """
        if isinstance(node, Leaf):
            return self._read(node, by_quota=by_quota)
        if isinstance(node, Blend) and node.composition is not None:
            with place_noted(node.location):
                raise ConfigError(
                    "composition must be in the outermost blend, but this blend is "
                    "part of another. Move it there"
                )
        if not isinstance(node, Mix):
            raise TypeError(f"{node.location}: a {type(node).__name__} has no samples")
        if node.plain:
            node = _flat(plain_shares(node), node)
        by_quota = node.by_quotas and not isinstance(node, Concat)
        parts = [self.samples(child, by_quota=by_quota) for child in node.children]
        return self._mixed(parts, node)

    def _read(self, leaf: Leaf, *, by_quota: bool) -> Dataset[Any]:
        """Return the samples of a leaf, cooked if they are crude."""
        encoder = self.encoder_of(leaf)
        config = self.worker_config
        try:
            if by_quota:
                self._check_order(leaf)
            if leaf.aux and (
                leaf.sample_class is not CrudeSample or not encoder.cookers
            ):
                raise ConfigError(
                    f"{leaf.path}: aux needs crude samples and cookers, but the "
                    f"samples are {leaf.sample_class.__name__}s, or "
                    f"{type(encoder).__name__} has no cookers"
                )
            loaded = loaded_dataset(
                leaf,
                STORED if by_quota else self.order,
                decoder=encoder.decoder,
                code=self.code,
                seed=0 if config is None else config.seed_offset,
                checksums=self.checksums,
            )
            # Overridden by task encoders written for Megatron-Energon.
            samples = encoder._load_dataset(loaded, 0, config)  # noqa: SLF001
        except EnergizeError as error:
            raise noted(error, leaf.location) from error
        return self._encoded(samples, encoder) if self.encoded else samples

    def _check_order(self, leaf: Leaf) -> None:
        """Raise `ConfigError` if a file sets an order of samples that a quota reads.

        Options of the program are logged and ignored.
        """
        for name in ("shuffle_buffer_size", "max_samples_per_sequence"):
            value = getattr(self.order, name)
            if value is not None:
                _log.info("%s: %s=%s %s", leaf.path, name, value, _BY_QUOTA)
        for multiplier in (self.order.over_epochs, leaf.shuffle_over_epochs_multiplier):
            if multiplier not in (None, 1):
                raise ConfigError(
                    f"shuffle_over_epochs_multiplier={multiplier} {_BY_QUOTA}. "
                    "Remove it"
                )

    def _mixed(self, datasets: Sequence[Dataset[Any]], node: Mix) -> Dataset[Any]:
        """Return datasets mixed as a node sets; a single one of a plain node as is."""
        if len(datasets) == 1 and node.plain:
            return datasets[0]
        with place_noted(node.location):
            if isinstance(node, Concat):
                return ConcatDataset(*datasets)
            if node.by_quotas:
                shuffle = self.order.over_epochs is not None and _shuffled(node)
                pairs = list(zip(datasets, node.quotas, strict=True))
                return QuotaDataset(pairs, shuffle=shuffle, **node.options)
            return _blended(datasets, node)


def _blended(datasets: Sequence[Dataset[Any]], node: Mix) -> Dataset[Any]:
    """Return a blend by weights."""
    entries: list[Any] = []
    rows = zip(datasets, node.children, mix_weights(node), strict=True)
    for number, (dataset, child, weight) in enumerate(rows):
        if child.max_epochs is not None and not _ends(dataset):
            raise ConfigError(
                f"max_epochs of entry [{number}] is {child.max_epochs}, but that "
                "blend never ends, so it has no epochs. Set max_epochs of the "
                "datasets in it, or set its stop"
            )
        entries.append(MixEntry(dataset, weight, name=child.entry_name))
    correction = node.max_correction if isinstance(node, Blend) else None
    return BlendDataset(
        entries,
        target_weights=node.targets,
        max_correction=correction,
        **node.options,
    )


def _ends(dataset: Dataset[Any]) -> bool:
    """Return whether a dataset has an end, where the next epoch begins."""
    indexed = isinstance(dataset, IndexedDataset) and dataset.indexed
    return not (indexed and dataset.size == INFINITE)


def _counts_encoded(node: MixNode) -> bool:
    """Return whether a blend in a tree counts the costs of encoded samples."""
    if not isinstance(node, Mix):
        return False
    if isinstance(node.options.get("unit"), ItemCost):
        return True
    return any(map(_counts_encoded, node.children))


def _shuffled(node: Mix) -> bool:
    """Return whether a blend by quotas may be shuffled.

    Raises:
        ConfigError: If some of its datasets may be, but not all.
    """
    stored = {leaf.shuffle_over_epochs_multiplier is None for leaf in every_leaf(node)}
    if len(stored) > 1:
        raise ConfigError(
            "some datasets of this blend have shuffle_over_epochs_multiplier: null "
            "and others do not. Set it for all datasets of a blend by quotas, or for "
            "none"
        )
    return not stored.pop()


def _flat(parts: Sequence[Share], around: Mix) -> Mix:
    """Return parts of a plain blend as a blend of its own."""
    flat = around.with_children(
        [
            part.node.model_copy(
                update={
                    "weight": part.share,
                    "target_weight": part.target,
                    "entry_name": part.name,
                }
            )
            for part in parts
        ]
    )
    return flat.model_copy(update={"weights": None})


def _together(parts: Sequence[Share]) -> Share:
    """Return several parts of a blend as one, which is a blend."""
    if len(parts) == 1:
        return parts[0]
    share = sum((part.share for part in parts), Fraction(0))
    targets = [part.target for part in parts if part.target is not None]
    blend = _flat(parts, Blend.model_construct(children=[]))
    return Share(blend, share, sum(targets, Fraction(0)) if targets else None)

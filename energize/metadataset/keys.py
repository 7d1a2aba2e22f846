"""The table of keys: all that a node of a metadataset may say, whatever grammar it is written in.

A new key is a new field here. Its row is all that checks it, explains it and tells editors of it.
"""

# ruff: noqa: RUF009 - `key` makes a dataclass field

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final

from pydantic import PlainValidator, WithJsonSchema

from energize.data.join import NONMATCH
from energize.datasets.quota import SAMPLING_METHODS
from energize.errors import ConfigError
from energize.metadataset.property_keys import (
    WEIGHTS_SCHEMA,
    property_faults,
    weights_by_value,
)
from energize.metadataset.table import OneOf, Table, key, keys_of
from energize.metadataset.tables import Composed, Levelled, Packed, ScheduleTable
from energize.metadataset.values import (
    Chosen,
    Correction,
    EpochSize,
    JoinerKey,
    Multiplier,
    Name,
    Named,
    Number,
    Portion,
    Positive,
    Range,
    References,
    Text,
    UnitKey,
    Whole,
)
from energize.order.quota import Quota
from energize.order.timeline import SCHEMES, STOP_RULES

ENERGIZE: Final = "energize"
ENERGON: Final = "megatron.energon"


class Home(StrEnum):
    """What has a key."""

    DATASET = "dataset"
    READ = "dataset, or join"
    NEWER_DATASET = "dataset of the newer grammar"
    ANY = "dataset, blend or join"
    BLEND = "blend"
    EPOCHIZED = "blend_epochized"
    PROPERTY = "dataset, blend or join by a property"
    JOIN = "join"
    CONCAT = "concat"
    WEIGHTED_BLEND = "blend by weights"
    QUOTA_BLEND = "blend by quotas"
    OUTERMOST = "outermost blend by quotas"
    WEIGHED = "dataset, blend, concat or join of ours"
    TARGETED_BLEND = "blend by weights with target weights"
    TARGETED_ENTRY = "entry of a blend by weights, with a target weight"
    PACKED = "split, or stage"
    ENTRY = "entry"
    WEIGHTED_ENTRY = "entry of a blend by weights"
    QUOTA_ENTRY = "entry of a blend by quotas"
    REPEATED = "entry of blend_epochized"
    JOINED = "entry of a join"
    PART = "entry of concat"
    SPLIT = "split"
    STAGE = "stage"
    SETTING = "stage, or split with stages"
    PLAN = "split with stages"
    OLDER_BLEND = "blend of the older grammar"
    OLDER_ENTRY = "entry of the older grammar"


ENTRIES = (Home.ENTRY, Home.WEIGHTED_ENTRY, Home.TARGETED_ENTRY, Home.QUOTA_ENTRY)
BY_WEIGHTS = (
    Home.WEIGHTED_BLEND,
    Home.TARGETED_BLEND,
    Home.ENTRY,
    Home.WEIGHTED_ENTRY,
    Home.TARGETED_ENTRY,
)
BY_QUOTAS = (Home.QUOTA_BLEND, Home.OUTERMOST, Home.QUOTA_ENTRY)

LISTED = ("blend", "datasets", "blend_epochized", "join", "concat")


WeightsByValue = Annotated[
    dict[Any, Any],
    PlainValidator(partial(weights_by_value, schedule=ScheduleTable)),
    WithJsonSchema(WEIGHTS_SCHEMA),
]


@dataclass(frozen=True)
class Spec(Table):
    """A dataset, a blend or stages, as they are written; keys that are left out are None.

    `given` are those that are not.
    """

    path: Text = key(
        Home.DATASET,
        "a prepared folder, a .jsonl file or a metadataset .yaml, relative to this file",
        required=True,
    )
    split_part: Text | None = key(Home.READ, "the name of a split part, such as train")
    subflavors: Named | None = key(Home.READ)
    shuffle_over_epochs_multiplier: Multiplier | None = key(Home.READ, default=1)
    dataset_config: Text | None = key(Home.READ, "the name of a file in the .nv-meta folder")
    split_config: Text | None = key(Home.READ, "the name of a file in the .nv-meta folder")
    aux: References | None = key(Home.NEWER_DATASET, "what cookers may read beside it")
    subset: Range | None = key(Home.ANY)
    sample_weight: Number | None = key(
        Home.WEIGHED,
        "how much its samples count in the loss; it multiplies with those around and inside",
        instead_of=("loss_weight", "loss_weights", "sample_weights", "weight_in_loss", "loss"),
    )
    by: Text | None = key(
        Home.PROPERTY, "the column that weights are for; or subflavors.NAME, a label of folders"
    )
    weights: WeightsByValue | None = key(Home.PROPERTY)
    other: Number | ScheduleTable | None = key(
        Home.PROPERTY,
        "the weight of all samples that 'weights' does not name",
        table=ScheduleTable,
        called="a schedule (a mapping with 'points')",
    )
    subflavor: Text | None = key(Home.OLDER_ENTRY, "`subflavors` is the newer key")
    weight: Number | ScheduleTable = key(
        Home.ENTRY, table=ScheduleTable, called="a schedule (a mapping with 'points')", default=1
    )
    min_share: Portion | None = key(Home.WEIGHTED_ENTRY)
    max_share: Portion | None = key(Home.WEIGHTED_ENTRY)
    max_epochs: Positive | None = key(Home.WEIGHTED_ENTRY, "how often it is read at most")
    target_weight: Number | None = key(
        Home.TARGETED_ENTRY,
        "what it weighs in the loss, where `weight` says how often it is drawn",
        instead_of=("target_weights", "importance_weight", "loss_share"),
    )
    proportion: Number | None = key(Home.QUOTA_ENTRY, "its part of an epoch")
    repeat: Number | None = key(Home.QUOTA_ENTRY, "passes over it in an epoch")
    choose: Chosen | None = key(Home.QUOTA_ENTRY, "samples of it in an epoch")
    repetitions: Number = key(Home.REPEATED, "passes over it in an epoch", default=1)
    nonmatch: Annotated[str, OneOf(NONMATCH)] = key(
        Home.JOINED, "what happens to samples that have no partner here", default="error"
    )
    blend: tuple[Spec, ...] = key(
        Home.BLEND,
        nodes=Home.ENTRY,
        called="a list of one or more datasets or blends, each with its weight",
        required=True,
        default=(),
    )
    blend_epochized: tuple[Spec, ...] = key(
        Home.EPOCHIZED,
        nodes=Home.REPEATED,
        called="a list of one or more datasets or blends, each with its repetitions",
        required=True,
        default=(),
    )
    join: tuple[Spec, ...] | Mapping[str, Spec] = key(
        Home.JOIN,
        nodes=Home.JOINED,
        named=True,
        called="a list or a mapping of two or more datasets, the first of them the one whose "
        "samples are looked up in the others",
        required=True,
        default=(),
    )
    joiner: JoinerKey | None = key(Home.JOIN, "what makes one sample of those found", required=True)
    concat: tuple[Spec, ...] = key(
        Home.CONCAT,
        nodes=Home.PART,
        called="a list of one or more datasets or blends, which follow one another in every epoch",
        required=True,
        default=(),
    )
    datasets: tuple[Spec, ...] = key(
        Home.OLDER_BLEND,
        nodes=Home.ENTRY,
        called="a list of one or more datasets, each with its weight",
        required=True,
        default=(),
    )
    scheme: Annotated[str, OneOf(SCHEMES)] | None = key(Home.WEIGHTED_BLEND)
    block_size: Positive | None = key(Home.WEIGHTED_BLEND, "slots of a block")
    stop: Annotated[str, OneOf(STOP_RULES)] | None = key(Home.WEIGHTED_BLEND)
    temperature: Number | None = key(
        Home.WEIGHTED_BLEND, "1 keeps the weights, 0 makes shares equal", default=1
    )
    unit: UnitKey | None = key(Home.WEIGHTED_BLEND, "what the shares count", default="samples")
    max_correction: Correction | None = key(
        Home.TARGETED_BLEND, "by how much target_weight makes an entry count more, at most"
    )
    epoch_size: EpochSize | None = key(Home.QUOTA_BLEND, "samples of an epoch")
    sampling_method: Annotated[str, OneOf(SAMPLING_METHODS)] | None = key(Home.QUOTA_BLEND)
    composition: Composed | None = key(
        Home.OUTERMOST, table=Composed, called="a mapping with 'method'"
    )
    packing: Packed | None = key(
        Home.PACKED, table=Packed, called="a mapping with 'length' and 'capacity'"
    )
    level: Levelled | None = key(
        Home.PACKED, table=Levelled, called="a mapping with 'cost' and 'global_batch_size'"
    )
    name: Name = key(Home.STAGE, "the name of the stage", required=True)
    start_step: Whole = key(Home.STAGE, "the first step", required=True)
    end_step: Positive | None = key(Home.STAGE, "the step after the last one")
    seq_len: Positive | None = key(Home.SETTING, "tokens per sequence")
    items_per_step: Positive | None = key(
        Home.SETTING, "micro batches per optimizer step, over all ranks"
    )
    batch: Named | None = key(Home.SETTING, "settings of batches")
    seed: Whole | None = key(Home.SETTING, "the order of what is read")
    steps: Positive | None = key(Home.PLAN, "the steps of the training")
    stages: tuple[Spec, ...] = key(
        Home.PLAN,
        nodes=Home.STAGE,
        called="a list of one or more stages",
        required=True,
        default=(),
    )
    given: frozenset[str] = frozenset()

    @property
    def entries(self) -> tuple[Spec, ...]:
        """What is blended; nothing in a dataset and in a join."""
        return self.blend or self.datasets or self.blend_epochized or self.concat

    @property
    def kind(self) -> str:
        """The key that lists what is blended or joined, else "path"."""
        return next((name for name in LISTED if getattr(self, name)), "path")

    @property
    def targets(self) -> tuple[float, ...] | None:
        """What the entries weigh in the loss, where any says it; those that do not, 0."""
        given = [each.target_weight for each in self.entries]
        return None if all(t is None for t in given) else tuple(t or 0 for t in given)

    @property
    def joined(self) -> list[tuple[str | int, Spec]]:
        """What is joined, by number or by name."""
        if isinstance(self.join, Mapping):
            return list(self.join.items())
        return list(enumerate(self.join))

    @property
    def own_subflavors(self) -> dict[str, Any]:
        """The subflavors given here."""
        older = {} if self.subflavor is None else {"__subflavor__": self.subflavor}
        return older | (self.subflavors or {})

    def quota(self) -> Quota:
        """What it gives to an epoch, in a blend by quotas."""
        repeat = self.repeat if self.repetitions == 1 else self.repetitions
        return Quota(proportion=self.proportion, repeat=repeat, choose=self.choose)

    @property
    def by_quotas(self) -> bool:
        """Whether its entries are mixed by quotas, not by weights."""
        counted = self.blend_epochized or self.concat
        return bool(counted) or any(self.mixed_by(BY_QUOTAS))

    def mixed_by(self, homes: Collection[Home]) -> Iterator[str]:
        """The keys of some homes that it and its entries have, as messages call them."""
        rows = [row for row in keys_of(Spec) if row.home in homes]
        own = (row.name for row in rows if row.home not in ENTRIES)
        yield from (repr(name) for name in own if name in self.given)
        for number, entry in enumerate(self.entries):
            names = (row.name for row in rows if row.home in ENTRIES and row.name in entry.given)
            yield from (f"{name!r} of entry [{number}]" for name in names)

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong with keys that are right one by one."""
        try:
            self.quota()
        except ConfigError as reason:
            yield "", str(reason)
        weights, quotas = (next(self.mixed_by(h), None) for h in (BY_WEIGHTS, BY_QUOTAS))
        if weights and quotas:
            yield (
                "",
                f"a blend is mixed by weights or by quotas, and {weights} is for the one, {quotas} "
                "for the other; remove either",
            )
        if self.block_size is not None and self.scheme not in (None, "block"):
            yield (
                "",
                f"block_size is for scheme: block, and the scheme is {self.scheme}; remove it",
            )
        given = "scheme" if self.scheme is not None else "block_size"
        if self.unit != "samples" and self.given & {"scheme", "block_size"}:
            yield (
                given,
                f"{given} says whose slot comes when slots are counted, and unit decides it by "
                "what samples cost; remove either",
            )
        yield from self._faults_of_targets()
        yield from self._faults_of_join()
        yield from property_faults(self, list(self.mixed_by(ENTRIES)))
        if self.entries and not self.by_quotas and not any(each.weight for each in self.entries):
            yield (
                "blend" if self.blend else "datasets",
                f"all {len(self.entries)} weights are 0, so nothing could ever be drawn; give at "
                "least one entry a weight above 0",
            )

    def _faults_of_targets(self) -> Iterator[tuple[str, str]]:
        if self.targets is None:
            if self.max_correction is not None:
                yield "max_correction", "it limits what target_weight does, and no entry has one"
            return
        without = [i for i, each in enumerate(self.entries) if each.target_weight is None]
        never = [i for i, each in enumerate(self.entries) if each.target_weight and not each.weight]
        if without:
            yield (
                "blend",
                f"some entries have a target_weight and others have none: {without}; give every "
                "entry one, equal to its weight where nothing should be made up for",
            )
        elif not any(self.targets):
            yield "blend", "all target weights are 0, so nothing would count in the loss"
        if never:
            yield (
                "blend",
                f"entries {never} have a target_weight and the weight 0: they are never drawn, and "
                "no weight in the loss makes up for that; give them a weight above 0",
            )

    def _faults_of_join(self) -> Iterator[tuple[str, str]]:
        entries = [spec for _, spec in self.joined]
        if len(entries) == 1:
            yield "join", "a join has two datasets or more; a single one is read by its path alone"
        if entries and entries[0].nonmatch != "error":
            yield (
                "join",
                "nonmatch of the first dataset says nothing: its samples are those that are looked "
                f"up in the others; give nonmatch: {entries[0].nonmatch} to these",
            )

    def unweighted(self) -> str:
        """What is wrong with weights that only some entries have, which Energon allows; or ""."""
        without = [i for i, entry in enumerate(self.entries) if "weight" not in entry.given]
        if self.by_quotas or not 0 < len(without) < len(self.entries):
            return ""
        which = ", ".join(f"[{i}]" for i in without)
        return (
            f"some entries have a weight and others have none: {which}; give every entry of a "
            "blend a weight, or none of them for equal shares"
        )

"""The mappings that keys may hold in the place of a value: what they may say."""

# ruff: noqa: RUF009 - `key` makes a dataclass field

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

from energize.datasets.item_cost import ItemCost
from energize.errors import ConfigError
from energize.metadataset.table import OneOf, Table, key
from energize.metadataset.values import Flag, Names, Points, Positive, Sizes, Text
from energize.order import Schedule
from energize.order.composition import BATCHING_METHODS
from energize.order.schedule import CHANGES, INTERPOLATIONS
from energize.packing.packer import METHODS, Packer
from energize.task.build import Level

TABLE: Final = "table"
"""What has these keys."""


@dataclass(frozen=True)
class ScheduleTable(Table):
    """A weight that changes with the step."""

    points: Points = key(TABLE, required=True)
    interpolation: Annotated[str, OneOf(INTERPOLATIONS)] = key(TABLE, default="step")
    slots_per_step: Positive = key(TABLE, "slots of the blend that a step takes", default=1)
    change: Annotated[str, OneOf(CHANGES)] = key(TABLE, default="block")

    def schedule(self) -> Schedule:
        """The weight as what a blend takes."""
        return Schedule(self.points, self.interpolation, self.slots_per_step, self.change)


@dataclass(frozen=True)
class Composed(Table):
    """What a global batch is made of, see `ComposedDataset`; None: as large as a batch, and
    `drop_last` as the program that reads the mix says.
    """

    method: Annotated[str, OneOf(BATCHING_METHODS)] = key(TABLE, required=True)
    global_batch_size: Positive | None = key(TABLE, "samples of a global batch")
    drop_last: Flag | None = key(TABLE, "whether samples that fill no global batch are left out")


@dataclass(frozen=True)
class Packed(Table):
    """How encoded samples are packed, see `Packer` and `concat_pack`."""

    length: Names = key(TABLE, "how long a sample is: a number, or what has entries", required=True)
    capacity: Sizes = key(TABLE, "what a pack holds, one for each length", required=True)
    method: Annotated[str, OneOf(METHODS)] = key(TABLE, default="best_fit")
    buffer_size: Positive = key(TABLE, "samples that are packed at a time", default=1000)
    too_long: Annotated[str, OneOf(("error", "skip"))] = key(TABLE, default="error")
    fields: Names | None = key(TABLE, "what packs have joined; else the first length")
    flatten: Names | None = key(TABLE, "lists, as of images, that packs have end to end")

    @property
    def packer(self) -> Packer:
        """Which samples share a pack."""
        lengths, capacities = _listed(self.length), _listed(self.capacity)
        return Packer(tuple(lengths), tuple(capacities), self.method, self.too_long)  # type: ignore[arg-type]  # checked above

    @property
    def joined(self) -> tuple[list[str], list[str]]:
        """The fields that packs have joined, and the lists that they have end to end."""
        return _listed(self.fields or _listed(self.length)[:1]), _listed(self.flatten or [])

    def faults(self) -> Iterator[tuple[str, str]]:
        """A length for each capacity, and what else the packer refuses."""
        try:
            _ = self.packer
        except ConfigError as reason:
            yield "", str(reason).removeprefix("Packer: ")


@dataclass(frozen=True)
class Levelled(Table):
    """How batches are made to cost the same, see `Level`."""

    cost: Text | None = key(TABLE, "the column that says what a sample costs")
    global_batch_size: Positive | None = key(
        TABLE, "samples of a global batch, with 'cost': its micro batches are levelled"
    )
    field: Text | None = key(
        TABLE, "the field of encoded samples, or packs, that says what they cost"
    )
    buffer_size: Positive | None = key(
        TABLE, "samples or packs that are levelled at a time, with 'field'"
    )

    @property
    def level(self) -> Level:
        """The same as a program would say it."""
        cost = self.cost if self.cost is not None else ItemCost(self.field or "")
        return Level(cost, self.global_batch_size, self.buffer_size)

    def faults(self) -> Iterator[tuple[str, str]]:
        """One of the two that say what samples cost, and the size that goes with it."""
        if (self.cost is None) == (self.field is None):
            yield (
                "",
                (
                    "give either 'cost', the column of all folders that says what a sample costs, "
                    "or 'field', that of encoded samples and of packs"
                ),
            )
            return
        try:
            _ = self.level
        except ConfigError as reason:
            yield "", str(reason)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]

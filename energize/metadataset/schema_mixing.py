"""The grammar of blends in energize's own metadataset files, as typed models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from energize.errors import ConfigError
from energize.metadataset.schema_base import (
    DatasetNode,
    Number,
    Strict,
    checked_weights,
    entry_kind,
    rule,
)
from energize.metadataset.schema_schedule import Weight
from energize.order.epochs.quotas import Quota, epoch_size_in_samples

__all__ = [
    "CompositionTable",
    "MixBlendEntry",
    "MixDatasetEntry",
    "MixNode",
    "MixOptions",
]

Portion = Annotated[float, Field(ge=0, le=1)]

_COUNT = r"^\s*\+?[.0-9][-+0-9._/eE]*\s*[kKmMbBtT]?\s*$"
"""What a text that counts samples looks like, for editors; whether it is one is looked at closer
when a file is read."""


class EntryOptions(Strict):
    """How an entry takes part in its blend: by weight, or with a quota."""

    weight: Weight = Field(
        1.0, description="a finite number, 0 or more, or a schedule (a mapping with 'points')"
    )
    min_share: Portion | None = Field(None, description="a number from 0 to 1")
    max_share: Portion | None = Field(None, description="a number from 0 to 1")
    max_epochs: Annotated[int, Field(ge=1)] | None = Field(
        None, description="a whole number, 1 or more: how often it is read at most"
    )
    proportion: Number | None = Field(
        None, description="a finite number, 0 or more: its part of an epoch"
    )
    repeat: Number | None = Field(
        None, description="a finite number, 0 or more: passes over it in an epoch"
    )
    choose: int | str | None = Field(
        None,
        description="a whole number, 0 or more, or text like 10k: samples of it in an epoch",
        json_schema_extra={"minimum": 0, "pattern": _COUNT},
    )

    @field_validator("choose", mode="before")
    @classmethod
    def _chosen(cls, value: Any) -> int | str | None:
        try:
            return Quota(choose=value).choose
        except ConfigError as reason:
            raise rule(str(reason)) from None

    @model_validator(mode="after")
    def _one_quota(self) -> Self:
        try:
            self.quota()
        except ConfigError as reason:
            raise rule(str(reason)) from None
        return self

    def quota(self) -> Quota:
        """What it gives to an epoch, in a blend by quotas."""
        return Quota(proportion=self.proportion, repeat=self.repeat, choose=self.choose)


class CompositionTable(Strict):
    """What a global batch is made of."""

    method: Literal["random", "in_turn", "stratified", "per_stream", "device_per_stream"] = Field(
        description="random, in_turn, stratified, per_stream or device_per_stream"
    )
    global_batch_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="a whole number, 1 or more: samples of a global batch"
    )
    drop_last: bool | None = Field(
        None, description="true or false: whether samples that fill no global batch are left out"
    )


_WEIGHTED_NODE = ("scheme", "block_size", "stop", "temperature")
_WEIGHTED_ENTRY = ("weight", "min_share", "max_share", "max_epochs")
_QUOTA_NODE = ("epoch_size", "sampling_method", "composition")
_QUOTA_ENTRY = ("proportion", "repeat", "choose")


class MixOptions(Strict):
    """A blend: its entries, and how they are mixed."""

    entries_key: ClassVar[str] = "blend"
    blend: list[MixEntry] = Field(
        min_length=1, description="a list of one or more datasets or blends, each with its weight"
    )
    scheme: Literal["block", "exact", "random", "uniform", "round_robin", "greedy"] | None = Field(
        None, description="block, exact, random, uniform, round_robin or greedy"
    )
    block_size: Annotated[int, Field(ge=1)] | None = Field(
        None, description="a whole number, 1 or more: slots of a block"
    )
    stop: Literal["restart", "first_exhausted", "all_exhausted"] | None = Field(
        None, description="restart, first_exhausted or all_exhausted"
    )
    temperature: Number = Field(
        1.0, description="a finite number, 0 or more: 1 keeps the weights, 0 makes shares equal"
    )
    epoch_size: int | str | None = Field(
        None,
        description="a whole number from 1, or text like 10k or 1.5M: samples of an epoch",
        json_schema_extra={"minimum": 1, "pattern": _COUNT},
    )
    sampling_method: Literal["balanced", "fixed"] | None = Field(
        None, description="balanced or fixed"
    )

    @field_validator("blend")
    @classmethod
    def _weights(cls, entries: list[Any], info: ValidationInfo) -> list[Any]:
        quotas = any(entry.quota().kind for entry in entries)
        return entries if quotas else checked_weights(entries, info)

    @property
    def entries(self) -> Sequence[MixDatasetEntry | MixBlendEntry]:
        """What is blended."""
        return self.blend

    @property
    def by_quotas(self) -> bool:
        """Whether entries take part with quotas, not with weights."""
        return any(self._given(_QUOTA_NODE, _QUOTA_ENTRY))

    @field_validator("epoch_size", mode="before")
    @classmethod
    def _in_samples(cls, value: Any) -> int | None:
        try:
            return None if value is None else epoch_size_in_samples(value)
        except ConfigError as reason:
            raise rule(str(reason)) from None

    @model_validator(mode="after")
    def _by_weights_or_quotas(self) -> Self:
        weighted = next(self._given(_WEIGHTED_NODE, _WEIGHTED_ENTRY), None)
        with_quotas = next(self._given(_QUOTA_NODE, _QUOTA_ENTRY), None)
        if weighted and with_quotas:
            raise rule(
                f"a blend is mixed by weights or by quotas, and {weighted} is for the one, "
                f"{with_quotas} for the other; remove either"
            )
        if self.block_size is not None and self.scheme not in (None, "block"):
            raise rule(
                f"block_size is for scheme: block, and the scheme is {self.scheme}; remove it"
            )
        return self

    def _given(self, of_node: Sequence[str], of_entry: Sequence[str]) -> Iterator[str]:
        yield from (f"{key!r}" for key in of_node if key in self.model_fields_set)
        for number, entry in enumerate(self.blend):
            for key in of_entry:
                if key in entry.model_fields_set:
                    yield f"{key!r} of entry [{number}]"


class MixNode(MixOptions):
    """The outermost blend of a split."""

    composition: CompositionTable | None = Field(None, description="a mapping with 'method'")


class MixDatasetEntry(EntryOptions, DatasetNode):
    """A dataset in a blend."""


class MixBlendEntry(EntryOptions, MixOptions):
    """A blend in a blend."""


MixEntry = Annotated[
    Annotated[MixDatasetEntry, Tag("<dataset entry>")]
    | Annotated[MixBlendEntry, Tag("<blend entry>")],
    Discriminator(entry_kind),
]


MixNode.model_rebuild()
MixBlendEntry.model_rebuild()

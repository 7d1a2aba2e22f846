"""How a blend is mixed: what a metadataset says beside the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from energize.metadataset.schema_mixing import MixOptions
from energize.metadataset.schema_schedule import ScheduleTable
from energize.order.epochs.quotas import Quota
from energize.order.schedules.schedule import Schedule

__all__ = ["UNWEIGHTED", "Composed", "Mixing", "mixing_of", "weight_of"]

UNWEIGHTED = ("uniform", "round_robin")
"""The schemes that give all entries with a weight the same."""


@dataclass(frozen=True, slots=True)
class Composed:
    """What a global batch is made of, see `ComposedDataset`; None: as large as a batch, and
    `drop_last` as the program that reads the mix says.
    """

    method: str
    global_batch_size: int | None = None
    drop_last: bool | None = None


@dataclass(frozen=True, slots=True)
class Mixing:
    """The parameters of `BlendDataset`, or with `quotas` those of `QuotaDataset`.

    Tuples have one entry for each child. `Mixing()` is that of a plain blend.
    """

    scheme: str | None = None
    block_size: int | None = None
    stop: str | None = None
    temperature: float = 1.0
    max_epochs: tuple[int | None, ...] | None = None
    min_share: tuple[float | None, ...] | None = None
    max_share: tuple[float | None, ...] | None = None
    quotas: tuple[Quota, ...] | None = None
    epoch_size: int | None = None
    sampling_method: str = "balanced"
    composition: Composed | None = None

    @property
    def inherited(self) -> Mixing:
        """What holds for the blends inside, unless they say otherwise.

        Not a scheme that knows no weights: it gives each entry the same, also an entry that blends.
        """
        if self.scheme in UNWEIGHTED:
            return Mixing(stop=self.stop)
        return Mixing(self.scheme, self.block_size, self.stop)

    @property
    def of_blend(self) -> dict[str, Any]:
        """As parameters of `BlendDataset`."""
        options: dict[str, Any] = {"temperature": self.temperature}
        for name in ("scheme", "block_size", "stop", "max_epochs", "min_share", "max_share"):
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        return options


def mixing_of(spec: object, outer: Mixing) -> Mixing:
    """How a blend of a file is mixed, `outer` being what the blends around it give to it."""
    if not isinstance(spec, MixOptions):
        return outer
    if spec.by_quotas:
        table = getattr(spec, "composition", None)
        return replace(
            outer,
            quotas=tuple(entry.quota() for entry in spec.entries),
            epoch_size=None if spec.epoch_size is None else int(spec.epoch_size),
            sampling_method=spec.sampling_method or "balanced",
            composition=table and Composed(table.method, table.global_batch_size, table.drop_last),
        )
    own_scheme = spec.scheme is not None
    return Mixing(
        scheme=spec.scheme if own_scheme else outer.scheme,
        block_size=spec.block_size if own_scheme or spec.block_size else outer.block_size,
        stop=spec.stop or outer.stop,
        temperature=spec.temperature,
        max_epochs=_if_any([entry.max_epochs for entry in spec.entries]),
        min_share=_if_any([entry.min_share for entry in spec.entries]),
        max_share=_if_any([entry.max_share for entry in spec.entries]),
    )


def weight_of(written: float | ScheduleTable) -> float | Schedule:
    """A weight of a file as what a blend takes."""
    return written.schedule() if isinstance(written, ScheduleTable) else written


def _if_any(values: Sequence[Any]) -> tuple[Any, ...] | None:
    return tuple(values) if any(value is not None for value in values) else None

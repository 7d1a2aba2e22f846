"""The grammar of weights that change during a run, as typed models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from energize.errors import ConfigError
from energize.metadataset.problems import shown
from energize.metadataset.schema_base import Number, Strict, rule
from energize.order.schedules.schedule import Schedule

__all__ = ["ScheduleTable", "Weight"]

_STEP = r"[0-9][0-9_]*"
_POINTS = "a mapping of steps to weights in the order of steps, such as {0: 0.2, 10_000: 0.5}"


class ScheduleTable(Strict):
    """A weight that changes with the step."""

    points: dict[str, Number] = Field(
        description=_POINTS,
        min_length=1,
        json_schema_extra={"propertyNames": {"pattern": f"^{_STEP}$"}},
    )
    interpolation: Literal["step", "linear", "cosine"] = Field(
        "step", description="step, linear or cosine"
    )
    slots_per_step: int = Field(
        1, ge=1, description="a whole number, 1 or more: how many slots of the blend a step takes"
    )
    change: Literal["block", "sample", "block_start"] = Field(
        "block", description="block, sample or block_start"
    )

    @field_validator("points", mode="before")
    @classmethod
    def _checked_points(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not value:
            raise rule(f"expected {_POINTS}; got {shown(value)}")
        for step, weight in value.items():
            if not re.fullmatch(_STEP, str(step)):
                raise rule(f"a step is a whole number, 0 or more; got {shown(step)}")
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise rule(f"the weight at step {step} is a number; got {shown(weight)}")
        try:
            Schedule(_pairs(value))
        except ConfigError as reason:
            raise rule(str(reason)) from None
        return value

    def schedule(self) -> Schedule:
        """The weight as what a blend takes."""
        return Schedule(_pairs(self.points), self.interpolation, self.slots_per_step, self.change)


def _pairs(points: Mapping[str, float]) -> list[tuple[int, float]]:
    return [(int(step), weight) for step, weight in points.items()]


def _weight_kind(value: object) -> str:
    return "<schedule>" if isinstance(value, Mapping | ScheduleTable) else "<number>"


Weight = Annotated[
    Annotated[Number, Tag("<number>")] | Annotated[ScheduleTable, Tag("<schedule>")],
    Discriminator(_weight_kind),
]

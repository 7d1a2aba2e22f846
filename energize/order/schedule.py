"""Weights that change with the step, given at points."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from energize.core.arrays import FloatArray
from energize.core.checks import checked_choice, checked_whole, raised_as, real_number
from energize.errors import ConfigError, WeightError, nearest

INTERPOLATIONS = ("step", "linear", "cosine")
CHANGES = ("block", "sample")

_SUM_TOLERANCE = 1e-6


def checked_weight(weight: object, where: str, what: str = "a weight") -> float:
    """Return `weight` as a float; raise `WeightError` naming `where` unless it is finite and 0 or
    more.
    """
    number = real_number(weight)
    try:
        value = math.nan if number is None else float(number)
    except OverflowError:
        value = math.inf
    if not 0 <= value < math.inf:
        wanted = "is a number" if number is None else "is finite and not negative"
        raise WeightError(f"{where}: {what} {wanted}, got {reprlib.repr(weight)}")
    return value


def names_apart(expected: Iterable[str], found: Iterable[str]) -> str:
    """Return which names are missing and which are unknown, as text; "" if they are the same."""
    wanted, given = list(expected), list(found)
    missing = [name for name in wanted if name not in given]
    extra = [f"{name!r}{nearest(name, missing)}" for name in given if name not in wanted]
    parts = [f"missing {', '.join(map(repr, missing))}"] if missing else []
    return "; ".join([*parts, *([f"unknown {', '.join(extra)}"] if extra else [])])


@dataclass(frozen=True)
class Schedule:
    """A weight that changes with the step; usable wherever a mix takes a weight.

    `points` are (step, value) pairs in order of their steps, which count from 0. A value holds from
    its step on: `step` keeps it until the next point, `linear` and `cosine` go gradually to that of
    the next. Before the first point its value holds, after the last one that of the last.

    Steps are slots of the mix; or optimizer steps, if `slots_per_step` says how many slots one of
    them takes (the global batch size, for a mix of samples). `change` says when points of `step`
    act under the scheme `block`:

    - `block`: at the start of the next block;
    - `sample`: at their own slot; the block before is cut there, and a new one begins.

    Other schemes change at the slot itself.

    Raises `ConfigError` for steps or names that cannot be used, `WeightError` for values.

    >>> Schedule([(0, 0.2), (10_000, 0.5)], "linear").value(5_000)
    0.35
    """

    points: Sequence[tuple[int, float]]
    interpolation: str = "step"
    slots_per_step: int = 1
    change: str = "block"

    def __post_init__(self) -> None:
        given = list(self.points) if isinstance(self.points, Iterable) else [None]
        for pair in given:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ConfigError(f"Schedule: points are pairs (step, value); got {pair!r}")
        checked_choice(self.interpolation, "interpolation", INTERPOLATIONS, "Schedule")
        checked_choice(self.change, "change", CHANGES, "Schedule")
        steps = _checked_steps([step for step, _ in given], "Schedule")
        points = tuple(
            (step, checked_weight(value, f"Schedule: the point at step {step}"))
            for step, (_, value) in zip(steps, given, strict=True)
        )
        slots = checked_whole(self.slots_per_step, "Schedule: slots_per_step", 1)
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "slots_per_step", slots)

    def value(self, step: float) -> float:
        """Return the weight at a step, 0 or more."""
        number = real_number(step)
        if number is None or not number >= 0:
            raise ConfigError(f"Schedule: a step is a number, 0 or more; got {step!r}")
        try:
            slot = float(number) * self.slots_per_step
        except OverflowError:
            slot = math.inf
        return float(self.at(np.array([slot]))[0])

    def at(self, slots: FloatArray) -> FloatArray:
        """Return the weight at each slot, which need not be a whole number."""
        steps = np.array(self.slots, dtype=np.float64)
        values = np.array([value for _, value in self.points])
        now = np.clip(np.searchsorted(steps, slots, side="right") - 1, 0, None)
        if self.interpolation == "step":
            return values[now]
        then = np.minimum(now + 1, len(steps) - 1)
        length = np.where(then > now, steps[then] - steps[now], 1.0)
        way = np.clip((slots - steps[now]) / length, 0.0, 1.0)
        if self.interpolation == "cosine":
            way = (1 - np.cos(np.pi * way)) / 2
        weights: FloatArray = values[now] + way * (values[then] - values[now])
        return weights

    @property
    def slots(self) -> list[int]:
        """The slots of its points."""
        return [step * self.slots_per_step for step, _ in self.points]


@dataclass(frozen=True)
class WeightSchedulePoint:
    """The weights of all sources from a step on.

    They have to sum to 1 within 1e-6, so that a forgotten source shows; `normalize=True` divides
    them by their sum instead. Raises `WeightError` for weights, `ConfigError` for a step.
    """

    step: int
    weights: Mapping[str, float]
    normalize: bool = False

    def __post_init__(self) -> None:
        [step] = _checked_steps([self.step], "WeightSchedulePoint")
        where = f"WeightSchedulePoint: the point at step {step}"
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise WeightError(f"{where}: weights map each source to a number; got {self.weights!r}")
        named = self.weights.items()
        checked = {name: checked_weight(each, f"{where}, source {name!r}") for name, each in named}
        total = math.fsum(checked.values())
        if total == 0:
            raise WeightError(f"{where}: all {len(checked)} weights are 0")
        if self.normalize:
            checked = {name: weight / total for name, weight in checked.items()}
        elif abs(total - 1) > _SUM_TOLERANCE:
            raise WeightError(
                f"{where}: the weights sum to {total:.9g}, not to 1; correct them, or pass "
                "normalize=True to have them divided by their sum"
            )
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "weights", checked)


@dataclass(frozen=True)
class WeightScheduler:
    """Weights of named sources over the steps of a run, given at points.

    `interpolation`, `slots_per_step` and `change` are those of `Schedule`. Every point names the
    same sources; steps are in order, none twice.

    Raises `ConfigError`; for names, it lists those that are missing and those that are too many.

    >>> scheduler = WeightScheduler(
    ...     [
    ...         WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
    ...         WeightSchedulePoint(step=10_000, weights={"code": 0.5, "text": 0.5}),
    ...     ],
    ...     interpolation="linear",
    ... )
    >>> scheduler.get_weights(5_000)
    {'code': 0.35, 'text': 0.65}
    """

    schedule: Sequence[WeightSchedulePoint]
    interpolation: str = "step"
    slots_per_step: int = 1
    change: str = "block"

    def __post_init__(self) -> None:
        points = tuple(self.schedule) if isinstance(self.schedule, Iterable) else ()
        if not points or not all(isinstance(each, WeightSchedulePoint) for each in points):
            raise ConfigError(
                "WeightScheduler: schedule is a list of WeightSchedulePoint(step, weights), one at "
                f"least; got {self.schedule!r}"
            )
        object.__setattr__(self, "schedule", points)
        for point in points:
            if difference := names_apart(self.dataset_names, point.weights):
                raise WeightError(
                    f"WeightScheduler: the point at step {point.step} does not name the sources of "
                    f"the first one: {difference}"
                )
        with raised_as("WeightScheduler", "Schedule"):
            [first, *_] = self.schedules().values()
        object.__setattr__(self, "slots_per_step", first.slots_per_step)

    @property
    def dataset_names(self) -> list[str]:
        """The sources, in the order of the first point."""
        return list(self.schedule[0].weights)

    def get_weights(self, step: float) -> dict[str, float]:
        """Return the weight of each source at a step, 0 or more; between points they sum to 1."""
        with raised_as("WeightScheduler", "Schedule"):
            weights = {name: each.value(step) for name, each in self.schedules().items()}
        glides = self.interpolation != "step"
        if glides and self.schedule[0].step < step < self.schedule[-1].step:
            total = math.fsum(weights.values())
            weights = {name: weight / total for name, weight in weights.items()}
        return weights

    def schedules(self) -> dict[str, Schedule]:
        """Return the weight of each source on its own."""
        options = self.interpolation, self.slots_per_step, self.change
        return {
            name: Schedule([(each.step, each.weights[name]) for each in self.schedule], *options)
            for name in self.dataset_names
        }


def _checked_steps(given: Sequence[object], owner: str) -> list[int]:
    """Return the steps of points as ints: in order, none twice."""
    steps = [checked_whole(step, f"{owner}: the step of a point", 0) for step in given]
    if not steps or any(before >= after for before, after in pairwise(steps)):
        raise ConfigError(f"{owner}: points are in order of their steps, one at least; got {steps}")
    return steps

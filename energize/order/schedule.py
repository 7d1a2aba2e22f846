"""Weights that change during a run: points, and how to go from one to the next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from energize.arrays import FloatArray
from energize.errors import ConfigError, WeightError, nearest
from energize.numbers import real_number, whole_number
from energize.order.weights import checked_weight

INTERPOLATIONS = ("step", "linear", "cosine")
CHANGES = ("block", "sample", "block_start")

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Schedule:
    """A weight that changes with the step; usable wherever a mix takes a weight.

    `points` are (step, value) pairs in order of their steps, which count from 0. A value holds from
    its step on: `step` keeps it until the next point, `linear` and `cosine` go gradually to that of
    the next. Before the first point its value holds, after the last one that of the last.

    Steps are slots of the mix; or optimizer steps, when `slots_per_step` says how many slots one of
    them takes (the global batch size, for a mix of samples). `change` says what the blocks of the
    scheme `block` hold:

    - `block`: the integral of the weights over their slots; steps act at the next block start;
    - `sample`: the same, where every point acts at its own slot: the block before is cut there, and
      a new one begins;
    - `block_start`: the weights of their first slots throughout.

    Schemes without blocks change at the slot itself.

    Raises `ConfigError` for steps or names that cannot be used, `WeightError` for values.

    >>> Schedule([(0, 0.2), (10_000, 0.5)], "linear").value(5_000)
    0.35
    """

    points: tuple[tuple[int, float], ...]
    interpolation: str = "step"
    slots_per_step: int = 1
    change: str = "block"

    def __init__(
        self,
        points: Iterable[tuple[int, float]],
        interpolation: str = "step",
        slots_per_step: int = 1,
        change: str = "block",
    ) -> None:
        if not isinstance(points, Iterable):
            raise ConfigError(f"Schedule: points is a list of (step, value) pairs; got {points!r}")
        given = [_pair(each) for each in points]
        per_step = _checked_options("Schedule", interpolation, slots_per_step, change)
        steps = _checked_steps([step for step, _ in given], "Schedule")
        checked = tuple(
            (step, checked_weight(value, f"Schedule: the point at step {step}"))
            for step, (_, value) in zip(steps, given, strict=True)
        )
        object.__setattr__(self, "points", checked)
        object.__setattr__(self, "interpolation", interpolation)
        object.__setattr__(self, "slots_per_step", per_step)
        object.__setattr__(self, "change", change)

    def value(self, step: float) -> float:
        """The weight at a step, 0 or more."""
        slot = _checked_step(step, "Schedule") * self.slots_per_step
        return float(self.at(np.array([slot], dtype=np.float64))[0])

    def at(self, slots: FloatArray) -> FloatArray:
        """The weight at each slot, which need not be a whole number."""
        weights: FloatArray = weights_along(self.slots, self.interpolation, [self], slots)[:, 0]
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
        if not isinstance(self.weights, Mapping):
            raise WeightError(
                f"{where}: weights map names to numbers, got {type(self.weights).__name__}"
            )
        if not self.weights:
            raise WeightError(f"{where} has no weights; name every source with its weight")
        checked = {
            name: checked_weight(weight, f"{where}, source {name!r}")
            for name, weight in self.weights.items()
        }
        total = math.fsum(checked.values())
        if total == 0:
            raise WeightError(f"{where}: all {len(checked)} weights are 0")
        if not self.normalize and abs(total - 1) > _SUM_TOLERANCE:
            raise WeightError(
                f"{where}: the weights sum to {total:.9g}, not to 1; correct them, or pass "
                "normalize=True to have them divided by their sum"
            )
        if self.normalize:
            checked = {name: weight / total for name, weight in checked.items()}
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
        listed = isinstance(self.schedule, Iterable)
        points = tuple(self.schedule) if listed else ()
        if not listed or not all(isinstance(each, WeightSchedulePoint) for each in points):
            raise ConfigError(
                "WeightScheduler: schedule is a list of WeightSchedulePoint(step, weights), got "
                f"{self.schedule!r}"
            )
        per_step = _checked_options(
            "WeightScheduler", self.interpolation, self.slots_per_step, self.change
        )
        _checked_steps([point.step for point in points], "WeightScheduler")
        for point in points[1:]:
            difference = names_apart(points[0].weights, point.weights)
            if difference:
                raise WeightError(
                    f"WeightScheduler: the point at step {point.step} does not name the sources of "
                    f"the first one: {difference}"
                )
        object.__setattr__(self, "schedule", points)
        object.__setattr__(self, "slots_per_step", per_step)

    @property
    def dataset_names(self) -> list[str]:
        """The sources, in the order of the first point."""
        return list(self.schedule[0].weights)

    def get_weights(self, step: float) -> dict[str, float]:
        """The weight of each source at a step, 0 or more; between points they sum to 1."""
        step = _checked_step(step, "WeightScheduler")
        weights = {name: each.value(step) for name, each in self.schedules().items()}
        glides = self.interpolation != "step"
        if glides and self.schedule[0].step < step < self.schedule[-1].step:
            total = math.fsum(weights.values())
            weights = {name: weight / total for name, weight in weights.items()}
        return weights

    def schedules(self) -> dict[str, Schedule]:
        """The weight of each source on its own."""
        return {
            name: Schedule(
                [(point.step, point.weights[name]) for point in self.schedule],
                self.interpolation,
                self.slots_per_step,
                self.change,
            )
            for name in self.dataset_names
        }


def weights_along(
    points: Sequence[int], interpolation: str, schedules: Sequence[Schedule], slots: FloatArray
) -> FloatArray:
    """The weights (columns) of schedules that all have points at these slots, and change in this
    way, at each slot (rows).
    """
    steps = np.array(points, dtype=np.float64)
    values = np.array([[value for _, value in each.points] for each in schedules]).T
    now = np.clip(np.searchsorted(steps, slots, side="right") - 1, 0, None)
    then = np.minimum(now + 1, len(steps) - 1)
    length = np.where(then > now, steps[then] - steps[now], 1.0)
    way = _eased(np.clip((slots - steps[now]) / length, 0.0, 1.0), interpolation)
    weights: FloatArray = values[now] + way[:, np.newaxis] * (values[then] - values[now])
    return weights


def names_apart(expected: Iterable[str], found: Iterable[str]) -> str:
    """Which names are missing and which are too many, as text; nothing where none is."""
    wanted, given = list(expected), list(found)
    missing = [name for name in wanted if name not in given]
    extra = [f"{name!r}{nearest(name, missing)}" for name in given if name not in wanted]
    parts = [f"missing {', '.join(map(repr, missing))}"] if missing else []
    return "; ".join([*parts, *([f"unknown {', '.join(extra)}"] if extra else [])])


def _pair(point: object) -> tuple[int, float]:
    if not isinstance(point, tuple | list) or len(point) != 2:
        raise ConfigError(f"Schedule: a point is a pair (step, value); got {point!r}")
    return point[0], point[1]


def _eased(way: FloatArray, interpolation: str) -> FloatArray:
    if interpolation == "step":
        return np.zeros_like(way)
    if interpolation == "linear":
        return way
    return (1 - np.cos(np.pi * way)) / 2


def _checked_options(
    owner: str, interpolation: object, slots_per_step: object, change: object
) -> int:
    """`slots_per_step` as an int, when all are right."""
    for name, value, known in (
        ("interpolation", interpolation, INTERPOLATIONS),
        ("change", change, CHANGES),
    ):
        if value not in known:
            raise ConfigError(
                f"{owner}: unknown {name} {value!r}{nearest(str(value), known) or '.'} "
                f"Known: {', '.join(known)}"
            )
    number = whole_number(slots_per_step)
    if number is None or number < 1:
        raise ConfigError(
            f"{owner}: slots_per_step counts the slots of a step, a whole number, 1 or more; got "
            f"{slots_per_step!r}"
        )
    return number


def _checked_step(step: object, owner: str) -> float:
    number = real_number(step)
    if number is None or not number >= 0:
        raise ConfigError(f"{owner}: a step is a number, 0 or more; got {step!r}")
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _checked_steps(given: Sequence[object], owner: str) -> list[int]:
    """The steps of points as ints: in order, none twice."""
    if not given:
        raise ConfigError(f"{owner}: the schedule has no points; give one at step 0 at least")
    steps = []
    for step in given:
        number = whole_number(step)
        if number is None or number < 0:
            raise ConfigError(
                f"{owner}: a point is given with its step, a whole number, 0 or more; got {step!r}"
            )
        steps.append(number)
    for before, after in pairwise(steps):
        if before == after:
            raise ConfigError(f"{owner}: there are two points at step {after}")
        if before > after:
            raise ConfigError(
                f"{owner}: step {after} comes after step {before}; give points in order of steps"
            )
    return steps

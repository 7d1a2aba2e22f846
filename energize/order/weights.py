"""The weights of a mix: exact numbers, shares of them within limits, and weights over
time.
"""

from __future__ import annotations

import math
import reprlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from numbers import Rational
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.arrays import BoolArray, FloatArray, Int64Array
from energize.core.checks import checked_choice, checked_whole, raised_as, real_number
from energize.core.description import described
from energize.core.node import INFINITE
from energize.errors import ConfigError, WeightError, nearest

INTERPOLATIONS = ("step", "linear", "cosine")

_SUM_TOLERANCE = 1e-6


def checked_weight(weight: object, where: str, what: str = "a weight") -> float:
    """Return `weight` as a float; raise `WeightError` naming `where` unless it is
    finite and 0 or more.
    """
    number: Any = (
        weight if type(weight) in (int, float, Fraction) else real_number(weight)
    )
    try:
        value = math.nan if number is None else float(number)
    except OverflowError:
        value = math.inf
    if not 0 <= value < math.inf:
        wanted = "is a number" if number is None else "is finite and not negative"
        raise WeightError(f"{where}: {what} {wanted}, got {reprlib.repr(weight)}")
    return value


def names_apart(expected: Iterable[str], found: Iterable[str]) -> str:
    """Return which names are missing and which are unknown, as text; "" if they are the
    same.
    """
    wanted = list(expected)
    listed = list(found)
    missing = [name for name in wanted if name not in listed]
    extra = [
        f"{name!r}{nearest(name, missing)}" for name in listed if name not in wanted
    ]
    parts = [f"missing {', '.join(map(repr, missing))}"] if missing else []
    return "; ".join([*parts, *([f"unknown {', '.join(extra)}"] if extra else [])])


@dataclass(frozen=True)
class Schedule:
    """A weight that changes with the step; usable wherever a mix takes a weight.

    `points` are (step, value) pairs in order of their steps, which count from 0. A
    value holds from its step on: `step` keeps it until the next point, `linear` and
    `cosine` go gradually to that of the next. Before the first point its value holds,
    after the last one that of the last.

    Steps are slots of the mix; or optimizer steps, if `slots_per_step` says how many
    slots one of them takes (the global batch size, for a mix of samples). Points act at
    their own slot; under the scheme `block`, those of `step` at the start of the next
    block.

    Raises `ConfigError` for steps or names that cannot be used, `WeightError` for
    values.

    >>> Schedule([(0, 0.2), (10_000, 0.5)], "linear").value(5_000)
    0.35
    """

    points: Sequence[tuple[int, float]]
    interpolation: str = "step"
    slots_per_step: int = 1

    def __post_init__(self) -> None:
        listed = list(self.points) if isinstance(self.points, Iterable) else [None]
        for pair in listed:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ConfigError(
                    f"Schedule: points are pairs (step, value); got {pair!r}"
                )
        checked_choice(self.interpolation, "interpolation", INTERPOLATIONS, "Schedule")
        steps = _checked_steps([step for step, _ in listed], "Schedule")
        points = tuple(
            (step, checked_weight(value, f"Schedule: the point at step {step}"))
            for step, (_, value) in zip(steps, listed, strict=True)
        )
        slots = checked_whole(self.slots_per_step, "Schedule: slots_per_step", 1)
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "slots_per_step", slots)

    def value(self, step: float) -> float:
        """Return the weight at a step, 0 or more."""
        number = real_number(step)
        if number is None or not number >= 0:
            raise ConfigError(f"Schedule: a step is a number, 0 or more; got {step!r}")
        slot = float(min(number, 2**62)) * self.slots_per_step
        return float(self.at(np.array([slot]))[0])

    def at(self, slots: FloatArray) -> FloatArray:
        """Return the weight at each slot, which need not be a whole number."""
        steps = np.array(self.slots, dtype=np.float64)
        values = np.array([value for _, value in self.points])
        point = np.clip(np.searchsorted(steps, slots, side="right") - 1, 0, None)
        if self.interpolation == "step":
            return values[point]
        then = np.minimum(point + 1, len(steps) - 1)
        length = np.where(then > point, steps[then] - steps[point], 1.0)
        way = np.clip((slots - steps[point]) / length, 0.0, 1.0)
        if self.interpolation == "cosine":
            way = (1 - np.cos(np.pi * way)) / 2
        return np.asarray(values[point] + way * (values[then] - values[point]))

    @property
    def slots(self) -> list[int]:
        """The slots of its points."""
        return [step * self.slots_per_step for step, _ in self.points]


@dataclass(frozen=True)
class WeightSchedulePoint:
    """The weights of all sources from a step on.

    They have to sum to 1 within 1e-6, so that a forgotten source shows. Raises
    `WeightError` for weights, `ConfigError` for a step.
    """

    step: int
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        [step] = _checked_steps([self.step], "WeightSchedulePoint")
        where = f"WeightSchedulePoint: the point at step {step}"
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise WeightError(
                f"{where}: weights map each source to a number; got {self.weights!r}"
            )
        named = self.weights.items()
        checked = {
            name: checked_weight(weight, f"{where}, source {name!r}")
            for name, weight in named
        }
        total = math.fsum(checked.values())
        if total == 0:
            raise WeightError(f"{where}: all {len(checked)} weights are 0")
        if abs(total - 1) > _SUM_TOLERANCE:
            raise WeightError(
                f"{where}: the weights sum to {total:.9g}, not to 1; correct them"
            )
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "weights", checked)


@dataclass(frozen=True)
class WeightScheduler:
    """Weights of named sources over the steps of a run, given at points.

    `interpolation` and `slots_per_step` are those of `Schedule`. Every point names the
    same sources; steps are in order, none twice.

    Raises `ConfigError`; for names, it lists those that are missing and those that are
    too many.

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

    def __post_init__(self) -> None:
        points = tuple(self.schedule) if isinstance(self.schedule, Iterable) else ()
        if not points or not all(
            isinstance(point, WeightSchedulePoint) for point in points
        ):
            raise ConfigError(
                "WeightScheduler: schedule is a list of WeightSchedulePoint(step, "
                f"weights), one at least; got {self.schedule!r}"
            )
        object.__setattr__(self, "schedule", points)
        for point in points:
            if difference := names_apart(self.dataset_names, point.weights):
                raise WeightError(
                    f"WeightScheduler: the point at step {point.step} does not name "
                    f"the sources of the first one: {difference}"
                )
        with raised_as("WeightScheduler", "Schedule"):
            [first, *_] = self.schedules().values()
        object.__setattr__(self, "slots_per_step", first.slots_per_step)

    @property
    def dataset_names(self) -> list[str]:
        """The sources, in the order of the first point."""
        return list(self.schedule[0].weights)

    def get_weights(self, step: float) -> dict[str, float]:
        """Return the weight of each source at a step, 0 or more; between points they
        sum to 1.
        """
        with raised_as("WeightScheduler", "Schedule"):
            weights = {
                name: schedule.value(step)
                for name, schedule in self.schedules().items()
            }
        glides = self.interpolation != "step"
        if glides and self.schedule[0].step < step < self.schedule[-1].step:
            total = math.fsum(weights.values())
            weights = {name: weight / total for name, weight in weights.items()}
        return weights

    def schedules(self) -> dict[str, Schedule]:
        """Return the weight of each source on its own."""
        options = self.interpolation, self.slots_per_step
        return {
            name: Schedule(
                [(point.step, point.weights[name]) for point in self.schedule], *options
            )
            for name in self.dataset_names
        }


def _checked_steps(listed: Sequence[object], owner: str) -> list[int]:
    """Return the steps of points as ints: in order, none twice."""
    steps = [checked_whole(step, f"{owner}: the step of a point", 0) for step in listed]
    if not steps or any(before >= after for before, after in pairwise(steps)):
        raise ConfigError(
            f"{owner}: points are in order of their steps, one at least; got {steps}"
        )
    return steps


_BITS = 60
"""Bits to which the sum of weights is rounded."""

_LAST_POINT = 2**40
_PIECES = 64
"""Into which the way between two points is cut to integrate shares."""

_GAUSS = ((0.1127016653792583, 5 / 18), (0.5, 8 / 18), (0.8872983346207417, 5 / 18))
"""Places and weights of Gauss-Legendre quadrature over 0 to 1."""

_ROUNDED = Fraction(1, 10**9)
"""How far limits may miss a sum of 1 because they were written with few digits."""


def exact_weight(weight: object, where: str) -> float | Fraction:
    """Return a checked weight in its exact value: a float if the decimal it prints as
    is just that.

    >>> exact_weight(0.1, "code"), exact_weight(Fraction(1, 3), "code")
    (0.1, Fraction(1, 3))
    """
    if type(weight) is float and 0 <= weight < math.inf:
        return weight
    checked_weight(weight, where)
    return lean(as_fraction(weight))


def lean(weight: Fraction) -> float | Fraction:
    """Return the same value, as a float if one prints as just that."""
    value = float(weight)
    return value if Fraction(str(value)) == weight else weight


def as_fraction(weight: object) -> Fraction:
    """Return a number as a fraction; a float stands for the decimal that it prints
    as.
    """
    if type(weight) is float or type(weight) is int:
        return Fraction(str(weight))
    if isinstance(weight, Fraction):
        return weight
    number = real_number(weight)
    if isinstance(number, Rational):
        return Fraction(int(number.numerator), int(number.denominator))
    return Fraction(Decimal(str(number)))


def integer_weights(weights: Sequence[float | Fraction]) -> list[int]:
    """Return integers in exactly the ratio of checked `weights`, with no common
    divisor.

    Raises `WeightError` if there are none, or none above zero.
    """
    if not any(weights):
        raise WeightError(
            f"all {len(weights)} weights are 0; at least one source has to be drawn"
        )
    ratios = [as_fraction(weight) for weight in weights]
    denominator = math.lcm(*(ratio.denominator for ratio in ratios))
    numerators = [
        ratio.numerator * (denominator // ratio.denominator) for ratio in ratios
    ]
    divisor = math.gcd(*numerators)
    return [number // divisor for number in numerators]


def bounded_weights(weights: Sequence[float | Fraction]) -> Int64Array:
    """Return `integer_weights` as int64 of a sum of about 2**60 at most.

    They are exact if their sum fits. Otherwise each share is rounded down to a multiple
    of 2**-60, and to one such unit at least.
    """
    values = integer_weights(weights)
    limit = 1 << _BITS
    if (total := sum(values)) > limit:
        values = [max(1, value * limit // total) if value else 0 for value in values]
    return np.array(values, dtype=np.int64)


def largest_remainder(weights: Sequence[int], seats: int) -> Int64Array:
    """Share out `seats` in the ratio of integer `weights`: floors, then one each to the
    largest remainders, ties to the first. Each source is within 1 of its exact share.

    Source: the method of Hamilton; Balinski, Young, "Fair representation", 2001.
    """
    total = sum(weights)
    pairs = [divmod(weight * seats, total) for weight in weights]
    shares = np.array([share for share, _ in pairs], dtype=np.int64)
    first = sorted(range(len(pairs)), key=lambda source: -pairs[source][1])
    shares[first[: seats - int(shares.sum())]] += 1
    return shares


def checked_temperature(temperature: object) -> float:
    """Return `temperature` as a finite float, 0 or more."""
    number = real_number(temperature)
    if number is None or not 0 <= number < math.inf:
        raise ConfigError(
            f"temperature is a finite number, 0 or more; got {temperature!r}"
        )
    return float(number)


def tempered(weights: Sequence[float | Fraction], temperature: float) -> list[float]:
    """Return shares in the ratio of weight ** temperature; a weight of 0 stays 0.

    1 keeps the ratio of the weights, 0 makes all shares equal, what lies between raises
    the small ones, and above 1 the large ones grow. (Formulas like softmax divide by a
    temperature: this is its reciprocal.) Raises `WeightError` if all are 0.

    >>> tempered([9, 1], 0.5)
    [0.75, 0.25]
    """
    most = max(weights, default=0)
    if not most > 0:
        raise WeightError(
            f"all {len(weights)} weights are 0: nothing could ever be drawn"
        )
    raised = [(w / most) ** temperature if w > 0 else 0.0 for w in map(float, weights)]
    total = math.fsum(raised)
    return [power / total for power in raised]


Limits = float | Sequence[float | None] | None
"""A floor or a cap: one for all sources with a weight above 0, or one each, None for no
limit."""


def limited(
    weights: Sequence[float | Fraction], least: Limits = None, most: Limits = None
) -> list[float]:
    """Return shares in the ratio of the weights, none below its floor or above its cap.

    Those that are not held at a limit keep the ratio of their weights exactly: share i
    is min(cap_i, max(floor_i, weight_i * x)), with the one x for which the sum is 1.

    Raises `ConfigError` if no shares can keep the limits.

    >>> limited([90, 9, 1], least=0.05)
    [0.8636363636363636, 0.08636363636363636, 0.05]
    >>> limited([90, 9, 1], most=0.5)
    [0.5, 0.45, 0.05]
    """
    weigh = [as_fraction(weight) for weight in weights]
    floors = _checked_limits(least, weigh, "min_share", Fraction(0))
    caps = _checked_limits(most, weigh, "max_share", Fraction(1))
    _check_range(floors, caps)
    for limits in (floors, caps):
        whole = sum(limits, Fraction(0))
        if (
            abs(whole - 1) <= _ROUNDED
        ):  # thirds, say, whose decimals do not quite sum to 1
            return [float(limit / whole) for limit in limits]

    def at(factor: Fraction) -> list[Fraction]:
        rows = zip(weigh, floors, caps, strict=True)
        return [min(cap, max(floor, weight * factor)) for weight, floor, cap in rows]

    def total(factor: Fraction) -> Fraction:
        return sum(at(factor), Fraction(0))

    rows = [*zip(weigh, floors, strict=True), *zip(weigh, caps, strict=True)]
    meets = sorted({limit / weight for weight, limit in rows if weight})
    # The sum grows with the factor, in a straight line between two at which a share
    # meets a limit.
    first = bisect_left(meets, Fraction(1), hi=len(meets) - 1, key=total)
    before = meets[first - 1] if first else Fraction(0)
    start = total(before)
    end = total(meets[first])
    way = (1 - start) / (end - start) if end > start else Fraction(1)
    return [float(share) for share in at(before + (meets[first] - before) * way)]


def _check_range(floors: Sequence[Fraction], caps: Sequence[Fraction]) -> None:
    """Raise `ConfigError` if no shares are above the floors and below the caps."""
    for number, (floor, cap) in enumerate(zip(floors, caps, strict=True)):
        if floor > cap:
            raise ConfigError(
                f"min_share of dataset {number} is above its max_share, {float(cap)}"
            )
    if sum(floors) > 1 + _ROUNDED or sum(caps) < 1 - _ROUNDED:
        raise ConfigError(
            f"min_share: the floors of the {len(floors)} datasets sum to "
            f"{float(sum(floors)):g}, their caps (max_share) to {float(sum(caps)):g}; "
            "shares sum to 1"
        )


def _check_number_of_limits(
    limits: Sequence[Any], weights: Sequence[Any], name: str
) -> None:
    if len(limits) != len(weights):
        raise ConfigError(
            f"{name}: {len(limits)} limits are given for {len(weights)} datasets"
        )


def _checked_limits(
    given: Limits, weigh: Sequence[Fraction], name: str, default: Fraction
) -> list[Fraction]:
    """Return one limit per source; that of a weight of 0 is 0."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    limits = list(given) if several else [given] * len(weigh)  # type: ignore[arg-type]
    _check_number_of_limits(limits, weigh, name)
    checked = []
    for number, (limit, weight) in enumerate(zip(limits, weigh, strict=True)):
        where = f"{name}, dataset {number}" if several else name
        share = _checked_limit(limit, where, default)
        if several and share and not weight and not default:
            raise ConfigError(
                f"{where}: the floor is {limit}, but the weight is 0, never drawn"
            )
        checked.append(share if weight else Fraction(0))
    return checked


def _checked_limit(limit: object, where: str, default: Fraction) -> Fraction:
    share = default if limit is None else real_number(limit)
    if share is None or not 0 <= share <= 1:
        raise ConfigError(f"{where}: a share is a number from 0 to 1, got {limit!r}")
    return as_fraction(share)


# Weights over time.


@dataclass(frozen=True)
class Compound:
    """A weight made of others, its `parts`, at the same slot: their "product" (of the
    weights of an inner mix and of a source in it), their "sum" (of one source that is
    listed twice), or the "share" of source `number` of an inner mix with these weights.
    """

    kind: str
    parts: tuple[Weight, ...]
    number: int = 0
    temperature: float = 1.0


Weight: TypeAlias = float | Fraction | Schedule | Compound
"""What a source of a mix may weigh."""

GivenWeights: TypeAlias = Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
"""A weight for each source: by position, by name in the order of the mapping, or over
steps."""


def named_weights(
    given: GivenWeights,
) -> tuple[tuple[str, ...] | None, tuple[Weight, ...]]:
    """Return the names of the sources, None if they go by position, and their checked
    weights, numbers in their exact values. Raise `WeightError` naming the source.
    """
    weights: Any = given.schedules() if isinstance(given, WeightScheduler) else given
    named = isinstance(weights, Mapping)
    try:
        if isinstance(weights, str | Set):  # which have no weights, or no order
            raise TypeError
        listed = list(weights.items() if named else enumerate(weights))
    except TypeError:
        raise WeightError(
            "weights are a list of numbers, or numbers by name; got "
            f"{reprlib.repr(given)}"
        ) from None
    checked = tuple(given_weight(weight, f"weight {name!r}") for name, weight in listed)
    return tuple(weights) if named else None, checked


def given_weight(weight: Any, where: str) -> Weight:
    """Return a checked weight: one over time as it is, a number in its exact value."""
    return (
        weight
        if isinstance(weight, Schedule | Compound)
        else exact_weight(weight, where)
    )


def weight_as_described(value: Any) -> Weight:
    """Return the weight that `described` told so. Raises `TypeError`, `KeyError`,
    `ValueError`, or what a `Schedule` raises, for anything else.
    """
    if not isinstance(value, dict):
        return exact_weight(
            Fraction(value) if isinstance(value, str) else value, "a weight"
        )
    if "points" in value:
        return Schedule(**value)
    return Compound(
        **value | {"parts": tuple(map(weight_as_described, value["parts"]))}
    )


def schedules_in(weights: Sequence[Weight]) -> Iterator[Schedule]:
    """Yield the schedules that weights are made of."""
    for weight in weights:
        if isinstance(weight, Schedule):
            yield weight
        elif isinstance(weight, Compound):
            yield from schedules_in(weight.parts)


def ever_positive(weight: Weight) -> bool:
    """Return whether a weight is above 0 at any slot."""
    if isinstance(weight, Schedule):
        return any(value > 0 for _, value in weight.points)
    if not isinstance(weight, Compound):
        return weight > 0
    if weight.kind == "share":
        return ever_positive(weight.parts[weight.number])
    return (all if weight.kind == "product" else any)(map(ever_positive, weight.parts))


def numbers_only(weights: Sequence[Weight]) -> list[Fraction] | None:
    """Return exact weights; None if a weight changes over time."""
    numbers = [
        as_fraction(weight)
        for weight in weights
        if isinstance(weight, float | Fraction)
    ]
    return numbers if len(numbers) == len(weights) else None


def weights_at(
    weights: Sequence[Weight], slots: npt.ArrayLike, block: int = 1
) -> FloatArray:
    """Return the weights (columns) at each slot (rows): float64. Schedules that change
    in steps have the value of the last multiple of `block` up to the slot.
    """
    at = np.asarray(slots, dtype=np.float64)
    steps = at if block == 1 else np.floor(at / block) * block
    inner: dict[tuple[int, float], FloatArray] = {}

    def values(weight: Weight) -> FloatArray:
        if isinstance(weight, Schedule):
            return weight.at(steps if weight.interpolation == "step" else at)
        if not isinstance(weight, Compound):
            return np.full(len(at), float(weight))
        if weight.kind != "share":
            parts = list(map(values, weight.parts))
            return np.asarray(
                (np.prod if weight.kind == "product" else np.sum)(parts, axis=0)
            )
        mix = id(weight.parts), weight.temperature
        if mix not in inner:
            columns = list(map(values, weight.parts))
            inner[mix] = _normalised(np.stack(columns, axis=1), weight.temperature)
        return inner[mix][:, weight.number]

    return np.stack(list(map(values, weights)), axis=1)


def shares_at(
    weights: Sequence[Weight], slots: npt.ArrayLike, block: int = 1
) -> FloatArray:
    """Return `weights_at` each slot divided by their sum; equal where they are all
    0.
    """
    return _normalised(weights_at(weights, slots, block))


def _normalised(weights: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Return the weights of each slot (rows) to the power of `temperature`, divided by
    their sum; equal where they are all 0.
    """
    most = weights.max(axis=1, keepdims=True)
    scaled = weights / np.where(most > 0, most, 1.0)
    if temperature != 1:
        scaled = np.where(scaled > 0, scaled, np.nan) ** temperature
        scaled = np.nan_to_num(scaled, nan=0.0)
    total = scaled.sum(axis=1, keepdims=True)
    equal = np.full_like(scaled, 1 / scaled.shape[1])
    return np.asarray(np.divide(scaled, total, out=equal, where=total > 0))


class Era:
    """The `weights` of all sources from slot `start` of a mix on.

    Points of schedules that change in steps act at the next multiple of `block`.
    `drawn` says of each source whether its weight is ever above 0, `points` are those
    of all schedules. `given` are the weights that were given, where a scheme takes
    others in their place.

    Raises `WeightError` if all weights are 0 at some slot.
    """

    def __init__(self, start: int, weights: Sequence[Weight], block: int = 1) -> None:
        self.weights = tuple(weights)
        self.start = start
        self._block = block
        self.given = self.weights
        self.drawn = np.array(list(map(ever_positive, self.weights)), dtype=np.bool_)
        schedules = list(schedules_in(self.weights))
        self.points = sorted(
            {slot for schedule in schedules for slot in schedule.slots}
        )
        if self.points and self.points[-1] > _LAST_POINT:
            raise ConfigError(
                f"a schedule has a point at slot {self.points[-1]}; the last may be "
                f"{_LAST_POINT}"
            )
        self._ways = _gradual_ranges(schedules)
        acting = _acting_points(schedules, block)
        self._acting = sorted(slot for slot in acting if slot > start)
        numbers = numbers_only(self.weights)
        self._fixed = None if numbers is None else bounded_weights(numbers)
        if numbers is None:
            self._check_never_all_zero()

    def describe(self) -> list[Any]:
        """Return the start, and the weights as JSON: numbers in their ratio."""
        weights = self.weights if self._fixed is None else self._fixed.tolist()
        return [self.start, described(weights)]

    def next_point(self, slot: int) -> int:
        """Return the first slot after `slot` at which a point acts, or `INFINITE`."""
        number = bisect_right(self._acting, slot)
        return self._acting[number] if number < len(self._acting) else INFINITE

    def glides(self, slot: int) -> bool:
        """Return whether shares change from slot to slot, from this one to the next
        point.
        """
        return any(first <= slot < last for first, last in self._ways)

    def has_weight(self, slot: int) -> BoolArray:
        """Return for each source whether it has a weight from `slot` to the next
        point.
        """
        if self._fixed is not None:
            return np.asarray(self._fixed > 0)
        # Between two points a weight is 0 everywhere or nowhere.
        between = (slot + self.next_point(slot)) / 2
        return np.asarray(weights_at(self.weights, [between], self._block)[0] > 0)

    def fixed(self, slot: int) -> Int64Array:
        """Return the weights from `slot` to the next point as integers, in their exact
        ratio up to 60 bits.
        """
        if self._fixed is not None:
            return self._fixed
        weights = weights_at(self.weights, [slot], self._block)[0].tolist()
        return bounded_weights(weights) if any(weights) else self.drawn.astype(np.int64)

    def gliding(self, slot: int, sources: Int64Array) -> tuple[Int64Array, FloatArray]:
        """Return the edges of pieces from `slot` to the next point, counted from
        `slot`, and the mean shares of some sources (columns) in each piece (rows).
        """
        weights = [self.weights[source] for source in sources.tolist()]
        edges = glide_edges(self.next_point(slot) - slot, len(sources))
        starts = edges[:-1].astype(np.float64)
        lengths = np.diff(edges)
        means = np.zeros((len(lengths), len(sources)))
        for way, weight in _GAUSS:
            means += weight * shares_at(
                weights, starts + way * lengths + slot, self._block
            )
        return edges, means

    def asks(self, slot: int) -> list[Any]:
        """Return what is asked for from `slot` to the next point, to be compared."""
        if not self.glides(slot):
            return [self.fixed(slot).tolist()]
        edges, shares = self.gliding(slot, np.flatnonzero(self.drawn))
        return [self.drawn.tolist(), edges.tolist(), shares.tolist()]

    def _check_never_all_zero(self) -> None:
        """Look at points where they act, and on the way between them."""
        points = [self.start, *self._acting]
        ways = pairwise([*points, points[-1]])
        slots = [a + way * (b - a) for a, b in ways for way in (0, 0.25, 0.75)]
        drawn = weights_at(self.weights, slots, self._block).any(axis=1)
        if not drawn.all():
            raise WeightError(
                f"all {len(self.weights)} weights are 0 at slot "
                f"{int(slots[int(drawn.argmin())])}: nothing could be drawn there"
            )


def _gradual_ranges(schedules: Iterable[Schedule]) -> set[tuple[int, int]]:
    """Return the first and last slots of the schedules that change gradually."""
    return {
        (schedule.slots[0], schedule.slots[-1])
        for schedule in schedules
        if schedule.interpolation != "step"
    }


def _acting_points(schedules: Iterable[Schedule], block: int) -> set[int]:
    """Return the slots at which points act; those of steps at the end of a block."""
    acting: set[int] = set()
    for schedule in schedules:
        steps = block if schedule.interpolation == "step" else 1
        acting.update(-(-slot // steps) * steps for slot in schedule.slots)
    return acting


def era_at(eras: Sequence[Era], slot: int) -> tuple[Era, int]:
    """Return the era that a slot belongs to, and where after it the next point acts or
    the next era begins.
    """
    number = bisect_right(eras, slot, key=lambda era: era.start) - 1
    after = [era.start for era in eras[number + 1 : number + 2]]
    return eras[number], min([eras[number].next_point(slot), *after])


def integrated_shares(eras: Sequence[Era], slots: int) -> FloatArray:
    """Return how many of the first `slots` are asked for of each source, the integral
    of its share: float64, sums to `slots`.

    Between two points of schedules the mean of shares is taken at 64 places: exact
    where they do not change or change in a straight line, and close where they change
    otherwise.

    >>> glide = Schedule([(0, 0), (100, 1)], "linear")
    >>> integrated_shares(
    ...     [Era(0, [glide, Schedule([(0, 1), (100, 0)], "linear")])], 100
    ... ).round(6).tolist()
    [50.0, 50.0]
    """
    total = np.zeros(len(eras[0].weights))
    for era, after in zip(eras, [*(era.start for era in eras[1:]), slots], strict=True):
        start = min(era.start, slots)
        end = min(after, slots)
        points = [slot for slot in era.points if start < slot < end]
        for first, last in pairwise([start, *points, end] if start < end else []):
            pieces = min(_PIECES, last - first) if era.glides(first) else 1
            places = first + (np.arange(pieces) + 0.5) * (last - first) / pieces
            total += shares_at(era.weights, places).mean(axis=0) * (last - first)
    return total


_MOST_PIECES = 2048
_LARGEST_TABLE = 2**20


def glide_edges(length: int, sources: int) -> Int64Array:
    """Return where the pieces of `length` slots begin, and the end of the last.

    There are so many that shares are nearly straight within a piece: with up to 512
    sources and 8 million slots no source strays by more than 0.4 slots for it. It is
    more in proportion to the length beyond that, and to the square of the number of
    sources.
    """
    pieces = min(
        isqrt(length // 2) + 1, _MOST_PIECES, max(_LARGEST_TABLE // sources, 16), length
    )
    return np.arange(pieces + 1) * length // pieces

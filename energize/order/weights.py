"""Weights of a mix: exact numbers, shares within limits, and weights over time."""

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

SIZE_RULES = ("size", "sqrt_size")
"""Weights of datasets by their sizes."""

_SUM_TOLERANCE = 1e-6


def checked_weight(weight: object, location: str, label: str = "a weight") -> float:
    """Return a weight as a float.

    Args:
        weight: The weight.
        location: The location, for messages.
        label: The name of the value, for messages.

    Raises:
        WeightError: Unless it is finite and 0 or more.
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
        raise WeightError(f"{location}: {label} {wanted}, got {reprlib.repr(weight)}")
    return value


def describe_differences(expected: Iterable[str], actual: Iterable[str]) -> str:
    """Return the missing and unknown names as text; "" if the names are the same.

    Args:
        expected: The names that are required.
        actual: The actual names.
    """
    wanted = list(expected)
    listed = list(actual)
    missing = [name for name in wanted if name not in listed]
    extra = [
        f"{name!r}{nearest(name, missing)}" for name in listed if name not in wanted
    ]
    parts = [f"missing {', '.join(map(repr, missing))}"] if missing else []
    return "; ".join([*parts, *([f"unknown {', '.join(extra)}"] if extra else [])])


@dataclass(frozen=True)
class Schedule:
    """A weight that changes over time, for any place that takes a weight.

    Before the first point, the weight has the value of the first point; after the last
    point, the value of the last.

    Args:
        points: Pairs (step, value) in order of their steps, which count from 0.
        interpolation: Values between points. "step" keeps the value of the last point;
            "linear" and "cosine" change gradually.
        slots_per_step: Slots of the mix in one step. 1 counts steps in slots; for
            optimizer steps of a mix of samples, set the global batch size.

    Raises:
        ConfigError: If steps are not in order, or the interpolation is unknown.
        WeightError: If a value is negative or not finite.

    Example:
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
                    f"Schedule: points must be pairs (step, value), got {pair!r}"
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
        """Return the weight at a step.

        Args:
            step: The step, 0 or more; fractions are allowed.
        """
        number = real_number(step)
        if number is None or not number >= 0:
            raise ConfigError(f"Schedule: a step must be a number >= 0, got {step!r}")
        slot = float(min(number, 2**62)) * self.slots_per_step
        return float(self.at(np.array([slot]))[0])

    def at(self, slots: FloatArray) -> FloatArray:
        """Return the weight at each slot.

        Args:
            slots: Slots, which can be fractions, float64, shape (n,).

        Returns:
            Weights, float64, shape (n,).
        """
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
        """The slots of the points."""
        return [step * self.slots_per_step for step, _ in self.points]


@dataclass(frozen=True)
class WeightSchedulePoint:
    """The weights of all sources from a step on.

    Args:
        step: The step, from 0.
        weights: The weight of each source. They must sum to 1 within 1e-6, so that a
            missing source is detected.

    Raises:
        WeightError: If weights are invalid, or do not sum to 1.
        ConfigError: If the step is invalid.
    """

    step: int
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        [step] = _checked_steps([self.step], "WeightSchedulePoint")
        location = f"WeightSchedulePoint: the point at step {step}"
        if not isinstance(self.weights, Mapping) or not self.weights:
            raise WeightError(
                f"{location}: weights must map each source to a number, got "
                f"{self.weights!r}"
            )
        named = self.weights.items()
        checked = {
            name: checked_weight(weight, f"{location}, source {name!r}")
            for name, weight in named
        }
        total = math.fsum(checked.values())
        if total == 0:
            raise WeightError(f"{location}: all {len(checked)} weights are 0")
        if abs(total - 1) > _SUM_TOLERANCE:
            raise WeightError(
                f"{location}: the weights sum to {total:.9g}, but must sum to 1. "
                "Correct them"
            )
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "weights", checked)


@dataclass(frozen=True)
class WeightScheduler:
    """Weights of named sources over time, defined at points.

    Args:
        schedule: The points, in order of their steps. All have the same sources.
        interpolation: As in `Schedule`.
        slots_per_step: As in `Schedule`.

    Raises:
        ConfigError: If points are not in order, or the interpolation is unknown.
        WeightError: If points have different sources; the message lists them.

    Example:
        >>> scheduler = WeightScheduler(
        ...     [
        ...         WeightSchedulePoint(step=0, weights={"code": 0.2, "text": 0.8}),
        ...         WeightSchedulePoint(
        ...             step=10_000, weights={"code": 0.5, "text": 0.5}
        ...         ),
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
                "WeightScheduler: schedule must be a non-empty list of "
                f"WeightSchedulePoint(step, weights), got {self.schedule!r}"
            )
        object.__setattr__(self, "schedule", points)
        for point in points:
            if difference := describe_differences(self.dataset_names, point.weights):
                raise WeightError(
                    f"WeightScheduler: the point at step {point.step} has other "
                    f"sources than the first one: {difference}"
                )
        with raised_as("WeightScheduler", "Schedule"):
            [first, *_] = self.schedules().values()
        object.__setattr__(self, "slots_per_step", first.slots_per_step)

    @property
    def dataset_names(self) -> list[str]:
        """The names of the sources, in the order of the first point."""
        return list(self.schedule[0].weights)

    def get_weights(self, step: float) -> dict[str, float]:
        """Return the weight of each source at a step.

        Args:
            step: The step, 0 or more.

        Returns:
            Weights by name. Between points, they sum to 1.
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
        """Return the schedule of each source."""
        options = self.interpolation, self.slots_per_step
        return {
            name: Schedule(
                [(point.step, point.weights[name]) for point in self.schedule], *options
            )
            for name in self.dataset_names
        }


def _checked_steps(listed: Sequence[object], owner: str) -> list[int]:
    """Return the steps of points as integers in ascending order."""
    steps = [checked_whole(step, f"{owner}: the step of a point", 0) for step in listed]
    if not steps or any(first >= second for first, second in pairwise(steps)):
        raise ConfigError(
            f"{owner}: points must be a non-empty list in the order of their steps, "
            f"got {steps}"
        )
    return steps


_BITS = 60
"""Bits of the sum of rounded weights."""

_LAST_POINT = 2**40
_PIECES = 64
"""Pieces between two points, over which shares are integrated."""

_GAUSS = ((0.1127016653792583, 5 / 18), (0.5, 8 / 18), (0.8872983346207417, 5 / 18))
"""Nodes and weights of three-point Gauss-Legendre quadrature on [0, 1]."""

_ROUNDED = Fraction(1, 10**9)
"""Tolerance for a sum of limits, as in 0.333 + 0.333 + 0.334."""


def exact_weight(weight: object, location: str) -> float | Fraction:
    """Return a checked weight without rounding.

    Args:
        weight: The weight.
        location: The location, for messages.

    Returns:
        A float if its decimal notation is exact, else a fraction.

    Raises:
        WeightError: Unless it is finite and 0 or more.

    Example:
        >>> exact_weight(0.1, "code"), exact_weight(Fraction(1, 3), "code")
        (0.1, Fraction(1, 3))
    """
    if type(weight) is float and 0 <= weight < math.inf:
        return weight
    checked_weight(weight, location)
    return lean(as_fraction(weight))


def lean(weight: Fraction) -> float | Fraction:
    """Return the same value as a float, if its decimal notation is exact."""
    denominator = weight.denominator
    if pow(10, denominator.bit_length(), denominator):  # infinitely many decimals
        return weight
    value = float(weight)
    return value if Fraction(str(value)) == weight else weight


def as_fraction(weight: object) -> Fraction:
    """Return a number as a fraction; a float is read as its decimal notation."""
    if type(weight) is float or type(weight) is int:
        return Fraction(str(weight))
    if isinstance(weight, Fraction):
        return weight
    number = real_number(weight)
    if isinstance(number, Rational):
        return Fraction(int(number.numerator), int(number.denominator))
    return Fraction(Decimal(str(number)))


def integer_weights(weights: Sequence[float | Fraction]) -> list[int]:
    """Return integers in the exact ratio of weights, without a common divisor.

    Args:
        weights: Checked weights.

    Raises:
        WeightError: If no weight is above 0.
    """
    if not any(weights):
        raise WeightError(f"all {len(weights)} weights are 0. Set at least one above 0")
    ratios = [as_fraction(weight) for weight in weights]
    denominator = math.lcm(*(ratio.denominator for ratio in ratios))
    numerators = [
        ratio.numerator * (denominator // ratio.denominator) for ratio in ratios
    ]
    divisor = math.gcd(*numerators)
    return [number // divisor for number in numerators]


def bounded_weights(weights: Sequence[float | Fraction]) -> Int64Array:
    """Return `integer_weights` as int64, with a sum of at most about 2**60.

    They are exact if their sum fits. Otherwise shares are rounded down to multiples of
    2**-60, but not to 0.

    Args:
        weights: Checked weights.
    """
    values = integer_weights(weights)
    limit = 1 << _BITS
    if (total := sum(values)) > limit:
        values = [max(1, value * limit // total) if value else 0 for value in values]
    return np.array(values, dtype=np.int64)


def largest_remainder(weights: Sequence[int], seats: int) -> Int64Array:
    """Divide seats in the ratio of integer weights, each within 1 of its exact share.

    Shares are rounded down; then the largest remainders get one seat each, ties to the
    first. Source: the method of Hamilton; Balinski, Young, "Fair representation", 2001.

    Args:
        weights: Integer weights, not all 0.
        seats: The sum of the result.

    Returns:
        Seats of each source, int64, shape (num_sources,).
    """
    total = sum(weights)
    pairs = [divmod(weight * seats, total) for weight in weights]
    shares = np.array([share for share, _ in pairs], dtype=np.int64)
    first = sorted(range(len(pairs)), key=lambda source: -pairs[source][1])
    shares[first[: seats - int(shares.sum())]] += 1
    return shares


def size_weight(rule: str, size: int) -> float:
    """Return the weight of a dataset by its size.

    Args:
        rule: One of `SIZE_RULES`.
        size: Number of items in one pass.

    Example:
        >>> size_weight("size", 9), size_weight("sqrt_size", 9)
        (9, 3.0)
    """
    return size if rule == "size" else math.sqrt(size)


def weight_exponent(temperature: object, exponent: object) -> float:
    """Return the power of weights that a temperature or an exponent sets.

    Args:
        temperature: T of w ** (1 / T), above 0; 1 if it is not set.
        exponent: The power itself, 0 or more; 1 if it is not set.

    Raises:
        ConfigError: If one is not valid, or both are set.

    Example:
        >>> weight_exponent(5, 1), weight_exponent(1, 0.5)
        (0.2, 0.5)
    """
    heat = real_number(temperature)
    power = real_number(exponent)
    if heat is None or not 0 < heat < math.inf:
        raise ConfigError(
            f"temperature must be a finite number > 0, got {temperature!r}. Set "
            "exponent=0 for equal shares"
        )
    if power is None or not 0 <= power < math.inf:
        raise ConfigError(f"exponent must be a finite number >= 0, got {exponent!r}")
    if heat != 1 and power != 1:
        raise ConfigError(
            f"temperature={temperature} means exponent={1 / float(heat):.4g}, but "
            f"exponent is {exponent}. Set one of them"
        )
    return float(power) / float(heat)


def raised(weights: Sequence[float | Fraction], exponent: float) -> list[float]:
    """Return shares in the ratio of weight ** exponent.

    1 keeps the ratio of the weights, 0 makes all shares equal, and values in between
    raise small shares. The exponent is the reciprocal of a temperature.

    Args:
        weights: Weights, 0 or more. A weight of 0 stays 0.
        exponent: The exponent, 0 or more.

    Raises:
        WeightError: If all weights are 0.

    Example:
        >>> raised([9, 1], 0.5)
        [0.75, 0.25]
    """
    most = max(weights, default=0)
    if not most > 0:
        raise WeightError(f"all {len(weights)} weights are 0. Set at least one above 0")
    powers = [(w / most) ** exponent if w > 0 else 0.0 for w in map(float, weights)]
    total = math.fsum(powers)
    return [power / total for power in powers]


Limits = float | Sequence[float | None] | None
"""A floor or a cap: one for all sources with a weight, or a list; None for none."""


def limited(
    weights: Sequence[float | Fraction], least: Limits = None, most: Limits = None
) -> list[float]:
    """Return shares in the ratio of weights, within floors and caps.

    Share i is min(cap_i, max(floor_i, weight_i * x)), with the x for which the sum is
    1. Shares that are not at a limit keep the exact ratio of their weights.

    Args:
        weights: Weights, 0 or more.
        least: The lowest share, for all sources or for each.
        most: The highest share, for all sources or for each.

    Raises:
        ConfigError: If no shares satisfy the limits.

    Example:
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
    lower = meets[first - 1] if first else Fraction(0)
    start = total(lower)
    end = total(meets[first])
    way = (1 - start) / (end - start) if end > start else Fraction(1)
    return [float(share) for share in at(lower + (meets[first] - lower) * way)]


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
            f"{float(sum(floors)):g}, their caps (max_share) to "
            f"{float(sum(caps)):g}, but shares must sum to 1. Lower min_share or "
            "raise max_share"
        )


def _check_number_of_limits(
    limits: Sequence[Any], weights: Sequence[Any], name: str
) -> None:
    if len(limits) != len(weights):
        raise ConfigError(
            f"{name}: {len(limits)} limits were passed for {len(weights)} datasets"
        )


def _checked_limits(
    values: Limits, weigh: Sequence[Fraction], name: str, default: Fraction
) -> list[Fraction]:
    """Return a limit for each source; 0 for a source with weight 0."""
    several = isinstance(values, Sequence) and not isinstance(values, str)
    limits: list[Any] = [values] * len(weigh)
    if isinstance(values, Sequence) and several:
        limits = list(values)
    _check_number_of_limits(limits, weigh, name)
    checked = []
    for number, (limit, weight) in enumerate(zip(limits, weigh, strict=True)):
        location = f"{name}, dataset {number}" if several else name
        share = _checked_limit(limit, location, default)
        if several and share and not weight and not default:
            raise ConfigError(
                f"{location}: the floor is {limit}, but the weight is 0, never drawn"
            )
        checked.append(share if weight else Fraction(0))
    return checked


def _checked_limit(limit: object, location: str, default: Fraction) -> Fraction:
    share = default if limit is None else real_number(limit)
    if share is None or not 0 <= share <= 1:
        raise ConfigError(
            f"{location}: a share must be a number from 0 to 1, got {limit!r}"
        )
    return as_fraction(share)


# Weights over time.


@dataclass(frozen=True)
class Compound:
    """A weight computed from other weights at the same slot.

    Attributes:
        kind: "product" (an inner mix and a source in it), "sum" (a source that is
            listed twice), or "share" (a source of an inner mix).
        parts: The other weights.
        number: For "share", the number of the source in `parts`.
        temperature: For "share", the exponent of the inner mix, under the name that
            states store.
    """

    kind: str
    parts: tuple[Weight, ...]
    number: int = 0
    temperature: float = 1.0


Weight: TypeAlias = float | Fraction | Schedule | Compound
"""The weight of a source of a mix."""

WeightsArgument: TypeAlias = Sequence[Weight] | Mapping[str, Weight] | WeightScheduler
"""A weight for each source: by position, by name, or over time."""


def named_weights(
    argument: WeightsArgument,
) -> tuple[tuple[str, ...] | None, tuple[Weight, ...]]:
    """Return the names and the checked weights of sources.

    Args:
        argument: Weights by position or by name.

    Returns:
        The names, or None without names; and the weights without rounding.

    Raises:
        WeightError: For invalid weights.
    """
    weights: Any = (
        argument.schedules() if isinstance(argument, WeightScheduler) else argument
    )
    named = isinstance(weights, Mapping)
    try:
        if isinstance(weights, str | Set):  # which have no weights, or no order
            raise TypeError
        listed = list(weights.items() if named else enumerate(weights))
    except TypeError:
        raise WeightError(
            "weights must be a list of numbers or a dict of numbers by name, got "
            f"{reprlib.repr(argument)}"
        ) from None
    checked = tuple(parse_weight(weight, f"weight {name!r}") for name, weight in listed)
    return tuple(weights) if named else None, checked


def parse_weight(weight: Any, location: str) -> Weight:
    """Return a checked weight: numbers without rounding, others unchanged."""
    return (
        weight
        if isinstance(weight, Schedule | Compound)
        else exact_weight(weight, location)
    )


def weight_as_described(value: Any) -> Weight:
    """Return a weight from its description.

    Raises:
        ValueError: For other values; also `KeyError` and `TypeError`.
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
    """Yield the schedules that weights contain."""
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
    """Return the weights at slots.

    Args:
        weights: The weights of the sources.
        slots: Slots, shape (n,).
        block: Step schedules use the last multiple of `block` up to the slot.

    Returns:
        Weights, float64, shape (n, num_sources).
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
    """Return the shares at slots; equal shares if all weights are 0.

    Args:
        weights: The weights of the sources.
        slots: Slots, shape (n,).
        block: As in `weights_at`.

    Returns:
        Shares, float64, shape (n, num_sources).
    """
    return _normalised(weights_at(weights, slots, block))


def _normalised(weights: FloatArray, exponent: float = 1.0) -> FloatArray:
    """Return weights ** exponent divided by the sum of their row."""
    most = weights.max(axis=1, keepdims=True)
    scaled = weights / np.where(most > 0, most, 1.0)
    if exponent != 1:
        scaled = np.where(scaled > 0, scaled, np.nan) ** exponent
        scaled = np.nan_to_num(scaled, nan=0.0)
    total = scaled.sum(axis=1, keepdims=True)
    equal = np.full_like(scaled, 1 / scaled.shape[1])
    return np.asarray(np.divide(scaled, total, out=equal, where=total > 0))


class Era:
    """The weights of all sources from a slot on.

    Attributes:
        drawn: Whether the weight of a source is ever above 0, bool, shape
            (num_sources,).
        points: The slots of the points of all schedules.
        original: The original weights, if a scheme replaces them.

    Args:
        start: The first slot.
        weights: The weights of the sources.
        block: Points of step schedules act at the next multiple of `block`.

    Raises:
        WeightError: If all weights are 0 at some slot.
    """

    def __init__(self, start: int, weights: Sequence[Weight], block: int = 1) -> None:
        self.weights = tuple(weights)
        self.start = start
        self._block = block
        self.original = self.weights
        self.drawn = np.array(list(map(ever_positive, self.weights)), dtype=np.bool_)
        schedules = list(schedules_in(self.weights))
        self.points = sorted(
            {slot for schedule in schedules for slot in schedule.slots}
        )
        if self.points and self.points[-1] > _LAST_POINT:
            raise ConfigError(
                "the last point of a schedule must be at most at slot "
                f"{_LAST_POINT}, got {self.points[-1]}"
            )
        self._ways = _gradual_ranges(schedules)
        acting = _acting_points(schedules, block)
        self._acting = sorted(slot for slot in acting if slot > start)
        numbers = numbers_only(self.weights)
        self._fixed = None if numbers is None else bounded_weights(numbers)
        if numbers is None:
            self._check_never_all_zero()

    def describe(self) -> list[Any]:
        """Return the start and the weights as JSON; numbers as integer ratios."""
        weights = self.weights if self._fixed is None else self._fixed.tolist()
        return [self.start, described(weights)]

    def next_point(self, slot: int) -> int:
        """Return the first slot after `slot` at which a point acts, or `INFINITE`."""
        number = bisect_right(self._acting, slot)
        return self._acting[number] if number < len(self._acting) else INFINITE

    def glides(self, slot: int) -> bool:
        """Return whether shares change gradually from `slot` to the next point."""
        return any(first <= slot < last for first, last in self._ways)

    def has_weight(self, slot: int) -> BoolArray:
        """Return whether sources have a weight from `slot` to the next point."""
        if self._fixed is not None:
            return np.asarray(self._fixed > 0)
        # Between two points a weight is 0 everywhere or nowhere.
        between = (slot + self.next_point(slot)) / 2
        return np.asarray(weights_at(self.weights, [between], self._block)[0] > 0)

    def fixed(self, slot: int) -> Int64Array:
        """Return the weights from a slot to the next point as integers.

        Args:
            slot: A slot from which weights are fixed.

        Returns:
            Weights in their exact ratio, up to 60 bits, int64, shape (num_sources,).
        """
        if self._fixed is not None:
            return self._fixed
        weights = weights_at(self.weights, [slot], self._block)[0].tolist()
        return bounded_weights(weights) if any(weights) else self.drawn.astype(np.int64)

    def gliding(self, slot: int, sources: Int64Array) -> tuple[Int64Array, FloatArray]:
        """Return mean shares in pieces from a slot to the next point.

        Args:
            slot: A slot from which weights change gradually.
            sources: Numbers of sources, int64, shape (k,).

        Returns:
            Edges of n pieces relative to `slot`, int64, shape (n + 1,); and the mean
            share of each source in each piece, float64, shape (n, k).
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
        """Return values that are equal if shares up to the next point are equal."""
        if not self.glides(slot):
            return [self.fixed(slot).tolist()]
        edges, shares = self.gliding(slot, np.flatnonzero(self.drawn))
        return [self.drawn.tolist(), edges.tolist(), shares.tolist()]

    def _check_never_all_zero(self) -> None:
        """Check points and the slots between them."""
        points = [self.start, *self._acting]
        ways = pairwise([*points, points[-1]])
        slots = [a + way * (b - a) for a, b in ways for way in (0, 0.25, 0.75)]
        drawn = weights_at(self.weights, slots, self._block).any(axis=1)
        if not drawn.all():
            raise WeightError(
                f"all {len(self.weights)} weights are 0 at slot "
                f"{int(slots[int(drawn.argmin())])}. Set at least one above 0"
            )


def _gradual_ranges(schedules: Iterable[Schedule]) -> set[tuple[int, int]]:
    """Return the first and last slots of schedules that change gradually."""
    return {
        (schedule.slots[0], schedule.slots[-1])
        for schedule in schedules
        if schedule.interpolation != "step"
    }


def _acting_points(schedules: Iterable[Schedule], block: int) -> set[int]:
    """Return the slots at which points act; for steps, at the end of a block."""
    acting: set[int] = set()
    for schedule in schedules:
        steps = block if schedule.interpolation == "step" else 1
        acting.update(-(-slot // steps) * steps for slot in schedule.slots)
    return acting


def era_at(eras: Sequence[Era], slot: int) -> tuple[Era, int]:
    """Return the era of a slot, and the slot of the next point or era."""
    number = bisect_right(eras, slot, key=lambda era: era.start) - 1
    later_starts = [era.start for era in eras[number + 1 : number + 2]]
    return eras[number], min([eras[number].next_point(slot), *later_starts])


def integrated_shares(eras: Sequence[Era], slots: int) -> FloatArray:
    """Return the requested slots of each source: the integral of its share.

    Shares between two points are sampled at 64 places. The result is exact for constant
    and linear shares, and close otherwise.

    Args:
        eras: The weights over time.
        slots: Number of slots from the start.

    Returns:
        Slots that sum to `slots`, float64, shape (num_sources,).

    Example:
        >>> rising = Schedule([(0, 0), (100, 1)], "linear")
        >>> falling = Schedule([(0, 1), (100, 0)], "linear")
        >>> integrated_shares([Era(0, [rising, falling])], 100).round(6).tolist()
        [50.0, 50.0]
    """
    total = np.zeros(len(eras[0].weights))
    for era, next_start in zip(
        eras, [*(era.start for era in eras[1:]), slots], strict=True
    ):
        start = min(era.start, slots)
        end = min(next_start, slots)
        points = [slot for slot in era.points if start < slot < end]
        for first, last in pairwise([start, *points, end] if start < end else []):
            pieces = min(_PIECES, last - first) if era.glides(first) else 1
            places = first + (np.arange(pieces) + 0.5) * (last - first) / pieces
            total += shares_at(era.weights, places).mean(axis=0) * (last - first)
    return total


_MOST_PIECES = 2048
_LARGEST_TABLE = 2**20


def glide_edges(length: int, sources: int) -> Int64Array:
    """Return the edges of pieces in which gradually changing shares are nearly linear.

    With up to 512 sources and 8 million slots, the error of a source is at most 0.4
    slots. Beyond that, it grows linearly with the length, and with the square of the
    number of sources.

    Args:
        length: Number of slots.
        sources: Number of sources.

    Returns:
        First slots of the pieces, and `length`, int64, shape (num_pieces + 1,).
    """
    pieces = min(
        isqrt(length // 2) + 1, _MOST_PIECES, max(_LARGEST_TABLE // sources, 16), length
    )
    return np.arange(pieces + 1) * length // pieces

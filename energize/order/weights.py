"""Weights as exact integers."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from numbers import Rational
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array
from energize.core.checks import real_number, whole_number
from energize.core.stream import INFINITE
from energize.errors import ConfigError, WeightError, nearest
from energize.order.apportionment import glide_edges, mean_shares

Weights: TypeAlias = Sequence[float] | Mapping[str, float]
"""One weight per source: by position, or by name in the order of the mapping."""

_LIMIT = 2**31


def checked_weight(weight: object, where: str, what: str = "a weight") -> float:
    """`weight` as a finite number, 0 or more; `WeightError` naming `where` and the value."""
    number = real_number(weight)
    if number is None:
        raise WeightError(f"{where}: {what} is a number, got {reprlib.repr(weight)}")
    try:
        value = float(number)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or value < 0:
        raise WeightError(f"{where}: {what} is finite and not negative, got {reprlib.repr(weight)}")
    return value


def exact_weight(weight: object, where: str) -> float | Fraction:
    """`weight` as `checked_weight` takes it, in a form that has its exact value: a float where the
    decimal that it prints as is just that, else a fraction.

    >>> exact_weight(0.1, "code"), exact_weight(Fraction(1, 3), "code")
    (0.1, Fraction(1, 3))
    """
    checked_weight(weight, where)
    return lean(Fraction(*_ratio(weight)))


def lean(weight: Fraction) -> float | Fraction:
    """The same value, as a float where one prints as just that."""
    value = float(weight)
    return value if as_fraction(value) == weight else weight


def as_fraction(weight: float | Fraction) -> Fraction:
    """A float as the decimal that it prints as; a fraction as it is."""
    return Fraction(*_ratio(weight))


def names_of(weights: Mapping[str, Any] | Iterable[Any]) -> tuple[str, ...] | None:
    """The names of the sources in their order, or None when they go by position."""
    return tuple(weights) if isinstance(weights, Mapping) else None


def listed_weights(weights: Mapping[str, Any] | Iterable[Any]) -> list[tuple[str | int, Any]]:
    """Names or positions, with the weights as given; `WeightError` for what is no list of them."""
    if isinstance(weights, Mapping):
        return list(weights.items())
    try:
        if not isinstance(weights, str | Set):  # which have no weights, or no order
            return list(enumerate(weights))
    except TypeError:
        pass
    raise WeightError(
        f"weights are a list of numbers, or numbers by name in a dict; got {reprlib.repr(weights)}"
    )


def integer_weights(weights: Weights) -> Int64Array:
    """Integers in exactly the ratio of `weights`, with no common divisor.

    A float stands for the decimal that it prints as, so 0.1, 0.2, 0.7 become 1, 2, 7; integers and
    fractions are taken as they are. The array is int64 when products with 32-bit numbers fit, else
    it holds Python integers. Raises `WeightError`, which names the weight by its name or position,
    for one that cannot be used, and when there are none, or none above zero.
    """
    named = listed_weights(weights)
    if not named:
        raise WeightError("there are no weights: a mix needs at least one source")
    checked = [checked_weight(weight, f"weight {name!r}") for name, weight in named]
    if not any(checked):
        raise WeightError(f"all {len(named)} weights are 0: nothing could ever be drawn")
    ratios = [_ratio(weight) for _, weight in named]
    denominator = math.lcm(*(below for _, below in ratios))
    numerators = [above * (denominator // below) for above, below in ratios]
    divisor = math.gcd(*numerators)
    numerators = [n // divisor for n in numerators]
    return np.array(numerators, dtype=np.int64 if sum(numerators) < _LIMIT else object)


def _ratio(weight: object) -> tuple[int, int]:
    number = real_number(weight)
    if isinstance(number, Rational):
        return int(number.numerator), int(number.denominator)
    return Decimal(str(number)).as_integer_ratio()


def bounded_weights(integers: Int64Array, bits: int = 60) -> Int64Array:
    """Positive `integers` as int64 of a sum of about 2**bits at most.

    They are kept when their sum fits. Otherwise each share is rounded down to a multiple of
    2**-bits, and to one such unit at least.
    """
    values: list[int] = integers.tolist()
    total, limit = sum(values), 1 << bits
    if total > limit:
        values = [max(1, value * limit // total) for value in values]
    return np.array(values, dtype=np.int64)


def largest_remainder(weights: Int64Array, seats: int) -> Int64Array:
    """`seats` shared out in the ratio of integer `weights`: floors, then one each to the largest
    remainders, ties to the first. Each source is within 1 of its exact share.

    Source: the method of Hamilton; Balinski, Young, "Fair representation", 2001.
    """
    total = int(weights.sum())
    whole, rest = divmod(seats, total)
    floors, remainders = weights * rest // total, weights * rest % total
    shares: Int64Array = (weights * whole + floors).astype(np.int64)
    missing = seats - int(shares.sum())
    if missing:
        shares[np.argsort(-remainders, kind="stable")[:missing]] += 1
    return shares


# Weights that change during a run: points, and how to go from one to the next.

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


# Weights of a mix: numbers, schedules, and what nested mixes make of them.


@dataclass(frozen=True)
class Share:
    """The share of source `number` of an inner mix with weights `among`, at the same slot."""

    among: tuple[Weight, ...]
    number: int
    temperature: float = 1.0


@dataclass(frozen=True)
class Product:
    """The product of weights: of an inner mix, and of a source in it."""

    factors: tuple[Weight, ...]


@dataclass(frozen=True)
class Sum:
    """The sum of weights: of one source that is listed twice."""

    terms: tuple[Weight, ...]


Weight = float | Fraction | Schedule | Share | Product | Sum
"""What a source of a mix may weigh."""

_Memo = dict[tuple[int, float], FloatArray]


def weight_as_described(value: Any) -> Weight:
    """The weight that `described` told so. Raises `TypeError`, `KeyError` or `ValueError`, or what
    a `Schedule` raises, for anything else.
    """
    if not isinstance(value, dict):
        return exact_weight(Fraction(value) if isinstance(value, str) else value, "a weight")
    if "points" in value:
        return Schedule(**value)
    if "factors" in value:
        return Product(tuple(map(weight_as_described, value["factors"])))
    if "terms" in value:
        return Sum(tuple(map(weight_as_described, value["terms"])))
    among = tuple(map(weight_as_described, value["among"]))
    return Share(among, value["number"], value["temperature"])


def schedules_in(weight: Weight) -> Iterator[Schedule]:
    """The schedules that a weight is made of."""
    if isinstance(weight, Schedule):
        yield weight
    for part in _parts(weight):
        yield from schedules_in(part)


def ever_positive(weight: Weight) -> bool:
    """Whether a weight is above 0 at any slot."""
    if isinstance(weight, Schedule):
        return any(value > 0 for _, value in weight.points)
    if isinstance(weight, Share):
        return ever_positive(weight.among[weight.number])
    if isinstance(weight, Product):
        return all(map(ever_positive, weight.factors))
    return any(map(ever_positive, weight.terms)) if isinstance(weight, Sum) else weight > 0


def weights_at(
    weights: Sequence[Weight], slots: npt.ArrayLike, held: float | None = None
) -> FloatArray:
    """The weights (columns) at each slot (rows): float64. Schedules that change in steps have their
    value at slot `held` throughout, where it is given.
    """
    at = np.asarray(slots, dtype=np.float64)
    steps = at if held is None else np.full(len(at), float(held))
    found = np.empty((len(at), len(weights)))
    alike: dict[tuple[tuple[int, ...], str], list[int]] = {}
    memo: _Memo = {}
    for number, weight in enumerate(weights):
        if isinstance(weight, Schedule):
            alike.setdefault((tuple(weight.slots), weight.interpolation), []).append(number)
        else:
            found[:, number] = _value(weight, at, steps, memo)
    for (points, interpolation), numbers in alike.items():
        schedules: Any = [weights[number] for number in numbers]
        along = steps if interpolation == "step" else at
        found[:, numbers] = weights_along(points, interpolation, schedules, along)
    return found


def shares_at(
    weights: Sequence[Weight], slots: npt.ArrayLike, held: float | None = None
) -> FloatArray:
    """The weights at each slot divided by their sum; equal where they are all 0."""
    return normalised(weights_at(weights, slots, held))


def _parts(weight: Weight) -> tuple[Weight, ...]:
    if isinstance(weight, Share):
        return weight.among
    if isinstance(weight, Product):
        return weight.factors
    return weight.terms if isinstance(weight, Sum) else ()


def _value(weight: Weight, slots: FloatArray, steps: FloatArray, memo: _Memo) -> FloatArray:
    if isinstance(weight, Schedule):
        return weight.at(steps if weight.interpolation == "step" else slots)
    if isinstance(weight, Share):
        known = (id(weight.among), weight.temperature)
        if known not in memo:
            among = np.stack([_value(each, slots, steps, memo) for each in weight.among], axis=1)
            memo[known] = normalised(among, weight.temperature)
        return memo[known][:, weight.number]
    values: Any = [_value(part, slots, steps, memo) for part in _parts(weight)]
    if isinstance(weight, Product):
        return np.asarray(np.prod(values, axis=0))
    return np.asarray(np.sum(values, axis=0)) if values else np.full(len(slots), float(weight))  # type: ignore[arg-type]


def normalised(weights: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Weights of a slot (rows), to the power of `temperature`, divided by their sum; equal where
    they are all 0.
    """
    most = weights.max(axis=1, keepdims=True)
    scaled = weights / np.where(most > 0, most, 1.0)
    if temperature != 1:
        scaled = np.where(scaled > 0, scaled, np.nan) ** temperature
        scaled = np.nan_to_num(scaled, nan=0.0)
    total = scaled.sum(axis=1, keepdims=True)
    equal = np.full_like(scaled, 1 / scaled.shape[1])
    shares: FloatArray = np.divide(scaled, total, out=equal, where=total > 0)
    return shares


# Shares of a mix made from its weights: temperature, floors and caps.

_ROUNDED = Fraction(1, 10**9)
"""How far limits may miss a sum of 1 because they were written with few digits."""


def checked_temperature(temperature: object) -> float:
    """`temperature` as a finite number, 0 or more."""
    number = real_number(temperature)
    if number is None or not 0 <= number < math.inf:
        raise ConfigError(
            "temperature is a number, 0 or more: 1 keeps the weights, 0 makes them equal; got "
            f"{temperature!r}"
        )
    return float(number)


def tempered(weights: Sequence[float | Fraction], temperature: float) -> list[float]:
    """Shares in the ratio of weight ** temperature.

    1 keeps the ratio of the weights, 0 makes all shares equal, and what lies between raises the
    small ones; above 1 the large ones grow. (Where softmax-like formulas divide by a temperature T,
    this is 1 / T.) A weight of 0 stays 0. Raises `WeightError` when all are 0.

    >>> tempered([9, 1], 0.5)
    [0.75, 0.25]
    """
    most = max(weights, default=0)
    if not most > 0:
        raise WeightError(f"all {len(weights)} weights are 0: nothing could ever be drawn")
    raised = [(w / most) ** temperature if w > 0 else 0.0 for w in map(float, weights)]
    total = math.fsum(raised)
    return [each / total for each in raised]


def limited(
    weights: Sequence[float | Fraction],
    least: float | Sequence[float | None] | None = None,
    most: float | Sequence[float | None] | None = None,
) -> list[float]:
    """Shares in the ratio of the weights, but none below its floor or above its cap.

    Those that are not held at a limit keep the ratio of their weights exactly: share i is
    min(cap_i, max(floor_i, weight_i * x)), with the one x for which the sum is 1. Limits are
    numbers from 0 to 1, one for all sources with a weight above 0, or one each (None: no limit).

    Raises `ConfigError` when no shares can keep the limits, and says why.

    >>> limited([90, 9, 1], least=0.05)
    [0.8636363636363636, 0.08636363636363636, 0.05]
    >>> limited([90, 9, 1], most=0.5)
    [0.5, 0.45, 0.05]
    """
    weigh = [as_fraction(w) for w in weights]
    floors = _limits(least, weigh, "min_share", Fraction(0))
    caps = _limits(most, weigh, "max_share", Fraction(1))
    _check_feasible(weigh, floors, caps)
    for limits in (floors, caps):
        total = sum(limits, Fraction(0))
        if abs(total - 1) <= _ROUNDED:  # thirds, say, whose decimals do not quite sum to 1
            return [float(limit / total) for limit in limits]
    drawn = [i for i, w in enumerate(weigh) if w]
    meets = sorted({limit[i] / weigh[i] for i in drawn for limit in (floors, caps)})
    low, high = 0, len(meets) - 1
    while low < high:  # the first factor at which the shares sum to 1 or more
        middle = (low + high) // 2
        if sum(_clipped(weigh, floors, caps, meets[middle])) < 1:
            low = middle + 1
        else:
            high = middle
    # Between this factor and the one before it the sum grows in a straight line.
    before = meets[low - 1] if low else Fraction(0)
    start = sum(_clipped(weigh, floors, caps, before), Fraction(0))
    end = sum(_clipped(weigh, floors, caps, meets[low]), Fraction(0))
    way = (1 - start) / (end - start) if end > start else Fraction(1)
    factor = before + (meets[low] - before) * way
    return [float(share) for share in _clipped(weigh, floors, caps, factor)]


def _clipped(
    weigh: Sequence[Fraction],
    floors: Sequence[Fraction],
    caps: Sequence[Fraction],
    factor: Fraction,
) -> list[Fraction]:
    return [
        min(cap, max(floor, w * factor)) for w, floor, cap in zip(weigh, floors, caps, strict=True)
    ]


def _limits(
    given: float | Sequence[float | None] | None,
    weigh: Sequence[Fraction],
    name: str,
    default: Fraction,
) -> list[Fraction]:
    """One limit per source; a source of weight 0 has a share of 0 whatever limit is for all."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        checked = default if given is None else _checked_limit(given, name, "")
        return [checked if w else Fraction(0) for w in weigh]
    if len(given) != len(weigh):
        raise ConfigError(f"{name}: {len(given)} limits are given for {len(weigh)} datasets")
    limits = []
    for number, (limit, w) in enumerate(zip(given, weigh, strict=True)):
        checked = default if limit is None else _checked_limit(limit, name, f", dataset {number}")
        if not w and name == "min_share" and checked:
            raise ConfigError(
                f"min_share, dataset {number}: the floor is {limit}, but the weight is 0, which is "
                "never drawn"
            )
        limits.append(checked if w else Fraction(0))
    return limits


def _checked_limit(limit: object, name: str, where: str) -> Fraction:
    number = real_number(limit)
    if number is None or not 0 <= number <= 1:
        raise ConfigError(f"{name}{where}: a share is a number from 0 to 1, got {limit!r}")
    return Fraction(str(number))


def _check_feasible(
    weigh: Sequence[Fraction], floors: Sequence[Fraction], caps: Sequence[Fraction]
) -> None:
    for number, (floor, cap) in enumerate(zip(floors, caps, strict=True)):
        if floor > cap:
            raise ConfigError(
                f"dataset {number} shall have a share of {float(floor):g} at least and of "
                f"{float(cap):g} at most"
            )
    drawn = sum(1 for w in weigh if w)
    if sum(floors) > 1 + _ROUNDED:
        raise ConfigError(
            f"min_share: the floors of the {drawn} datasets sum to {float(sum(floors)):g}, more "
            "than 1; lower them"
        )
    if sum(caps) < 1 - _ROUNDED:
        raise ConfigError(
            f"max_share: the caps of the {drawn} datasets with a weight sum to "
            f"{float(sum(caps)):g}, less than 1; raise them"
        )


# What sources weigh from a slot on: shares that are fixed or interpolated between the slots at

_LAST_POINT = 2**40
_MOST_BLOCKS = 2**24


class Weighing:
    """The `weights` of all sources, numbers or schedules, in force from slot `start` of a mix on.

    Points of schedules that change in steps act at the next multiple of `block_size`, those of
    others too where `by_first_slot`; then the weights of a block are those of its first slot.

    Raises `WeightError` where all weights are 0 at some slot.
    """

    def __init__(
        self,
        weights: Sequence[Weight],
        start: int = 0,
        *,
        block_size: int = 1,
        by_first_slot: bool = False,
    ) -> None:
        self.start = start
        self.drawn = np.array([ever_positive(each) for each in weights], dtype=np.bool_)
        self._weights, self._block, self._by_first_slot = weights, block_size, by_first_slot
        self._schedules = [each for weight in weights for each in schedules_in(weight)]
        self._numbers = None if self._schedules else _integers(weights)
        acting = [self._acting(each) for each in self._schedules]
        points = {slot for each in acting for slot in each if slot > start}
        gliding = {
            (slots[0], slots[-1])
            for slots, each in zip(acting, self._schedules, strict=True)
            if each.interpolation != "step"
        }
        self._gliding = sorted(gliding)
        self._points = np.array(sorted(points), dtype=np.int64)
        last = max((each.slots[-1] for each in self._schedules), default=0)
        if last > _LAST_POINT:
            raise ConfigError(
                f"a schedule has a point at slot {last}; points may lie up to slot {_LAST_POINT}"
            )
        self._check_never_all_zero()

    def _acting(self, schedule: Schedule) -> list[int]:
        """The slots at which a schedule's points act."""
        if schedule.interpolation != "step" and not self._by_first_slot:
            return schedule.slots
        return [-(-slot // self._block) * self._block for slot in schedule.slots]

    def next_point(self, slot: int) -> int:
        """The first slot after `slot` at which a point acts, or `INFINITE`."""
        number = int(np.searchsorted(self._points, slot, side="right"))
        return int(self._points[number]) if number < len(self._points) else INFINITE

    def glides(self, slot: int) -> bool:
        """Whether shares change from slot to slot, from this one to the next point."""
        return any(first <= slot < last for first, last in self._gliding)

    def fixed(self, slot: int) -> Int64Array:
        """Weights in whole numbers, in their exact ratio up to 60 bits, from `slot` to the next
        point.
        """
        if self._numbers is not None:
            return self._numbers
        there = weights_at(self._weights, [slot], self._held(slot))[0].tolist()
        return _integers(there) if any(there) else self.drawn.astype(np.int64)

    def gliding(self, start: int, end: int, sources: Int64Array) -> tuple[Int64Array, FloatArray]:
        """The edges of pieces from `start` to `end`, counted from `start`, and the mean shares of
        some sources (columns) in each (rows).
        """
        weights = [self._weights[each] for each in sources.tolist()]

        def shares(slots: FloatArray) -> FloatArray:
            return normalised(weights_at(weights, slots + start, self._held(start)))

        if not self._by_first_slot:
            edges = glide_edges(end - start, len(sources))
            return edges, mean_shares(shares, edges.astype(np.float64))
        cells = -(-(end - start) // self._block) * len(sources)
        if cells > _MOST_BLOCKS:
            raise ConfigError(
                f"change='block_start' keeps a table of blocks times sources, {_MOST_BLOCKS} cells "
                f"at most; this schedule needs {cells}. Use change='block', or a larger block_size"
            )
        edges = np.append(np.arange(0, end - start, self._block), end - start)
        return edges, shares(edges[:-1].astype(np.float64))

    def _held(self, slot: int) -> int:
        """A slot up to which all points of steps act by `slot`."""
        return slot // self._block * self._block

    def _check_never_all_zero(self) -> None:
        """At points, as they are written and where they act, and on the way between them."""
        if self._numbers is not None:
            return
        written = sorted({self.start, *(s for each in self._schedules for s in each.slots)})
        self._check_drawn(_between([slot for slot in written if slot >= self.start]))
        for slot in [self.start, *self._points.tolist()] if self._block > 1 else []:
            self._check_drawn([slot], self._held(slot))

    def _check_drawn(self, slots: Sequence[float], held: int | None = None) -> None:
        drawn = weights_at(self._weights, slots, held).any(axis=1)
        if not drawn.all():
            slot = int(slots[int(drawn.argmin())])
            raise WeightError(
                f"all {len(self._weights)} weights are 0 at slot {slot}: nothing could be drawn "
                "there"
            )


def _between(points: Sequence[int]) -> list[float]:
    """The points, and ways between them."""
    return [
        a + way * (b - a) for a, b in pairwise([*points, points[-1]]) for way in (0, 0.25, 0.75)
    ]


def _integers(weights: Sequence[Weight]) -> Int64Array:
    numbers = integer_weights(weights)  # type: ignore[arg-type]  # none of them is a schedule
    drawn = np.flatnonzero(numbers > 0)
    bounded = np.zeros(len(numbers), dtype=np.int64)
    bounded[drawn] = bounded_weights(numbers[drawn])
    return bounded

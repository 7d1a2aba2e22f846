"""Weights of a mix: numbers, schedules, and what nested mixes make of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.arrays import FloatArray
from energize.order.schedule import Schedule, weights_along
from energize.order.weights import exact_weight


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

"""Weights of a mix: numbers, schedules, and what nested mixes make of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from energize.arrays import FloatArray
from energize.order.schedules.schedule import Schedule, weights_along

__all__ = [
    "Product",
    "Share",
    "Sum",
    "Weight",
    "ever_positive",
    "final_weights",
    "normalised",
    "schedules_in",
    "shares_at",
    "stepping_at_blocks",
    "weights_at",
]


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


def stepping_at_blocks(weights: Sequence[Weight], block_size: int, start: int) -> list[Weight]:
    """The weights, with the points of schedules that change in steps moved to the next of the slots
    `start`, `start` + block_size, ...; of points at the same slot the last one counts.
    """
    known: dict[int, Any] = {}

    def moved(weight: Any) -> Any:
        if id(weight) not in known:
            known[id(weight)] = weight, remade(weight)  # kept, so that its id stays its own
        return known[id(weight)][1]

    def remade(weight: Any) -> Any:
        if isinstance(weight, tuple):
            return tuple(moved(each) for each in weight)
        if isinstance(weight, Share):
            return Share(moved(weight.among), weight.number, weight.temperature)
        if isinstance(weight, Product):
            return Product(moved(weight.factors))
        if isinstance(weight, Sum):
            return Sum(moved(weight.terms))
        if not isinstance(weight, Schedule) or weight.interpolation != "step":
            return weight
        points = {
            start + -(-max(slot - start, 0) // block_size) * block_size: value
            for slot, (_, value) in zip(weight.slots, weight.points, strict=True)
        }
        return Schedule(points.items(), change=weight.change)

    return [moved(weight) for weight in weights]


def final_weights(weights: Sequence[Weight]) -> tuple[int, FloatArray]:
    """The last point of all schedules, or 0, and the weights there and for ever behind it."""
    points = [slot for weight in weights for each in schedules_in(weight) for slot in each.slots]
    last = max(points, default=0)
    return last, weights_at(weights, [last])[0]


def weights_at(weights: Sequence[Weight], slots: npt.ArrayLike) -> FloatArray:
    """The weights (columns) at each slot (rows): float64."""
    at = np.asarray(slots, dtype=np.float64)
    found = np.empty((len(at), len(weights)))
    alike: dict[tuple[tuple[int, ...], str], list[int]] = {}
    memo: _Memo = {}
    for number, weight in enumerate(weights):
        if isinstance(weight, Schedule):
            alike.setdefault((tuple(weight.slots), weight.interpolation), []).append(number)
        else:
            found[:, number] = _value(weight, at, memo)
    for (points, interpolation), numbers in alike.items():
        schedules: Any = [weights[number] for number in numbers]
        found[:, numbers] = weights_along(points, interpolation, schedules, at)
    return found


def shares_at(
    weights: Sequence[Weight], slots: npt.ArrayLike, temperature: float = 1.0
) -> FloatArray:
    """The weights at each slot divided by their sum; equal where they are all 0."""
    return _normalised(weights_at(weights, slots), temperature)


def normalised(weights: FloatArray) -> FloatArray:
    """Weights divided by their sum; equal where they are all 0."""
    shares: FloatArray = _normalised(weights[np.newaxis], 1.0)[0]
    return shares


def _parts(weight: Weight) -> tuple[Weight, ...]:
    if isinstance(weight, Share):
        return weight.among
    if isinstance(weight, Product):
        return weight.factors
    return weight.terms if isinstance(weight, Sum) else ()


def _value(weight: Weight, slots: FloatArray, memo: _Memo) -> FloatArray:
    if isinstance(weight, Schedule):
        return weight.at(slots)
    if isinstance(weight, Share):
        known = (id(weight.among), weight.temperature)
        if known not in memo:
            among = np.stack([_value(each, slots, memo) for each in weight.among], axis=1)
            memo[known] = _normalised(among, weight.temperature)
        return memo[known][:, weight.number]
    values: Any = [_value(part, slots, memo) for part in _parts(weight)]
    if isinstance(weight, Product):
        return np.asarray(np.prod(values, axis=0))
    return np.asarray(np.sum(values, axis=0)) if values else np.full(len(slots), float(weight))  # type: ignore[arg-type]


def _normalised(weights: FloatArray, temperature: float) -> FloatArray:
    most = weights.max(axis=1, keepdims=True)
    scaled = weights / np.where(most > 0, most, 1.0)
    if temperature != 1:
        scaled = np.where(scaled > 0, scaled, np.nan) ** temperature
        scaled = np.nan_to_num(scaled, nan=0.0)
    total = scaled.sum(axis=1, keepdims=True)
    equal = np.full_like(scaled, 1 / scaled.shape[1])
    shares: FloatArray = np.divide(scaled, total, out=equal, where=total > 0)
    return shares

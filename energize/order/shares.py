"""Shares of a mix made from its weights: temperature, floors and caps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from energize.errors import ConfigError, WeightError
from energize.numbers import real_number
from energize.order.weights import as_fraction

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

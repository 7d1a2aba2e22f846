"""Weights as exact integers."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence, Set
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any, TypeAlias

import numpy as np

from energize.arrays import Int64Array
from energize.errors import WeightError
from energize.numbers import real_number

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

"""Weights as exact integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from energize.errors import WeightError

__all__ = ["checked_weight", "integer_weights", "largest_remainder"]

Int64Array = npt.NDArray[np.int64]

_LIMIT = 2**31
_MOST_EXACT = 4096


def checked_weight(weight: object, where: str) -> float:
    """`weight` as a finite number, 0 or more; `WeightError` naming `where` and the value."""
    if isinstance(weight, bool) or not isinstance(weight, int | float | Fraction | np.number):
        raise WeightError(f"{where}: a weight is a number, got {weight!r}")
    value = float(weight)
    if not math.isfinite(value) or value < 0:
        raise WeightError(f"{where}: a weight is finite and not negative, got {weight!r}")
    return value


def integer_weights(weights: Sequence[float]) -> Int64Array:
    """Integers in exactly the ratio of `weights`, with no common divisor.

    A float stands for the decimal that it prints as, so 0.1, 0.2, 0.7 become 1, 2, 7. The array is
    int64 when products with 32-bit numbers fit, else it holds Python integers. More than
    `_MOST_EXACT` weights that need those are rounded to 31 bits of their sum instead; a weight
    above zero stays above zero. Raises `WeightError` when there are none, or none above zero.
    """
    if not len(weights):
        raise WeightError("there are no weights: a mix needs at least one source")
    checked = [checked_weight(w, f"weight {i}") for i, w in enumerate(weights)]
    if not any(checked):
        raise WeightError(f"all {len(checked)} weights are 0: nothing could ever be drawn")
    exact = [Fraction(repr(w)) for w in checked]
    denominator = math.lcm(*(fraction.denominator for fraction in exact))
    numerators = [int(fraction * denominator) for fraction in exact]
    divisor = math.gcd(*numerators)
    numerators = [n // divisor for n in numerators]
    if sum(numerators) < _LIMIT:
        return np.array(numerators, dtype=np.int64)
    if len(numerators) <= _MOST_EXACT:
        return np.array(numerators, dtype=object)
    return _rounded(np.array(checked))


def _rounded(weights: npt.NDArray[np.float64]) -> Int64Array:
    scaled = np.rint(weights / weights.sum() * (_LIMIT - 1 - len(weights)))
    return np.maximum(scaled, weights > 0).astype(np.int64)


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

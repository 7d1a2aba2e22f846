"""How much of the first slots of a mix weights ask for: the integral of their shares."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from energize.arrays import FloatArray
from energize.order.varying import Weight, schedules_in, shares_at

_PIECES = 64
"""Into which the way between two points of schedules is cut: shares are smooth there."""

Era = tuple[int, Sequence[Weight]]
"""Weights, and the slot from which they are in force."""


def asked_shares(weights: Sequence[Weight]) -> FloatArray | None:
    """The shares that weights ask for, in their order; None where they change.

    >>> asked_shares([3, 1]).tolist()
    [0.75, 0.25]
    """
    if any(True for each in weights for _ in schedules_in(each)):
        return None
    shares: FloatArray = shares_at(weights, [0])[0]
    return shares


def asked_until(eras: Sequence[Era], slots: int) -> FloatArray:
    """How many of the first `slots` are asked for of each source: float64, sums to `slots`.

    The eras follow one another. Between two points of schedules the mean of shares is taken at 64
    places: exact where they do not change, and within a millionth where they change gradually.

    >>> from energize.order.schedule import Schedule
    >>> glide = Schedule([(0, 0), (100, 1)], "linear")
    >>> asked_until([(0, [glide, Schedule([(0, 1), (100, 0)], "linear")])], 100).round(6).tolist()
    [50.0, 50.0]
    """
    total = np.zeros(len(eras[0][1]))
    starts = [start for start, _ in eras]
    for (start, weights), end in zip(eras, [*starts[1:], slots], strict=True):
        total += _asked_between(weights, min(start, slots), min(end, slots))
    return total


def _asked_between(weights: Sequence[Weight], start: int, end: int) -> FloatArray:
    if end <= start:
        return np.zeros(len(weights))
    schedules = [each for weight in weights for each in schedules_in(weight)]
    points = {slot for each in schedules for slot in each.slots if start < slot < end}
    gliding = any(each.interpolation != "step" for each in schedules)
    total = np.zeros(len(weights))
    for first, last in pairwise(sorted({start, end, *points})):
        pieces = min(_PIECES, last - first) if gliding else 1
        places = first + (np.arange(pieces) + 0.5) * (last - first) / pieces
        total += shares_at(weights, places).mean(axis=0) * (last - first)
    return total

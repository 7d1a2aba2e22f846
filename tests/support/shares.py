"""How far a scheme strays from the asked shares."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from energize.order.weights import integer_weights


def asked(weights) -> list[Fraction]:
    """The exact share of each source."""
    integers = [int(weight) for weight in integer_weights(weights)]
    return [Fraction(each, sum(integers)) for each in integers]


def deviation(scheme, weights, slots: int, start: int = 0) -> float:
    """The largest difference between a source's slots and its exact share, over the prefixes that
    end in the `slots` slots from `start` on.
    """
    source, _ = scheme.locate(np.arange(start, start + slots))
    before = scheme.counts(start).tolist()
    number = np.arange(1, slots + 1)
    worst = 0.0
    for i, share in enumerate(asked(weights)):
        ahead = float(before[i] - share * start)
        given = np.cumsum(source == i) - number * float(share) + ahead
        worst = max(worst, abs(ahead), float(np.abs(given).max()))
    return worst


def deviation_at(scheme, weights, n: int) -> Fraction:
    """The same for the one prefix of length `n`, without rounding."""
    counts = scheme.counts(n).tolist()
    return max(abs(c - share * n) for c, share in zip(counts, asked(weights), strict=True))


def surprise(observed, probabilities) -> float:
    """Chi-square of counts against probabilities, in standard deviations above its mean."""
    expected = np.asarray(probabilities, dtype=float) * np.sum(observed)
    assert expected.min() >= 5, "too few draws for chi-square"
    freedom = len(expected) - 1
    statistic = ((np.asarray(observed) - expected) ** 2 / expected).sum()
    return float((statistic - freedom) / math.sqrt(2 * freedom))

"""What every scheme keeps, and how far one strays from the asked shares."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from energize.order.weights import integer_weights


def check_counts(scheme, slots: int, start: int = 0, every: int = 7) -> None:
    """Over `slots` slots from `start`: counts sum to n, never fall, and say what locate
    says."""
    counts = scheme.counts(start).copy()
    source, nth = scheme.locate(np.arange(start, start + slots))
    for k in range(slots):
        if k % every == 0:
            assert (scheme.counts(start + k) == counts).all(), start + k
            assert counts.sum() == start + k
        assert nth[k] == counts[source[k]], start + k
        counts[source[k]] += 1
    assert (scheme.counts(start + slots) == counts).all()
    alone = np.array(
        [scheme.locate(np.array([k]))[0][0] for k in range(start, start + slots, 53)]
    )
    assert (alone == source[::53]).all()


def asked(weights) -> list[Fraction]:
    """The exact share of each source."""
    integers = [int(weight) for weight in integer_weights(weights)]
    return [Fraction(each, sum(integers)) for each in integers]


def deviation(scheme, weights, slots: int, start: int = 0) -> float:
    """The largest difference between a source's slots and its exact share, over the
    prefixes that end in the `slots` slots from `start` on.
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


def surprise(observed, probabilities) -> float:
    """Chi-square of counts against probabilities, in standard deviations above its
    mean."""
    expected = np.asarray(probabilities, dtype=float) * np.sum(observed)
    assert expected.min() >= 5, "too few draws for chi-square"
    freedom = len(expected) - 1
    statistic = ((np.asarray(observed) - expected) ** 2 / expected).sum()
    return float((statistic - freedom) / math.sqrt(2 * freedom))

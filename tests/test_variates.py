"""Binomial and hypergeometric numbers: the laws they follow, as functions of a key alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from energize.order.schemes.variates import binomial, hypergeometric

DRAWS = 40_000

BINOMIALS = [(1, 1, 1), (9, 1, 8), (40, 3, 4), (127, 1, 1), (3000, 1, 999), (2**20, 1, 2)]
HYPERGEOMETRICS = [(1, 1, 1), (5, 3, 4), (30, 2, 16), (80, 700, 390), (10_000, 90_000, 50_000)]


def log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def binomial_law(trials: int, yes: int, no: int) -> dict[int, float]:
    p = yes / (yes + no)
    mean, deviation = trials * p, math.sqrt(trials * p * (1 - p))
    return {
        k: math.exp(log_choose(trials, k) + k * math.log(p) + (trials - k) * math.log(1 - p))
        for k in _near(mean, deviation, 0, trials)
    }


def hypergeometric_law(good: int, bad: int, taken: int) -> dict[int, float]:
    total = good + bad
    mean = taken * good / total
    deviation = math.sqrt(mean * (bad / total) * (total - taken) / max(total - 1, 1))
    whole = log_choose(total, taken)
    return {
        k: math.exp(log_choose(good, k) + log_choose(bad, taken - k) - whole)
        for k in _near(mean, deviation, max(0, taken - bad), min(good, taken))
    }


def _near(mean: float, deviation: float, low: int, high: int) -> range:
    reach = 12 * deviation + 12
    return range(max(low, math.floor(mean - reach)), min(high, math.ceil(mean + reach)) + 1)


def drawn(kind, law, count: int = DRAWS) -> np.ndarray:
    columns = (np.full(count, each, dtype=np.int64) for each in law)
    return kind(5, np.arange(count), *columns)


def chi_square(values: np.ndarray, law: dict[int, float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom, values that are rarely expected counted as one."""
    seen = dict(zip(*np.unique(values, return_counts=True), strict=True))
    assert set(seen) <= set(law)
    common = [k for k, p in law.items() if p * len(values) >= 20]
    cells = [(seen.get(k, 0), law[k] * len(values)) for k in common]
    rest = 1 - sum(law[k] for k in common)
    if rest * len(values) >= 20:
        cells.append((len(values) - sum(n for n, _ in cells), rest * len(values)))
    return sum((n - due) ** 2 / due for n, due in cells), len(cells) - 1


@pytest.mark.parametrize(
    ("kind", "law", "probabilities"),
    [
        *((binomial, law, binomial_law(*law)) for law in BINOMIALS),
        *((hypergeometric, law, hypergeometric_law(*law)) for law in HYPERGEOMETRICS),
    ],
)
def test_each_number_comes_as_often_as_its_probability_says(kind, law, probabilities):
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-6)
    statistic, freedom = chi_square(drawn(kind, law), probabilities)
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom) + 3


@pytest.mark.parametrize(
    ("kind", "law", "mean", "deviation"),
    [
        (binomial, (2**40, 1, 3), 2**38, math.sqrt(2**40 * 3 / 16)),
        (hypergeometric, (2**38, 3 * 2**38, 2**39), 2**37, math.sqrt(2**37 * 0.75 * 0.5)),
    ],
)
def test_large_laws_have_their_mean_and_deviation_and_are_normal(kind, law, mean, deviation):
    standard = (drawn(kind, law) - mean) / deviation
    assert abs(standard.mean()) < 4.5 / math.sqrt(DRAWS)
    assert abs(standard.std() - 1) < 4.5 / math.sqrt(2 * DRAWS)
    inside = (np.abs(standard)[:, None] < [0.5, 1, 2, 3]).mean(axis=0)
    due = np.array([math.erf(z / math.sqrt(2)) for z in (0.5, 1, 2, 3)])
    assert (np.abs(inside - due) < 4.5 * np.sqrt(due * (1 - due) / DRAWS)).all()


def _reach_needed(law: dict[int, float], mean: float) -> float:
    """The largest |v| of points that stand for a number: sqrt(f) times its distance."""
    most = max(law.values())
    return max(
        math.sqrt(p / most) * max(abs(k - mean - 0.5), abs(k + 0.5 - mean)) for k, p in law.items()
    )


def _reach(variance: float) -> float:
    return math.sqrt(2 / math.e) * math.sqrt(variance + 0.5) + 1.5 - math.sqrt(3 / math.e)


def test_no_binomial_is_cut_off_by_the_rectangle():
    for trials in [*range(1, 60), 100, 1000, 2**16, 10**6]:
        for yes in (1, 2, 5, 16, 31, 32, 63):
            law = binomial_law(trials, yes, 64 - yes)
            mean = trials * yes / 64
            assert _reach_needed(law, mean) <= _reach(mean * (64 - yes) / 64)


def test_no_hypergeometric_is_cut_off_by_the_rectangle():
    cases = [
        (good, n - good, taken)
        for n in range(2, 26)
        for good in range(1, n)
        for taken in range(1, n)
    ]
    cases += [(10, 10**5, 50_005), (999, 1001, 1000), (10**6, 10**6, 3), (3, 10**6, 500_001)]
    for good, bad, taken in cases:
        total = good + bad
        mean = taken * good / total
        variance = mean * (bad / total) * (total - taken) / (total - 1)
        needed = _reach_needed(hypergeometric_law(good, bad, taken), mean)
        assert needed <= _reach(variance), (good, bad, taken)


def test_numbers_are_functions_of_the_key_and_the_number_alone():
    laws = [np.array(column) for column in zip(*HYPERGEOMETRICS, strict=True)]
    numbers = np.array([7, 1, 10**9, 3, 4])
    together = hypergeometric(11, numbers, *laws)
    alone = [hypergeometric(11, numbers[[i]], *(law[[i]] for law in laws))[0] for i in range(5)]
    assert together.tolist() == alone
    many = drawn(hypergeometric, HYPERGEOMETRICS[3], 9000)  # enough for one attempt at a time
    few = drawn(hypergeometric, HYPERGEOMETRICS[3], 90)
    assert many[:90].tolist() == few.tolist()
    assert binomial(5, np.arange(4), *(np.full(4, n) for n in BINOMIALS[2])).tolist() == [
        *drawn(binomial, BINOMIALS[2], 4)
    ]


def test_what_leaves_no_choice_is_given():
    twice = np.arange(2)
    assert binomial(1, twice, np.array([9, 9]), twice, 1 - twice).tolist() == [0, 9]
    taken = np.array([0, 7])
    assert hypergeometric(1, twice, np.array([4, 4]), np.array([3, 3]), taken).tolist() == [0, 4]

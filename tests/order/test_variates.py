"""Numbers drawn by keys: the laws they follow, as functions of a key alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from energize.order.schemes import coins
from energize.order.schemes.coins import heads
from energize.order.schemes.portions import multinomial, without_replacement
from energize.order.schemes.random_order import RandomOrder
from energize.order.schemes.variates import binomial

DRAWS = 40_000

BINOMIALS = [(1, 1, 1), (9, 1, 8), (40, 3, 4), (127, 1, 1), (3000, 1, 999), (2**20, 1, 2)]
COINS = [1, 2, 63, 64, 65, 127, 1000, 2**13 - 1, 2**13, 2**14 - 1, 2**14]
PORTIONS = [(1, 1, 1), (5, 3, 4), (80, 700, 390), (5000, 5000, 4100), (9000, 90_000, 50_000)]


def log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def binomial_law(trials: int, yes: int, no: int) -> dict[int, float]:
    if not yes:
        return {0: 1.0}
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


def drawn(law, count: int = DRAWS) -> np.ndarray:
    columns = (np.full(count, each, dtype=np.int64) for each in law)
    return binomial(5, np.arange(count), *columns)


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


def assert_follows(values: np.ndarray, law: dict[int, float]) -> None:
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    statistic, freedom = chi_square(values, law)
    assert statistic < freedom + 4.5 * math.sqrt(2 * freedom) + 3


@pytest.mark.parametrize("law", BINOMIALS)
def test_binomial_numbers_come_as_often_as_their_probabilities_say(law):
    assert_follows(drawn(law), binomial_law(*law))


@pytest.mark.parametrize("tosses", COINS)
def test_heads_are_binomial(tosses):
    counts = heads(5, np.full(DRAWS, tosses))
    assert_follows(counts, binomial_law(tosses, 1, 1))
    apart = np.corrcoef(counts[1:], counts[:-1])[0, 1]
    assert abs(apart) < 4.5 / math.sqrt(DRAWS)


def test_pieces_of_tosses_do_not_know_each_other():
    """The variance of what is put together of all powers of two is that of all the tosses."""
    tosses = np.arange(2**14 - 2000, 2**14).repeat(20)
    standard = (heads(6, tosses) - tosses / 2) / np.sqrt(tosses / 4)
    assert abs(standard.mean()) < 4.5 / math.sqrt(DRAWS)
    assert abs(standard.std() - 1) < 4.5 / math.sqrt(2 * DRAWS)


@pytest.mark.parametrize(("good", "bad", "taken"), PORTIONS)
def test_portions_are_hypergeometric(good, bad, taken):
    counts = np.array([good, bad])
    found = [without_replacement(key, counts, taken) for key in range(2000)]
    assert all(each.sum() == taken and (each >= 0).all() for each in found)
    assert_follows(np.array(found)[:, 0], hypergeometric_law(good, bad, taken))


def test_a_pair_of_kinds_is_taken_as_often_as_any_other():
    """Of 20 kinds of 500, by how much two of them have more than the mean goes against each other
    as the law says: correlation -1/19.
    """
    counts = np.full(20, 500)
    found = np.array([without_replacement(key, counts, 5000) for key in range(2000)])
    assert (found.sum(axis=1) == 5000).all()
    correlations = np.corrcoef(found.T)[np.triu_indices(20, 1)]
    assert abs(correlations.mean() + 1 / 19) < 0.003
    assert np.abs(correlations + 1 / 19).max() < 4.5 / math.sqrt(2000)
    variance = 500 * 0.5 * 0.5 * (10_000 - 500) / 9999
    assert found.var() == pytest.approx(variance, rel=0.04)


def test_multinomial_numbers_are_binomial_one_by_one():
    weights = np.array([[3, 1, 1, 7, 4], [0, 1, 0, 3, 4]])
    found = multinomial(9, np.tile([1000, 5000], DRAWS // 2), np.tile(weights, (DRAWS // 2, 1)))
    assert (found.sum(axis=1) == np.tile([1000, 5000], DRAWS // 2)).all()
    for row, draws in enumerate((1000, 5000)):
        each, whole = found[row::2], int(weights[row].sum())
        for kind, weight in enumerate(weights[row].tolist()):
            assert_follows(each[:, kind], binomial_law(draws, weight, whole - weight))
        shares = weights[row, [1, 3]] / whole
        apart = np.corrcoef(each[:, 1], each[:, 3])[0, 1]
        due = math.sqrt(np.prod(shares / (1 - shares)))
        assert abs(apart + due) < 4.5 / math.sqrt(DRAWS // 2)


def assert_normal(values: np.ndarray, mean: float, deviation: float) -> None:
    standard = (values - mean) / deviation
    assert abs(standard.mean()) < 4.5 / math.sqrt(len(values))
    assert abs(standard.std() - 1) < 4.5 / math.sqrt(2 * len(values))
    inside = (np.abs(standard)[:, None] < [0.5, 1, 2, 3]).mean(axis=0)
    due = np.array([math.erf(z / math.sqrt(2)) for z in (0.5, 1, 2, 3)])
    assert (np.abs(inside - due) < 4.5 * np.sqrt(due * (1 - due) / len(values))).all()


def test_large_laws_are_normal():
    assert_normal(drawn((2**40, 1, 3)), 2**38, math.sqrt(2**40 * 3 / 16))
    assert_normal(heads(5, np.full(DRAWS, 2**40)), 2**39, 2**19)


@pytest.mark.parametrize("share", [1 / 2, 1 / 3])
def test_large_portions_are_normal(share):
    counts = np.array([2**37, 3 * 2**37, 2**38, 2**38])
    taken = int(share * 2**40)
    found = [without_replacement(key, counts, taken) for key in range(1500)]
    assert all(each.sum() == taken for each in found)
    rest = 1 - taken / 2**40
    assert_normal(
        np.array(found)[:, 0],
        taken / 8,
        math.sqrt(taken / 8 * (7 / 8) * rest),
    )


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


def test_numbers_are_functions_of_the_key_and_the_number_alone():
    laws = [np.array(column) for column in zip(*BINOMIALS, strict=True)]
    numbers = np.array([7, 1, 10**9, 3, 4, 2])
    together = binomial(11, numbers, *laws)
    alone = [binomial(11, numbers[[i]], *(law[[i]] for law in laws))[0] for i in range(6)]
    assert together.tolist() == alone
    many = drawn(BINOMIALS[4], 9000)  # enough for one attempt at a time
    few = drawn(BINOMIALS[4], 90)
    assert many[:90].tolist() == few.tolist()


def test_what_leaves_no_choice_is_given():
    twice = np.arange(2)
    assert binomial(1, twice, np.array([9, 9]), twice, 1 - twice).tolist() == [0, 9]
    counts = np.array([4, 0, 3])
    assert without_replacement(1, counts, 0).tolist() == [0, 0, 0]
    assert without_replacement(1, counts, 7).tolist() == [4, 0, 3]
    assert heads(1, np.array([0, 0])).tolist() == [0, 0]
    assert heads(1, np.array([], dtype=np.int64)).tolist() == []


@pytest.mark.parametrize("power", range(6, 14))
def test_tables_of_coins_hold_their_law_exactly(power):
    table = coins._table(power)
    columns, tosses = len(table.threshold), 2**power
    mass = dict.fromkeys(table.number.tolist(), 0)
    for column, below in enumerate(table.threshold.tolist()):
        full = table.number[column] == table.number[columns + column]
        mass[table.number[column]] += 2**table.shift if full else below
        mass[table.number[columns + column]] += 0 if full else 2**table.shift - below
    assert sum(mass.values()) == 2**64
    assert all(abs(mass[k] - (math.comb(tosses, k) << 64 >> tosses)) <= 1 for k in mass)


# Runs in random order


@pytest.mark.parametrize("length", [1, 40, 2**10 + 1, 3 * 2**10])
def test_totals_in_random_order_are_independent_draws(length):
    weights = np.array([[2, 1, 5]])
    first, last, pairs = [], [], []
    for key in range(700):
        [totals] = multinomial(key, np.array([length]), weights)
        run = RandomOrder(totals, key, 10)
        leaves = -(-length // 2**10)
        source = np.concatenate([run.laid_out(leaf)[0] for leaf in range(leaves)])
        counts = np.bincount(source, minlength=3)
        assert counts.tolist() == totals.tolist() == run.before(leaves).tolist()
        first.append((source[: length // 2] == 0).sum())
        last.append(counts[0] - first[-1])
        pairs += [source[0] * 3 + source[-1], source[length // 2] * 3 + source[length // 3]]
    for found, slots in ((first, length // 2), (last, length - length // 2)):
        if slots:
            assert_follows(np.array(found), binomial_law(slots, 2, 6))
    if length > 2:
        shares = np.outer(weights, weights) / 64
        law = {3 * i + j: share for (i, j), share in np.ndenumerate(shares)}
        assert_follows(np.array(pairs[0::2]), law)
        assert_follows(np.array(pairs[1::2]), law)
        assert abs(np.corrcoef(first, last)[0, 1]) < 4.5 / math.sqrt(700)

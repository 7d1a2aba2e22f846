"""The test statistic against tables, exact sums and draws."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from energize import BlendDataset
from energize.order import weights
from energize.order.weights import Era
from energize.report.ledger import chance_of, kish
from tests.support.deliveries import told


@pytest.mark.parametrize(
    ("freedom", "statistic", "tail"),
    [
        (1, 3.841, 0.05),
        (1, 6.635, 0.01),
        (2, 5.991, 0.05),
        (4, 13.277, 0.01),
        (9, 16.919, 0.05),
    ],
)
def test_it_is_the_tail_of_the_chi_square_distribution(freedom, statistic, tail):
    """Of tables of quantiles; the first of equal sources has more, the second less."""
    sources, total = freedom + 1, 10_000
    off = np.sqrt(statistic * total / sources / 2)
    counts = np.full(sources, total / sources)
    counts[0] += off
    counts[1] -= off
    assert chance_of(counts, np.full(sources, 1 / sources)) == pytest.approx(
        tail, rel=1e-3
    )


def test_of_few_it_is_that_of_all_draws():
    """Four of four of one source: two of the sixteen orders are as far off."""
    assert chance_of([4, 0], [0.5, 0.5]) == pytest.approx(2 / 16, abs=0.01)
    total, share = 12, 0.25
    likely = [
        comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(total + 1)
    ]
    exact = sum(p for k, p in enumerate(likely) if abs(k - 3) >= 4)
    assert chance_of([7, 5], [share, 1 - share]) == pytest.approx(exact, abs=0.005)


def test_draws_by_the_shares_are_seldom_unlikely():
    generator = np.random.default_rng(7)
    shares = np.array([0.5, 0.3, 0.15, 0.05])
    chances = [
        chance_of(generator.multinomial(2000, shares), shares) for _ in range(1000)
    ]
    assert 0.03 < np.mean(np.array(chances) < 0.05) < 0.07
    assert np.mean(chances) == pytest.approx(0.5, abs=0.04)


def test_nothing_to_compare_is_none_and_what_nobody_asked_for_is_no_chance():
    assert chance_of([0, 0], [0.5, 0.5]) is None
    assert chance_of([5], [1.0]) is None
    assert chance_of([5, 0], [1.0, 0.0]) is None
    assert chance_of([99, 1], [1.0, 0.0]) == 0.0


def test_kish():
    weights = np.array([1.0, 2.0, 0.0, 5.0])
    assert kish(weights.sum(), (weights**2).sum()) == pytest.approx(64 / 30)
    assert kish(0.0, 0.0) == 0.0


def test_what_weights_ask_for_adds_up_and_agrees_with_the_order():
    blend = BlendDataset((told(9, "a"), 5), (told(9, "b"), 3), (told(9, "c"), 2))
    changed = blend.with_weights_from(50, [1, 1, 8])
    for slots in (0, 1, 49, 50, 51, 400):
        asked = changed._asked(slots)
        assert asked.sum() == pytest.approx(slots)
        assert np.abs(asked - changed.taken(slots)).max() <= 3.36
    assert changed._asked(None) is None
    assert blend._asked(None).tolist() == [0.5, 0.3, 0.2]
    assert weights.asked([Era(0, [1.0, 1.0]), Era(10, [1.0, 0.0])], 15).tolist() == [
        10.0,
        5.0,
    ]

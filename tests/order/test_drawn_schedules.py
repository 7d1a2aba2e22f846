"""Independent draws under weights that change: their probabilities, and their independence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from energize.order.schedules.drawn_stage import run_starts
from energize.order.schedules.schedule import Schedule
from energize.order.schedules.scheduled import mixing_scheme
from energize.order.schedules.varying import Product, Share, shares_at
from tests.support.schedules import due_at, integral_of

LENGTH = 200_000


def ways(interpolation, length=LENGTH):
    points = ((0, 3, 1), (2, 1, 0), (0.2, 0.2, 2))
    steps = (0, length // 4, length)
    return [Schedule(list(zip(steps, each, strict=True)), interpolation) for each in points]


def nested(length=LENGTH):
    first, second, third = ways("linear", length)
    return [Product((first, Share((second, third), 0))), third, 0.5]


@pytest.mark.parametrize("key", range(3))
@pytest.mark.parametrize("weights", [ways("step"), ways("linear"), ways("cosine"), nested()])
def test_every_stretch_has_the_shares_that_are_due(weights, key):
    """Counts over 100 stretches, each within what independent draws stray by, and no nearer."""
    source, _ = mixing_scheme("random", weights, key=key).locate(np.arange(LENGTH))
    ends = np.linspace(0, LENGTH, 101).astype(np.int64)
    due = np.diff([due_at(integral_of(weights, LENGTH), end) for end in ends], axis=0)
    found = np.array([np.bincount(part, minlength=3) for part in np.split(source, ends[1:-1])])
    variance = due * (1 - due / due.sum(axis=1, keepdims=True))
    told = variance > 20
    z = (found - due)[told] / np.sqrt(variance[told])
    assert np.abs(z).max() < 4.5
    assert abs(z.mean()) < 4 / math.sqrt(told.sum() / 2)
    assert abs((z**2).mean() - 1) < 4 * math.sqrt(2 / (told.sum() / 2))
    assert (found[due == 0] == 0).all()


def test_draws_do_not_know_each_other():
    weights = ways("linear")
    source, _ = mixing_scheme("random", weights, key=5).locate(np.arange(LENGTH))
    due = shares_at(weights, np.arange(LENGTH) + 0.5)
    off = (source[:, None] == np.arange(3)) - due
    spread = np.sqrt(due * (1 - due)).mean(axis=0) ** 2
    for apart in (1, 2, 16, 1000, LENGTH // 64):
        together = (off[:-apart] * off[apart:]).mean(axis=0)
        assert (np.abs(together) < 5 * spread / math.sqrt(LENGTH - apart)).all()


@pytest.mark.parametrize("slot", [300, 200_000, 10**9 + 12_345])
def test_counts_have_the_mean_and_variance_of_draws(slot):
    length = 4 * slot // 3
    weights = ways("cosine", length)
    due = integral_of(weights, length)
    mean = due_at(due, slot)[0]
    shares = shares_at(weights, np.linspace(0, slot, 10_001))[:, 0]
    deviation = math.sqrt(slot * (shares * (1 - shares)).mean())
    counts = [mixing_scheme("random", weights, key=key).counts(slot)[0] for key in range(150)]
    z = (np.array(counts) - mean) / deviation
    assert abs(z.mean()) < 4 / math.sqrt(150)
    assert 0.6 < z.var() < 1.5
    assert np.abs(z).max() < 4.5


def test_keys_make_other_draws():
    first, second = (
        mixing_scheme("random", ways("linear"), key=key).locate(np.arange(LENGTH))[0]
        for key in (1, 2)
    )
    same = (shares_at(ways("linear"), np.arange(LENGTH)) ** 2).sum(axis=1)
    assert abs((first == second).mean() - same.mean()) < 5 / math.sqrt(LENGTH)


@pytest.mark.parametrize(
    ("length", "sources", "glides", "runs"),
    [
        (10**6, 8, False, 1),
        (2**40, 8, False, 1),
        (2**40 + 1, 8, False, 2),
        (40, 8, True, 40),
        (10**4, 8, True, 64),
        (10**5, 8, True, 97),
        (10**9, 8, True, 1024),
        (10**9, 10**4, True, 52),
        (10**9, 10**5, True, 16),
    ],
)
def test_runs_of_a_stretch(length, sources, glides, runs):
    starts = run_starts(7, 7 + length, sources, glides=glides)
    assert len(starts) == runs
    lengths = np.diff([*starts, 7 + length])
    assert starts[0] == 7
    assert lengths.min() >= 1
    assert lengths.max() - lengths.min() <= 1
    assert lengths.max() <= 2**40

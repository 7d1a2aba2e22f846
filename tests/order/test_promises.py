"""What schemes and quotas promise in numbers, at any position and under schedules."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.order import Schedule, make_scheme
from energize.order.quota import EpochDraws, Quota, epoch_counts
from energize.order.stopping import stopped_scheme
from energize.order.timeline import SCHEMES
from energize.order.weights import integrated_shares, raised
from tests.support.schemes import check_counts, deviation, surprise
from tests.support.tables import row

BOUNDS = {"exact": 1.68, "even": 3.36}
WEIGHTS = {
    "one": [7],
    "two": [0.9, 0.1],
    "zeros": [0, 3, 0, 0.5, 0],
    "sevenths": [1 / 7, 2 / 7, 4 / 7],
    "irrational": [2**0.5, 3**0.5, 5**0.5, 0.1, 7**0.5],
    "steep": [10.0**-i for i in range(6)],
    "many": [1 + (i * i) % 17 for i in range(40)],
    "many odd": [0.1 + (0.618034 * i) % 1 for i in range(30)],
    "rare": [1.0, 2.0, 1e-7, 1e-9, 2e-15],
    "Fibonacci": [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89],
}


def test_every_prefix_holds_the_shares_and_counts_say_what_locate_says():
    for name, (label, weights) in itertools.product(SCHEMES, WEIGHTS.items()):
        with row((name, label)):
            scheme = make_scheme(name, weights, key=1)
            check_counts(scheme, 500, start=10**6 + 1, every=50)
            for start in (0, 10**12) if name in BOUNDS else ():
                assert deviation(scheme, weights, 5000, start) <= BOUNDS[name]
    for pair in ([1, 1], [9, 1], [3, 4], [0.3, 0.7]):  # of two, rounded to the nearest
        assert deviation(make_scheme("exact", pair), pair, 500) <= 0.5 + 1e-9
    source, _ = make_scheme("exact", [9, 1]).locate(np.arange(40))
    assert np.flatnonzero(source == 1).tolist() == [4, 14, 24, 34]
    for name in BOUNDS:
        assert make_scheme(name, [0.1, 0.6, 0.2, 0.1]).counts(20).tolist() == [
            2,
            12,
            4,
            2,
        ]
        counts = make_scheme(name, [1.0, 1e-25, 1e-40]).counts(
            10**15
        )  # more than 60 bits
        assert counts.sum() == 10**15
        assert counts[0] >= 10**15 - 1000


def test_the_draws_of_even():
    places = []
    for key in range(200):  # anywhere in each stretch in which it is due
        rare = np.flatnonzero(
            make_scheme("even", [9, 1], key=key).locate(np.arange(100))[0]
        )
        assert (rare // 10).tolist() == list(range(10))
        places += (rare % 10).tolist()
    assert surprise(np.bincount(places, minlength=10), [0.1] * 10) < 5
    for weights, ranks in itertools.product([[1, 1], [3, 1], [1] * 4], [2, 3, 8]):
        source, _ = make_scheme("even", weights, key=9).locate(
            np.arange(0, 4000 * ranks, ranks)
        )
        drawn = np.bincount(source, minlength=len(weights))
        assert surprise(drawn, np.divide(weights, sum(weights))) < 5, (weights, ranks)


def test_blocks_and_windows_have_the_counts_of_exact_and_orders_of_their_own():
    for label, weights in WEIGHTS.items():
        exact, drawn = (
            make_scheme("exact", weights),
            make_scheme("random", weights, key=2),
        )
        blocks = make_scheme("block", weights, block_size=7, key=8)
        for n in (*range(0, 140, 7), 7 * 10**9):
            assert (blocks.counts(n) == exact.counts(n)).all(), (label, n)
        for n in (0, 2**16, 10**7 * 2**16):
            assert (drawn.counts(n) == exact.counts(n)).all(), (label, n)
    halves = partial(make_scheme, "block", [1, 1], block_size=100)
    blocks = halves(key=1).locate(range(10**5))[0].reshape(1000, 100)
    assert len({block.tobytes() for block in blocks}) == 1000
    assert surprise(blocks.sum(axis=0), [0.01] * 100) < 5
    assert (
        0.48 < (blocks.ravel() == halves(key=2).locate(range(10**5))[0]).mean() < 0.52
    )


def test_random_slots_do_not_know_each_other_and_sources_that_are_alike():
    shares = np.array([0.5, 0.25, 0.15, 0.1])
    source, _ = make_scheme("random", shares.tolist(), key=1).locate(
        np.arange(200_000) + 10**9
    )
    assert np.abs(np.bincount(source) - shares * 200_000).max() < 4 * 65_536**0.5
    for apart in (1, 2, 1000):
        pairs = np.bincount(source[:-apart] * 4 + source[apart:], minlength=16)
        assert surprise(pairs, np.outer(shares, shares).ravel()) < 5
    counts = make_scheme("uniform", [5, 0, 0.1, 1000], key=4).counts(10**6)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 10**6 / 3).max() < 1000
    source, nth = make_scheme("round_robin", [2, 0, 9, 1]).locate(np.arange(7))
    assert (source.tolist(), nth.tolist()) == (
        [0, 2, 3, 0, 2, 3, 0],
        [0, 0, 0, 1, 1, 1, 2],
    )


def test_counts_stay_near_the_integral_of_the_shares():
    code = [(0, 0.2), (10_000, 0.5), (50_000, 0.8)]
    text = [(at, 1 - weight) for at, weight in code]
    for name, way in itertools.product(("exact", "block"), ("linear", "cosine")):
        scheme = make_scheme(name, [Schedule(code, way), Schedule(text, way)])
        counts = [scheme.counts(n).tolist() for n in (10_000, 50_000)]
        assert counts == [[3500, 6500], [29_500, 20_500]], (name, way)
    stepping = make_scheme("exact", [Schedule(code), Schedule(text)])
    assert stepping.counts(50_000).tolist() == [22_000, 28_000]
    steps = [Schedule(points, "linear", 64) for points in (code, text)]
    assert make_scheme("block", steps).counts(64 * 50_000).tolist() == [
        64 * 29_500,
        64 * 20_500,
    ]
    wave = [
        Schedule([(0, 0.2), (300, 0.9), (700, 0.1)], "cosine"),
        0.5,
        Schedule([(90, 1)]),
    ]
    for name, bound in {"exact": 2.2, "even": 4.0}.items():
        scheme = make_scheme(name, wave, key=1)
        for slot in range(0, 1000, 25):
            assert (
                np.abs(scheme.counts(slot) - integrated_shares(scheme.eras, slot)).max()
                <= bound
            ), slot


def test_steps_act_in_the_next_block_and_what_is_owed_is_carried_over_points():
    weights = [Schedule([(0, w), (500, 1 - w)]) for w in (0.2, 0.8)]
    scheme = make_scheme("block", weights, block_size=300, key=1)
    assert [scheme.counts(n)[0] for n in (600, 900)] == [120, 360]
    # In no stretch between two points, or two changes, is the rare source due a whole
    # slot.
    points = [(slot, 0.04 + 0.01 * (slot // 10 % 2)) for slot in range(0, 10_000, 10)]
    scheme = make_scheme("exact", [Schedule(points), 0.5, 0.46])
    assert scheme.counts(9_990).tolist() == [447, 4970, 4573]
    for name, bound in BOUNDS.items():
        scheme = make_scheme(name, [0.04, 0.96], key=2)
        for slot in range(10, 600, 10):
            scheme = scheme.with_weights_from(
                slot, [0.04 + 0.01 * (slot // 10 % 2), 0.95]
            )
        assert (
            abs(scheme.counts(600) - integrated_shares(scheme.eras, 600)).max() <= bound
        ), name


def test_sources_that_are_over_begin_again_where_they_were():
    for stop, size in (("first_exhausted", 20), ("all_exhausted", 40)):
        scheme, end = stopped_scheme(
            make_scheme("exact", [1, 1]), np.array([10, 30]), stop
        )
        assert end == size
        source, nth = scheme.locate(np.arange(3 * size))
        for each in (0, 1):
            assert nth[source == each].tolist() == list(
                range(int((source == each).sum()))
            ), stop
            assert scheme.counts(3 * size)[each] == (source == each).sum()
    assert raised([9, 0, 1], 0) == [0.5, 0, 0.5]
    quotas = [Quota(proportion=each) for each in (0.5, 0.3, 0.2)]
    assert epoch_counts([9, 9, 9], quotas, 7).tolist() == [4, 2, 1]  # 3.5, 2.1 and 1.4


@pytest.mark.parametrize("shuffle", [False, True])
@given(st.integers(1, 3000), st.floats(0.001, 3), st.booleans(), st.integers(0, 10**12))
def test_epochs_draw_every_sample_floor_or_ceil_times(
    shuffle, size, quota, fixed, first
):
    count = max(1, int(size * quota))
    draws = EpochDraws(size, count, 7, shuffle=shuffle, fixed=fixed)
    visits = []
    for epoch in range(first, first + 3):
        located = draws.locate(np.full(count, epoch), np.arange(count))
        assert len(np.unique(located)) == count
        visits.append(np.bincount(located % size, minlength=size))
        assert (
            count // size <= visits[-1].min() <= visits[-1].max() <= -(-count // size)
        )
        assert shuffle or (np.diff(located) > 0).all()
    if fixed:
        assert (visits[0] == visits[1]).all()
    else:  # within 1 of e * count / size after e epochs
        assert np.ptp(np.sum(visits, axis=0)) <= 2

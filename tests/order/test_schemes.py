"""Schemes of fixed weights: what each promises, at any position."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energize.errors import ConfigError, WeightError
from energize.order import Schedule, WeightSchedulePoint, WeightScheduler, make_scheme
from energize.order.timeline import SCHEMES
from tests.support.schemes import asked, check_counts, deviation, deviation_at, surprise
from tests.support.tables import check_faults, row

WEIGHTS = {
    "one": [7],
    "two": [0.9, 0.1],
    "per cent": [0.4, 0.5, 0.1],
    "equal": [1] * 7,
    "zeros": [0, 3, 0, 0.5, 0],
    "sevenths": [1 / 7, 2 / 7, 4 / 7],
    "irrational": [2**0.5, 3**0.5, 5**0.5, 0.1, 7**0.5],
    "steep": [10.0**-i for i in range(6)],
    "many": [1 + (i * i) % 17 for i in range(40)],
    "many odd": [0.1 + (0.618034 * i) % 1 for i in range(30)],
    "nearly equal": [1.0, 1.0000001, 0.9999999],
    "rare": [1.0, 2.0, 1e-7, 1e-9, 2e-15],
}
PLACES = [0, 10**6 + 1, 10**12 - 77]
BOUNDS = {"exact": 1.68, "even": 3.36}
"""Half of the sum of the reciprocal Fibonacci numbers, and all of it."""

weight = st.one_of(
    st.integers(0, 100),
    st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 1e-3, 1e-9, 1e6]),
    st.floats(1e-6, 1e3),
    st.fractions(0, 9, max_denominator=50),
)
weights_like = st.one_of(
    st.lists(weight, min_size=1, max_size=12),
    st.builds(lambda few, n: (few * n)[:n], st.lists(weight, min_size=1), st.integers(1, 500)),
).filter(any)


def test_counts_and_locate_agree_at_any_position():
    for name, (label, weights), start in itertools.product(SCHEMES, WEIGHTS.items(), PLACES):
        with row((name, label, start)):
            check_counts(make_scheme(name, weights, key=3), 200, start, every=97)


@given(
    name=st.sampled_from(SCHEMES),
    weights=weights_like,
    start=st.integers(0, 10**12),
    key=st.integers(0, 2**64),
)
def test_any_weights_are_kept_and_none_of_0_is_drawn(name, weights, start, key):
    scheme = make_scheme(name, weights, key=key)
    check_counts(scheme, 120, start, every=40)
    drawn = scheme.counts(start + 10**6) > 0
    assert not drawn[np.array(weights, dtype=object) == 0].any()
    if name in BOUNDS:
        assert deviation(scheme, weights, 1000, start) <= BOUNDS[name]
    assert np.array_equal(pickle.loads(pickle.dumps(scheme)).counts(start), scheme.counts(start))


def test_what_was_or_is_asked_together_decides_nothing():
    """Far apart and near, in any order, so that rare sources are among those asked together."""
    far = np.random.default_rng(3).integers(0, 2**61, 1000)
    for name, label in itertools.product(SCHEMES, ("rare", "irrational", "many odd")):
        with row((name, label)):
            several = far if name in BOUNDS else far[:15]
            slots = np.concatenate([np.arange(300), several, np.arange(70_000, 70_100)])
            weights = [*WEIGHTS[label], 1e-12, 3e-11]
            source, nth = make_scheme(name, weights, key=5).locate(slots)
            alone = make_scheme(name, weights, key=5)
            for at in range(0, len(slots), 37):
                one, number = alone.locate(slots[at : at + 1])
                assert (one[0], number[0]) == (source[at], nth[at])
            turned = make_scheme(name, weights, key=5).locate(slots[::-1])
            assert np.array_equal(turned[0][::-1], source)


def test_every_prefix_holds_the_shares():
    for name, (label, weights) in itertools.product(BOUNDS, WEIGHTS.items()):
        with row((name, label)):
            scheme = make_scheme(name, weights, key=1)
            for start in (0, 10**12):
                assert deviation(scheme, weights, 20_000, start) <= BOUNDS[name]
            for n in (2**48 - 1, 2**50 + 1, 2**61 + 12345):
                assert deviation_at(scheme, weights, n) <= BOUNDS[name] + n * 2.0**-59
            period = math.lcm(*(share.denominator for share in asked(weights)))
            if period < 2**50:  # whole shares are met exactly
                for n in (period, 3 * period):
                    assert scheme.counts(n).tolist() == [share * n for share in asked(weights)]


def random_weights(seed, most):
    """As people write them, as they are measured, far apart, nearly equal, Fibonacci numbers."""
    rng = np.random.default_rng(seed)
    sources = int(np.exp(rng.uniform(0, np.log(most))))
    if seed % 5 == 4:
        return [int(((1 + 5**0.5) / 2) ** k) + 1 for k in range(min(sources, 80))]
    few, equal = rng.integers(1, 100, sources), 10**9 + rng.integers(0, 1000, sources)
    apart = (10 ** rng.uniform(0, 12, sources)).astype(np.int64)
    return [few, rng.random(sources), apart, equal][seed % 5].tolist()


@pytest.mark.parametrize(
    ("mixes", "most"),
    [(60, 1000), pytest.param(3000, 10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_any_number_of_sources_is_within_the_bound(mixes, most):
    for name, bound in BOUNDS.items():
        worst = 0.0
        for seed in range(mixes):
            weights = random_weights(seed, most)
            scheme = make_scheme(name, weights, key=seed)
            rng = np.random.default_rng(seed)
            for n in [*rng.integers(0, 5000, 3).tolist(), int(rng.integers(0, 10**12)), 10**12]:
                worst = max(worst, float(deviation_at(scheme, weights, n)))
        assert 0.5 < worst <= bound, name


def test_short_runs_hold_the_shares():
    for name in BOUNDS:
        assert make_scheme(name, [0.1, 0.6, 0.2, 0.1]).counts(20).tolist() == [2, 12, 4, 2]
        assert make_scheme(name, [0.8, 0.2]).counts(40).tolist() == [32, 8]
        assert abs(make_scheme(name, [0.5, 0.5]).counts(133)[0] - 66.5) < 1
    for name in ("exact", "even", "block"):  # more than 60 bits beside the others
        counts = make_scheme(name, [1.0, 1e-25, 1e-40]).counts(10**15)
        assert counts.sum() == 10**15
        assert counts[0] >= 10**15 - 1000


def test_the_rhythm_of_exact_and_the_draws_of_even():
    assert make_scheme("exact", [1, 1]).locate(np.arange(6))[0].tolist() == [0, 1, 0, 1, 0, 1]
    source, _ = make_scheme("exact", [9, 1]).locate(np.arange(40))
    assert np.flatnonzero(source == 1).tolist() == [4, 14, 24, 34]
    places = []
    for key in range(400):  # anywhere in each stretch in which it is due
        rare = np.flatnonzero(make_scheme("even", [9, 1], key=key).locate(np.arange(100))[0])
        assert (rare // 10).tolist() == list(range(10))
        places += (rare % 10).tolist()
    assert surprise(np.bincount(places, minlength=10), [0.1] * 10) < 5
    for weights, ranks in itertools.product([[1, 1], [1, 2], [3, 1], [1] * 4], [2, 3, 4, 8]):
        slots = np.arange(0, 4000 * ranks, ranks)  # no rank of many gets another mix
        source, _ = make_scheme("even", weights, key=9).locate(slots)
        drawn = np.bincount(source, minlength=len(weights))
        assert surprise(drawn, np.divide(weights, sum(weights))) < 5, (weights, ranks)


def test_blocks_and_windows_have_the_counts_of_exact_and_orders_of_their_own():
    for label, weights in WEIGHTS.items():
        exact, drawn = make_scheme("exact", weights), make_scheme("random", weights, key=2)
        for size in (1, 7, 50):
            blocks = make_scheme("block", weights, block_size=size, key=8)
            for n in (*range(0, 20 * size, size), 10**9 * size):
                assert (blocks.counts(n) == exact.counts(n)).all(), (label, size, n)
        for n in (0, 2**16, 2**17, 10**7 * 2**16):
            assert (drawn.counts(n) == exact.counts(n)).all(), (label, n)
    halves = partial(make_scheme, "block", [1, 1], block_size=100)
    blocks = halves(key=1).locate(range(10**5))[0].reshape(1000, 100)
    assert len({block.tobytes() for block in blocks}) == 1000
    assert surprise(blocks.sum(axis=0), [0.01] * 100) < 5
    assert 0.48 < (blocks.ravel() == halves(key=2).locate(range(10**5))[0]).mean() < 0.52


def test_random_slots_have_the_shares_and_do_not_know_each_other():
    shares = np.array([0.5, 0.25, 0.15, 0.1])
    for key in range(3):
        scheme = make_scheme("random", shares.tolist(), key=key)
        source, _ = scheme.locate(np.arange(400_000) + key * 10**9)
        assert np.abs(np.bincount(source) - shares * 400_000).max() < 4 * 65_536**0.5
        for apart in (1, 2, 16, 1000):
            pairs = np.bincount(source[:-apart] * 4 + source[apart:], minlength=16)
            assert surprise(pairs, np.outer(shares, shares).ravel()) < 5
    counts = make_scheme("random", [3, 7], key=5).locate(np.arange(2**20))[0].reshape(-1, 1024)
    spread = (1024 * 0.3 * 0.7) ** 0.5  # of independent draws
    assert 0.9 * spread < (counts == 0).sum(axis=1).std() < 1.1 * spread


def test_schemes_that_treat_all_sources_alike():
    scheme = make_scheme("uniform", [5, 0, 0.1, 1000], key=4)
    counts = scheme.counts(10**6)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 10**6 / 3).max() < 1000
    assert (counts == make_scheme("uniform", [1, 0, 1, 1], key=4).counts(10**6)).all()
    source, nth = make_scheme("round_robin", [2, 0, 9, 1]).locate(np.arange(7))
    assert (source.tolist(), nth.tolist()) == ([0, 2, 3, 0, 2, 3, 0], [0, 0, 0, 1, 1, 1, 2])


def test_numbers_of_any_kind_mean_the_same():
    for weights in (
        [0.1, 0.3],
        [Fraction(1, 10), Decimal("0.3")],
        np.array([1, 3]),
        torch.tensor([0.5, 1.5]),
        [torch.tensor(1), np.float16(3)],
        {"a": np.float32(0.1), "b": 0.3},
        (weight for weight in (Fraction(1, 3), 1)),
    ):
        assert make_scheme("exact", weights).counts(8).tolist() == [2, 6], weights
    sized = make_scheme("block", [1, 1], block_size=np.int64(8), key=np.int64(3))
    assert sized == make_scheme("block", [2, 2], block_size=8, key=3)
    for name in SCHEMES:
        scheme = make_scheme(name, [5, 3, 2], key=3)
        expected = scheme.locate(np.arange(90, 190))
        for kind in (np.int32, np.uint64, list, torch.tensor):
            found = scheme.locate(kind(np.arange(90, 190)))
            assert all(map(np.array_equal, found, expected)), (name, kind)
            assert found[0].dtype == found[1].dtype == np.int64
        for kind in (np.int64, np.uint8, torch.tensor):
            assert scheme.counts(kind(123)).tolist() == scheme.counts(123).tolist()
        assert [len(each) for each in scheme.locate([])] == [0, 0]
        named = make_scheme(name, {"b": 5, "none": 3, "a": 2}, key=3)
        assert np.array_equal(named.counts(500), scheme.counts(500))
        assert (named.names, scheme.names) == (("b", "none", "a"), None)


def asking(**question):
    [(method, value)] = question.items()
    return lambda: [getattr(make_scheme(name, [5, 3]), method)(value) for name in SCHEMES]


def making(name, weights, **options):
    return lambda: make_scheme(name, weights, **options)


def test_what_cannot_be_asked_is_named():
    numbers = [-1, 1.5, "3", None, True, 2**62 + 1, np.float64(3), [3]]
    slots = [[3, -1], [2**62], [0.5], ["a"], [True], 5, [[1, 2]]]
    said = "counts(n): n is a number of slots, from 0 to 2**62; got"
    faults = {f"n = {n!r}": (asking(counts=n), f"{said} {n!r}") for n in numbers}
    for ks in [*slots, np.array([2**63], dtype=np.uint64)]:
        faults[f"ks = {ks!r}"] = asking(locate=ks), "locate(ks): slots are whole numbers...got "
    check_faults(ConfigError, faults)


def test_what_cannot_be_made_is_named():
    lists = [None, 5, "12", {1, 2}, np.array(3), frozenset({1})]
    faults = {f"{each!r}": (making("even", each), "weights are a list of num") for each in lists}
    for name in SCHEMES:
        faults[f"{name}, none"] = making(name, []), "all 0 weights are 0; at least one source"
        faults[f"{name}, 0"] = making(name, [0, 0.0]), "all 2 weights are 0"
    faults |= {
        "below 0": (making("even", [1, -0.5]), "weight 1: ...not negative, got -0.5"),
        "NaN": (making("even", {"code": 1, "math": float("nan")}), "weight 'math': ...got nan"),
        "infinite": (making("even", [float("inf"), 1]), "weight 0: ...got inf"),
        "too large": (making("even", [1, 10**400]), "weight 1: a weight is finite"),
        "text": (making("even", [1, "2"]), "weight 1: a weight is a number, got '2'"),
        "bool": (making("even", [True, 1]), "weight 0: a weight is a number"),
        "None": (making("even", [1, None]), "weight 1: a weight is a number"),
        "tensor": (making("even", [torch.ones(2), 1]), "weight 0: a weight is a number"),
    }
    check_faults(WeightError, faults)
    known = "is not one of even, exact, block"
    faults = {
        "name": (making("blok", [1]), f"scheme='blok' {known}...did you mean 'block'"),
        "no name": (making(["block"], [1]), f"scheme=['block'] {known}"),
        "option": (making("exact", [1], block_size=3), "the scheme 'exact': option='block_size'"),
        "other option": (making("block", [1], blocksize=3), "did you mean 'block_size'"),
        "key": (making("block", [1], key="x"), "the key of a scheme is a whole number"),
        "a large block": (
            making("block", [1], block_size=10**9),
            "block_size is 1000000000, more than 16777216",
        ),
    }
    for size in (0, -1, 2.5, True):
        faults[f"size {size!r}"] = making("block", [1], block_size=size), "block_size is a whole"
    check_faults(ConfigError, faults)


SCHEDULER = WeightScheduler(
    [
        WeightSchedulePoint(0, {"code": 0.2, "text": 0.8}),
        WeightSchedulePoint(400, {"code": 0.8, "text": 0.2}),
    ],
    "linear",
)


def test_schemes_are_equal_when_all_that_decides_is():
    rising = Schedule([(0, 0.2), (400, 0.8)], "linear")
    blocks = partial(make_scheme, "block", block_size=10)
    different = [
        make_scheme("exact", [3, 1]),
        make_scheme("exact", [1, 3]),
        make_scheme("round_robin", [3, 1]),
        make_scheme("exact", {"a": 3, "b": 1}),
        make_scheme("exact", {"b": 3, "a": 1}),
        make_scheme("exact", [3, 1]).with_weights_from(5, [1, 1]),
        *(blocks([3, 1]), blocks([3, 1], key=1), make_scheme("block", [3, 1], block_size=20)),
        *(blocks([rising, 1]), blocks(SCHEDULER)),
    ]
    for number, scheme in enumerate(different):
        with row(scheme):
            again = pickle.loads(pickle.dumps(scheme))
            assert [n for n, other in enumerate(different) if other == again] == [number]
            assert hash(again) == hash(scheme)
            assert json.loads(json.dumps(scheme.describe())) == scheme.describe()
    assert blocks(SCHEDULER) == blocks(SCHEDULER.schedules())
    wide = make_scheme("exact", range(1, 10_000))
    assert len(repr(wide)) < 300
    small = make_scheme("random", {"a": 0.5, "b": 0.25}, key=5)
    before = len(pickle.dumps(small))
    small.locate(np.arange(10**6, 10**6 + 500))
    assert len(pickle.dumps(small)) == before < 3000, "what was computed is pickled"


@pytest.mark.jobs
def test_a_hundred_thousand_sources():
    for name in ("block", "even"):
        scheme = make_scheme(name, (1 + np.arange(100_000) % 7).tolist(), key=1)
        check_counts(scheme, 2000, start=10**6, every=500)


def test_orders_never_change():
    """They are part of every saved run: a change here breaks resuming old ones."""
    at = np.arange(10**6, 10**6 + 12)
    digest = hashlib.blake2b(digest_size=8)
    orders = {}
    for name in SCHEMES:
        orders[name] = make_scheme(name, [5, 3, 2.5], key=3).locate(at)[0].tolist()
        for weights in ("per cent", "irrational", "rare", "many odd"):
            scheme = make_scheme(name, WEIGHTS[weights], key=11)
            for start in PLACES:
                for part in scheme.locate(np.arange(start, start + 3000)):
                    digest.update(part.astype("<i8").tobytes())
    assert orders == {
        "block": [1, 0, 0, 1, 0, 2, 0, 0, 1, 0, 1, 1],
        "even": [1, 0, 0, 2, 1, 0, 2, 0, 2, 0, 1, 0],
        "exact": [0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1],
        "random": [0, 2, 0, 0, 2, 0, 0, 0, 1, 0, 1, 0],
        "round_robin": [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0],
        "uniform": [0, 0, 2, 1, 2, 1, 1, 0, 0, 0, 0, 2],
    }
    assert digest.hexdigest() == "05ec6073860c2316"

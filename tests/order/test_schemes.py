"""The weighting schemes: what each promises, at any position."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError, WeightError
from energize.order.timeline import make_scheme
from energize.order.windows import SCHEMES
from tests.support.schemes import check_counts
from tests.support.shares import asked, deviation, deviation_at, surprise

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

weight = st.one_of(
    st.integers(0, 100),
    st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 1e-3, 1e-9, 1e6]),
    st.floats(1e-6, 1e3),
    st.fractions(0, 9, max_denominator=50),
)
weights_like = st.one_of(
    st.lists(weight, min_size=1, max_size=12),
    st.builds(lambda few, n: (few * n)[:n], st.lists(weight, min_size=1), st.integers(1, 1000)),
).filter(any)
drawing = [name for name in SCHEMES if name != "greedy"]


@pytest.mark.parametrize("start", PLACES)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", drawing)
def test_counts_and_locate_agree_at_any_position(name, weights, start):
    check_counts(make_scheme(name, WEIGHTS[weights], key=3), 400, start, every=97)


@pytest.mark.parametrize("name", drawing)
@given(weights=weights_like, start=st.integers(0, 10**12), key=st.integers(0, 2**64))
@settings(max_examples=15)
def test_counts_and_locate_agree_for_any_weights(name, weights, start, key):
    scheme = make_scheme(name, weights, key=key)
    check_counts(scheme, 120, start, every=40)
    drawn = scheme.counts(start + 10**6) > 0
    assert not drawn[np.array(weights, dtype=object) == 0].any()


@pytest.mark.parametrize("name", drawing)
def test_counts_never_fall_and_sum_to_n(name):
    scheme = make_scheme(name, WEIGHTS["many odd"], key=3)
    at = sorted([*range(0, 3000, 271), 2**12, 2**14, 2**20 + 1, 10**9, 2**40 - 1, 2**40 + 5, 2**42])
    counts = [scheme.counts(n) for n in at]
    assert [each.sum() for each in counts] == at
    assert all((after >= before).all() for before, after in itertools.pairwise(counts))


@pytest.mark.parametrize("name", drawing)
def test_slots_may_be_asked_in_any_order(name):
    scheme = make_scheme(name, WEIGHTS["many odd"], key=3)
    slots = np.random.default_rng(1).permutation(40_000)[:500]
    source, nth = scheme.locate(slots)
    again, nth_again = scheme.locate(np.sort(slots))
    order = np.argsort(slots)
    assert (source[order] == again).all()
    assert (nth[order] == nth_again).all()
    assert [len(each) for each in scheme.locate(slots[:0])] == [0, 0]


@pytest.mark.parametrize("name", ["even", "exact"])
@pytest.mark.parametrize("weights", ["rare", "steep", "irrational"])
def test_what_is_asked_together_decides_nothing(name, weights):
    """Far apart and near, so that rare sources are among those that are asked together."""
    scheme = make_scheme(name, [*WEIGHTS[weights], 1e-12, 3e-11], key=5)
    far = np.random.default_rng(3).integers(0, 2**61, 2000)
    slots = np.concatenate([np.arange(500), far])
    together = scheme.locate(slots)
    alone = make_scheme(name, [*WEIGHTS[weights], 1e-12, 3e-11], key=5)
    for row in range(0, len(slots), 37):
        source, nth = alone.locate(slots[row : row + 1])
        assert (source[0], nth[0]) == (together[0][row], together[1][row])


# exact and even

BOUNDS = {"exact": 1.68, "even": 3.36}
"""Half of the sum of the reciprocal Fibonacci numbers, and all of it."""


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_prefix_holds_the_shares(name, weights):
    scheme = make_scheme(name, WEIGHTS[weights], key=1)
    slots = 10**5 if len(WEIGHTS[weights]) < 10 else 10**4
    assert deviation(scheme, WEIGHTS[weights], slots) <= BOUNDS[name]
    assert deviation(scheme, WEIGHTS[weights], 10**4, start=10**12) <= BOUNDS[name]
    for n in np.random.default_rng(7).integers(0, 10**12, 20).tolist():
        assert deviation_at(scheme, WEIGHTS[weights], n) <= BOUNDS[name]


@pytest.mark.parametrize("name", BOUNDS)
@given(weights=weights_like, start=st.integers(0, 10**12))
def test_every_prefix_holds_the_shares_of_any_weights(name, weights, start):
    assert deviation(make_scheme(name, weights), weights, 1000, start) <= BOUNDS[name]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("weights", [[1e-18, 1.0], [1e-9, 2e-9, 1.0, 0.3], WEIGHTS["rare"], [1, 2]])
def test_the_farthest_prefixes_hold_the_shares(name, weights):
    scheme = make_scheme(name, weights)
    for n in (2**48 - 1, 2**50 + 1, 2**55 + 3, 2**61 + 12345):
        assert deviation_at(scheme, weights, n) <= BOUNDS[name] + n * 2.0**-59
        check_counts(scheme, 12, n - 6, every=4)


def random_weights(seed, most):
    """As people write them, as they are measured, far apart, nearly equal, Fibonacci numbers."""
    rng = np.random.default_rng(seed)
    sources = int(np.exp(rng.uniform(0, np.log(most))))
    kind = seed % 5
    if kind == 0:
        return rng.integers(1, 100, sources).tolist()
    if kind == 1:
        return rng.random(sources).tolist()
    if kind == 2:
        return (10 ** rng.uniform(0, 12, sources)).astype(np.int64).tolist()
    if kind == 3:
        return (10**9 + rng.integers(0, 1000, sources)).tolist()
    return [int(((1 + 5**0.5) / 2) ** k) + 1 for k in range(min(sources, 80))]


def worst_of_random_weights(name, mixes, most):
    worst = 0.0
    for seed in range(mixes):
        weights = random_weights(seed, most)
        scheme = make_scheme(name, weights, key=seed)
        rng = np.random.default_rng(seed)
        for n in [*rng.integers(0, 5000, 3).tolist(), int(rng.integers(0, 10**12)), 10**12]:
            worst = max(worst, float(deviation_at(scheme, weights, n)))
    return worst


@pytest.mark.parametrize("name", BOUNDS)
def test_any_number_of_sources_is_within_the_bound(name):
    assert 0.5 < worst_of_random_weights(name, 60, 1000) <= BOUNDS[name]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", BOUNDS)
def test_thousands_of_mixes_of_up_to_10_000_sources_are_within_the_bound(name):
    assert 0.9 < worst_of_random_weights(name, 3000, 10_000) <= BOUNDS[name]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("weights", ["irrational", "steep", "many", "sevenths"])
def test_whole_shares_are_met_exactly(name, weights):
    scheme = make_scheme(name, WEIGHTS[weights])
    shares = asked(WEIGHTS[weights])
    period = shares[0].denominator
    if period < 2**50:
        for n in (period, 3 * period):
            assert scheme.counts(n).tolist() == [share * n for share in shares]


@pytest.mark.parametrize("name", BOUNDS)
def test_short_runs_hold_the_shares(name):
    assert make_scheme(name, [0.1, 0.6, 0.2, 0.1]).counts(20).tolist() == [2, 12, 4, 2]
    assert make_scheme(name, [0.8, 0.2]).counts(40).tolist() == [32, 8]
    assert make_scheme(name, [0.5, 0.5]).counts(200).tolist() == [100, 100]
    assert abs(make_scheme(name, [0.5, 0.5]).counts(133)[0] - 66.5) < 1


def test_the_order_of_two_equal_sources_is_in_turn_and_of_a_rare_one_is_even():
    assert make_scheme("exact", [1, 1]).locate(np.arange(6))[0].tolist() == [0, 1, 0, 1, 0, 1]
    source, _ = make_scheme("exact", [9, 1]).locate(np.arange(40))
    assert np.flatnonzero(source == 1).tolist() == [4, 14, 24, 34]


@pytest.mark.parametrize("weights", [[1, 1], [1, 2], [3, 1], [1, 1, 1, 1]])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_no_rank_of_many_gets_another_mix(weights, ranks):
    """Every so-manieth slot has the shares too, where the order of `exact` has a rhythm."""
    slots = np.arange(0, 4000 * ranks, ranks)
    source, _ = make_scheme("even", weights, key=9).locate(slots)
    assert (
        surprise(np.bincount(source, minlength=len(weights)), np.divide(weights, sum(weights))) < 5
    )


def test_even_puts_a_rare_source_anywhere_in_each_stretch_in_which_it_is_due():
    places = []
    for key in range(400):
        source, _ = make_scheme("even", [9, 1], key=key).locate(np.arange(100))
        rare = np.flatnonzero(source == 1)
        assert (rare // 10).tolist() == list(range(10))
        places += (rare % 10).tolist()
    assert surprise(np.bincount(places, minlength=10), [0.1] * 10) < 5


@pytest.mark.parametrize("name", ["exact", "even", "block"])
def test_a_weight_of_more_than_60_bits_beside_the_others_is_drawn(name):
    scheme = make_scheme(name, [1.0, 1e-25, 1e-40])
    counts = scheme.counts(10**15)
    assert counts.sum() == 10**15
    assert counts[0] >= 10**15 - 1000


# block

BLOCK_COUNTS = [
    ([0.4, 0.5, 0.1], 1000, [400, 500, 100]),
    ([0.5, 0.3, 0.2], 1000, [500, 300, 200]),
    ([0.3, 0.7], 1000, [300, 700]),
    ([1, 1], 1000, [500, 500]),
    ([1] * 3, 999, [333, 333, 333]),
    ([2, 6], 100, [25, 75]),
    ([0.5, 0.5], 1, [1, 0]),
    ([0.29, 0.71], 100, [29, 71]),
]


@pytest.mark.parametrize(("weights", "size", "wanted"), BLOCK_COUNTS)
def test_the_first_block_holds_the_wanted_counts(weights, size, wanted):
    assert make_scheme("block", weights, block_size=size).counts(size).tolist() == wanted


@pytest.mark.parametrize("row", range(5))
def test_whole_counts_are_those_of_every_block(row):
    weights, size, wanted = BLOCK_COUNTS[row]
    scheme = make_scheme("block", weights, block_size=size, key=8)
    source, _ = scheme.locate(np.arange(50 * size))
    for block in source.reshape(50, size):
        assert np.bincount(block).tolist() == wanted


@pytest.mark.parametrize(
    ("weights", "size"), [([0.005, 0.995], 100), ([0.5, 0.4995, 0.0005], 1000), ([0.5, 0.5], 1)]
)
def test_what_a_block_is_too_small_for_comes_in_another(weights, size):
    scheme = make_scheme("block", weights, block_size=size)
    exact = [round(weight * 1000 * size) for weight in weights]
    assert scheme.counts(1000 * size).tolist() == exact
    smallest = int(np.argmin(weights))
    per_block = np.diff([scheme.counts(n * size)[smallest] for n in range(20)])
    assert set(per_block.tolist()) == {0, 1}


@given(
    weights=st.lists(
        st.builds(lambda x, k: x**k, st.floats(0.01, 1), st.integers(1, 6)), max_size=40
    ).filter(any),
    size=st.integers(1, 50),
    start=st.integers(0, 10**9),
)
def test_every_block_boundary_is_within_the_bound(weights, size, start):
    scheme = make_scheme("block", weights, block_size=size)
    for block in range(start, start + 30):
        assert deviation_at(scheme, weights, block * size) <= 1.68


def test_blocks_are_shuffled_each_in_its_own_way():
    scheme = make_scheme("block", [1, 1], block_size=100, key=1)
    source, _ = scheme.locate(np.arange(10**5))
    blocks = source.reshape(1000, 100)
    assert len({block.tobytes() for block in blocks}) == 1000
    assert surprise(blocks.sum(axis=0), [0.01] * 100) < 5
    other = make_scheme("block", [1, 1], block_size=100, key=2).locate(np.arange(10**5))[0]
    assert 0.48 < (source == other).mean() < 0.52


# random and uniform

SHARES = np.array([0.5, 0.25, 0.15, 0.1])


@pytest.mark.parametrize("key", range(4))
def test_random_slots_have_the_asked_shares_and_do_not_know_each_other(key):
    scheme = make_scheme("random", SHARES.tolist(), key=key)
    source, _ = scheme.locate(np.arange(400_000) + key * 10**9)
    assert np.abs(np.bincount(source) - SHARES * 400_000).max() < 4 * 65_536**0.5
    for apart in (1, 2, 16, 1000):
        pairs = np.bincount(source[:-apart] * 4 + source[apart:], minlength=16)
        assert surprise(pairs, np.outer(SHARES, SHARES).ravel()) < 5


def test_random_windows_spread_like_draws_without_replacement():
    """How many of 1024 slots a source has: nearly as far apart as under independent draws."""
    source, _ = make_scheme("random", [3, 7], key=5).locate(np.arange(2**20))
    counts = (source == 0).reshape(-1, 1024).sum(axis=1)
    independent = (1024 * 0.3 * 0.7) ** 0.5
    assert 0.9 * independent < counts.std() < 1.1 * independent


def test_random_holds_the_shares_at_the_ends_of_windows():
    scheme = make_scheme("random", SHARES.tolist(), key=2)
    for window in (1, 2, 1000, 10**7):
        assert deviation_at(scheme, SHARES.tolist(), window * 2**16) <= 1.68


def test_uniform_leaves_out_weight_0_and_ignores_the_others():
    scheme = make_scheme("uniform", [5, 0, 0.1, 1000], key=4)
    counts = scheme.counts(10**6)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 10**6 / 3).max() < 1000
    assert (scheme.counts(10**6) == make_scheme("uniform", [1, 0, 1, 1], key=4).counts(10**6)).all()


# round_robin and greedy


def test_round_robin_takes_the_sources_in_turn():
    source, nth = make_scheme("round_robin", [2, 0, 9, 1]).locate(np.arange(7))
    assert source.tolist() == [0, 2, 3, 0, 2, 3, 0]
    assert nth.tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_greedy_is_the_order_of_the_blending_index():
    scheme = make_scheme("greedy", [0.1, 0.5, 0.3, 0.1])
    order = [1, 2, 0, 1, 3, 1, 2, 1, 2, 1, 0, 1, 2, 1, 3, 1, 2, 1, 2, 1]
    assert scheme.locate(np.arange(20))[0].tolist() == order
    assert scheme.counts(20).tolist() == [2, 10, 6, 2]


@given(weights=st.lists(st.integers(0, 30), min_size=1, max_size=9).filter(any))
def test_greedy_goes_on_as_it_would_without_a_table(weights):
    scheme = make_scheme("greedy", weights)
    total, counts, slots = sum(weights), [0] * len(weights), 5 * sum(weights)
    source, nth = scheme.locate(np.arange(slots))
    for slot in range(slots):
        owed = [
            w * max(slot, 1) - n * total if w else -slots * total
            for w, n in zip(weights, counts, strict=True)
        ]
        first = owed.index(max(owed))
        assert (source[slot], nth[slot]) == (first, counts[first])
        counts[first] += 1
    assert scheme.counts(slots).tolist() == counts
    check_counts(scheme, 60, start=10**12)


def test_greedy_refuses_weights_without_a_short_period():
    with pytest.raises(ConfigError, match=r"repeat only after 20000001 slots.*'exact'"):
        make_scheme("greedy", [1.0000001, 1])


# weights, names, options


@pytest.mark.parametrize("name", SCHEMES)
def test_weights_may_be_given_by_name(name):
    scheme = make_scheme(name, {"b": 3, "none": 0, "a": 1}, key=2)
    assert scheme.names == ("b", "none", "a")
    assert make_scheme(name, [3, 0, 1], key=2).names is None
    slots = np.arange(500)
    assert (scheme.locate(slots)[0] == make_scheme(name, [3, 0, 1], key=2).locate(slots)[0]).all()
    assert scheme.counts(500)[1] == 0


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "at least one source"),
        ({}, "at least one source"),
        ([0, 0.0], "all 2 weights are 0"),
        ([1, -0.5], "weight 1: .* not negative, got -0.5"),
        ({"code": 1, "math": float("nan")}, "weight 'math': .*nan"),
        ([float("inf"), 1], "weight 0: .*inf"),
        ([1, 10**400], "weight 1: a weight is finite"),
        ([1, "2"], "weight 1: a weight is a number, got '2'"),
        ([True, 1], "weight 0: a weight is a number, got True"),
        ([1, None], "weight 1: a weight is a number, got None"),
    ],
)
def test_bad_weights_are_named(name, weights, message):
    with pytest.raises(WeightError, match=message):
        make_scheme(name, weights)


def test_unknown_names_and_options_are_named():
    with pytest.raises(ConfigError, match="unknown scheme 'blok'; did you mean 'block'"):
        make_scheme("blok", [1])
    with pytest.raises(ConfigError, match="'exact' has no option 'block_size'"):
        make_scheme("exact", [1], block_size=3)
    with pytest.raises(ConfigError, match="did you mean 'block_size'"):
        make_scheme("block", [1], blocksize=3)
    for size in (0, -1, 2.5, True):
        with pytest.raises(ConfigError, match="block_size counts slots"):
            make_scheme("block", [1], block_size=size)


def test_kinds_of_numbers_mean_the_same():
    alike = [[0.1, 0.9], [Fraction(1, 10), Fraction(9, 10)], [1, 9], [np.float32(0.1), np.int16(9)]]
    counts = [make_scheme("exact", weights).counts(100).tolist() for weights in alike[:3]]
    assert counts == [[10, 90]] * 3
    assert make_scheme("exact", alike[3]).counts(91).tolist() == [1, 90]


# determinism

FINGERPRINT = "05ec6073860c2316"


def fingerprint() -> str:
    """Of what every scheme says in several places."""
    digest = hashlib.blake2b(digest_size=8)
    for name in drawing:
        for weights in ("per cent", "irrational", "rare", "many odd"):
            scheme = make_scheme(name, WEIGHTS[weights], key=11)
            for start in PLACES:
                for part in scheme.locate(np.arange(start, start + 3000)):
                    digest.update(part.astype("<i8").tobytes())
    return digest.hexdigest()


def test_orders_are_the_same_in_another_process():
    code = "from tests.order.test_schemes import fingerprint; print(fingerprint())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == FINGERPRINT


def test_orders_never_change():
    """These orders are part of every saved run: a change here breaks resuming old ones."""
    at = np.arange(10**6, 10**6 + 12)
    orders = {
        name: make_scheme(name, [5, 3, 2.5], key=3).locate(at)[0].tolist() for name in SCHEMES
    }
    assert orders == {
        "block": [1, 0, 0, 1, 0, 2, 0, 0, 1, 0, 1, 1],
        "even": [1, 0, 0, 2, 1, 0, 2, 0, 2, 0, 1, 0],
        "exact": [0, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1],
        "greedy": [1, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1],
        "random": [0, 2, 0, 0, 2, 0, 0, 0, 1, 0, 1, 0],
        "round_robin": [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0],
        "uniform": [0, 0, 2, 1, 2, 1, 1, 0, 0, 0, 0, 2],
    }
    assert fingerprint() == FINGERPRINT


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_are_pickled_without_what_they_computed(name):
    scheme = make_scheme(name, {"a": 0.5, "b": 0.25, "c": 0.125}, key=5)
    small = len(pickle.dumps(scheme))
    source, nth = scheme.locate(np.arange(10**6, 10**6 + 500))
    assert len(pickle.dumps(scheme)) == small < 3000
    again = pickle.loads(pickle.dumps(scheme))
    assert again.names == scheme.names
    assert again.describe() == scheme.describe()
    assert (again.locate(np.arange(10**6, 10**6 + 500))[0] == source).all()
    assert (again.locate(np.arange(10**6, 10**6 + 500))[1] == nth).all()


@pytest.mark.parametrize("name", ["block", "even", "exact", "random"])
def test_a_hundred_thousand_sources(name):
    weights = (1 + np.arange(100_000) % 7).tolist()
    scheme = make_scheme(name, weights, key=1)
    source, nth = scheme.locate(np.arange(5000) + 10**6)
    counts = scheme.counts(10**6)
    assert counts.sum() == 10**6
    assert (nth >= counts[source]).all()

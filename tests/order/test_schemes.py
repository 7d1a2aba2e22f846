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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError, WeightError
from energize.order.making import make_scheme
from energize.order.schemes import eras, exact
from energize.order.schemes.plain import SCHEMES
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


# exact


@pytest.mark.parametrize("weights", WEIGHTS)
def test_every_prefix_holds_the_exact_shares(weights):
    scheme = make_scheme("exact", WEIGHTS[weights])
    slots = 10**6 if len(WEIGHTS[weights]) < 10 else 10**5
    assert deviation(scheme, WEIGHTS[weights], slots) <= scheme.bound + 1e-9
    assert deviation(scheme, WEIGHTS[weights], 10**4, start=10**12) <= scheme.bound + 1e-9
    for n in np.random.default_rng(7).integers(0, 10**12, 20).tolist():
        assert deviation_at(scheme, WEIGHTS[weights], n) <= Fraction(scheme.bound)


@given(weights=weights_like, start=st.integers(0, 10**12))
def test_every_prefix_holds_the_exact_shares_of_any_weights(weights, start):
    scheme = make_scheme("exact", weights)
    assert deviation(scheme, weights, 3000, start) <= scheme.bound + 1e-6
    rare = [share for share in asked(weights) if 0 < share < Fraction(1, 2**20)]
    assert scheme.bound <= 1 or min(rare) < max(Fraction(1, 2**40), sum(rare) / 2**20)


@pytest.mark.parametrize("weights", [[1e-18, 1.0], [1e-9, 2e-9, 1.0, 0.3], WEIGHTS["rare"], [1, 2]])
def test_the_farthest_prefixes_hold_the_exact_shares(weights):
    scheme = make_scheme("exact", weights)
    for n in (2**48 - 1, 2**50 + 1, 2**55 + 3, 2**61 + 12345):
        assert deviation_at(scheme, weights, n) <= Fraction(scheme.bound)
        check_counts(scheme, 12, n - 6, every=4)


@pytest.mark.parametrize(
    ("weights", "bound"), [([1, 1], 0.5), ([3, 5, 2], 0.75), ([1] * 11, 0.95), ([5], 0.0)]
)
def test_the_bound_of_weights_with_a_short_period_is_that_of_the_chairman(weights, bound):
    scheme = make_scheme("exact", weights)
    assert scheme.bound == bound
    assert deviation(scheme, weights, 2 * sum(weights)) <= bound


@given(data=st.data(), start=st.sampled_from([0, 0, 10**4, 10**10 + 1]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_prefix_of_many_eras_holds_the_exact_shares(monkeypatch, data, start):
    """Eras are shortened, so that many pass and sources of small counts are rare ones."""
    monkeypatch.setattr(eras, "_SHORTEST_ERA", 4)
    monkeypatch.setattr(eras, "_LONGEST_PERIOD", 0)
    monkeypatch.setattr(exact, "_LONGEST_ERA", data.draw(st.sampled_from([8, 16, 64])))
    exponents = data.draw(st.lists(st.floats(0, data.draw(st.integers(1, 12))), min_size=1))
    scheme = make_scheme("exact", [int(2**each) for each in exponents])
    assert deviation(scheme, [int(2**each) for each in exponents], 3000, start) < scheme.bound


@pytest.mark.parametrize("weights", ["irrational", "steep", "rare", "many", "sevenths"])
def test_whole_shares_are_met_exactly(weights):
    scheme = make_scheme("exact", WEIGHTS[weights])
    shares = asked(WEIGHTS[weights])
    period = shares[0].denominator
    if period < 2**50:
        for n in (period, 3 * period):
            assert scheme.counts(n).tolist() == [share * n for share in shares]


def test_the_order_of_two_equal_sources_is_in_turn_and_of_a_rare_one_is_even():
    assert make_scheme("exact", [1, 1]).locate(np.arange(6))[0].tolist() == [0, 1, 0, 1, 0, 1]
    source, _ = make_scheme("exact", [9, 1]).locate(np.arange(40))
    assert np.flatnonzero(source == 1).tolist() == [5, 15, 25, 35]


def test_a_weight_of_more_than_60_bits_beside_the_others_is_drawn():
    scheme = make_scheme("exact", [1.0, 1e-25, 1e-40])
    counts = scheme.counts(10**15)
    assert counts.sum() == 10**15
    assert counts[0] >= 10**15 - 1000


@pytest.mark.slow
@given(weights=weights_like, start=st.integers(0, 10**15))
def test_every_prefix_of_whole_eras_holds_the_exact_shares(weights, start):
    scheme = make_scheme("exact", weights)
    slots = 10**5 if len(weights) > 20 else 2**20
    assert deviation(scheme, weights, slots, start) <= scheme.bound + 1e-5


# block

BLOCK_COUNTS = [
    ([0.4, 0.5, 0.1], 1000, [400, 500, 100]),
    ([0.5, 0.3, 0.2], 1000, [500, 300, 200]),
    ([0.3, 0.7], 1000, [300, 700]),
    ([1, 1], 1000, [500, 500]),
    ([1] * 3, 1000, [334, 333, 333]),
    ([1] * 3, 10, [4, 3, 3]),
    ([1] * 7, 10, [2, 2, 2, 1, 1, 1, 1]),
    ([0.15, 0.15, 0.7], 10, [2, 1, 7]),
    ([0.4, 0.4, 0.2], 3, [1, 1, 1]),
    ([2, 6], 100, [25, 75]),
    ([0.5, 0.5], 1, [1, 0]),
    ([0.29, 0.71], 100, [29, 71]),
]


@pytest.mark.parametrize(("weights", "size", "wanted"), BLOCK_COUNTS)
def test_the_first_block_holds_the_wanted_counts(weights, size, wanted):
    assert make_scheme("block", weights, block_size=size).counts(size).tolist() == wanted


@pytest.mark.parametrize("row", [0, 1, 2, 3, 9, 11])
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
        assert deviation_at(scheme, weights, block * size) <= Fraction(scheme.bound)


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
def test_draws_have_the_asked_probabilities_and_do_not_know_each_other(key):
    scheme = make_scheme("random", SHARES.tolist(), key=key)
    source, _ = scheme.locate(np.arange(400_000) + key * 10**9)
    assert surprise(np.bincount(source), SHARES) < 5
    for apart in (1, 2, 16, 1000):
        pairs = np.bincount(source[:-apart] * 4 + source[apart:], minlength=16)
        assert surprise(pairs, np.outer(SHARES, SHARES).ravel()) < 5
    halves = source.reshape(2, -1)
    for half in halves:
        assert surprise(np.bincount(half), SHARES) < 5


@pytest.mark.parametrize(("slots", "start"), [(10, 0), (1000, 10**6), (2**15, 0), (2**26, 2**26)])
def test_counts_of_stretches_are_binomial(slots, start):
    """Mean, spread and shape of how many of `slots` slots the first source has, over 100 keys."""
    share = 0.3
    schemes = [make_scheme("random", [3, 6, 1], key=key) for key in range(100)]
    counts = np.array([each.counts(start + slots)[0] - each.counts(start)[0] for each in schemes])
    z = (counts - share * slots) / np.sqrt(slots * share * (1 - share))
    assert abs(z.mean()) < 4 / np.sqrt(100)
    assert 0.5 < z.var() < 1.6
    assert np.abs(z).max() < 4.5


def test_halves_of_a_stretch_do_not_know_each_other():
    counts = []
    for key in range(100):
        scheme = make_scheme("random", [1, 1], key=key)
        at = [scheme.counts(n)[0] for n in (0, 2**20, 2**21)]
        counts.append(np.diff(at))
    assert abs(np.corrcoef(np.array(counts).T)[0, 1]) < 4 / np.sqrt(100)


def test_uniform_leaves_out_weight_0_and_ignores_the_others():
    scheme = make_scheme("uniform", [5, 0, 0.1, 1000], key=4)
    counts = scheme.counts(10**6)
    assert counts[1] == 0
    assert surprise(counts[[0, 2, 3]], [1 / 3] * 3) < 5
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
        behind = [
            w * max(slot, 1) - n * total if w else -slots * total
            for w, n in zip(weights, counts, strict=True)
        ]
        first = behind.index(max(behind))
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

FINGERPRINT = "83bbed51195b6810"


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
        "block": [1, 0, 0, 1, 0, 1, 2, 2, 0, 2, 1, 0],
        "exact": [1, 0, 2, 0, 1, 0, 2, 0, 1, 2, 0, 1],
        "greedy": [1, 2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1],
        "random": [0, 0, 1, 1, 1, 0, 1, 0, 2, 0, 2, 2],
        "round_robin": [1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0],
        "uniform": [0, 0, 2, 2, 0, 1, 2, 0, 1, 1, 2, 2],
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


@pytest.mark.parametrize("name", ["block", "exact", pytest.param("random", marks=pytest.mark.slow)])
def test_a_hundred_thousand_sources(name):
    weights = (1 + np.arange(100_000) % 7).tolist()
    scheme = make_scheme(name, weights, key=1)
    source, nth = scheme.locate(np.arange(5000) + 10**6)
    counts = scheme.counts(10**6)
    assert counts.sum() == 10**6
    assert (nth >= counts[source]).all()

"""squirrel's multiplexer: its order where that is a promise, unbiased and resumable everywhere."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import (
    ConfigError,
    EmptyDatasetError,
    StateError,
    StateMismatchError,
    WeightError,
)
from energize.compat.squirrel import LegacyDraws, Multiplexer, MultiplexingStrategy
from energize.testing import check_resume
from tests.support.rows import Stream
from tests.support.rows import letter_streams as sources

ROUND_ROBIN = MultiplexingStrategy.ROUND_ROBIN
SAMPLING = MultiplexingStrategy.SAMPLING
UNIFORM = MultiplexingStrategy.UNIFORM_WITH_REPLACEMENT


def letters(samples):
    return "".join(sample[0] for sample in samples)


ORDERS = ["energize", "squirrel"]
THREE = {"sampling_probas": [0.35, 0.6, 0.05], "seed": 42}

GOLDEN = [
    (ROUND_ROBIN, (2, 3, 5), {}, 10, [2, 3, 5], []),
    (ROUND_ROBIN, (100, 26, 200), {}, 326, [100, 26, 200], []),
    (UNIFORM, (100, 26, 200), {"seed": 42}, 579, [191, 188, 200], [1, 7, 1]),
    (SAMPLING, (214, 115, 453), THREE | {"max_reinits": 4}, 768, [268, 460, 40], [1, 4, 0]),
    (
        SAMPLING,
        (10, 1000),
        {"sampling_probas": [0.5, 0.5], "seed": 0},
        1922,
        [922, 1000],
        [92, 1],
    ),
]


@pytest.mark.parametrize(("strategy", "sizes", "options", "size", "given", "over"), GOLDEN)
def test_squirrel_counts(strategy, sizes, options, size, given, over):
    mux = Multiplexer(sources(*sizes), strategy, **options, order="squirrel")
    assert len(list(mux)) == size
    assert (mux.num_samples, mux.reinit_counts) == (given, over)


@pytest.mark.parametrize(
    ("strategy", "sizes", "options", "order"),
    [
        (ROUND_ROBIN, (2, 3, 5), {}, "abcabcbccc"),
        (ROUND_ROBIN, (3, 1, 2), {}, "abcaac"),
        (SAMPLING, (99, 99, 99), THREE, "bbabbbbbbbababcabbbcabcabbaabbbbaabbbabb"),
        (UNIFORM, (99, 99, 99), {"seed": 42}, "ccaacacaccbbaabaacababcacccbcbcccabaabca"),
    ],
)
def test_squirrel_order(strategy, sizes, options, order):
    mux = Multiplexer(sources(*sizes), strategy, **options, order="squirrel")
    assert letters(islice(mux, 40)) == order


def test_squirrel_order_goes_on_in_the_next_epoch_and_counts_begin_anew():
    mux = Multiplexer(sources(10, 20), SAMPLING, [0.5, 0.5], seed=1, order="squirrel")
    assert len(list(mux)) == 40
    assert mux.num_samples == [20, 20]
    assert len(list(mux)) == 47
    assert mux.num_samples == [27, 20]


@pytest.mark.parametrize(
    ("sizes", "order"), [((2, 3, 5), "abcabcbccc"), ((3, 1, 2), "abcaca"), ((7,), "aaaaaaa")]
)
def test_round_robin_goes_on_where_a_source_is_over(sizes, order):
    mux = Multiplexer(sources(*sizes))
    assert letters(mux) == letters(mux) == order
    assert mux.num_samples == list(sizes)
    assert mux.reinit_counts == []


@pytest.mark.parametrize("order", ORDERS)
def test_round_robin_takes_every_source_whatever_its_probability(order, caplog):
    mux = Multiplexer(sources(3, 4), ROUND_ROBIN, [0.9999, 0.0001], max_reinits=1, order=order)
    assert sorted(mux) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    assert "sampling_probas are ignored" in caplog.text


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(5))
def test_it_ends_when_the_last_source_was_over_once(order, seed):
    mux = Multiplexer(sources(10, 1000), SAMPLING, [0.5, 0.5], seed=seed, order=order)
    seen = list(mux)
    assert mux.num_samples[1] == 1000
    assert mux.reinit_counts[1] == 1
    assert Counter(seen)["b999"] == 1
    assert mux.num_samples[0] == sum(sample[0] == "a" for sample in seen)


@pytest.mark.parametrize("order", ORDERS)
def test_or_when_one_was_over_max_reinits_times(order):
    mux = Multiplexer(
        sources(214, 115, 453), max_reinits=4, mux_strategy=SAMPLING, **THREE, order=order
    )
    samples = list(mux)
    assert max(mux.reinit_counts) == 4
    assert mux.num_samples[1] == 4 * 115 == sum(sample[0] == "b" for sample in samples)
    alone = Multiplexer(sources(7), SAMPLING, [1], max_reinits=3, seed=0, order=order)
    assert len(list(alone)) == 7
    assert alone.reinit_counts == [1]


def test_shares_do_not_depend_on_lengths():
    """The peer loses a draw at each end of a source: 33% instead of 50% for a source of one."""
    shares = {}
    for order in ORDERS:
        mux = Multiplexer(sources(1, 20_000), SAMPLING, [0.5, 0.5], seed=3, order=order)
        list(mux)
        shares[order] = mux.num_samples[0] / sum(mux.num_samples)
    assert shares["energize"] == pytest.approx(0.5, abs=0.01)
    assert shares["squirrel"] == pytest.approx(1 / 3, abs=0.01)


def test_what_a_short_source_gives_is_unbiased_over_seeds():
    given = []
    for seed in range(100):
        mux = Multiplexer(sources(10, 200), SAMPLING, [0.5, 0.5], seed=seed)
        list(mux)
        assert mux.num_samples[1] == 200
        assert mux.reinit_counts[1] == 1
        given.append(mux.num_samples[0])
    # Slots before the 201st draw of b: a negative binomial with mean 201 and deviation 20.
    assert np.mean(given) == pytest.approx(201, abs=4 * 20 / np.sqrt(100))


@pytest.mark.parametrize("strategy", [SAMPLING, UNIFORM])
def test_draws_have_the_asked_shares(strategy):
    mux = Multiplexer(sources(50, 50, 50), strategy, [0.2, 0.3, 0.5], seed=5)
    counts = Counter(letters(islice(iter(mux), 100)))
    assert set(counts) == {"a", "b", "c"}
    endless = Multiplexer([range(10**6)] * 3, strategy, [0.2, 0.3, 0.5], seed=5)
    list(islice(endless, 30_000))
    expected = [1 / 3] * 3 if strategy is UNIFORM else [0.2, 0.3, 0.5]
    assert np.array(endless.num_samples) / 30_000 == pytest.approx(expected, abs=0.012)


def test_sources_that_are_too_unlikely_are_named(caplog):
    mux = Multiplexer(
        dict(zip(["tiny", "one", "two"], sources(5, 5, 5), strict=True)),
        SAMPLING,
        {"two": 0.499, "tiny": 0.001, "one": 0.5},
        seed=0,
    )
    assert mux.dropped == ("tiny",)
    assert "'tiny' (0.001)" in caplog.text
    list(mux)
    assert len(mux.num_samples) == len(mux.reinit_counts) == 2
    assert mux.num_samples_by_name == {"tiny": 0} | dict(
        zip(["one", "two"], mux.num_samples, strict=True)
    )
    assert mux.reinit_counts_by_name["tiny"] == 0
    assert sum(mux.reinit_counts_by_name.values()) == sum(mux.reinit_counts) >= 2


def test_one_just_above_the_threshold_is_kept():
    mux = Multiplexer(sources(5, 5, 5), SAMPLING, [0.0011, 0.5, 0.4989], seed=0)
    assert mux.dropped == ()
    assert len(mux.num_samples) == 3


BAD = [
    ({"sampling_probas": [0.001, 0.0005]}, WeightError, "no sampling probability is above"),
    ({"sampling_probas": None}, WeightError, "needs sampling_probas"),
    ({"sampling_probas": [1]}, WeightError, "1 entries for 2 sources"),
    (
        {"sampling_probas": [1, 1], "mux_strategy": "draw"},
        ConfigError,
        "mux_strategy is 'RoundRobin', .*; got 'draw'",
    ),
    ({"sampling_probas": [-1, 1]}, WeightError, "'0'.*-1"),
    ({"sampling_probas": [float("inf"), 1]}, WeightError, "inf"),
    ({"sampling_probas": 0.5}, WeightError, "a list of numbers.*got 0.5"),
    ({"proba_threshold": "0.1"}, ConfigError, "proba_threshold is a number.*got '0.1'"),
    ({"sampling_probas": [1], "mux_strategy": UNIFORM}, WeightError, "1 entries for 2"),
    ({"max_reinits": 0}, ConfigError, "max_reinits.*0"),
    ({"max_reinits": -1}, ConfigError, "max_reinits.*-1"),
    ({"proba_threshold": -0.1}, ConfigError, "proba_threshold"),
    ({"order": "other"}, ConfigError, "order is"),
    ({"seed": -3}, ConfigError, "seed"),
    ({"names": ["a", "a"]}, ConfigError, "all different"),
    ({"composables": []}, ConfigError, "no sources"),
    ({"composables": "ab"}, ConfigError, "list of sources"),
    ({"composables": [iter([1]), [2]]}, ConfigError, "only once"),
    ({"composables": {"a": [1], "b": [2]}, "sampling_probas": {"a": 1}}, WeightError, "'b'"),
]


@pytest.mark.parametrize(("given", "error", "message"), BAD)
def test_bad_input_is_refused_where_it_is_given(given, error, message):
    arguments = {
        "composables": sources(2, 2),
        "mux_strategy": SAMPLING,
        "sampling_probas": [0.5, 0.5],
        "seed": 0,
    }
    with pytest.raises(error, match=message):
        Multiplexer(**arguments | given)


@pytest.mark.parametrize("order", ORDERS)
def test_whole_numbers_will_do_and_samples_stay_as_they_are(order):
    ragged = [[1, 2], {"x": None}, "text", ()]
    mux = Multiplexer([ragged, [[3]]], SAMPLING, [2, 6], seed=0, order=order)
    seen = list(mux)
    assert all(any(sample is each for each in ragged) or sample == [3] for sample in seen)


def test_numbers_of_numpy_and_torch_will_do():
    probas = [0.25, 0.75]
    expected = list(Multiplexer(sources(9, 9), SAMPLING, probas, seed=3, max_reinits=2))
    for numbers, seed, most in (
        (np.array(probas), np.int64(3), np.int32(2)),
        (torch.tensor(probas), torch.tensor(3), 2),
    ):
        assert list(Multiplexer(sources(9, 9), SAMPLING, numbers, most, seed)) == expected


@pytest.mark.jobs
@pytest.mark.parametrize("order", ORDERS)
def test_many_sources_in_turn(order):
    mux = Multiplexer([[i] for i in range(5000)] + [range(20_000)], ROUND_ROBIN, order=order)
    assert len(list(mux)) == 25_000
    assert mux.num_samples == [1] * 5000 + [20_000]


@pytest.mark.parametrize("order", ORDERS)
def test_an_empty_source_is_named(order):
    mux = Multiplexer({"full": [1, 2], "empty": []}, SAMPLING, [1, 1], seed=0, order=order)
    with pytest.raises(EmptyDatasetError, match="'empty' has no items"):
        list(mux)
    stream = Multiplexer([[1, 2], Stream([])], SAMPLING, [1, 1], seed=0, order=order)
    with pytest.raises(EmptyDatasetError, match="'1' has no items"):
        list(stream)
    assert list(Multiplexer([[1, 2], []], ROUND_ROBIN, order=order)) == [1, 2]


EVERY = [
    (strategy, order, sizes)
    for strategy in MultiplexingStrategy
    for order in ORDERS
    for sizes in ((3, 1, 5), (4,))
]


@pytest.mark.parametrize(("strategy", "order", "sizes"), EVERY)
def test_every_strategy_resumes_after_any_sample(strategy, order, sizes):
    probas = [0.5, 0.2, 0.3][: len(sizes)]
    mux = Multiplexer(sources(*sizes), strategy, probas, seed=9, order=order)
    check_resume(mux.dataset, items=30)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    strategy=st.sampled_from(list(MultiplexingStrategy)),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_stopping_anywhere_changes_nothing(sizes, strategy, order, seed, data):
    def made():
        probas = [1 / len(sizes)] * len(sizes)
        return Multiplexer(sources(*sizes), strategy, probas, max_reinits=3, seed=seed, order=order)

    mux = made()
    whole = list(mux)
    final = mux.num_samples
    at = data.draw(st.integers(0, len(whole)))
    first = made()
    seen = list(islice(iter(first), at))
    resumed = made()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    seen += list(resumed)
    assert seen == whole
    assert resumed.num_samples == final


def test_counts_are_kept_in_the_state():
    mux = Multiplexer(sources(50, 50), UNIFORM, seed=1)
    list(islice(iter(mux), 33))
    resumed = Multiplexer(sources(50, 50), UNIFORM, seed=1)
    resumed.load_state_dict(mux.state_dict())
    next(iter(resumed))
    assert sum(resumed.num_samples) == 34


def test_the_state_of_another_multiplexer_is_refused():
    state = Multiplexer(sources(5, 5), UNIFORM, seed=1).state_dict()
    with pytest.raises(StateMismatchError, match=r"slots.weights"):
        Multiplexer(sources(5, 5), SAMPLING, [0.2, 0.8], seed=1).load_state_dict(state)


@pytest.mark.parametrize(
    "damage", [{"key": [1] * 623}, {"key": ["a"] * 624}, {"place": 625}, {"used": 257}]
)
def test_a_damaged_state_of_the_legacy_order_is_refused(damage):
    draws = LegacyDraws(2, (0.5, 0.5), 1)
    state = draws.begin(None, frozenset()).state()
    assert draws.begin(state, frozenset()).state() == state
    with pytest.raises(StateError, match="624 words"):
        draws.begin(state | damage, frozenset())


def test_seeds_and_epochs_decide_the_order():
    def first(seed):
        return letters(islice(iter(Multiplexer(sources(99, 99), UNIFORM, seed=seed)), 60))

    assert first(4) == first(4) != first(5)
    assert first(None) != first(None)
    mux = Multiplexer(sources(30, 30), UNIFORM, seed=4)
    assert letters(mux) != letters(mux)


def test_a_loop_that_is_left_begins_the_same_epoch_again():
    mux = Multiplexer(sources(30, 30), UNIFORM, seed=4)
    begun = list(islice(iter(mux), 7))
    assert list(islice(iter(mux), 7)) == begun

"""Weights over time: what schemes promise under schedules, and that nothing that comes later
changes what came before.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError, WeightError
from energize.order import Schedule, make_scheme
from energize.order.timeline import SCHEMES, WEIGHTLESS
from energize.order.weights import CHANGES, Compound, shares_at
from tests.support.schemes import check_counts, due_at
from tests.support.tables import check_faults, row

FOLLOW = [name for name in SCHEMES if name not in WEIGHTLESS]
STRAY = {"exact": 2.2, "even": 4.0, "block": 2.2}
"""The bound of fixed weights, and what interpolation and points add to it."""

values = st.one_of(st.just(0.0), st.floats(0.001, 1), st.integers(1, 5))
weights_of = st.lists(st.integers(1, 20), min_size=2, max_size=6)


@st.composite
def schedules(draw, weight=values, stretch=1, change="block"):
    steps = draw(st.lists(st.integers(0, 400), min_size=1, max_size=4, unique=True))
    points = [(step, draw(weight)) for step in sorted(steps)]
    return Schedule(points, draw(st.sampled_from(["step", "linear", "cosine"])), stretch, change)


def mixes(**options):
    mix = st.lists(st.one_of(schedules(**options), st.floats(0.001, 1)), min_size=1, max_size=9)
    return mix.map(lambda weights: [*weights, 0.5])


def made(name, weights, size=1000, key=0):
    return make_scheme(name, weights, key=key, **({"block_size": size} if name == "block" else {}))


@settings(max_examples=15)
@given(data=st.data(), change=st.sampled_from(CHANGES), size=st.integers(1, 70), key=st.integers())
def test_counts_and_places_agree_and_nothing_of_share_0_is_drawn(data, change, size, key):
    """Where shares are interpolated, a source is drawn only in pieces in which it has some."""
    weights = data.draw(mixes(change=change))
    steps = [Schedule(w.points, change="sample") if hasattr(w, "points") else w for w in weights]
    shares = shares_at(steps, np.arange(500))
    for name in FOLLOW:
        check_counts(made(name, weights, size, key), 500, every=50)
        source, _ = made(name, steps, size).locate(np.arange(500))
        assert (shares[np.arange(500), source] > 0).all()


@st.composite
def nested(draw, stretch):
    some = schedules(st.floats(0.01, 1), stretch)
    inner = Compound("share", (draw(some), draw(some)), 0)
    return Compound("product", (draw(some), inner))


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data(), stretch=st.sampled_from([1, 7, 1000]))
def test_counts_stay_near_the_integral_of_the_shares(data, stretch):
    one = st.one_of(schedules(st.floats(1e-9, 1), stretch), nested(stretch))
    weights = [*data.draw(st.lists(one, min_size=1, max_size=6)), 0.5]
    ends = [0, 31 * stretch, 150 * stretch, 400 * stretch, 600 * stretch]
    due = {slot: due_at(weights, slot) for slot in ends}
    for name in ("exact", "even"):
        scheme = make_scheme(name, weights, key=1)
        for slot in ends:
            assert np.abs(scheme.counts(slot) - due[slot]).max() <= STRAY[name], (name, slot)


@settings(max_examples=12)
@given(st.lists(schedules(st.floats(0.01, 1)), min_size=1, max_size=6), st.integers(5, 50))
def test_every_block_end_is_near_the_integral(weights, size):
    gliding = [
        Schedule([(0, 0.3), *((s + 1, w) for s, w in each.points)], "linear") for each in weights
    ]
    scheme = make_scheme("block", [*gliding, 0.5], block_size=size)
    for begin, end in pairwise(sorted({0, *(slot for each in gliding for slot in each.slots)})):
        for slot in (*range(begin, end, size), end):
            due = due_at([*gliding, 0.5], slot)
            assert np.abs(scheme.counts(slot) - due).max() <= STRAY["block"]


@settings(max_examples=30)
@given(
    name=st.sampled_from(FOLLOW),
    data=st.data(),
    stretch=st.sampled_from([1, 40]),
    slots=st.lists(st.integers(0, 20_000), min_size=1, max_size=20),
)
def test_where_a_slot_goes_is_no_matter_of_what_was_asked_before(name, data, stretch, slots):
    weights = data.draw(mixes(stretch=stretch))
    source, nth = made(name, weights).locate(np.arange(20_001))
    alone = made(name, weights)
    for slot in slots:
        one, number = alone.locate(np.array([slot]))
        assert (one[0], number[0]) == (source[slot], nth[slot])
        assert alone.counts(slot)[one[0]] == number[0]


def test_shares_of_points_in_all_schemes():
    code = [(0, 0.2), (10_000, 0.5), (50_000, 0.8)]
    text = [(at, 1 - weight) for at, weight in code]
    for name, way in [(n, w) for n in ("exact", "block") for w in ("linear", "cosine")]:
        with row((name, way)):
            scheme = make_scheme(name, [Schedule(code, way), Schedule(text, way)])
            counts = [scheme.counts(n).tolist() for n in (10_000, 50_000)]
            assert counts == [[3500, 6500], [29_500, 20_500]]
            assert scheme.counts(10**12)[0] == 29_500 + (10**12 - 50_000) * 8 // 10
    linear = make_scheme("block", [Schedule(code, "linear"), Schedule(text, "linear")])
    assert linear.counts(1000).tolist() == [215, 785]
    stepping = make_scheme("exact", [Schedule(code), Schedule(text)])
    assert stepping.counts(50_000).tolist() == [22_000, 28_000]
    steps = [Schedule(points, "linear", 64) for points in (code, text)]
    assert make_scheme("block", steps).counts(64 * 50_000).tolist() == [64 * 29_500, 64 * 20_500]
    far = [Schedule([(0, 1), (10**12, 5)], "cosine"), Schedule([(0, 2)]), 0.5]
    for name in ("exact", "block"):
        check_counts(make_scheme(name, far), 300, start=5 * 10**11)


def test_where_steps_act_in_blocks():
    def block(change, size=300):
        weights = [Schedule([(0, w), (500, 1 - w)], change=change) for w in (0.2, 0.8)]
        return make_scheme("block", weights, block_size=size, key=1)

    assert [block("block").counts(n)[0] for n in (600, 900)] == [120, 360]
    assert [block("block", 1000).counts(n)[0] for n in (1000, 2000)] == [200, 1000]
    plain = make_scheme("block", [0.2, 0.8], block_size=300, key=1)
    cut = block("sample")
    assert same_before(cut, plain, 500)
    assert abs(cut.counts(800)[0] - cut.counts(500)[0] - 240) <= 1
    last = [Schedule([(0, 1), (10, 0), (20, 0.25)]), Schedule([(0, 0), (10, 1), (20, 0.75)])]
    two = make_scheme("block", last, block_size=100)
    assert [two.counts(n).tolist() for n in (100, 200)] == [[100, 0], [125, 75]]


def test_what_is_owed_is_carried_over_points():
    """In no stretch is the rare source due a whole slot."""
    points = [(slot, 0.04 + 0.01 * (slot // 10 % 2)) for slot in range(0, 10_000, 10)]
    scheme = make_scheme("exact", [Schedule(points), 0.5, 0.46])
    assert scheme.counts(9_990).tolist() == [447, 4970, 4573]
    points = [(at, 0.001 + 0.0001 * (at % 3)) for at in range(0, 30_000, 100)]
    due = sum(100 * weight / (1 + weight) for _, weight in points)
    for name in ("even", "exact"):
        scheme = make_scheme(name, [Schedule(points), 1], key=2)
        assert scheme.counts(30_000)[0] == pytest.approx(due, abs=2), name
    for name, sources in [(name, n) for name in ("even", "exact") for n in (8, 20)]:
        drawn = np.random.default_rng(sources).random((1000, sources))
        due = np.cumsum(7 * drawn / drawn.sum(axis=1, keepdims=True), axis=0)
        columns = [[(7 * k, weight) for k, weight in enumerate(each)] for each in drawn.T.tolist()]
        scheme = make_scheme(name, [Schedule(points) for points in columns], key=1)
        counts = np.array([scheme.counts(7 * k) for k in range(1, 1000)])
        assert np.abs(counts - due[:-1]).max() <= STRAY[name], (name, sources)
    rare = Schedule([(0, 0.0005), (100_000, 0.0005)], "linear")
    assert make_scheme("block", [1.0, rare]).counts(100_000)[1] in (49, 50)
    once = Schedule([(0, 0), (1000, 0), (3000, 1), (5000, 0), (9000, 0)], "linear")
    counts = [make_scheme("exact", [once, 1.0]).counts(slot)[0] for slot in (1000, 5000, 9000)]
    expected = 4000 * (1 - math.log(2))  # twice the integral of x / (1 + x)
    assert counts == [0, pytest.approx(expected, abs=1.07), counts[1]]


# Nothing that comes later changes what came before.


def same_before(one, other, slot):
    """Whether two schemes have the same slots before one, in places and in counts."""
    pairs = zip(one.locate(np.arange(slot)), other.locate(np.arange(slot)), strict=True)
    places = all((a == b).all() for a, b in pairs)
    return places and (one.counts(slot) == other.counts(slot)).all()


@settings(max_examples=60)
@given(
    name=st.sampled_from(SCHEMES),
    weights=weights_of,
    data=st.data(),
    slot=st.integers(0, 3000),
    size=st.integers(1, 700),
)
def test_a_change_of_weights_leaves_every_slot_before_it(name, weights, data, slot, size):
    others = st.lists(st.integers(1, 20), min_size=len(weights), max_size=len(weights))
    before = made(name, weights, size, 7)
    changed = before.with_weights_from(slot, data.draw(others))
    assert same_before(before, changed, slot)
    later = slot + data.draw(st.integers(1, 900))
    assert same_before(changed, changed.with_weights_from(later, data.draw(others)), later)
    cut = before.without(1, slot)
    assert same_before(before, cut, slot)
    assert 1 not in cut.locate(np.arange(slot, slot + 500))[0]


@settings(max_examples=60)
@given(
    name=st.sampled_from(FOLLOW),
    points=st.lists(st.tuples(st.integers(1, 2500), st.integers(1, 9)), max_size=5),
    slot=st.integers(1, 3000),
    size=st.integers(1, 700),
    change=st.sampled_from(CHANGES),
)
def test_a_point_leaves_every_slot_before_it(name, points, slot, size, change):
    """Under `block`, one that acts at the next block leaves what lies before that, too."""
    earlier = {0: 3, **{at: weight for at, weight in points if at < slot}}
    before, now = (
        made(name, [Schedule(sorted(each.items()), change=change), 2, 1], size, 7)
        for each in (earlier, earlier | {slot: 50})
    )
    acts = slot if name != "block" or change == "sample" else -(-slot // size) * size
    assert same_before(before, now, acts)
    assert (before.counts(acts + 2000) != now.counts(acts + 2000)).any()


@settings(max_examples=25)
@given(
    name=st.sampled_from(SCHEMES),
    limits=st.lists(st.integers(1, 400), min_size=3, max_size=12),
    slot=st.integers(1, 1500),
    size=st.integers(1, 300),
)
def test_a_change_near_the_ends_of_sources(name, limits, slot, size):
    weights = [1 + 5 * number % 7 for number in range(len(limits))]
    before = made(name, weights, size, 3)
    changed = before.with_weights_from(slot, weights[::-1])
    one, other = (each.limited(np.array(limits)) for each in (before, changed))
    assert same_before(one, other, min(slot, sum(limits)))
    assert other.counts(sum(limits)).tolist() == limits


def test_changes_on_a_gradual_way():
    points = [(0, 1), (700, 5), (10_000, 9)]
    for name, way in [(name, way) for name in FOLLOW for way in ("linear", "cosine")]:
        before = made(name, [Schedule(points, way), 3, 2], 300, 5)
        longer = made(name, [Schedule([*points, (12_000, 2)], way), 3, 2], 300, 5)
        with row((name, way)):
            assert same_before(before, longer, 10_000)
            for slot in (1, 700, 777, 9999):
                changed = before.with_weights_from(slot, [1, 1, 1])
                assert same_before(before, changed, slot)
                assert same_before(before, changed.without(2, slot), slot)
                gained = changed.counts(slot + 3000) - changed.counts(slot)
                assert name in ("block", "random") or np.abs(gained - 1000).max() <= 4


def test_changed_shares_hold_and_are_told():
    for name in ("even", "exact"):
        scheme = make_scheme(name, {"a": 1, "b": 1}, key=1)
        changed = scheme.with_weights_from(100, {"b": 1, "a": 4}).with_weights_from(120, [0, 1])
        steps = np.diff([changed.counts(n) for n in (0, 100, 120, 150)], axis=0)
        assert steps.tolist() == [[50, 50], [16, 4], [0, 30]]
        assert changed.by_name(changed.counts(150)) == {"a": 66, "b": 84}
        assert changed.by_name(changed.shares(110)) == {"a": 0.8, "b": 0.2}
        assert (changed.varies, scheme.varies) == (True, False)
    rising = Schedule([(0, 0), (1000, 1)], "linear")  # steps count from the start
    changed = make_scheme("exact", [1, 1]).with_weights_from(500, [rising, 0.5])
    assert changed.shares(500) == [0.5, 0.5]
    expected = sum((k / 1000) / (k / 1000 + 0.5) for k in range(500, 1000))
    assert changed.counts(1000)[0] - 250 == pytest.approx(expected, abs=2)


def test_changes_that_are_none():
    scheme = make_scheme("even", {"code": 1, "text": 2}).with_weights_from(100, [2, 1])

    def change(slot, weights):
        return lambda: scheme.with_weights_from(slot, weights)

    points = [Schedule([(0, 1)], change=each) for each in CHANGES]
    glide = Schedule([(0, 1), (5, 2)], "linear")
    faults = {
        "below 0": (change(-1, [1, 1]), "a whole number, 0 or more; got -1"),
        "half": (change(2.5, [1, 1]), "a whole number, 0 or more; got 2.5"),
        "early": (change(50, [1, 1]), "weights change at slot 100 already"),
        "apart": (lambda: made("block", points), "differ in change, ['block', 'sample']"),
        "uniform": (lambda: made("uniform", [glide, 1]), "'uniform' takes no notice of weights"),
        "turns": (lambda: made("round_robin", [points[0], 1]), "takes no notice of weights"),
    }
    check_faults(ConfigError, faults)
    faults = {
        "unknown": (change(200, {"code": 1, "tekst": 1}), "'tekst'; did you mean 'text'"),
        "missing": (change(200, {"code": 1}), "missing 'text'"),
        "many": (change(200, [1, 1, 1]), "3 weights are given for 2 sources"),
        "negative": (change(200, [1, -1]), "not negative, got -1"),
        "0": (change(200, [0, 0]), "weights are 0"),
    }
    check_faults(WeightError, faults)


def test_schemes_tell_from_which_slot_they_differ():
    for name in FOLLOW:
        scheme = made(name, [3, 1], 50)
        later = scheme.with_weights_from(1000, [1, 1])
        rising = Schedule([(0, 3), (700, 5), (900, 2)], "linear")
        points, more = (
            made(name, [Schedule(each), 1], 50) for each in (rising.points[:2], rising.points)
        )
        ways = [
            made(name, [Schedule(p, "linear"), 1], 50) for p in (rising.points[:2], rising.points)
        ]
        found = [
            scheme.first_difference(made(name, [6, 2], 50), 10**9),
            scheme.first_difference(later, 1000),
            later.first_difference(scheme, 1001),
            scheme.first_difference(made(name, [1, 3], 50), 10),
            later.first_difference(scheme.with_weights_from(1000, [1, 2]), 1001),
            points.first_difference(more, 10**9),
            ways[0].first_difference(ways[1], 10**9),
            scheme.first_difference(ways[0], 5),
        ]
        assert found == [None, None, 1000, 0, 1000, 900, 700, 0], name
        described = scheme.as_described([3, 1], [[1000, [1.0, "1"]]])
        assert described == later

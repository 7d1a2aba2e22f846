"""Weights over time: what schemes promise under schedules, and that nothing that comes
later changes what came before.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError, WeightError
from energize.order import Schedule, make_scheme
from energize.order.timeline import SCHEMES, WEIGHTLESS
from energize.order.weights import shares_at
from tests.support.schemes import check_counts
from tests.support.tables import check_faults

FOLLOW = [name for name in SCHEMES if name not in WEIGHTLESS]

values = st.one_of(st.just(0.0), st.floats(0.001, 1), st.integers(1, 5))
weights_of = st.lists(st.integers(1, 20), min_size=2, max_size=6)


@st.composite
def schedules(draw, weight=values, stretch=1):
    steps = draw(st.lists(st.integers(0, 400), min_size=1, max_size=4, unique=True))
    points = [(step, draw(weight)) for step in sorted(steps)]
    return Schedule(
        points, draw(st.sampled_from(["step", "linear", "cosine"])), stretch
    )


mixes = st.lists(st.one_of(schedules(), st.floats(0.001, 1)), min_size=1, max_size=9)


def made(name, weights, size=1000, key=0):
    return make_scheme(
        name, weights, key=key, **({"block_size": size} if name == "block" else {})
    )


@settings(max_examples=10)
@given(weights=mixes, size=st.integers(1, 70), key=st.integers())
def test_counts_and_places_agree_and_nothing_of_share_0_is_drawn(weights, size, key):
    """Where shares are interpolated, a source is drawn only in pieces in which it has
    some."""
    weights = [*weights, 0.5]
    steps = [Schedule(w.points) if hasattr(w, "points") else w for w in weights]
    for name in FOLLOW:
        check_counts(made(name, weights, size, key), 500, every=50)
        source, _ = made(name, steps, size).locate(np.arange(500))
        shares = shares_at(steps, np.arange(500), size if name == "block" else 1)
        assert (shares[np.arange(500), source] > 0).all()


# Nothing that comes later changes what came before.


def same_before(one, other, slot):
    """Whether two schemes have the same slots before one, in places and in counts."""
    pairs = zip(one.locate(np.arange(slot)), other.locate(np.arange(slot)), strict=True)
    places = all((a == b).all() for a, b in pairs)
    return places and (one.counts(slot) == other.counts(slot)).all()


@given(
    name=st.sampled_from(SCHEMES),
    weights=weights_of,
    data=st.data(),
    slot=st.integers(0, 3000),
    size=st.integers(1, 700),
)
def test_a_change_of_weights_leaves_every_slot_before_it(
    name, weights, data, slot, size
):
    others = st.lists(st.integers(1, 20), min_size=len(weights), max_size=len(weights))
    before = made(name, weights, size, 7)
    changed = before.with_weights_from(slot, data.draw(others))
    assert same_before(before, changed, slot)
    later = slot + data.draw(st.integers(1, 900))
    again = changed.with_weights_from(later, data.draw(others))
    assert same_before(changed, again, later)
    assert same_before(
        again, pickle.loads(pickle.dumps(again)), later + 1000
    )  # as if made so
    cut = before.without(1, slot)
    assert same_before(before, cut, slot)
    assert 1 not in cut.locate(np.arange(slot, slot + 500))[0]


def test_changed_shares_hold_and_are_told():
    for name in ("even", "exact"):
        scheme = make_scheme(name, {"a": 1, "b": 1}, key=1)
        changed = scheme.with_weights_from(100, {"b": 1, "a": 4}).with_weights_from(
            120, [0, 1]
        )
        steps = np.diff([changed.counts(n) for n in (0, 100, 120, 150)], axis=0)
        assert steps.tolist() == [[50, 50], [16, 4], [0, 30]]
        assert changed.counts(150).tolist() == [66, 84]
        assert changed.shares(110) == [0.8, 0.2]
    rising = Schedule([(0, 0), (1000, 1)], "linear")  # steps count from the start
    changed = make_scheme("exact", [1, 1]).with_weights_from(500, [rising, 0.5])
    assert changed.shares(500) == [0.5, 0.5]
    expected = sum((k / 1000) / (k / 1000 + 0.5) for k in range(500, 1000))
    assert changed.counts(1000)[0] - 250 == pytest.approx(expected, abs=2)


def test_changes_that_are_none():
    scheme = make_scheme("even", {"code": 1, "text": 2}).with_weights_from(100, [2, 1])

    def change(slot, weights):
        return lambda: scheme.with_weights_from(slot, weights)

    points = Schedule([(0, 1)])
    glide = Schedule([(0, 1), (5, 2)], "linear")
    faults = {
        "below 0": (change(-1, [1, 1]), "a whole number >= 0, got -1"),
        "half": (change(2.5, [1, 1]), "a whole number >= 0, got 2.5"),
        "early": (change(50, [1, 1]), "weights already change at slot 100"),
        "uniform": (
            lambda: made("uniform", [glide, 1]),
            "'uniform' ignores weights",
        ),
        "turns": (
            lambda: made("round_robin", [points, 1]),
            "ignores weights",
        ),
    }
    check_faults(ConfigError, faults)
    faults = {
        "unknown": (
            change(200, {"code": 1, "tekst": 1}),
            "'tekst'; did you mean 'text'",
        ),
        "missing": (change(200, {"code": 1}), "missing 'text'"),
        "many": (change(200, [1, 1, 1]), "3 weights were passed for 2 sources"),
        "negative": (change(200, [1, -1]), "not negative, got -1"),
        "0": (change(200, [0, 0]), "weights are 0"),
    }
    check_faults(WeightError, faults)

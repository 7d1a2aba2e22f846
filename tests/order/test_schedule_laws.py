"""What holds for any weights that change, whatever the points."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energize.order.timeline import make_scheme
from energize.order.weights import CHANGES, Product, Schedule, Share, shares_at
from tests.support.schedules import due_at, points_of
from tests.support.schemes import check_counts

values = st.one_of(st.just(0.0), st.floats(0.001, 1), st.integers(1, 5))


@st.composite
def schedules(draw, weight=values):
    steps = draw(st.lists(st.integers(0, 400), min_size=1, max_size=4, unique=True))
    points = [(step, draw(weight)) for step in sorted(steps)]
    return Schedule(points, draw(st.sampled_from(["step", "linear", "cosine"])))


def stretched(weight, by):
    """A weight that takes so many slots for each step."""
    if isinstance(weight, Schedule):
        return Schedule(weight.points, weight.interpolation, by)
    if isinstance(weight, Product):
        return Product(tuple(stretched(each, by) for each in weight.factors))
    if isinstance(weight, Share):
        return Share(tuple(stretched(each, by) for each in weight.among), weight.number)
    return weight


def with_change(weights, change):
    return [
        Schedule(w.points, w.interpolation, change=change) if isinstance(w, Schedule) else w
        for w in weights
    ]


nested = st.one_of(
    schedules(st.floats(1e-9, 1)),
    st.builds(
        lambda outer, inner, beside: Product((outer, Share((inner, beside), 0))),
        schedules(st.floats(0.01, 1)),
        schedules(st.floats(0.01, 1)),
        schedules(st.floats(0.01, 1)),
    ),
)
mixes = st.lists(st.one_of(schedules(), st.floats(0.001, 1)), min_size=1, max_size=9)


SCHEMES = ("even", "exact", "block", "random")
_STRAY = {"exact": 2.2, "even": 4.0, "block": 2.2}
"""The bound of fixed weights, and what interpolation and points add to it."""


def made(name, weights, size=1000, key=0):
    options = {"block_size": size} if name == "block" else {}
    return make_scheme(name, weights, key=key, **options)


@settings(deadline=None, max_examples=40)
@given(weights=mixes, change=st.sampled_from(CHANGES), size=st.integers(1, 70), key=st.integers())
def test_counts_and_places_agree_under_any_schedule(weights, change, size, key):
    weights = [*with_change(weights, change), 0.5]
    for name in SCHEMES:
        check_counts(made(name, weights, size, key), 600)


@settings(deadline=None, max_examples=50)
@given(weights=mixes, size=st.integers(1, 70))
def test_a_source_is_never_drawn_where_its_share_is_0(weights, size):
    """Where shares are interpolated, it is drawn only in pieces in which it has some."""
    weights = [
        Schedule(w.points, change="sample") if isinstance(w, Schedule) else w for w in weights
    ]
    shares = shares_at([*weights, 0.5], np.arange(500))
    for name in SCHEMES:
        source, _ = made(name, [*weights, 0.5], size).locate(np.arange(500))
        assert (shares[np.arange(500), source] > 0).all()


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(weights=st.lists(nested, min_size=1, max_size=6), stretch=st.sampled_from([1, 7, 1000]))
def test_counts_stay_near_the_integral_of_the_shares(weights, stretch):
    weights = [stretched(weight, stretch) for weight in [*weights, 0.5]]
    points = sorted({0, *(slot for each in weights for slot in points_of(each))})
    ends = [*points[:6], *(at + 150 * stretch for at in points[:3]), 600 * stretch]
    due = {slot: due_at(weights, slot) for slot in ends}
    for name in ("exact", "even"):
        scheme = make_scheme(name, weights, key=1)
        for slot in ends:
            assert np.abs(scheme.counts(slot) - due[slot]).max() <= _STRAY[name], slot


@settings(deadline=None, max_examples=12)
@given(
    weights=st.lists(schedules(st.floats(0.01, 1)), min_size=1, max_size=6),
    size=st.integers(5, 50),
)
def test_every_block_end_is_near_the_integral(weights, size):
    gliding = [
        Schedule([(0, 0.3), *((s + 1, w) for s, w in each.points)], "linear") for each in weights
    ]
    scheme = make_scheme("block", [*gliding, 0.5], block_size=size)
    points = sorted({0, *(slot for each in gliding for slot in each.slots)})
    for begin, end in pairwise(points):
        for slot in (*range(begin, end, size), end):
            due = due_at([*gliding, 0.5], slot)
            assert np.abs(scheme.counts(slot) - due).max() <= _STRAY["block"]


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(SCHEMES),
    weights=mixes,
    slots=st.lists(st.integers(0, 20_000), min_size=1, max_size=30),
    stretch=st.sampled_from([1, 40]),
)
def test_where_a_slot_goes_is_no_matter_of_what_was_asked_before(name, weights, slots, stretch):
    weights = [*(stretched(weight, stretch) for weight in weights), 0.5]
    whole = made(name, weights).locate(np.arange(20_001))
    alone = made(name, weights)
    for slot in slots:
        source, nth = alone.locate(np.array([slot]))
        assert (source[0], nth[0]) == (whole[0][slot], whole[1][slot])
        assert alone.counts(slot)[source[0]] == nth[0]


def test_counts_and_places_agree_for_a_thousand_interpolated_sources():
    rng = np.random.default_rng(4)
    weights = [
        Schedule([(0, a), (20_000, b)], "linear") for a, b in rng.random((1000, 2)) ** 8 + 1e-6
    ]
    for name in SCHEMES:
        check_counts(make_scheme(name, weights, key=1), 2500, start=17_900, every=100)

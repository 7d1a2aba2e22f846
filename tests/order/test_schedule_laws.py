"""What holds for any weights that change, whatever the points."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.order.schedules.integral import UNIT
from energize.order.schedules.schedule import CHANGES, Schedule
from energize.order.schedules.scheduled import mixing_scheme
from energize.order.schedules.varying import Product, Share, shares_at
from tests.support.schedules import due_at, integral_of, points_of
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


mixes = st.lists(st.one_of(schedules(), st.floats(0.001, 1)), min_size=1, max_size=9)


@settings(deadline=None)
@given(weights=mixes, change=st.sampled_from(CHANGES), size=st.integers(1, 70), key=st.integers())
def test_law_4_for_any_schedule(weights, change, size, key):
    weights = [*with_change(weights, change), 0.5]
    check_counts(mixing_scheme("block", weights, block_size=size, key=key), 600)
    check_counts(mixing_scheme("exact", weights, key=key), 600)
    check_counts(mixing_scheme("random", weights, key=key), 600)


@settings(deadline=None)
@given(weights=mixes, size=st.integers(1, 70))
def test_a_source_is_never_drawn_where_its_share_is_0(weights, size):
    weights = [*with_change(weights, "sample"), 0.5]
    inside = np.arange(500)[:, None] + np.array([0.0, 0.25, 0.5, 0.75, 0.999])
    shares = shares_at(weights, inside.ravel()).reshape(500, 5, -1).max(axis=1)
    for name, options in (("block", {"block_size": size}), ("exact", {}), ("random", {})):
        source, _ = mixing_scheme(name, weights, **options).locate(np.arange(500))
        assert (shares[np.arange(500), source] > 0).all()


@settings(deadline=None, max_examples=40)
@given(
    weights=st.lists(schedules(st.floats(0.01, 1)), min_size=1, max_size=20),
    size=st.integers(1, 50),
)
def test_every_block_end_is_near_the_integral(weights, size):
    weights = [*with_change(weights, "sample"), 0.5]
    scheme = mixing_scheme("block", weights, block_size=size)
    points = sorted({0, *(s for w in weights[:-1] for s in w.slots), 450})
    due = integral_of(weights, 450)
    bound = math.ceil(math.log2(len(weights))) / 2 + 1e-3 + (len(weights) > size) / 16
    for begin, end in pairwise(points[:-1]):
        for slot in (*range(begin, end, size), end):
            assert np.abs(scheme.counts(slot) - due_at(due, slot)).max() <= bound


@settings(deadline=None, max_examples=40)
@given(
    weights=st.lists(
        st.builds(lambda each: Schedule(each.points, "linear"), schedules(st.floats(0.01, 1))),
        min_size=1,
        max_size=9,
    ),
    size=st.integers(1, 90),
    start=st.integers(0, 100),
)
def test_blocks_hold_what_glides_are_due_wherever_their_points_lie(weights, size, start):
    weights = [*weights, 0.5]
    scheme = mixing_scheme("block", weights, block_size=size, start=start)
    due = integral_of(weights, 600)
    last = max(slot for each in weights[:-1] for slot in each.slots)
    bound = math.ceil(math.log2(len(weights))) / 2 + 1e-3 + (len(weights) > size) / 16
    for slot in range(0, max(last - start, 0) + size, size):
        there = due_at(due, start + slot) - due_at(due, start)
        assert np.abs(scheme.counts(slot) - there).max() <= bound


nested = st.one_of(
    schedules(st.floats(1e-9, 1)),
    st.builds(
        lambda outer, inner, beside: Product((outer, Share((inner, beside), 0))),
        schedules(st.floats(0.01, 1)),
        schedules(st.floats(0.01, 1)),
        schedules(st.floats(0.01, 1)),
    ),
)


@settings(deadline=None, max_examples=60)
@given(
    weights=st.lists(nested, min_size=1, max_size=20), stretch=st.sampled_from([1, 7, 1000, 10**7])
)
def test_exact_is_near_the_integral_at_every_slot(weights, stretch):
    """Before the last point, where the plain scheme begins."""
    constant = Schedule([(0, 0.5), (450, 0.5)], "linear")
    weights = [stretched(weight, stretch) for weight in [*weights, constant]]
    points = sorted({slot for each in weights for slot in points_of(each)})
    scheme, due = mixing_scheme("exact", weights), integral_of(weights, points[-1])
    bound = math.ceil(math.log2(len(weights))) / 2 + 1 / 16 + 1e-3
    for begin in points[:-1]:
        end = min(begin + 300, points[-1])
        source, _ = scheme.locate(np.arange(begin, end))
        drawn = np.cumsum(source[:, None] == np.arange(len(weights)), axis=0)
        exact = due.units(np.arange(begin + 1, end + 1)) / UNIT
        assert np.abs(scheme.counts(begin) + drawn - exact).max() <= bound


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(["exact", "random"]),
    weights=mixes,
    slots=st.lists(st.integers(0, 20_000), min_size=1, max_size=30),
    stretch=st.sampled_from([1, 40]),
)
def test_where_a_slot_goes_is_no_matter_of_what_was_asked_before(name, weights, slots, stretch):
    weights = [*(stretched(weight, stretch) for weight in weights), 0.5]
    whole = mixing_scheme(name, weights).locate(np.arange(20_001))
    alone = mixing_scheme(name, weights)
    for slot in slots:
        source, nth = alone.locate(np.array([slot]))
        assert (source[0], nth[0]) == (whole[0][slot], whole[1][slot])
        assert alone.counts(slot)[source[0]] == nth[0]


def test_law_4_for_a_thousand_sources():
    rng = np.random.default_rng(4)
    weights = [
        Schedule([(0, a), (20_000, b)], "linear") for a, b in rng.random((1000, 2)) ** 8 + 1e-6
    ]
    for name in ("block", "exact", "random"):
        check_counts(mixing_scheme(name, weights, key=1), 2500, start=17_900, every=100)

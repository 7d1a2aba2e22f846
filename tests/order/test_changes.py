"""Nothing that comes later changes what came before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.errors import ConfigError, WeightError
from energize.order import Schedule, make_scheme
from energize.order.windows import SCHEMES, WEIGHTLESS

FOLLOW_STEPS = [name for name in SCHEMES if name not in WEIGHTLESS]
weights_of = st.lists(st.integers(1, 20), min_size=2, max_size=6)


def made(name, weights, size, key):
    return make_scheme(name, weights, key=key, **({"block_size": size} if name == "block" else {}))


def same_before(one, other, slot):
    """Whether two schemes have the same slots before one, in places and in counts."""
    slots = np.arange(slot)
    found, again = one.locate(slots), other.locate(slots)
    places = all((a == b).all() for a, b in zip(found, again, strict=True))
    return places and (one.counts(slot) == other.counts(slot)).all()


@pytest.mark.parametrize("name", SCHEMES)
@settings(deadline=None, max_examples=25)
@given(
    weights=weights_of,
    data=st.data(),
    slot=st.integers(0, 3000),
    size=st.integers(1, 700),
    key=st.integers(0, 99),
)
def test_a_change_of_weights_leaves_every_slot_before_it(name, weights, data, slot, size, key):
    others = st.lists(st.integers(1, 20), min_size=len(weights), max_size=len(weights))
    before = made(name, weights, size, key)
    changed = before.with_weights_from(slot, data.draw(others))
    assert same_before(before, changed, slot)
    later = slot + data.draw(st.integers(1, 900))
    assert same_before(changed, changed.with_weights_from(later, data.draw(others)), later)


@pytest.mark.parametrize("name", FOLLOW_STEPS)
@settings(deadline=None, max_examples=25)
@given(
    points=st.lists(st.tuples(st.integers(1, 2500), st.integers(1, 9)), max_size=5),
    slot=st.integers(1, 3000),
    size=st.integers(1, 700),
    change=st.sampled_from(["block", "sample", "block_start"]),
)
def test_a_point_leaves_every_slot_before_it(name, points, slot, size, change):
    """Under `block`, one that acts at the next block leaves what lies before that, too."""
    earlier = {0: 3, **{at: weight for at, weight in points if at < slot}}
    plain = Schedule(sorted(earlier.items()), change=change)
    longer = Schedule(sorted({**earlier, slot: 50}.items()), change=change)
    before, now = (made(name, [each, 2, 1], size, 7) for each in (plain, longer))
    acts = slot if name != "block" or change == "sample" else -(-slot // size) * size
    assert same_before(before, now, acts)
    assert (before.counts(acts + 2000) != now.counts(acts + 2000)).any()


@pytest.mark.parametrize("interpolation", ["linear", "cosine"])
@pytest.mark.parametrize("name", ["even", "exact", "block", "random"])
def test_a_point_leaves_every_slot_before_the_way_that_leads_to_it(name, interpolation):
    """Shares change from the point before a new one on."""
    points = [(0, 1), (700, 5), (1300, 2)]
    before = made(name, [Schedule(points, interpolation), 2], 300, 5)
    now = made(name, [Schedule([*points, (2000, 9)], interpolation), 2], 300, 5)
    assert same_before(before, now, 1300)
    assert (before.counts(2000) != now.counts(2000)).any()


@pytest.mark.parametrize("interpolation", ["linear", "cosine"])
@pytest.mark.parametrize("name", ["even", "exact", "block", "random"])
@pytest.mark.parametrize("slot", [1, 700, 777, 5000, 9999])
def test_a_change_on_the_way_from_point_to_point(name, interpolation, slot):
    rising = Schedule([(0, 1), (10_000, 9)], interpolation)
    before = made(name, [rising, 3, 2], 300, 5)
    changed = before.with_weights_from(slot, [1, 1, 1])
    assert same_before(before, changed, slot)
    assert changed.timeline().without(2, slot).counts(slot).tolist() == before.counts(slot).tolist()
    if name in ("even", "exact"):
        gained = changed.counts(slot + 3000) - changed.counts(slot)
        assert np.abs(gained - 1000).max() <= 4


@pytest.mark.parametrize("name", SCHEMES)
@settings(deadline=None, max_examples=25)
@given(
    limits=st.lists(st.integers(1, 400), min_size=3, max_size=12),
    slot=st.integers(1, 1500),
    size=st.integers(1, 300),
)
def test_a_change_near_the_ends_of_sources(name, limits, slot, size):
    weights = [1 + 5 * number % 7 for number in range(len(limits))]
    before = made(name, weights, size, 3)
    changed = before.with_weights_from(slot, weights[::-1])
    one, other = (each.timeline(np.array(limits)) for each in (before, changed))
    end = min(slot, sum(limits))
    slots = np.arange(end)
    assert (one.locate(slots)[0] == other.locate(slots)[0]).all()
    assert other.counts(sum(limits)).tolist() == limits


@pytest.mark.parametrize("name", SCHEMES)
def test_a_source_that_is_left_out_leaves_every_slot_before(name):
    scheme = made(name, [5, 3, 2, 4], 100, 3)
    whole = scheme.timeline()
    for slot in (0, 1, 99, 250, 1000):
        cut = whole.without(1, slot)
        slots = np.arange(slot)
        assert (cut.locate(slots)[0] == whole.locate(slots)[0]).all()
        assert 1 not in cut.locate(np.arange(slot, slot + 500))[0]


@pytest.mark.parametrize("name", ["even", "exact"])
def test_what_is_owed_is_carried_over_many_changes(name):
    """A source that is due a tenth of a slot between changes gets what it is due."""
    points = [(at, 0.001 + 0.0001 * (at % 3)) for at in range(0, 30_000, 100)]
    scheme = make_scheme(name, [Schedule(points), 1], key=2)
    due = sum(100 * weight / (1 + weight) for _, weight in points)
    assert scheme.counts(30_000)[0] == pytest.approx(due, abs=2)


@pytest.mark.parametrize("name", ["even", "exact"])
def test_changed_shares_hold_in_short_runs(name):
    scheme = make_scheme(name, {"a": 1, "b": 1}, key=1)
    changed = scheme.with_weights_from(100, {"b": 1, "a": 4}).with_weights_from(120, [0, 1])
    steps = np.diff([changed.counts(n) for n in (0, 100, 120, 150)], axis=0)
    assert steps.tolist() == [[50, 50], [16, 4], [0, 30]]
    assert changed.by_name(changed.counts(150)) == {"a": 66, "b": 84}
    assert changed.by_name(changed.shares(110)) == {"a": 0.8, "b": 0.2}


def test_weights_may_become_schedules_and_count_steps_from_the_start():
    rising = Schedule([(0, 0), (1000, 1)], "linear")
    changed = make_scheme("exact", [1, 1]).with_weights_from(500, [rising, 0.5])
    assert changed.counts(500).tolist() == [250, 250]
    assert changed.shares(500) == [0.5, 0.5]
    assert changed.counts(1000)[0] - 250 == pytest.approx(
        sum((k / 1000) / (k / 1000 + 0.5) for k in range(500, 1000)), abs=2
    )


@pytest.mark.parametrize(
    ("slot", "weights", "said"),
    [
        (-1, [1, 1], "a whole number from 0; got -1"),
        (2.5, [1, 1], "a whole number from 0; got 2.5"),
        (50, [1, 1], "weights change at slot 100 already"),
        (200, {"code": 1, "tekst": 1}, "unknown 'tekst'; did you mean 'text'"),
        (200, {"code": 1}, "missing 'text'"),
        (200, [1, 1, 1], "3 weights are given for 2 sources"),
        (200, [1, -1], "not negative, got -1"),
        (200, [0, 0], "weights are 0"),
    ],
)
def test_changes_that_are_none(slot, weights, said):
    scheme = make_scheme("even", {"code": 1, "text": 2}).with_weights_from(100, [2, 1])
    with pytest.raises((ConfigError, WeightError), match=said):
        scheme.with_weights_from(slot, weights)


def test_timelines_tell_from_which_slot_they_differ():
    scheme = make_scheme("block", [3, 1], block_size=50)
    same, later = scheme.timeline(), scheme.with_weights_from(1000, [1, 1]).timeline()
    assert same.first_difference(scheme.timeline(), 10**9) is None
    assert same.first_difference(later, 1000) is None
    assert same.first_difference(later, 1001) == 1000
    assert same.first_difference(make_scheme("block", [1, 3], block_size=50).timeline(), 10) == 0
    assert same.first_difference(make_scheme("block", [6, 2], block_size=50).timeline(), 10) is None

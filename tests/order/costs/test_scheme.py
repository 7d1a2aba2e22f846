"""Shares in what items cost, known before they are read."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.errors import ConfigError, WeightError
from energize.order import Schedule
from energize.order.cost import CostLine, CostScheme, Cycle
from energize.order.shuffle import ShuffleOrder


def costs_at(costs, key, positions):
    return costs[ShuffleOrder(len(costs), key).locate(positions)]


def line(costs, key=1, *, cyclic=True):
    """A source with these costs, in a new order in every pass."""
    costs = np.asarray(costs, dtype=np.float64)
    cycle = Cycle(len(costs), float(costs.sum())) if cyclic else None
    return CostLine(partial(costs_at, costs, key), cycle, key)


def lines(*columns, cyclic=True):
    return [line(costs, key, cyclic=cyclic) for key, costs in enumerate(columns)]


def lognormal(count, mean, seed=0):
    drawn = np.random.default_rng(seed).lognormal(0, 0.8, count)
    return np.maximum(np.rint(drawn * mean), 1)


def cost_of_slots(columns, source, nth):
    """What each slot costs, looked up sample by sample."""
    found = np.empty(len(source))
    for number, costs in enumerate(columns):
        rows = source == number
        found[rows] = costs_at(np.asarray(costs, dtype=np.float64), number, nth[rows])
    return found


def strays(columns, weights, slots):
    """How far each source is from its share of all costs, at the worst of the first slots."""
    scheme = CostScheme(weights, lines(*columns))
    source, nth = scheme.locate(range(slots))
    costs = cost_of_slots(columns, source, nth)
    total, shares = np.cumsum(costs), np.array(scheme.shares())
    had = np.array([np.cumsum(np.where(source == each, costs, 0)) for each in range(len(columns))])
    return np.abs(had - shares[:, np.newaxis] * total).max(axis=1)


positive = st.one_of(st.integers(1, 5000), st.floats(0.001, 5000, allow_nan=False))
costs = st.lists(positive, min_size=1, max_size=30)
weights = st.one_of(st.integers(1, 50), st.floats(0.01, 50, allow_nan=False))
mixes = st.lists(st.tuples(costs, weights), min_size=1, max_size=6)


@given(mixes)
def test_shares_hold_at_every_slot(mix):
    columns, given_weights = [each for each, _ in mix], [weight for _, weight in mix]
    longest = np.array([max(each) for each in columns])
    shares = np.array(given_weights) / sum(given_weights)
    bound = (1 - shares) * longest + shares * (longest.sum() - longest)
    assert (strays(columns, given_weights, 400) <= bound * (1 + 1e-9)).all()


@given(mixes, st.booleans())
def test_counts_and_locate_agree_and_each_item_comes_once(mix, cyclic):
    columns, given_weights = [each for each, _ in mix], [weight for _, weight in mix]
    scheme = CostScheme(given_weights, lines(*columns, cyclic=cyclic))
    source, nth = scheme.locate(range(300))
    for number in range(len(columns)):
        assert nth[source == number].tolist() == list(range((source == number).sum()))
    for n in (0, 1, 2, 150, 300):
        assert scheme.counts(n).tolist() == np.bincount(source[:n], minlength=len(columns)).tolist()
    spent = cost_of_slots(columns, source, nth)
    assert scheme.costs(300) == pytest.approx(np.bincount(source, spent, len(columns)))


@pytest.mark.parametrize("sources", [2, 7, 30])
def test_of_a_million_samples_of_skewed_length_shares_are_within_a_thousandth(sources):
    rng = np.random.default_rng(sources)
    means = np.geomspace(40, 400, sources)
    columns = [lognormal(int(rng.integers(50, 2000)), mean, i) for i, mean in enumerate(means)]
    given_weights = [*rng.uniform(0.1, 1, sources - 1).tolist(), 2.0]
    scheme = CostScheme(given_weights, lines(*columns))
    spent = np.array(scheme.costs(10**6))
    assert np.abs(spent / spent.sum() - scheme.shares()).max() < 1e-3
    longest = max(each.max() for each in columns)
    assert strays(columns, given_weights, 40_000).max() < 2 * longest


def test_a_dominant_source_among_many_small_ones_keeps_its_share_from_the_start():
    columns = [lognormal(100, 100, seed) for seed in range(200)]
    given_weights = [1000.0, *[1.0] * 199]
    longest = max(each.max() for each in columns)
    assert strays(columns, given_weights, 20_000).max() < 6 * longest


def test_windows_meet_wherever_they_are_asked_first():
    columns = [lognormal(900, 300), lognormal(70, 30, 1), lognormal(5000, 60, 2)]
    asked = np.arange(2**14 - 5, 2**14 + 5)
    far = np.concatenate([asked, asked * 3, 10**12 + asked, [5, 2**60]])
    forth = CostScheme([3, 1, 2], lines(*columns))
    back = CostScheme([3, 1, 2], lines(*columns))
    expected = [found.tolist() for found in forth.locate(far)]
    found = np.array([np.ravel(back.locate([slot])) for slot in far[::-1].tolist()])[::-1].T
    assert found.tolist() == expected
    for slot, source, nth in zip(far.tolist(), *expected, strict=True):
        before, after = forth.counts(slot), forth.counts(slot + 1)
        assert before.sum() == slot
        assert (after - before).tolist() == [int(each == source) for each in range(3)]
        assert before[source] == nth


def test_a_late_slot_is_found_without_those_before():
    asked = 0

    def costs_of(positions):
        nonlocal asked
        asked += len(positions)
        return costs_at(column, 3, positions)

    column = lognormal(50_000, 300)
    other = line(lognormal(900, 30), 1)
    counted = CostLine(costs_of, Cycle(len(column), float(column.sum())), 3)
    scheme = CostScheme([1, 1], [counted, other])
    scheme.locate([10**12, 10**9, 5])
    assert asked < 3 * 2 * len(column)


def test_the_order_has_no_rhythm():
    even = CostScheme([1, 1], lines([5], [5]))
    source, _ = even.locate(range(8000))
    assert 0.45 < source[::2].mean() < 0.55
    assert 0.45 < source[1::2].mean() < 0.55


def test_a_source_of_weight_0_is_never_looked_at():
    def not_read(positions):
        raise AssertionError("it was looked at")

    scheme = CostScheme([1, 0, 1], [line([5]), CostLine(not_read, None, 1), line([1], 2)])
    assert scheme.counts(100)[1] == 0
    assert 1 not in scheme.locate(range(200))[0]
    assert scheme.costs(100)[1] == 0


# Weights over time

COLUMNS = [lognormal(90, 300), lognormal(70, 30, 1), lognormal(50, 100, 2)]


def shares_between(scheme, start, stop):
    spent = np.array(scheme.costs(stop)) - scheme.costs(start)
    return spent / spent.sum()


def test_changes_leave_what_came_before_and_have_their_shares_from_there_on():
    scheme = CostScheme({"a": 2, "b": 1, "c": 1}, lines(*COLUMNS))
    changed = scheme.with_weights_from(7000, {"a": 1, "b": 0, "c": 4})
    again = changed.with_weights_from(30_000, [1, 8, 1])
    for slots in (range(7000), range(6990, 7000)):
        assert changed.locate(slots)[0].tolist() == scheme.locate(slots)[0].tolist()
    assert again.locate(range(30_000))[1].tolist() == changed.locate(range(30_000))[1].tolist()
    assert shares_between(again, 0, 7000) == pytest.approx([0.5, 0.25, 0.25], abs=0.002)
    assert shares_between(again, 7000, 30_000) == pytest.approx([0.2, 0, 0.8], abs=0.002)
    assert shares_between(again, 30_000, 60_000) == pytest.approx([0.1, 0.8, 0.1], abs=0.002)
    assert (again.shares(0), again.shares(29_999)) == ([0.5, 0.25, 0.25], [0.2, 0.0, 0.8])
    assert again.first_difference(changed, 10**6) == 30_000
    assert again.first_difference(changed, 30_000) is None
    assert scheme.first_difference(again, 10**6) == 7000
    assert again.first_difference(copy.copy(again), 10**9) is None


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=3, unique=True).map(sorted),
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any), min_size=3),
)
def test_each_item_comes_once_whatever_changes(slots, shares):
    scheme = CostScheme(shares[0], lines([3, 9, 1], [1], [400, 20]))
    for slot, later in zip(slots, shares[1:], strict=False):
        before = scheme
        scheme = scheme.with_weights_from(slot, later)
        assert scheme.counts(slot).tolist() == before.counts(slot).tolist()
    source, nth = scheme.locate(range(500))
    for number in range(3):
        assert nth[source == number].tolist() == list(range((source == number).sum()))
    assert scheme.counts(450).tolist() == np.bincount(source[:450], minlength=3).tolist()


def test_schedules_in_steps_and_gradual_ones():
    steps = CostScheme([Schedule([(0, 3), (5000, 0)]), 1, 1], lines(*COLUMNS))
    assert shares_between(steps, 0, 5000) == pytest.approx([0.6, 0.2, 0.2], abs=0.003)
    assert shares_between(steps, 5000, 20_000) == pytest.approx([0, 0.5, 0.5], abs=0.003)

    glide = CostScheme(
        [Schedule([(0, 0), (40_000, 1)], "linear"), Schedule([(0, 1), (40_000, 0)], "linear")],
        lines([10, 20, 30], [15, 25]),
    )
    assert shares_between(glide, 0, 2000)[0] == pytest.approx(0.025, abs=0.005)
    assert shares_between(glide, 19_000, 21_000)[0] == pytest.approx(0.5, abs=0.005)
    assert shares_between(glide, 0, 40_000)[0] == pytest.approx(0.5, abs=0.003)
    assert glide.counts(50_000)[1] == glide.counts(40_000)[1]


def test_a_copy_and_a_pickle_have_the_same_slots():
    scheme = CostScheme([1, 2, 3], lines(*COLUMNS)).with_weights_from(100, [3, 2, 1])
    for other in (copy.copy(scheme), pickle.loads(pickle.dumps(scheme))):
        assert other == scheme
        assert other.locate(range(500))[0].tolist() == scheme.locate(range(500))[0].tolist()
    told = scheme.as_described([1, 2, 3], [(100, [3, 2, 1])])
    assert told.locate(range(500))[0].tolist() == scheme.locate(range(500))[0].tolist()


@pytest.mark.parametrize(
    ("given_weights", "message"),
    [
        ([-1, 1, 1], "finite and not negative"),
        ([0, 0, 0], "0"),
        ([float("nan"), 1, 1], "finite and not negative"),
        ([Schedule([(0, 1), (5, 0)]), 0, 0], "at slot 5"),
    ],
)
def test_weights_that_cannot_be_used(given_weights, message):
    with pytest.raises(WeightError, match=message):
        CostScheme(given_weights, lines(*COLUMNS))


def test_what_is_asked_is_checked_as_of_all_schemes():
    scheme = CostScheme([1, 1, 1], lines(*COLUMNS))
    for wrong in ([-1], [2**62], [0.5], [[1]]):
        with pytest.raises(ConfigError):
            scheme.locate(wrong)
    with pytest.raises(ConfigError):
        scheme.counts(-1)
    assert [found.tolist() for found in scheme.locate([])] == [[], []]


def test_costs_of_all_sizes_far_out_come_once_each():
    columns = [np.random.default_rng(seed).lognormal(0, 5, 777) for seed in range(3)]
    scheme = CostScheme([3, 1, 2], lines(*columns))
    for start in (0, 10**9, 10**13):
        before = scheme.counts(start)
        source, nth = scheme.locate(np.arange(start, start + 20_000))
        for number in range(3):
            first = int(before[number])
            assert nth[source == number].tolist() == list(
                range(first, first + (source == number).sum())
            )

"""Where mixes end, and who takes the slots of an exhausted source."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import BlendDataset, FilterDataset, RepeatDataset
from energize.core.stream import INFINITE
from energize.datasets.multiplexed import End, MultiplexedDataset, SchemeSlots
from energize.errors import ConfigError
from energize.order import Schedule, make_scheme
from energize.order.timeline import SCHEMES, slot_limits, stopped_scheme
from energize.testing import check_exactly_once
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.schemes import check_counts
from tests.support.tables import check_faults, row


def stopped(sizes, weights, stop, max_epochs=None, name="block", key=0, **options):
    epochs = max_epochs if isinstance(max_epochs, list) else [max_epochs] * len(sizes)
    scheme = make_scheme(name, weights, key=key, **options)
    return stopped_scheme(scheme, slot_limits(sizes, stop, epochs), stop)


@given(
    name=st.sampled_from(SCHEMES),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    key=st.integers(0, 9),
)
def test_first_exhausted_ends_before_the_first_draw_too_many(name, sizes, key):
    weights = [1.0 + number for number in range(len(sizes))]
    _, size = stopped(sizes, weights, "first_exhausted", name=name, key=key)
    source, nth = make_scheme(name, weights, key=key).locate(np.arange(sum(sizes) + 1))
    assert size == int(np.argmax(nth >= np.array(sizes)[source]))


@pytest.mark.timeout(60)
def test_first_exhausted_without_an_end_and_with_a_far_one():
    first = "first_exhausted"
    assert stopped([1000, 1000], [0.5, 0.5], first)[1] == 2000
    assert stopped([10, 0], [1.0, 0.0], first)[1] == 10
    assert stopped([INFINITE, INFINITE], [1.0, 1.0], first)[1] == INFINITE
    scheme, size = stopped([INFINITE, 7], [1.0, 1.0], first, block_size=2)
    assert scheme.counts(size)[1] == 7
    gone = Schedule([(0, 1), (500, 0)], change="sample")
    for name in ("block", "even", "exact", "random"):
        with row(name):
            assert stopped([400, 800, INFINITE], [gone, gone, 1], first, name=name)[1] == INFINITE
            scheme, size = stopped([20, 40, INFINITE], [gone, gone, 1], first, name=name)
            drawn, nth = make_scheme(name, [gone, gone, 1]).locate(np.arange(200))
            assert size == np.argmax(nth >= np.array([20, 40, 500])[drawn])
            assert stopped([1000, INFINITE], [1e-6, 1], first, name=name)[1] > 10**8
            far = stopped([1000, INFINITE], [1e-12, 1], first, name=name)[1]
            assert far == pytest.approx(10**15, rel=0.01)
    weights = [1.0 + i % 7 for i in range(20_000)]
    size = stopped([100] * 20_000, weights, first)[1]
    assert size == pytest.approx(100 * sum(weights) / 7, rel=0.03)


@settings(max_examples=30)
@given(
    name=st.sampled_from(SCHEMES),
    weights=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    limits=st.lists(st.integers(1, 1500), min_size=6, max_size=6),
    slots=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
)
def test_sources_have_their_limits_and_the_order_before_them_stays(name, weights, limits, slots):
    limits = np.array(limits[: len(weights)])
    whole = make_scheme(name, weights, key=3)
    scheme, size = stopped_scheme(whole, limits, "all_exhausted")
    source, _ = scheme.locate(np.arange(size))
    assert np.bincount(source, minlength=len(weights)).tolist() == limits.tolist()
    untouched, nth = whole.locate(np.arange(size))
    first_end = np.argmax(np.append(nth >= limits[untouched], True))
    kept = max(int(first_end) - len(weights), 0)
    assert (source[:kept] == untouched[:kept]).all()
    asked = np.array(slots) % size
    again, _ = stopped_scheme(whole, limits, "all_exhausted")
    assert again.locate(asked)[0].tolist() == source[asked].tolist()
    for n in [*asked[:3].tolist(), size]:
        expected = np.bincount(source[:n], minlength=len(weights))
        assert scheme.counts(n).tolist() == expected.tolist()


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    weights=st.lists(
        st.one_of(st.floats(0.01, 1), st.just(Schedule([(0, 0), (30, 2), (50, 0)], "linear"))),
        min_size=6,
        max_size=6,
    ),
    epochs=st.lists(st.integers(1, 3), min_size=6, max_size=6),
    block_size=st.integers(1, 30),
)
def test_epochs_are_counted_and_the_same_slots_come_again(sizes, weights, epochs, block_size):
    mix, most = [*weights[: len(sizes)], 1.0], [*epochs[: len(sizes)], 2]
    scheme, size = stopped([*sizes, 5], mix, "restart", most, block_size=block_size)
    limits = [n * k for n, k in zip([*sizes, 5], most, strict=True)]
    assert size == sum(limits)
    assert scheme.counts(size).tolist() == limits
    check_counts(scheme, 2 * size + 5)


def test_slots_of_a_source_that_is_over_go_to_the_others_by_weight():
    every = "all_exhausted"
    scheme, _ = stopped([100, 10**6, 10**6], [0.5, 0.3, 0.2], every, block_size=10)
    assert scheme.counts(200).tolist() == pytest.approx([100, 60, 40], abs=1)
    assert scheme.counts(1200).tolist() == pytest.approx([100, 660, 440], abs=2)
    scheme, size = stopped([5, INFINITE], [1.0, 1.0], every, block_size=2)
    assert (size, scheme.counts(2**60)[0]) == (INFINITE, 5)
    late = Schedule([(0, 0), (100, 3)])
    scheme, size = stopped([50, 1000, 3000], [2.0, 1.0, late], every, block_size=4)
    assert size == 4050
    assert scheme.counts(75).tolist() == pytest.approx([50, 25, 0], abs=2)
    assert scheme.counts(500)[2] == pytest.approx(300, abs=5)
    late = Schedule([(0, 0), (10**6, 1)])  # those left have no weight yet
    scheme, _ = stopped([5, 20, 20], [1.0, late, late], every, block_size=2)
    assert scheme.counts(25).tolist() == [5, 10, 10]
    rising = Schedule([(0, 1), (1000, 3)])  # steps act at their slot
    scheme, _ = stopped([80, INFINITE, INFINITE], [8.0, rising, 1.0], every, name="exact")
    assert scheme.counts(1000).tolist() == pytest.approx([80, 460, 460], abs=2)
    assert scheme.counts(5000).tolist() == pytest.approx([80, 3460, 1460], abs=3)
    scheme, size = stopped([10, 10], [0.9, 0.1], "restart", [2, None], block_size=10)
    assert (size, scheme.counts(1000).tolist()) == (INFINITE, [20, 980])
    assert stopped([10, 7], [1.0, 1.0], every, [None, 3])[1] == 31


@pytest.mark.jobs
@pytest.mark.timeout(120)
def test_mixes_of_many_sources():
    sizes = [1 + (31 * i) % 97 for i in range(800)]
    weights = [float(1 + (7 * i) % 13) for i in range(800)]
    for name in SCHEMES:
        with row(name):
            scheme, size = stopped(sizes, weights, "all_exhausted", name=name, key=1)
            source, nth = scheme.locate(np.arange(size))
            assert np.bincount(source).tolist() == sizes == scheme.counts(size).tolist()
            assert nth[np.lexsort((nth, source))].tolist() == [n for s in sizes for n in range(s)]
            other, _ = stopped(sizes, weights, "all_exhausted", name=name, key=1)
            assert np.array_equal(other.locate(np.arange(size)[::-1])[0][::-1], source)
    scheme, size = stopped([1] * 20_000, [1.0] * 20_000, "all_exhausted")
    assert sorted(scheme.locate(np.arange(size))[0].tolist()) == list(range(20_000))
    sizes = [*range(500, 3500, 10), 10**6, 10**6]  # the others keep their shares
    scheme, _ = stopped(sizes, [*[1.0] * 300, 100.0, 50.0], "all_exhausted", name="exact")
    for n in np.linspace(0, sum(sizes[:300]) + 150 * 3490, 40).astype(int).tolist():
        *_, twice, once = scheme.counts(n).tolist()
        assert abs(twice - 2 * once) <= 2 + n // 500
    scheme, size = stopped([100] + [10**15] * 9, [1.0] * 10, "all_exhausted", name="random")
    assert (scheme.counts(50_000)[0], size) == (100, 100 + 9 * 10**15)


def test_rules_that_are_none():
    faults = {"rule": (lambda: slot_limits([3], "all_exhaused", [None]), "did you mean 'all_exh")}
    said = "max_epochs, dataset 1: a number of epochs is a whole number, 1 or more; got "
    for epochs in (0, -1, 1.5, True, "2"):
        faults[f"{epochs!r}"] = (
            lambda e=epochs: slot_limits([3, 3], "restart", [1, e]),
            f"{said}{epochs!r}",
        )
    check_faults(ConfigError, faults)


# Blends that end.


def finite(stop="all_exhausted", **options):
    return BlendDataset((shuffled(10), 0.7), (shuffled(30, 100), 0.3), stop=stop, **options)


def test_epochs_of_blends():
    for epoch in (0, 1, 5):
        check_exactly_once(finite(), lambda source, index: (1, 1), epoch=epoch)
    first, second = finite().at(range(40)), finite().at(range(40, 80))
    assert sorted(first) == sorted(second)
    assert first != second
    blend = BlendDataset((numbers(10), 1), (numbers(100, 100), 1), stop="first_exhausted")
    assert Counter(value < 100 for value in blend)[True] == 10
    drawn = [value for value in blend.at(range(5 * len(blend))) if value >= 100]
    assert drawn == [100 + k % 100 for k in range(len(drawn))], "it goes on where it stopped"
    visits = Counter(finite("restart", max_epochs=[3, 1]))
    assert visits == dict.fromkeys(range(10), 3) | dict.fromkeys(range(100, 130), 1)
    parts = {"a": shuffled(10), "b": shuffled(30, 100)}
    blend = BlendDataset(parts, weights={"a": 1, "b": 1}, max_epochs={"a": 2})
    assert blend.taken(1000) == [20, 980]
    endless = RepeatDataset(shuffled(5))
    blend = BlendDataset((endless, 1), (shuffled(6, 100), 1), stop="all_exhausted")
    assert (blend.size, blend.taken(500)) == (INFINITE, [494, 6])
    assert len(BlendDataset((numbers(3), 1), (numbers(0), 1), stop="all_exhausted")) == 3
    outer = BlendDataset((finite(), 1), (shuffled(5, 200), 1))
    assert len(outer.inputs) == 2, "blends that end are not opened up"


def test_ends_of_streams():
    pairs = [(FilterDataset(numbers(9), is_even), 1), (numbers(3, 100), 1)]
    once = [*range(0, 9, 2), 100, 101, 102]
    assert sorted(BlendDataset(pairs, stop="all_exhausted")) == once
    assert sorted(BlendDataset(pairs, max_epochs=2)) == sorted(2 * once)
    assert len(list(BlendDataset(pairs, stop="first_exhausted", scheme="round_robin"))) == 7


# Slots of streams, whose lengths are not known beforehand.


def slotted(sizes, weights, scheme="block"):
    """Streams with items that tell their source."""
    sources = [numbers(size, 1000 * number) for number, size in enumerate(sizes)]
    slots = SchemeSlots(make_scheme(scheme, weights, key=5))
    end = End("leave_out", (1,) * len(sizes), slots_anew=False)
    return MultiplexedDataset(sources, list(map(str, range(len(sizes)))), slots, end)


@pytest.mark.timeout(120)
def test_streams_that_are_left_out():
    sizes = [1 + (31 * i) % 23 for i in range(80)]
    for name in ("block", "exact", "random"):
        read = list(slotted(sizes, [1.0 + (7 * i) % 13 for i in range(80)], name).open())
        assert sorted(read) == [1000 * i + n for i, s in enumerate(sizes) for n in range(s)], name
    cursor = slotted([900, 900, 20, 900, 900, 900], [3.0, *[1.0] * 5], "exact").open()
    first = Counter(next(cursor) // 1000 for _ in range(700))
    assert (first[2], first[0]) == (20, pytest.approx(60 + 3 / 7 * 540, abs=2))
    late = Schedule([(0, 0.1), (40, 5)], "linear")
    mix = slotted([3, 9, 1, 20, 7, 2, 30], [2.0, 1.0, 3.0, 1.0, late, 4.0, 0.5])
    cursor = mix.open()
    states, read = [cursor.state()], []
    for item in cursor:
        read.append(item)
        states.append(cursor.state())
    for at, state in enumerate(states[:-1]):
        assert list(mix.open(state=state)) == read[at:], at
    again = list(mix.open(state=cursor.state()))
    assert sorted(again) == sorted(read)
    assert again != read

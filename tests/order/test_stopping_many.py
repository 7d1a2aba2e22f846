"""Mixes of very many sources that end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize.datasets.multiplexed import End, MultiplexedDataset, SchemeSlots
from energize.order.timeline import make_scheme, slot_limits, stopped_scheme
from energize.order.weights import Schedule
from energize.order.windows import SCHEMES
from tests.support.datasets import numbers
from tests.support.schemes import check_counts


class TestManySources:
    """Each end costs little, and how it is asked changes nothing."""

    def mix(self, name, sizes, weights):
        limits = slot_limits(sizes, "all_exhausted", [None] * len(sizes))
        return stopped_scheme(make_scheme(name, weights, key=1), limits, "all_exhausted")

    def sizes_and_weights(self, count):
        sizes = [1 + (31 * i) % 97 for i in range(count)]
        return sizes, [float(1 + (7 * i) % 13) for i in range(count)]

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("name", list(SCHEMES))
    def test_each_is_read_in_full(self, name):
        sizes, weights = self.sizes_and_weights(1500)
        scheme, size = self.mix(name, sizes, weights)
        source, nth = scheme.locate(np.arange(size))
        assert np.bincount(source).tolist() == sizes == scheme.counts(size).tolist()
        order = np.lexsort((nth, source))
        assert nth[order].tolist() == [n for each in sizes for n in range(each)]

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("name", ["block", "exact", "random", "round_robin"])
    def test_any_order_of_asking(self, name):
        sizes, weights = self.sizes_and_weights(400)
        scheme, size = self.mix(name, sizes, weights)
        slots = np.arange(size - 1, -1, -1)
        backwards = [each[::-1] for each in scheme.locate(slots)]
        scheme, _ = self.mix(name, sizes, weights)
        pieces = [scheme.locate(np.arange(at, min(at + 777, size))) for at in range(0, size, 777)]
        for way, parts in zip(backwards, zip(*pieces, strict=True), strict=True):
            assert way.tolist() == np.concatenate(parts).tolist()
        for start in (0, size // 3, size - 300):
            check_counts(scheme, 300, start)

    @pytest.mark.timeout(60)
    def test_one_item_each(self):
        scheme, size = self.mix("block", [1] * 20_000, [1.0] * 20_000)
        assert sorted(scheme.locate(np.arange(size))[0].tolist()) == list(range(20_000))

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("name", ["block", "exact"])
    def test_first_exhausted(self, name):
        weights = [1.0 + i % 7 for i in range(20_000)]
        limits = np.full(20_000, 100)
        scheme, size = stopped_scheme(make_scheme(name, weights), limits, "first_exhausted")
        assert scheme.counts(size).max() == 100
        assert size == pytest.approx(100 * sum(weights) / 7, rel=0.03)

    def test_the_others_keep_their_shares(self):
        """Between the first end and the last, two sources share as their weights say."""
        sizes = [*range(500, 3500, 10), 10**6, 10**6]
        weights = [1.0] * 300 + [100.0, 50.0]
        scheme, _ = self.mix("exact", sizes, weights)
        for n in np.linspace(0, sum(sizes[:300]) + 150 * 3490, 60).astype(int).tolist():
            *_, twice, once = scheme.counts(n).tolist()
            assert abs(twice - 2 * once) <= 2 + n // 500

    def test_far_ends_cost_nothing_before_they_come(self):
        limits = np.array([100] + [10**15] * 9)
        scheme, size = stopped_scheme(make_scheme("random", [1.0] * 10), limits, "all_exhausted")
        assert scheme.counts(50_000)[0] == 100
        assert scheme.locate(np.arange(50_000))[1].max() > 4000
        assert size == 100 + 9 * 10**15


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(list(SCHEMES)),
    weights=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    limits=st.lists(st.integers(1, 3000), min_size=6, max_size=6),
    slots=st.lists(st.integers(0, 10**6), max_size=30),
)
def test_sources_have_their_limits_and_the_order_before_them_stays(name, weights, limits, slots):
    limits = np.array(limits[: len(weights)])
    whole = make_scheme(name, weights, key=3)
    scheme, size = stopped_scheme(whole, limits, "all_exhausted")
    source, _ = scheme.locate(np.arange(size))
    assert np.bincount(source, minlength=len(weights)).tolist() == limits.tolist()
    untouched, _ = whole.locate(np.arange(size))
    first_end = np.argmax(np.append(whole.locate(np.arange(size))[1] >= limits[untouched], True))
    kept = max(int(first_end) - len(weights), 0)
    assert (source[:kept] == untouched[:kept]).all()
    found = scheme.locate(np.array(slots, dtype=np.int64) % size)
    assert found[0].tolist() == source[np.array(slots, dtype=np.int64) % size].tolist()
    for n in [*(slot % size for slot in slots[:5]), size]:
        assert scheme.counts(n).tolist() == np.bincount(source[:n], minlength=len(weights)).tolist()


def slotted(sizes, weights, scheme="block"):
    """Streams with items that tell their source."""
    sources = [numbers(size, 1000 * number) for number, size in enumerate(sizes)]
    slots = SchemeSlots(make_scheme(scheme, weights, key=5))
    names = [str(number) for number in range(len(sizes))]
    end = End("leave_out", (1,) * len(sizes), slots_anew=False)
    return MultiplexedDataset(sources, names, slots, end)


class TestSlotsOfStreams:
    """Lengths are not known beforehand here."""

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("scheme", ["block", "exact", "random"])
    def test_many_are_read_in_full(self, scheme):
        sizes = [1 + (31 * i) % 23 for i in range(1000)]
        mix = slotted(sizes, [1.0 + (7 * i) % 13 for i in range(1000)], scheme)
        read = list(mix.open())
        assert sorted(read) == [1000 * i + n for i, size in enumerate(sizes) for n in range(size)]

    @pytest.mark.parametrize("late", [1.0, Schedule([(0, 0.1), (40, 5)], "linear")])
    def test_resumed_at_any_item(self, late):
        mix = slotted([3, 9, 1, 20, 7, 2, 30], [2.0, 1.0, 3.0, 1.0, late, 4.0, 0.5])
        cursor = mix.open()
        states, read = [cursor.state()], []
        for item in cursor:
            read.append(item)
            states.append(cursor.state())
        for at, state in enumerate(states[:-1]):
            assert list(mix.open(state=state)) == read[at:]
        again = list(mix.open(state=cursor.state()))
        assert sorted(again) == sorted(read)
        assert again != read

    def test_slots_of_a_source_that_is_over_go_to_the_others_by_weight(self):
        mix = slotted([900, 900, 20, 900, 900, 900], [3.0, 1.0, 1.0, 1.0, 1.0, 1.0], "exact")
        cursor = mix.open()
        for _ in range(700):
            next(cursor)
        assert cursor.stream.given[2] == 20
        assert cursor.stream.given[0] == pytest.approx(60 + 3 / 7 * 540, abs=2)

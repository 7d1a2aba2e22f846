"""Where mixes end, and who takes the slots of an exhausted source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energize.core.node import INFINITE
from energize.errors import EmptyDatasetError
from energize.order import Schedule, make_scheme
from energize.order.stopping import slot_limits, stopped_scheme
from energize.order.timeline import SCHEMES, WEIGHTLESS
from energize.order.weights import weights_at
from tests.order.test_changes import mixes
from tests.support.tables import row


def stopped(sizes, weights, stop, max_epochs=None, name="block", key=0, **options):
    epochs = max_epochs if isinstance(max_epochs, list) else [max_epochs] * len(sizes)
    scheme = make_scheme(name, weights, key=key, **options)
    return stopped_scheme(scheme, slot_limits(sizes, stop, epochs), stop)


@pytest.mark.timeout(60)
def test_first_exhausted_without_an_end_and_with_a_far_one():
    first = "first_exhausted"
    assert stopped([1000, 1000], [0.5, 0.5], first)[1] == 2000
    assert stopped([10, 0], [1.0, 0.0], first)[1] == 10
    assert stopped([INFINITE, INFINITE], [1.0, 1.0], first)[1] == INFINITE
    scheme, size = stopped([INFINITE, 7], [1.0, 1.0], first, block_size=2)
    assert scheme.counts(size)[1] == 7
    gone = Schedule([(0, 1), (500, 0)])
    for name in ("block", "even", "exact", "random"):
        with row(name):
            assert (
                stopped([400, 800, INFINITE], [gone, gone, 1], first, name=name)[1]
                == INFINITE
            )
            scheme, size = stopped(
                [20, 40, INFINITE], [gone, gone, 1], first, name=name
            )
            drawn, nth = make_scheme(name, [gone, gone, 1]).locate(np.arange(200))
            assert size == np.argmax(nth >= np.array([20, 40, 500])[drawn])
            assert stopped([1000, INFINITE], [1e-6, 1], first, name=name)[1] > 10**8
            far = stopped([1000, INFINITE], [1e-12, 1], first, name=name)[1]
            assert far == pytest.approx(10**15, rel=0.01)
    weights = [1.0 + i % 7 for i in range(20_000)]
    size = stopped([100] * 20_000, weights, first)[1]
    assert size == pytest.approx(100 * sum(weights) / 7, rel=0.03)


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
    rising = Schedule([(0, 1), (1000, 3)])  # steps act at their slot
    scheme, _ = stopped(
        [80, INFINITE, INFINITE], [8.0, rising, 1.0], every, name="exact"
    )
    assert scheme.counts(1000).tolist() == pytest.approx([80, 460, 460], abs=2)
    assert scheme.counts(5000).tolist() == pytest.approx([80, 3460, 1460], abs=3)
    scheme, size = stopped([10, 10], [0.9, 0.1], "restart", [2, None], block_size=10)
    assert (size, scheme.counts(1000).tolist()) == (INFINITE, [20, 980])
    assert stopped([10, 7], [1.0, 1.0], every, [None, 3])[1] == 31


@pytest.mark.parametrize("name", [each for each in SCHEMES if each not in WEIGHTLESS])
def test_a_mix_ends_where_no_source_that_is_left_has_a_weight(name):
    every, size = "all_exhausted", {"block_size": 5} if name == "block" else {}
    gone, late = Schedule([(0, 1), (10, 0)]), Schedule([(0, 0), (100, 1)])
    scheme, end = stopped([5, 20, 20], [1.0, late, late], every, name=name, **size)
    assert (end, scheme.counts(end).tolist()) == (5, [5, 0, 0])
    assert scheme.counts(12).tolist() == [12, 0, 0]  # the same slots again
    scheme, end = stopped([30, 8], [gone, 1.0], every, name=name, **size)
    assert (end, scheme.counts(end).tolist()) == (5 + 8, [5, 8])
    scheme, end = stopped(
        [INFINITE, 8], [gone, 1.0], "restart", [None, 1], name=name, **size
    )
    assert (end, scheme.counts(end).tolist()) == (5 + 8, [5, 8])
    falling = Schedule([(0, 1), (100, 0)], "linear")
    scheme, end = stopped([900, 40], [falling, 1.0], every, name=name, **size)
    assert scheme.counts(end).tolist() == [60, 40]
    changed = make_scheme(name, [1.0, 1.0], **size).with_weights_from(10, [0.0, 1.0])
    scheme, end = stopped_scheme(
        changed, slot_limits([30, 8], every, [None, None]), every
    )
    assert (end, scheme.counts(end).tolist()) == (5 + 8, [5, 8])
    with pytest.raises(
        EmptyDatasetError, match="no source with items has a weight above 0 at slot 0"
    ):
        stopped([0, 20], [1.0, late], every, name=name, **size)


@given(weights=mixes, sizes=st.lists(st.integers(1, 120), min_size=9, max_size=9))
def test_nothing_is_drawn_where_its_weight_is_0_to_the_end_of_a_mix(weights, sizes):
    weights = [*weights[:8], 0.5]
    sizes = sizes[: len(weights)]
    for name in ("even", "exact", "random"):
        scheme, end = stopped(sizes, weights, "all_exhausted", name=name)
        slots = np.arange(end)
        source, nth = scheme.locate(slots)
        # Between two points a weight is 0 everywhere or nowhere.
        assert (weights_at(weights, slots + 0.5)[slots, source] > 0).all()
        counts = np.bincount(source, minlength=len(sizes))
        assert counts.tolist() == scheme.counts(end).tolist()
        assert (counts <= sizes).all()
        assert nth[np.lexsort((nth, source))].tolist() == [
            n for c in counts for n in range(c)
        ]
        left = weights_at(weights, [end + 0.5])[0] > 0
        assert not (left & (counts < sizes)).any()


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
            assert nth[np.lexsort((nth, source))].tolist() == [
                n for s in sizes for n in range(s)
            ]
            other, _ = stopped(sizes, weights, "all_exhausted", name=name, key=1)
            assert np.array_equal(other.locate(np.arange(size)[::-1])[0][::-1], source)
    scheme, size = stopped([1] * 20_000, [1.0] * 20_000, "all_exhausted")
    assert sorted(scheme.locate(np.arange(size))[0].tolist()) == list(range(20_000))
    sizes = [*range(500, 3500, 10), 10**6, 10**6]  # the others keep their shares
    scheme, _ = stopped(
        sizes, [*[1.0] * 300, 100.0, 50.0], "all_exhausted", name="exact"
    )
    for n in np.linspace(0, sum(sizes[:300]) + 150 * 3490, 40).astype(int).tolist():
        *_, twice, once = scheme.counts(n).tolist()
        assert abs(twice - 2 * once) <= 2 + n // 500
    scheme, size = stopped(
        [100] + [10**15] * 9, [1.0] * 10, "all_exhausted", name="random"
    )
    assert (scheme.counts(50_000)[0], size) == (100, 100 + 9 * 10**15)

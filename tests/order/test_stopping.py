"""Where mixes end, who takes the slots of an exhausted source, and shares under limits."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energize import BatchDataset, BlendDataset, FilterDataset, MixBatchDataset, RepeatDataset
from energize.core.stream import INFINITE
from energize.errors import ConfigError, EmptyDatasetError, WeightError
from energize.order.timeline import make_scheme, slot_limits, stopped_scheme
from energize.order.weights import Schedule, limited, tempered
from energize.testing import check_exactly_once, check_laws
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.schemes import check_counts


def stopped(sizes, weights, stop, max_epochs=None, key=0, **options):
    epochs = max_epochs if isinstance(max_epochs, list) else [max_epochs] * len(sizes)
    scheme = make_scheme("block", weights, key=key, **options)
    return stopped_scheme(scheme, slot_limits(sizes, stop, epochs), stop)


class TestFirstExhausted:
    @pytest.mark.parametrize("key", range(5))
    def test_ends_before_the_eleventh_draw_of_ten(self, key):
        scheme, size = stopped([10, 1000], [0.5, 0.5], "first_exhausted", key=key)
        assert scheme.counts(size)[0] == 10
        assert 10 <= size < 60
        assert scheme.locate(np.array([size - 1]))[0][0] in (0, 1)

    def test_equal_sizes_are_read_in_full(self):
        assert stopped([1000, 1000], [0.5, 0.5], "first_exhausted")[1] == 2000

    def test_a_source_of_weight_0_counts_for_nothing(self):
        scheme, size = stopped([10, 0], [1.0, 0.0], "first_exhausted", block_size=4)
        assert (size, scheme.counts(size).tolist()) == (10, [10, 0])

    def test_without_a_finite_source_it_never_ends(self):
        assert stopped([INFINITE, INFINITE], [1.0, 1.0], "first_exhausted")[1] == INFINITE
        scheme, size = stopped([INFINITE, 7], [1.0, 1.0], "first_exhausted", block_size=2)
        assert scheme.counts(size)[1] == 7

    def test_a_finite_source_whose_schedule_ends_at_0_may_never_be_exhausted(self):
        gone = Schedule([(0, 1), (10, 0)], change="sample")
        assert stopped([100, INFINITE], [gone, 1.0], "first_exhausted")[1] == INFINITE

    @pytest.mark.timeout(20)
    @pytest.mark.parametrize("scheme", ["block", "exact", "random"])
    @pytest.mark.parametrize("third", ["endless", "restarted"])
    def test_finite_sources_that_all_go_to_0(self, scheme, third):
        """The end lies before they go, or never comes; it is not looked for far out."""
        gone = Schedule([(0, 1), (500, 0)], change="sample")
        most = None if third == "endless" else {"first": 1, "second": 1}
        other = RepeatDataset(numbers(3, 900)) if third == "endless" else numbers(3, 900)
        rule = {"stop": "first_exhausted"} if third == "endless" else {"max_epochs": most}

        def blend(size):
            datasets = {"first": numbers(size), "second": numbers(2 * size, 5000), "other": other}
            weights = {"first": gone, "second": gone, "other": 1}
            return BlendDataset(datasets, weights=weights, scheme=scheme, **rule)

        assert blend(400).size == INFINITE
        assert all(900 <= item < 903 for item in blend(400).at(range(500, 600)))
        if third == "endless":
            short = blend(20)
            drawn = short._scheme.locate(np.arange(500))[0]
            too_many = np.cumsum(drawn == 0) > 20, np.cumsum(drawn == 1) > 40
            assert short.size == np.argmax(too_many[0] | too_many[1])

    @pytest.mark.timeout(20)
    @pytest.mark.parametrize("scheme", ["random", "uniform"])
    def test_random_draws_without_a_finite_source_never_end(self, scheme):
        endless = [RepeatDataset(numbers(3)), RepeatDataset(numbers(4))]
        never = numbers(5, 100)
        blend = BlendDataset(
            (endless[0], 1), (endless[1], 2), (never, 0), scheme=scheme, stop="first_exhausted"
        )
        assert blend.size == INFINITE

    @pytest.mark.timeout(20)
    def test_a_far_end_is_found(self):
        endless = RepeatDataset(numbers(3))
        options = {"scheme": "random", "stop": "first_exhausted"}
        assert BlendDataset((numbers(1000), 1e-6), (endless, 1), **options).size > 10**8
        for scheme in ("random", "even", "block"):
            blend = BlendDataset(
                (numbers(1000), 1e-12), (endless, 1), stop="first_exhausted", scheme=scheme
            )
            assert blend.size == pytest.approx(10**15, rel=0.01)

    @given(
        sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
        key=st.integers(0, 9),
        block_size=st.integers(1, 40),
    )
    def test_it_is_the_prefix_before_the_first_draw_too_many(self, sizes, key, block_size):
        weights = [1.0 + number for number in range(len(sizes))]
        _, size = stopped(sizes, weights, "first_exhausted", key=key, block_size=block_size)
        source, nth = make_scheme("block", weights, key=key, block_size=block_size).locate(
            np.arange(sum(sizes) + 1)
        )
        assert size == int(np.argmax(nth >= np.array(sizes)[source]))


class TestAllExhausted:
    @pytest.mark.parametrize(
        ("sizes", "block_size"),
        [
            ([10, 30], 1000),
            ([10, 30], 2),
            ([10, 30], 3),
            ([10, 30], 4),
            ([3, 50, 50], 3),
            ([10], 4),
            ([1, 1, 1], 1000),
            ([5, 0, 7], 10),
        ],
    )
    def test_reads_each_sample_once(self, sizes, block_size):
        weights = [1.0] * len(sizes)
        scheme, size = stopped(sizes, weights, "all_exhausted", block_size=block_size)
        assert (size, scheme.counts(size).tolist()) == (sum(sizes), sizes)
        check_counts(scheme, 2 * size + 3, every=1)

    def test_slots_of_a_source_that_is_over_go_to_the_others_by_weight(self):
        scheme, _ = stopped([100, 10**6, 10**6], [0.5, 0.3, 0.2], "all_exhausted", block_size=10)
        assert scheme.counts(200).tolist() == pytest.approx([100, 60, 40], abs=1)
        assert scheme.counts(1200).tolist() == pytest.approx([100, 660, 440], abs=2)

    def test_an_endless_source_never_ends(self):
        scheme, size = stopped([5, INFINITE], [1.0, 1.0], "all_exhausted", block_size=2)
        assert size == INFINITE
        assert scheme.counts(1000).tolist() == [5, 995]
        assert scheme.counts(2**60)[0] == 5

    def test_a_schedule_goes_on_when_sources_drop_out(self):
        late = Schedule([(0, 0), (100, 3)])
        scheme, size = stopped([50, 1000, 3000], [2.0, 1.0, late], "all_exhausted", block_size=4)
        assert size == 4050
        assert scheme.counts(75).tolist() == pytest.approx([50, 25, 0], abs=2)
        assert scheme.counts(100).tolist() == pytest.approx([50, 50, 0], abs=4)
        assert scheme.counts(500)[2] == pytest.approx(300, abs=5)

    def test_sources_left_without_a_weight_are_read_all_the_same(self):
        late = Schedule([(0, 0), (10**6, 1)])
        scheme, size = stopped([5, 20, 20], [1.0, late, late], "all_exhausted", block_size=2)
        assert size == 45
        assert scheme.counts(25).tolist() == [5, 10, 10]

    @pytest.mark.parametrize("change", ["block", "block_start", "sample"])
    def test_a_source_whose_weight_begins_at_0_is_left_alone(self, change):
        rising = Schedule([(0, 0), (1000, 1)], "linear", change=change)
        scheme, size = stopped([50, 10], [rising, 1.0], "all_exhausted", block_size=100)
        assert (size, scheme.counts(size).tolist()) == (60, [50, 10])

    def test_counts_may_be_asked_in_any_order(self):
        scheme, size = stopped([50, 3, 7], [1.0, 1.0, 1.0], "all_exhausted")
        afresh, _ = stopped([50, 3, 7], [1.0, 1.0, 1.0], "all_exhausted")
        backwards = [scheme.counts(n).tolist() for n in range(size, -1, -1)]
        assert backwards[::-1] == [afresh.counts(n).tolist() for n in range(size + 1)]

    def test_steps_of_schedules_act_at_their_slot(self):
        """Slots that are left out would make a scheme run ahead of its schedule."""
        rising = Schedule([(0, 1), (1000, 3)])
        limits = slot_limits([80, INFINITE, INFINITE], "all_exhausted", [None] * 3)
        scheme, _ = stopped_scheme(
            make_scheme("exact", [8.0, rising, 1.0]), limits, "all_exhausted"
        )
        assert scheme.counts(1000).tolist() == pytest.approx([80, 460, 460], abs=2)
        assert scheme.counts(5000).tolist() == pytest.approx([80, 3460, 1460], abs=3)


class TestMaxEpochs:
    def test_caps_a_source_and_hands_its_share_on(self):
        scheme, size = stopped([10, 10], [0.9, 0.1], "restart", [2, None], block_size=10)
        assert size == INFINITE
        assert scheme.counts(1000).tolist() == [20, 980]

    def test_ends_when_all_are_capped(self):
        scheme, size = stopped([10, 7], [0.9, 0.1], "restart", [2, 3], block_size=10)
        assert (size, scheme.counts(41).tolist()) == (41, [20, 21])

    def test_counts_for_the_other_rules_too(self):
        assert stopped([10, 7], [1.0, 1.0], "all_exhausted", [None, 3])[1] == 31
        scheme, size = stopped([10, 100], [1.0, 1.0], "first_exhausted", 2)
        assert scheme.counts(size)[0] == 20

    @pytest.mark.parametrize("epochs", [0, -1, 1.5, True, "2"])
    def test_refuses(self, epochs):
        with pytest.raises(ConfigError, match=r"max_epochs, dataset 1.*1 or more"):
            slot_limits([3, 3], "restart", [1, epochs])

    def test_unknown_rules(self):
        with pytest.raises(ConfigError, match="did you mean 'all_exhausted'"):
            slot_limits([3], "all_exhaused", [None])


@settings(deadline=None, max_examples=60)
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
def test_counts_and_places_agree_when_sources_drop_out(sizes, weights, epochs, block_size):
    mix = [*weights[: len(sizes)], 1.0]
    scheme, size = stopped(
        [*sizes, 5], mix, "restart", [*epochs[: len(sizes)], 2], block_size=block_size
    )
    limits = [n * k for n, k in zip(sizes, epochs, strict=False)]
    assert size == sum(limits) + 10
    assert scheme.counts(size).tolist() == [*limits, 10]
    check_counts(scheme, size + 5)


class TestBlends:
    def finite(self, stop="all_exhausted", **options):
        return BlendDataset((shuffled(10), 0.7), (shuffled(30, 100), 0.3), stop=stop, **options)

    @pytest.mark.parametrize("epoch", [0, 1, 5])
    def test_all_exhausted_visits_each_sample_once_in_every_epoch(self, epoch):
        check_exactly_once(self.finite(), lambda source, index: (1, 1), epoch=epoch)

    def test_the_next_epoch_is_reshuffled(self):
        blend = self.finite()
        first, second = blend.at(range(40)), blend.at(range(40, 80))
        assert sorted(first) == sorted(second)
        assert first != second

    def test_first_exhausted_goes_on_where_it_stopped(self):
        blend = BlendDataset((numbers(10), 1), (numbers(100, 100), 1), stop="first_exhausted")
        size = len(blend)
        assert Counter(value < 100 for value in blend)[True] == 10
        drawn = [value for value in blend.at(range(5 * size)) if value >= 100]
        assert drawn == [100 + k % 100 for k in range(len(drawn))]

    def test_epochs_per_dataset(self):
        blend = BlendDataset((shuffled(10), 1), (shuffled(30, 100), 1), max_epochs=[3, 1])
        assert len(blend) == 60
        visits = Counter(blend)
        assert {visits[value] for value in range(10)} == {3}
        assert {visits[value] for value in range(100, 130)} == {1}

    def test_epochs_by_name(self):
        parts = {"a": shuffled(10), "b": shuffled(30, 100)}
        blend = BlendDataset(parts, weights={"a": 1, "b": 1}, max_epochs={"a": 2})
        assert blend.taken(1000) == [20, 980]
        with pytest.raises(ConfigError, match="unknown 'c'"):
            BlendDataset(parts, weights={"a": 1, "b": 1}, max_epochs={"c": 2})

    @pytest.mark.parametrize(
        "dataset",
        [
            BlendDataset((shuffled(7), 0.7), (shuffled(9, 100), 0.3), stop="all_exhausted"),
            BlendDataset((shuffled(7), 0.7), (shuffled(9, 100), 0.3), stop="first_exhausted"),
            BlendDataset((shuffled(7), 2), (shuffled(9, 100), 1), max_epochs=[1, 2]),
            BlendDataset(
                (BatchDataset(shuffled(10), 4, list), 1),
                (BatchDataset(shuffled(9, 100), 2, list), Schedule([(0, 1), (4, 3)])),
                stop="all_exhausted",
            ),
            MixBatchDataset(
                (shuffled(7), 1), (shuffled(6, 100), 1), batch_size=3, stop="all_exhausted"
            ),
        ],
        ids=["all", "first", "epochs", "batches, schedule", "mix"],
    )
    def test_laws(self, dataset):
        check_laws(dataset, epochs=3)

    def test_blends_that_end_are_not_opened_up(self):
        outer = BlendDataset((self.finite(), 1), (shuffled(5, 200), 1))
        assert len(outer.inputs) == 2
        inner = BlendDataset((shuffled(5), 1), (shuffled(6, 100), 1))
        with_end = BlendDataset((inner, 1), (shuffled(7, 200), 1), stop="first_exhausted")
        assert len(with_end.inputs) == 2
        assert with_end.taken(len(with_end))[1] == 7

    def test_an_endless_dataset_beside_finite_ones(self):
        blend = BlendDataset(
            (RepeatDataset(shuffled(5)), 1), (shuffled(6, 100), 1), stop="all_exhausted"
        )
        assert blend.size == INFINITE
        assert blend.taken(500) == [494, 6]

    def test_empty_datasets(self):
        with pytest.raises(EmptyDatasetError, match="dataset 1 has weight"):
            BlendDataset((numbers(3), 1), (numbers(0), 1), stop="first_exhausted")
        assert len(BlendDataset((numbers(3), 1), (numbers(0), 1), stop="all_exhausted")) == 3
        with pytest.raises(EmptyDatasetError, match="none of the datasets"):
            BlendDataset((numbers(0), 1), stop="all_exhausted")
        with pytest.raises(EmptyDatasetError, match="dataset 0 has weight Schedule"):
            BlendDataset((numbers(0), Schedule([(0, 0), (9, 1)])), (numbers(3), 1))

    def test_streams_end_where_reading_finds_their_ends(self):
        pairs = [(FilterDataset(numbers(9), is_even), 1), (numbers(3, 100), 1)]
        evens, others = list(range(0, 9, 2)), [100, 101, 102]
        assert sorted(BlendDataset(pairs, stop="all_exhausted")) == evens + others
        assert sorted(BlendDataset(pairs, max_epochs=2)) == sorted(2 * (evens + others))
        assert len(list(BlendDataset(pairs, stop="first_exhausted", scheme="round_robin"))) == 7

    def test_scheme_objects(self):
        pairs = [(shuffled(10), 1), (shuffled(30, 100), 1)]
        scheme = make_scheme("block", [1, 3], block_size=4)
        assert len(BlendDataset(pairs, scheme=scheme, stop="first_exhausted")) == 40
        for options in ({"stop": "all_exhausted"}, {"max_epochs": 2}):
            with pytest.raises(ConfigError, match="scheme by name"):
                BlendDataset(pairs, scheme=scheme, **options)
        with pytest.raises(ConfigError, match="block_size"):
            BlendDataset(pairs, scheme=scheme, block_size=5)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"stop": "restrat"}, "did you mean 'restart'"),
            ({"max_epochs": 0}, "max_epochs"),
            ({"max_epochs": [1]}, "1 values are given for 2 datasets"),
            ({"max_epochs": {"a": 1}}, "have no names"),
            ({"temperature": -1}, "temperature"),
            ({"temperature": math.nan}, "temperature"),
            ({"min_share": 0.6}, "floors of the 2 datasets sum to 1.2"),
            ({"max_share": 0.4}, "caps of the 2 datasets with a weight sum to 0.8"),
            ({"min_share": [0.5, None], "max_share": 0.4}, "0.5 at least and of 0.4 at most"),
            ({"min_share": 1.5}, "from 0 to 1"),
            ({"block_size": 0}, "block_size"),
        ],
    )
    def test_refuses(self, options, said):
        with pytest.raises(ConfigError, match=said):
            BlendDataset((numbers(3), 1), (numbers(4, 100), 2), **options)


class TestShares:
    def test_temperature_per_level(self):
        inner = BlendDataset((shuffled(5), 9), (shuffled(6, 100), 1), temperature=0)
        outer = BlendDataset((inner, 9), (shuffled(7, 200), 1), temperature=0.5)
        assert outer.shares() == pytest.approx([0.375, 0.375, 0.25])

    def test_a_weight_of_0_stays_0(self):
        assert tempered([3, 0, 1], 0) == [0.5, 0, 0.5]
        assert limited([3, 0, 1], least=0.4) == [0.6, 0, 0.4]
        with pytest.raises(ConfigError, match=r"dataset 1: the floor is 0\.1"):
            limited([1, 0], least=[None, 0.1])

    def test_temperatures(self):
        assert tempered([2, 1], 1) == pytest.approx([2 / 3, 1 / 3])
        assert tempered([2, 1], 2) == [0.8, 0.2]
        assert tempered([1e300, 1e-300], 3) == [1, 0]
        with pytest.raises(WeightError, match="all 2 weights are 0"):
            tempered([0, 0], 1)

    def test_limits_in_a_blend(self):
        pairs = [(shuffled(5, 100 * i), weight) for i, weight in enumerate((90, 9, 1))]
        blend = BlendDataset(pairs, min_share=0.05, max_share=0.5)
        assert blend.shares() == pytest.approx([0.5, 0.45, 0.05])
        by_name = BlendDataset(
            {"a": shuffled(5), "b": shuffled(5, 100)},
            weights={"a": 9, "b": 1},
            max_share={"a": 0.6},
        )
        assert by_name.shares() == pytest.approx([0.6, 0.4])
        with pytest.raises(ConfigError, match="need weights that are numbers"):
            BlendDataset((numbers(3), Schedule([(0, 1)])), (numbers(3, 10), 1), min_share=0.1)

    @pytest.mark.parametrize("count", range(2, 60))
    def test_limits_that_leave_no_choice(self, count):
        weights = list(range(1, count + 1))
        for limits in ({"most": 1 / count}, {"least": 1 / count}):
            assert limited(weights, **limits) == pytest.approx([1 / count] * count)

    @given(
        weights=st.lists(st.floats(0.001, 100), min_size=1, max_size=12),
        limits=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    )
    def test_limits_are_kept_and_the_rest_in_ratio(self, weights, limits):
        low, high = limits[0] / len(weights), (1 + limits[1] * (len(weights) - 1)) / len(weights)
        shares = limited(weights, low, min(high, 1.0))
        assert math.fsum(shares) == pytest.approx(1, abs=1e-12)
        assert all(low - 1e-9 <= share <= high + 1e-9 for share in shares)
        ratios = [
            share / weight
            for share, weight in zip(shares, weights, strict=True)
            if low < share < min(high, 1.0)
        ]
        if ratios:
            assert max(ratios) == pytest.approx(min(ratios), rel=1e-9)

"""Weights that change during a run: points, integrals, and the schemes that follow them."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch

from energize import BlendDataset, LimitDataset, MixBatchDataset
from energize.errors import ConfigError, WeightError
from energize.order.timeline import make_scheme
from energize.order.weights import Schedule, WeightSchedulePoint, WeightScheduler
from energize.testing import check_laws
from tests.support.datasets import numbers, shuffled
from tests.support.schemes import check_counts

CODE = ((0, 0.2), (10_000, 0.5), (50_000, 0.8))


def code_and_text(interpolation="linear", **options):
    points = [WeightSchedulePoint(s, {"code": w, "text": round(1 - w, 9)}) for s, w in CODE]
    return WeightScheduler(points, interpolation, **options)


def scheme_of(scheduler, name="block", **options):
    return make_scheme(name, list(scheduler.schedules().values()), **options)


class TestGetWeights:
    @pytest.mark.parametrize(
        ("interpolation", "step", "code"),
        [
            ("linear", 0, 0.2),
            ("linear", 5_000, 0.35),
            ("linear", 10_000, 0.5),
            ("linear", 30_000, 0.65),
            ("linear", 10**9, 0.8),
            ("cosine", 2_500, 0.243934),
            ("cosine", 5_000, 0.35),
            ("cosine", 20_000, 0.543934),
            ("cosine", 30_000, 0.65),
            ("cosine", 40_000, 0.756066),
            ("step", 9_999, 0.2),
            ("step", 10_000, 0.5),
            ("step", 49_999, 0.5),
            ("step", 50_000, 0.8),
        ],
    )
    def test_between_and_after_points(self, interpolation, step, code):
        weights = code_and_text(interpolation).get_weights(step)
        assert weights == pytest.approx({"code": code, "text": 1 - code}, abs=5e-7)

    def test_before_the_first_point_its_weights_hold(self):
        late = WeightScheduler([WeightSchedulePoint(100, {"a": 0.3, "b": 0.7})])
        assert late.get_weights(3) == {"a": 0.3, "b": 0.7}

    def test_each_answer_is_a_dict_of_its_own(self):
        scheduler = code_and_text()
        scheduler.get_weights(0)["code"] = 9.0
        assert scheduler.get_weights(0) == {"code": 0.2, "text": 0.8}

    def test_sums(self):
        WeightSchedulePoint(0, {"a": 0.5, "b": 0.5000005})
        with pytest.raises(WeightError, match=r"sum to 0\.9, not to 1.*normalize=True"):
            WeightSchedulePoint(0, {"a": 0.5, "b": 0.4})
        assert WeightSchedulePoint(0, {"a": 3, "b": 1}, normalize=True).weights == {
            "a": 0.75,
            "b": 0.25,
        }


class TestRefused:
    @pytest.mark.parametrize(
        ("points", "said"),
        [
            ([], "no points"),
            ([(0, 1), (0, 2)], "two points at step 0"),
            ([(5, 1), (3, 2)], "step 3 comes after step 5"),
            ([(-1, 1)], "got -1"),
            ([(0.5, 1)], r"got 0\.5"),
            ([(True, 1)], "got True"),
            ([(0, -1)], "point at step 0.*not negative"),
            ([(0, 1), (7, math.nan)], "point at step 7.*finite"),
            ([(0, math.inf)], "finite"),
            ([(0, "1")], "number"),
            ([(0, 1, 2)], r"got \(0, 1, 2\)"),
        ],
    )
    def test_points(self, points, said):
        with pytest.raises(ConfigError, match=said):
            Schedule(points)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"interpolation": "linaer"}, "did you mean 'linear'"),
            ({"change": "blocks"}, "did you mean 'block'"),
            ({"slots_per_step": 0}, "1 or more"),
            ({"slots_per_step": 2.0}, "whole number"),
        ],
    )
    def test_options(self, options, said):
        with pytest.raises(ConfigError, match=said):
            Schedule([(0, 1)], **options)

    def test_names_of_points(self):
        with pytest.raises(WeightError, match=r"step 9.*missing 'b'; unknown 'c'"):
            WeightScheduler(
                [
                    WeightSchedulePoint(0, {"a": 0.5, "b": 0.5}),
                    WeightSchedulePoint(9, {"a": 0.5, "c": 0.5}),
                ]
            )

    @pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -0.5, "b": 1.5}, [1.0], None])
    def test_weights_of_points(self, weights):
        with pytest.raises(WeightError, match="step 3"):
            WeightSchedulePoint(3, weights)

    @pytest.mark.parametrize("schedule", [[], [(0, {"a": 1})]])
    def test_schedulers_without_points(self, schedule):
        with pytest.raises(ConfigError, match="WeightScheduler"):
            WeightScheduler(schedule)

    @pytest.mark.parametrize("schedule", [None, 5, WeightSchedulePoint(0, {"a": 1})])
    def test_what_is_no_list_of_points(self, schedule):
        with pytest.raises(ConfigError, match="schedule is a list of WeightSchedulePoint"):
            WeightScheduler(schedule)

    @pytest.mark.parametrize("step", [-1, math.nan, "3", None, True, [3]])
    def test_steps_asked_for(self, step):
        with pytest.raises(ConfigError, match="WeightScheduler: a step is a number"):
            code_and_text().get_weights(step)
        with pytest.raises(ConfigError, match="Schedule: a step is a number"):
            Schedule([(0, 1)]).value(step)

    def test_numbers_of_any_kind(self):
        weights = code_and_text().get_weights(5000)
        for step in (np.int64(5000), np.float32(5000), torch.tensor(5000), Fraction(5000)):
            assert code_and_text().get_weights(step) == weights
        assert code_and_text().get_weights(10**400) == code_and_text().get_weights(50_000)
        plain = Schedule([(0, 1), (8, 0.5)], "linear", 4)
        for kind in (np.int64, torch.tensor):
            given = [(kind(0), torch.tensor(1)), (kind(8), np.float32(0.5))]
            assert Schedule(given, "linear", kind(4)) == plain
            assert WeightSchedulePoint(kind(3), {"a": 1}) == WeightSchedulePoint(3, {"a": 1})

    def test_all_zero_for_a_while(self):
        with pytest.raises(WeightError, match="all 2 weights are 0 at slot 10"):
            make_scheme("block", [Schedule([(0, 1), (10, 0), (20, 1)]), 0.0])

    def test_schedules_that_disagree(self):
        weights = [Schedule([(0, 1)], change=change) for change in ("block", "sample")]
        with pytest.raises(ConfigError, match="different values of change"):
            make_scheme("block", weights)

    def test_too_far(self):
        with pytest.raises(ConfigError, match="points may lie up to slot"):
            make_scheme("block", [Schedule([(0, 1), (2**50, 2)]), 1.0])
        far = Schedule([(0, 1), (2**40, 2)], "linear", change="block_start")
        with pytest.raises(ConfigError, match="Use change='block', or a larger block_size"):
            make_scheme("block", [far, 1.0])


class TestBlocks:
    @pytest.mark.parametrize(
        ("block", "code"),
        [
            (0, 200),
            (1, 230),
            (2, 260),
            (5, 350),
            (9, 470),
            (10, 500),
            (11, 508),
            (12, 515),
            (30, 650),
            (50, 800),
        ],
    )
    def test_weights_of_the_first_slot(self, block, code):
        scheme = scheme_of(code_and_text(change="block_start"))
        found = scheme.counts(1000 * (block + 1))[0] - scheme.counts(1000 * block)[0]
        assert abs(found - code) <= 1

    @pytest.mark.parametrize("change", ["block", "sample"])
    def test_the_integral(self, change):
        scheme = scheme_of(code_and_text(change=change))
        assert scheme.counts(1000).tolist() == [215, 785]
        assert scheme.counts(10_000).tolist() == [3500, 6500]
        assert scheme.counts(50_000).tolist() == [29_500, 20_500]
        assert scheme.counts(10**12)[0] == 29_500 + (10**12 - 50_000) * 8 // 10

    @pytest.mark.parametrize(
        ("change", "block_size", "at", "before"),
        [
            ("block", 1000, 1000, 200),
            ("block", 300, 600, 120),
            ("block_start", 300, 600, 120),
        ],
    )
    def test_where_a_step_acts(self, change, block_size, at, before):
        weights = [Schedule([(0, low), (500, 1 - low)], change=change) for low in (0.2, 0.8)]
        scheme = make_scheme("block", weights, block_size=block_size)
        assert scheme.counts(at)[0] == before
        assert scheme.counts(at + block_size)[0] == before + 0.8 * block_size

    @pytest.mark.parametrize("block_size", [1000, 300])
    def test_a_step_that_acts_at_once_cuts_a_block_and_leaves_what_was_before(self, block_size):
        weights = [Schedule([(0, low), (500, 1 - low)], change="sample") for low in (0.2, 0.8)]
        scheme = make_scheme("block", weights, block_size=block_size, key=1)
        plain = make_scheme("block", [0.2, 0.8], block_size=block_size, key=1)
        assert (scheme.locate(np.arange(500))[0] == plain.locate(np.arange(500))[0]).all()
        before = scheme.counts(500)[0]
        assert abs(scheme.counts(500 + block_size)[0] - before - 0.8 * block_size) <= 1

    def test_points_in_one_block_leave_the_last(self):
        weights = [Schedule([(0, 1), (10, 0), (20, 0.25)]), Schedule([(0, 0), (10, 1), (20, 0.75)])]
        scheme = make_scheme("block", weights, block_size=100)
        assert scheme.counts(100).tolist() == [100, 0]
        assert scheme.counts(200).tolist() == [125, 75]

    def test_steps_of_the_optimizer(self):
        in_steps = scheme_of(code_and_text(slots_per_step=64))
        assert in_steps.counts(50_000 * 64).tolist() == [29_500 * 64, 20_500 * 64]

    def test_what_a_block_owes_comes_in_the_next(self):
        rare = Schedule([(0, 0.0005), (100_000, 0.0005)], "linear")
        scheme = make_scheme("block", [1.0, rare])
        assert scheme.counts(100_000)[1] in (49, 50)

    def test_after_the_last_point_it_is_the_plain_scheme(self):
        scheme = make_scheme("block", [Schedule([(0, 1), (1000, 3)]), 1.0], key=3)
        later = scheme.counts(10**15) - scheme.counts(1000)
        assert later[1] == (10**15 - 1000) // 4

    def test_resuming_needs_no_replay(self):
        scheme = make_scheme(
            "block", [Schedule([(0, 1), (10**12, 5)], "cosine"), Schedule([(0, 2)]), 0.5]
        )
        far = np.arange(5 * 10**11, 5 * 10**11 + 3000)
        source, nth = scheme.locate(far)
        expected = scheme.counts(far[0])
        for number in range(3):
            mine = nth[source == number]
            assert mine.tolist() == list(range(expected[number], expected[number] + len(mine)))


class TestExact:
    @pytest.mark.parametrize("interpolation", ["linear", "cosine"])
    def test_shares_that_change_gradually(self, interpolation):
        scheme = scheme_of(code_and_text(interpolation), name="exact")
        check_counts(scheme, 2000, start=9_000)
        assert scheme.counts(10_000).tolist() == [3500, 6500]
        assert scheme.counts(50_000).tolist() == [29_500, 20_500]
        assert scheme.counts(10**12)[0] == 29_500 + (10**12 - 50_000) * 8 // 10

    def test_steps(self):
        scheme = scheme_of(code_and_text("step"), name="exact")
        check_counts(scheme, 2000, start=9_000)
        assert scheme.counts(10_000).tolist() == [2000, 8000]
        assert scheme.counts(50_000).tolist() == [22_000, 28_000]

    def test_roundings_do_not_add_up_over_points(self):
        """In no stretch of ten slots is the first source due a whole one."""
        points = [(slot, 0.04 + 0.01 * (slot // 10 % 2)) for slot in range(0, 10_000, 10)]
        scheme = make_scheme("exact", [Schedule(points), 0.5, 0.46])
        assert scheme.counts(9_990).tolist() == [447, 4970, 4573]

    def test_a_source_that_comes_in_and_goes(self):
        once = Schedule([(0, 0), (1000, 0), (3000, 1), (5000, 0), (9000, 0)], "linear")
        scheme = make_scheme("exact", [once, 1.0])
        exact = 4000 * (1 - math.log(2))  # twice the integral of x / (1 + x)
        counts = [scheme.counts(slot)[0] for slot in (1000, 5000, 9000)]
        assert counts == [0, pytest.approx(exact, abs=1.07), counts[1]]

    def test_resuming_needs_no_replay(self):
        weights = [Schedule([(0, 1), (10**12, 5)], "cosine"), Schedule([(0, 2)]), 0.5]
        check_counts(make_scheme("exact", weights), 500, start=5 * 10**11)


@pytest.mark.parametrize("name", ["block", "exact"])
class TestBlocksAndExact:
    def test_rare_sources_are_not_starved_by_many_stages(self, name):
        on_off = [
            Schedule([(s, (s // 100 + i) % 2) for s in range(0, 50_000, 100)], change="sample")
            for i in (0, 1)
        ]
        scheme = make_scheme(name, [*on_off, 0.004])
        assert 150 <= scheme.counts(50_000)[2] <= 250

    def test_pickled_in_the_middle(self, name):
        scheme = scheme_of(code_and_text(), name)
        slots = np.arange(4000, 9000)
        expected = scheme.locate(slots)
        again = pickle.loads(pickle.dumps(scheme)).locate(slots)
        assert (again[0] == expected[0]).all()
        assert (again[1] == expected[1]).all()


class TestOtherSchemes:
    def test_one_that_cannot_interpolate_names_what_works(self):
        with pytest.raises(ConfigError, match="use 'even', 'exact', 'block' or 'random', or"):
            scheme_of(code_and_text(), name="greedy")

    def test_one_that_takes_no_notice_of_weights(self):
        with pytest.raises(ConfigError, match="'round_robin' takes no notice of weights"):
            scheme_of(code_and_text("step"), name="round_robin")


class TestBlend:
    scheduler = code_and_text()

    def named(self, **options):
        parts = {"text": shuffled(9, 100), "code": shuffled(7)}
        return BlendDataset(parts, weights=self.scheduler, **options)

    def test_matched_by_name(self):
        blend = self.named()
        assert blend.shares() == pytest.approx([0.8, 0.2])
        assert blend.shares(30_000) == pytest.approx([0.35, 0.65])
        drawn = np.bincount(blend.refs(np.arange(50_000)).source)
        assert drawn.tolist() == [20_500, 29_500]

    def test_names_that_differ(self):
        with pytest.raises(WeightError, match=r"missing 'txt'; unknown 'text'; did you mean 'txt'"):
            BlendDataset({"txt": numbers(3), "code": numbers(4)}, weights=self.scheduler)
        with pytest.raises(WeightError, match="missing 'b'"):
            BlendDataset({"a": numbers(3), "b": numbers(4)}, weights={"a": 1})

    def test_weights_without_names(self):
        with pytest.raises(WeightError, match="need datasets by name"):
            BlendDataset((numbers(3), 1), weights={"a": 1})
        with pytest.raises(WeightError, match="got None"):
            BlendDataset({"a": numbers(3)})

    def test_a_schedule_beside_a_number(self):
        rising = Schedule([(0, 0), (10_000, 0.6)], "linear")
        blend = BlendDataset((shuffled(9), rising), (shuffled(9, 100), 0.2))
        assert blend.shares() == [0, 1]
        assert blend.shares(10_000) == pytest.approx([0.75, 0.25])
        x = 3  # the share is x / (1 + x), x growing to 3
        expected = 10_000 * (1 - math.log1p(x) / x)
        assert blend.taken(10_000)[0] == pytest.approx(expected, abs=1)

    def test_a_schedule_inside_a_schedule_multiplies(self):
        inner = BlendDataset((shuffled(5), Schedule([(0, 3), (8000, 1)])), (shuffled(6, 100), 1.0))
        outer = BlendDataset((inner, Schedule([(0, 1), (4000, 3)])), (shuffled(7, 200), 1.0))
        assert len(outer.inputs) == 3
        counts = [outer.taken(slot) for slot in (4000, 8000, 12_000)]
        assert np.diff(counts, axis=0, prepend=0).tolist() == [
            [1500, 500, 2000],
            [2250, 750, 1000],
            [1500, 1500, 1000],
        ]

    def test_a_schedule_inside_a_number(self):
        inner = BlendDataset((shuffled(5), Schedule([(0, 3), (8000, 1)])), (shuffled(6, 100), 1.0))
        outer = BlendDataset((inner, 1), (shuffled(7, 200), 1))
        assert outer.taken(8000) == [3000, 1000, 4000]
        assert outer.shares(8000) == pytest.approx([0.25, 0.25, 0.5])

    def test_equal_datasets_are_merged(self):
        source = shuffled(8)
        rising = Schedule([(0, 1), (1000, 3)])
        blend = BlendDataset((source, rising), (shuffled(8, 100), 2), (source, 1))
        assert len(blend.inputs) == 2
        assert blend.shares(0) == [0.5, 0.5]
        assert blend.shares(1000) == pytest.approx([2 / 3, 1 / 3])

    def test_temperature_of_a_schedule(self):
        rising = Schedule([(0, 1), (1000, 9)])
        blend = BlendDataset((shuffled(8), rising), (shuffled(8, 100), 1), temperature=0.5)
        assert blend.shares(0) == [0.5, 0.5]
        assert blend.shares(1000) == pytest.approx([0.75, 0.25])

    @pytest.mark.parametrize("interpolation", ["step", "linear", "cosine"])
    def test_laws(self, interpolation):
        points = [(0, 1), (17, 4), (30, 0)]
        blend = BlendDataset(
            (shuffled(8), Schedule(points, interpolation)), (shuffled(5, 100), 2), block_size=8
        )
        check_laws(blend, items=40)
        check_laws(LimitDataset(blend, 33), epochs=2)
        mix = MixBatchDataset(
            (shuffled(8), Schedule(points, interpolation)), (shuffled(5, 100), 2), batch_size=4
        )
        check_laws(mix, items=10)

    def test_pickled_and_described(self):
        blend = self.named(block_size=500)
        again = pickle.loads(pickle.dumps(blend))
        assert again.describe() == blend.describe()
        assert again.at(range(900, 1100)) == blend.at(range(900, 1100))
        assert blend.describe()["weights"][1]["points"][1] == [10_000, 0.5]
        assert blend.describe() != self.named().describe()

"""What each wrapper promises, and the cases that broke other loaders."""

from __future__ import annotations

import logging
import pickle
import random
from collections import Counter

import numpy as np
import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    LimitDataset,
    ListSource,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    RepeatDataset,
    SequenceSource,
    ShuffleDataset,
    WorkerConfig,
)
from energize.core.reading import Reading
from energize.errors import (
    ConfigError,
    DataError,
    EmptyDatasetError,
    EncoderError,
    NotIndexedError,
    SkipSample,
    StateError,
    SubstitutionError,
)
from tests.support.datasets import is_even, noisy, numbers, shuffled


def epoch(dataset, number):
    return dataset.at(np.arange(number * len(dataset), (number + 1) * len(dataset)))


class TestRepeat:
    def test_every_epoch_has_two_and_a_half_passes(self):
        repeated = RepeatDataset(shuffled(10), 2.5)
        for number in range(5):
            visits = Counter(epoch(repeated, number))
            assert sum(visits.values()) == 25
            assert set(visits.values()) == {2, 3}

    def test_the_fractional_pass_takes_other_samples_each_epoch(self):
        repeated = RepeatDataset(shuffled(10), 1.5)
        extra = [
            {value for value, visits in Counter(epoch(repeated, number)).items() if visits == 2}
            for number in range(6)
        ]
        assert len(set(map(frozenset, extra))) > 1

    def test_a_decimal_fraction_is_not_truncated(self):
        assert len(RepeatDataset(numbers(100), 0.29)) == 29
        assert len(RepeatDataset(numbers(100), 0.57)) == 57

    @pytest.mark.parametrize("repeats", [0, -1, float("nan"), float("inf"), "2", True])
    def test_refuses(self, repeats):
        with pytest.raises(ConfigError, match="RepeatDataset"):
            RepeatDataset(numbers(3), repeats)

    def test_refuses_to_leave_nothing(self):
        with pytest.raises(ConfigError, match="leave no item"):
            RepeatDataset(numbers(3), 0.1)

    def test_passes_over_a_stream_cannot_be_counted(self):
        with pytest.raises(NotIndexedError, match="whole number of passes"):
            RepeatDataset(FilterDataset(numbers(3), is_even), 2.5)

    def test_whole_passes_over_a_stream(self):
        assert list(RepeatDataset(FilterDataset(numbers(5), is_even), 2)) == [0, 2, 4, 0, 2, 4]


class TestEpochize:
    def test_repeats_for_ever(self):
        epochs = EpochizeDataset(numbers(10), 6)
        assert [len(epoch(epochs, n)) for n in range(5)] == [6] * 5
        assert epoch(epochs, 0) + epoch(epochs, 1) == [*range(10), 0, 1]

    def test_num_epochs_of_a_finite_dataset(self):
        assert len(EpochizeDataset(numbers(10), num_epochs=10)) == 100

    def test_num_epochs_of_an_endless_dataset_are_passes_over_what_it_reads(self):
        assert len(EpochizeDataset(RepeatDataset(numbers(3)), num_epochs=2)) == 6

    def test_num_epochs_of_a_stream_of_unknown_length(self):
        with pytest.raises(NotIndexedError, match="only known when they have been read"):
            EpochizeDataset(FilterDataset(numbers(3), is_even), num_epochs=2)

    @pytest.mark.parametrize("given", [{}, {"length": 3, "num_epochs": 2}, {"length": 0}])
    def test_refuses(self, given):
        with pytest.raises(ConfigError, match="EpochizeDataset"):
            EpochizeDataset(numbers(3), **given)


class TestConcat:
    def test_resumes_where_it_stopped(self):
        parts = ConcatDataset(numbers(10), numbers(10, 100))
        cursor = parts.open()
        first = [next(cursor) for _ in range(14)]
        rest = list(parts.open(state=cursor.state()))
        assert first + rest == [*range(10), *range(100, 110)]

    def test_an_endless_dataset_hides_the_ones_after_it(self):
        with pytest.raises(ConfigError, match=r"dataset 0 .* never ends"):
            ConcatDataset(RepeatDataset(numbers(2)), numbers(3))

    def test_refuses_nothing(self):
        with pytest.raises(ConfigError, match="no datasets"):
            ConcatDataset()

    def test_many_datasets(self):
        many = ConcatDataset(*(numbers(3, 10 * i) for i in range(500)))
        assert len(many) == 1500
        assert many[1499] == 4992


class TestBatch:
    def test_short_last_batch_in_every_epoch(self):
        batches = BatchDataset(numbers(7), 3, list)
        assert [len(batch) for n in range(3) for batch in epoch(batches, n)] == [3, 3, 1] * 3

    def test_drop_last_is_a_flag(self):
        with pytest.raises(ConfigError, match="drop_last is True or False; got 'no'"):
            BatchDataset(numbers(7), 2, list, drop_last="no")

    def test_drop_last_that_drops_everything(self):
        with pytest.raises(ConfigError, match="cannot fill one batch of 8"):
            BatchDataset(numbers(7), 8, list, drop_last=True)

    @pytest.mark.parametrize("size", [0, -3, 2.0, None, True])
    def test_refuses(self, size):
        with pytest.raises(ConfigError, match="batch_size"):
            BatchDataset(numbers(7), size, list)

    def test_batches_stay_full_when_samples_are_skipped(self):
        def no_small_ones(item):
            if item < 10:
                raise SkipSample
            return item

        batches = BatchDataset(MapDataset(shuffled(40), no_small_ones), 8, list)
        for batch in batches:
            assert len(batch) == 8
            assert min(batch) >= 10


class TestMap:
    def test_augmentations_are_a_function_of_the_position(self):
        drawn = MapDataset(numbers(20), noisy)
        values = list(drawn)
        assert len({value[1:] for value in values}) == 20
        assert drawn[7] == values[7]
        assert MapDataset(numbers(20), noisy).reseeded(1)[7] != values[7]

    def test_the_callers_generators_are_left_as_they_were(self):
        np.random.seed(3)
        expected = np.random.rand(2).tolist()
        np.random.seed(3)
        found = [np.random.rand()]
        list(MapDataset(numbers(5), noisy))
        assert [*found, np.random.rand()] == expected

    def test_an_encoder_that_raises_says_where(self):
        def broken(item):
            return item / 0

        with pytest.raises(
            EncoderError, match=r"broken raised ZeroDivisionError.*\n.*sample 3"
        ) as e:
            MapDataset(ListSource(range(5), name="mine"), broken)[3]
        assert isinstance(e.value.__cause__, ZeroDivisionError)
        assert "mine" in str(e.value)

    def test_damaged_samples_are_reported_and_substituted(self):
        def damaged(item):
            if item == 3:
                raise DataError("bad bytes")
            return item

        reported = []
        items = MapDataset(numbers(5), damaged).at(range(5), Reading(report=reported.append))
        assert len(items) == 5
        assert 3 not in items
        assert ["sample 3: DataError: bad bytes" in str(each) for each in reported] == [True]

    def test_everything_skipped_is_an_error_not_a_hang(self):
        def nothing(item):
            raise SkipSample

        with pytest.raises(SubstitutionError, match="255 substitutes were all skipped"):
            MapDataset(numbers(5), nothing)[0]

    def test_not_a_function(self):
        with pytest.raises(ConfigError, match="map_fn"):
            MapDataset(numbers(3), None)

    def test_what_is_done_with_items_does_not_change_the_order_of_a_mix(self):
        def refs(*wrapped):
            return BlendDataset((wrapped[0], 1), (wrapped[1], 1)).refs(range(200)).index.tolist()

        one, other = shuffled(50), shuffled(60, 100)
        mapped = MapDataset(MapDataset(one, noisy), str)
        assert refs(mapped, LogSampleDataset(other)) == refs(one, other)

    def test_maps_on_top_of_one_another_draw_apart(self):
        def draw(item):
            return [*item, random.random()] if isinstance(item, list) else [random.random()]

        first, second = MapDataset(MapDataset(numbers(3), draw), draw)[1]
        assert first != second


class TestFilter:
    def test_has_no_positions(self):
        stream = BatchDataset(FilterDataset(numbers(9), is_even), 2, list)
        assert list(stream) == [[0, 2], [4, 6], [8]]
        for asked in (lambda: stream[0], lambda: len(stream)):
            with pytest.raises(NotIndexedError, match="FilterDataset"):
                asked()
        with pytest.raises(NotIndexedError, match="FilterDataset"):
            ShuffleDataset(FilterDataset(numbers(9), is_even)).open()

    def test_a_condition_that_is_never_true_ends(self):
        endless = FilterDataset(
            RepeatDataset(numbers(3)), lambda item: False, max_rejected_in_a_row=50
        )
        with pytest.raises(EmptyDatasetError, match="50 items in a row"):
            next(endless.open())

    def test_an_empty_stream_repeated_is_an_error(self):
        with pytest.raises(EmptyDatasetError, match="no item in a whole epoch"):
            next(RepeatDataset(FilterDataset(numbers(3), lambda item: False)).open())


class TestLimit:
    def test_takes_the_first_of_each_epoch(self):
        assert list(LimitDataset(numbers(9), 4)) == [0, 1, 2, 3]
        assert epoch(LimitDataset(numbers(9), 4), 1) == [0, 1, 2, 3]
        assert len(LimitDataset(numbers(3), 4)) == 3


class TestMixBatch:
    def test_batches_hold_the_shares(self):
        mix = MixBatchDataset((numbers(10), 6), (numbers(10, 100), 4), batch_size=10)
        drawn = Counter(value >= 100 for batch in mix.at(range(100)) for value in batch)
        assert drawn == {False: 600, True: 400}

    def test_needs_a_batch_size(self):
        with pytest.raises(ConfigError, match="batch_size"):
            MixBatchDataset((numbers(10), 6), batch_size=0)


class TestLogSample:
    def test_writes_json_lines(self, caplog):
        with caplog.at_level(logging.INFO, logger="energize.samples"):
            list(LogSampleDataset(ListSource([{"__key__": "a"}]), "train"))
        assert caplog.messages == ['{"mode": "train", "position": 0, "keys": "a"}']


class TestShuffle:
    def test_runs_stay_together(self):
        order = list(shuffled(20, max_samples_per_sequence=5))
        assert all(order[i : i + 5] == [*range(order[i], order[i] + 5)] for i in range(0, 20, 5))

    def test_an_endless_dataset_cannot_be_permuted(self):
        with pytest.raises(ConfigError, match="never ends"):
            ShuffleDataset(RepeatDataset(numbers(3)))

    @pytest.mark.parametrize("name", ["shuffle_buffer_size", "max_samples_per_sequence"])
    def test_refuses(self, name):
        with pytest.raises(ConfigError, match=name):
            ShuffleDataset(numbers(3), **{name: 0})


class TestDescriptions:
    def test_frozen(self):
        with pytest.raises(ConfigError, match="frozen"):
            numbers(3).seed = 2

    def test_pickled_descriptions_give_the_same_items(self):
        blend = BlendDataset((shuffled(5), 1), (MapDataset(shuffled(6, 50), noisy), 1))
        again = pickle.loads(pickle.dumps(blend))
        assert again.at(range(20)) == blend.at(range(20))

    def test_reseeding_changes_orders_and_draws(self):
        blend = BlendDataset((shuffled(50), 1), (shuffled(50, 100), 1))
        assert blend.reseeded(1).at(range(100)) != blend.at(range(100))
        assert blend.reseeded(0) == blend

    def test_a_worker_config_given_to_a_wrapper_seeds_what_is_below(self):
        config = WorkerConfig(seed_offset=5)
        blend = BlendDataset((shuffled(50), 1), (shuffled(50, 100), 1), worker_config=config)
        plain = BlendDataset((shuffled(50), 1), (shuffled(50, 100), 1))
        assert blend.at(range(100)) == plain.reseeded(5).at(range(100))
        assert MapDataset(blend, str, worker_config=config).at([3]) == [str(blend[3])]

    def test_two_worker_configs_in_one_tree(self):
        with pytest.raises(ConfigError, match="different worker configs"):
            BlendDataset(
                (numbers(3)._with_worker_config(WorkerConfig(num_workers=1)), 1),
                (numbers(4)._with_worker_config(WorkerConfig(num_workers=2)), 1),
            )

    def test_not_a_dataset(self):
        with pytest.raises(ConfigError, match="SequenceSource"):
            MapDataset([1, 2, 3], str)

    def test_an_object_without_length(self):
        with pytest.raises(ConfigError, match="__len__"):
            SequenceSource(iter([1]))

    def test_positions_like_those_of_a_list(self):
        assert numbers(3)[-1] == 2
        with pytest.raises(IndexError):
            numbers(3)[3]

    @pytest.mark.parametrize("state", [{}, {"position": "3"}, {"position": -1}, {"position": None}])
    def test_unusable_states(self, state):
        with pytest.raises(StateError, match="position"):
            numbers(3).open(state=state)

    def test_nothing_to_read(self):
        with pytest.raises(EmptyDatasetError):
            numbers(0).open()

"""What each wrapper promises, and the cases that broke other loaders."""

from __future__ import annotations

import gc
import logging
import pickle
import random

import numpy as np
import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    GcDataset,
    LimitDataset,
    ListSource,
    MapDataset,
    MixBatchDataset,
    RepeatDataset,
    SequenceSource,
    ShuffleDataset,
    WorkerConfig,
)
from energize.core.trace import Reading
from energize.datasets.transform import WatchdogDataset
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
    def test_a_decimal_fraction_is_not_truncated(self):
        assert len(RepeatDataset(numbers(100), 0.29)) == 29
        assert len(RepeatDataset(numbers(100), 0.57)) == 57
        assert len(RepeatDataset(numbers(9), 0.5)) == 5


class TestBatch:
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

    def test_maps_on_top_of_one_another_draw_apart(self):
        def draw(item):
            return [*item, random.random()] if isinstance(item, list) else [random.random()]

        first, second = MapDataset(MapDataset(numbers(3), draw), draw)[1]
        assert first != second


class TestFilter:
    def test_what_is_rejected_is_counted_anew_after_each_item(self):
        tens = FilterDataset(
            RepeatDataset(numbers(30)), lambda item: item % 10 == 0, max_rejected_in_a_row=10
        )
        assert list(LimitDataset(tens, 12)) == [0, 10, 20] * 4

    def test_a_condition_that_is_never_true_ends(self):
        endless = FilterDataset(
            RepeatDataset(numbers(3)), lambda item: False, max_rejected_in_a_row=50
        )
        with pytest.raises(EmptyDatasetError, match="50 items in a row"):
            next(endless.open())


class TestDescriptions:
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


def filtered(count=3):
    return FilterDataset(numbers(count), is_even)


REFUSED = {
    "0 passes": (lambda: RepeatDataset(numbers(3), 0), "RepeatDataset"),
    "NaN passes": (lambda: RepeatDataset(numbers(3), float("nan")), "RepeatDataset"),
    "passes without end": (lambda: RepeatDataset(numbers(3), float("inf")), "RepeatDataset"),
    "passes as text": (lambda: RepeatDataset(numbers(3), "2"), "RepeatDataset"),
    "too little of a pass": (lambda: RepeatDataset(numbers(3), 0.1), "leave no item"),
    "parts of a stream": (lambda: RepeatDataset(filtered(), 2.5), "whole number of passes"),
    "passes of a stream": (
        lambda: EpochizeDataset(filtered(), num_epochs=2),
        "only known when they have been read",
    ),
    "no length": (lambda: EpochizeDataset(numbers(3)), "EpochizeDataset"),
    "a length twice": (lambda: EpochizeDataset(numbers(3), 3, num_epochs=2), "EpochizeDataset"),
    "a length of 0": (lambda: EpochizeDataset(numbers(3), 0), "EpochizeDataset"),
    "nothing comes after": (
        lambda: ConcatDataset(RepeatDataset(numbers(2)), numbers(3)),
        "dataset 0 .* never ends",
    ),
    "nothing to join": (ConcatDataset, "no datasets"),
    "a flag": (
        lambda: BatchDataset(numbers(7), 2, list, drop_last="no"),
        "True or False; got 'no'",
    ),
    "all is dropped": (
        lambda: BatchDataset(numbers(7), 8, list, drop_last=True),
        "cannot fill one batch of 8",
    ),
    "batches of 0": (lambda: BatchDataset(numbers(7), 0, list), "batch_size"),
    "batches of 2.0": (lambda: BatchDataset(numbers(7), 2.0, list), "batch_size"),
    "batches of True": (lambda: BatchDataset(numbers(7), True, list), "batch_size"),
    "mixed batches of 0": (lambda: MixBatchDataset((numbers(9), 6), batch_size=0), "batch_size"),
    "no function": (lambda: MapDataset(numbers(3), None), "map_fn"),
    "a shuffle without end": (lambda: ShuffleDataset(RepeatDataset(numbers(3))), "never ends"),
    "a window of 0": (lambda: ShuffleDataset(numbers(3), shuffle_buffer_size=0), "shuffle_buffer"),
    "runs of 0": (
        lambda: ShuffleDataset(numbers(3), max_samples_per_sequence=0),
        "max_samples_per_sequence",
    ),
    "a shuffled stream": (lambda: ShuffleDataset(filtered()).open(), "FilterDataset"),
    "an index of a stream": (lambda: filtered()[0], "FilterDataset"),
    "a length of a stream": (lambda: len(BatchDataset(filtered(), 2, list)), "FilterDataset"),
    "two worker configs": (
        lambda: BlendDataset(
            (numbers(3)._with_worker_config(WorkerConfig(num_workers=1)), 1),
            (numbers(4)._with_worker_config(WorkerConfig(num_workers=2)), 1),
        ),
        "different worker configs",
    ),
    "a list": (lambda: MapDataset([1, 2, 3], str), "SequenceSource"),
    "no length at all": (lambda: SequenceSource(iter([1])), "__len__"),
    "a changed description": (lambda: setattr(numbers(3), "seed", 2), "frozen"),
    "nothing to read": (lambda: numbers(0).open(), "no items"),
    "an empty stream": (
        lambda: next(RepeatDataset(FilterDataset(numbers(3), lambda item: False)).open()),
        "no item in a whole epoch",
    ),
    "a state without a position": (lambda: numbers(3).open(state={}), "position"),
    "a position as text": (lambda: numbers(3).open(state={"position": "3"}), "position"),
    "a position before 0": (lambda: numbers(3).open(state={"position": -1}), "position"),
    "garbage after 0 items": (lambda: GcDataset(ListSource([1]), every_n_iter=0), "every_n_iter"),
}
ERRORS = ConfigError, EmptyDatasetError, NotIndexedError, StateError


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, told = REFUSED[name]
    with pytest.raises(ERRORS, match=told):
        make()


class TestGc:
    def test_garbage_is_collected_after_every_so_many_items(self, monkeypatch):
        collected = []
        monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
        assert list(GcDataset(ListSource(range(10)), every_n_iter=3)) == list(range(10))
        assert len(collected) == 3

    def test_the_loader_watches(self, caplog, monkeypatch):
        monkeypatch.setattr("energize.core.ignored._said", set())
        caplog.set_level(logging.INFO, "energize")
        dataset = WatchdogDataset(ListSource("ab"), WorkerConfig(), 5, fail_on_timeout=True)
        assert list(dataset) == ["a", "b"]
        assert "watchdog_timeout_seconds" in caplog.text

"""What each wrapper promises, and the cases that broke other loaders."""

from __future__ import annotations

import logging

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    FilterDataset,
    GcDataset,
    ListSource,
    MapDataset,
    MixBatchDataset,
    RepeatDataset,
    SequenceSource,
    ShuffleDataset,
    WorkerConfig,
)
from energize.datasets.transform import WatchdogDataset
from energize.errors import ConfigError, EmptyDatasetError, NotIndexedError, StateError
from tests.support.datasets import is_even, numbers


def filtered(count=3):
    return FilterDataset(numbers(count), is_even)


REFUSED = {
    "0 passes": (lambda: RepeatDataset(numbers(3), 0), "RepeatDataset"),
    "NaN passes": (lambda: RepeatDataset(numbers(3), float("nan")), "RepeatDataset"),
    "passes without end": (
        lambda: RepeatDataset(numbers(3), float("inf")),
        "RepeatDataset",
    ),
    "passes as text": (lambda: RepeatDataset(numbers(3), "2"), "RepeatDataset"),
    "too little of a pass": (
        lambda: RepeatDataset(numbers(3), 0.1),
        "result in no items",
    ),
    "parts of a stream": (
        lambda: RepeatDataset(filtered(), 2.5),
        "whole number of passes",
    ),
    "passes of a stream": (
        lambda: EpochizeDataset(filtered(), num_epochs=2),
        "known only by reading",
    ),
    "no length": (lambda: EpochizeDataset(numbers(3)), "EpochizeDataset"),
    "a length twice": (
        lambda: EpochizeDataset(numbers(3), 3, num_epochs=2),
        "EpochizeDataset",
    ),
    "a length of 0": (lambda: EpochizeDataset(numbers(3), 0), "EpochizeDataset"),
    "nothing comes after": (
        lambda: ConcatDataset(RepeatDataset(numbers(2)), numbers(3)),
        "dataset 0 .* never ends",
    ),
    "nothing to join": (ConcatDataset, "datasets is empty"),
    "a flag": (
        lambda: BatchDataset(numbers(7), 2, list, drop_last="no"),
        "True or False, got 'no'",
    ),
    "all is dropped": (
        lambda: BatchDataset(numbers(7), 8, list, drop_last=True),
        "cannot fill one batch of 8",
    ),
    "batches of 0": (lambda: BatchDataset(numbers(7), 0, list), "batch_size"),
    "batches of 2.0": (lambda: BatchDataset(numbers(7), 2.0, list), "batch_size"),
    "batches of True": (lambda: BatchDataset(numbers(7), True, list), "batch_size"),
    "mixed batches of 0": (
        lambda: MixBatchDataset((numbers(9), 6), batch_size=0),
        "batch_size",
    ),
    "no function": (lambda: MapDataset(numbers(3), None), "map_fn"),
    "a shuffle without end": (
        lambda: ShuffleDataset(RepeatDataset(numbers(3))),
        "never ends",
    ),
    "a window of 0": (
        lambda: ShuffleDataset(numbers(3), shuffle_buffer_size=0),
        "shuffle_buffer",
    ),
    "runs of 0": (
        lambda: ShuffleDataset(numbers(3), max_samples_per_sequence=0),
        "max_samples_per_sequence",
    ),
    "a shuffled stream": (lambda: ShuffleDataset(filtered()).open(), "FilterDataset"),
    "an index of a stream": (lambda: filtered()[0], "FilterDataset"),
    "a length of a stream": (
        lambda: len(BatchDataset(filtered(), 2, list)),
        "FilterDataset",
    ),
    "two worker configs": (
        lambda: BlendDataset(
            (numbers(3).with_worker_config(WorkerConfig(num_workers=1)), 1),
            (numbers(4).with_worker_config(WorkerConfig(num_workers=2)), 1),
        ),
        "different worker configs",
    ),
    "a list": (lambda: MapDataset([1, 2, 3], str), "SequenceSource"),
    "no length at all": (lambda: SequenceSource(iter([1])), "__len__"),
    "a changed description": (lambda: setattr(numbers(3), "seed", 2), "frozen"),
    "nothing to read": (lambda: numbers(0).open(), "no items"),
    "a condition that is never true": (
        lambda: next(
            FilterDataset(RepeatDataset(numbers(3)), lambda item: False).open()
        ),
        "10000 consecutive items",
    ),
    "an empty stream": (
        lambda: next(
            RepeatDataset(FilterDataset(numbers(3), lambda item: False)).open()
        ),
        "no item in a whole epoch",
    ),
    "a state without a position": (lambda: numbers(3).open(state={}), "position"),
    "a position as text": (
        lambda: numbers(3).open(state={"position": "3"}),
        "position",
    ),
    "a position before 0": (
        lambda: numbers(3).open(state={"position": -1}),
        "position",
    ),
    "garbage after 0 items": (
        lambda: GcDataset(ListSource([1]), every_n_iter=0),
        "every_n_iter",
    ),
}
ERRORS = ConfigError, EmptyDatasetError, NotIndexedError, StateError


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, told = REFUSED[name]
    with pytest.raises(ERRORS, match=told):
        make()


def test_the_loader_watches(caplog, monkeypatch):
    monkeypatch.setattr("energize.core.ignored._logged", set())
    caplog.set_level(logging.INFO, "energize")
    dataset = WatchdogDataset(ListSource("ab"), WorkerConfig(), 5, fail_on_timeout=True)
    assert list(dataset) == ["a", "b"]
    assert "timeout_seconds=5 has no effect" in caplog.text


class OwnBlend(BlendDataset):
    """A user's blend, in the order of the package's."""

    order_name = "BlendDataset"


def test_a_subclass_of_a_blend_reads_as_the_blend_does():
    parts = [(ListSource("abc"), 2), (ListSource("xyz"), 1)]
    assert OwnBlend(*parts).at(range(9)) == BlendDataset(*parts).at(range(9))

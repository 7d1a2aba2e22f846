"""A training loop that takes each item before it trains on the one before it."""

from __future__ import annotations

from itertools import islice

import pytest

from energize import EpochizeDataset, FilterDataset, LimitDataset, RepeatDataset
from tests.support.datasets import is_even, shuffled
from tests.support.loading import loader_of

STREAM = FilterDataset(shuffled(30), is_even)
DATASETS = {
    "indexed": shuffled(9),
    "counted": EpochizeDataset(shuffled(20), 7),
    "stream": STREAM,
    "counted stream": EpochizeDataset(RepeatDataset(STREAM), 7),
    "sized stream": LimitDataset(RepeatDataset(STREAM), 11),
}


def ahead(loader):
    """What a loop trains on that takes an item ahead; the state after each."""
    iterator = iter(loader)
    waiting = list(islice(iterator, 1))
    while waiting:
        item = waiting.pop(0)
        waiting.extend(islice(iterator, 1))
        yield item, loader.state_dict()


@pytest.mark.parametrize("name", DATASETS)
def test_the_state_is_the_one_after_what_was_trained_on(name):
    dataset = DATASETS[name]
    with loader_of(dataset, lanes=2) as plain:
        epochs = [list(plain) for _ in range(3)]
    with loader_of(dataset, 2, lanes=2, asked_ahead=True) as loader:
        assert next(iter(loader)) == epochs[0][0]  # and left, before anything was trained on
        trained = [list(ahead(loader)) for _ in range(2)]
    assert [[item for item, _ in each] for each in trained] == epochs[:2]
    for epoch in range(2):
        for done, (_, state) in enumerate(trained[epoch], 1):
            with loader_of(dataset, lanes=2, asked_ahead=True) as resumed:
                resumed.load_state_dict(state)
                rest = epochs[epoch][done:] or epochs[epoch + 1]
                assert list(resumed) == rest, (epoch, done)


@pytest.mark.parametrize("name", DATASETS)
def test_a_loop_that_is_left_early_does_not_count_what_was_asked_ahead(name):
    with loader_of(DATASETS[name], lanes=2) as plain:
        epoch = list(plain)
    with loader_of(DATASETS[name], 1, lanes=2, asked_ahead=True) as loader:
        trained = [item for item, _ in islice(ahead(loader), 3)]
        trained += [item for item, _ in islice(ahead(loader), 2)]
        trained += [item for item, _ in ahead(loader)]
    assert trained == epoch

"""Loaders whose state counts confirmed items, and loaders that are pickled."""

from __future__ import annotations

import json
import multiprocessing.context
import pickle
from itertools import islice

import pytest

from energize import (
    BatchDataset,
    FilterDataset,
    ListSource,
    LoaderError,
    StateError,
    get_loader,
)
from tests.support.datasets import is_even, shuffled
from tests.support.loading import loader_of, take

DATASETS = {
    "indexed": shuffled(40),
    "stream": FilterDataset(shuffled(80), is_even),
}


def confirming(dataset, workers: int = 0):
    loader = loader_of(dataset, workers)
    loader.require_confirmation()
    return loader


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.jobs)])
@pytest.mark.parametrize("name", DATASETS)
def test_a_state_counts_the_items_that_were_confirmed(name, workers):
    with loader_of(DATASETS[name]) as plain:
        whole = take(plain, 60)
    with confirming(DATASETS[name], workers) as loader:
        items = iter(loader)
        for confirmed in range(10):
            assert [next(items)] == whole[
                confirmed + 1 : confirmed + 2
            ] or not confirmed
            if not confirmed:
                assert next(items) == whole[1]
            loader.confirm()
            with loader_of(DATASETS[name]) as other:
                other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
                assert take(other, 3) == whole[confirmed + 1 : confirmed + 4]


@pytest.mark.parametrize("name", DATASETS)
def test_a_loop_that_was_left_delivers_unconfirmed_items_again(name):
    with loader_of(DATASETS[name]) as plain:
        whole = take(plain, 60)
    with confirming(DATASETS[name]) as loader:
        items = iter(loader)
        assert list(islice(items, 4)) == whole[:4]
        loader.confirm()
        assert list(islice(loader, 2)) == whole[1:3]
        loader.discard_unconfirmed()
        assert list(islice(loader, 2)) == whole[1:3]
        assert loader.report().total.counts.samples == 3


def test_a_loop_that_ended_has_its_last_items_confirmed_in_the_next():
    with loader_of(shuffled(5)) as plain:
        whole = take(plain, 10)
    with confirming(shuffled(5)) as loader:
        assert list(loader) == whole[:5]
        items = iter(loader)
        assert next(items) == whole[5]
        for _ in range(5):
            loader.confirm()
        with loader_of(shuffled(5)) as other:
            other.load_state_dict(loader.state_dict())
            assert list(other) == whole[5:]


def test_a_loop_that_confirms_nothing_is_an_error():
    with confirming(shuffled(40)) as loader:
        items = iter(loader)
        list(islice(items, 16))
        with pytest.raises(LoaderError, match="none of the last 16 items"):
            next(items)


def test_confirm_needs_a_loader_that_requires_it():
    with pytest.raises(LoaderError, match=r"Call require_confirmation\(\) first"):
        loader_of(shuffled(4)).confirm()


def test_losses_belong_to_the_first_unconfirmed_item():
    loader = get_loader(BatchDataset(ListSource(range(8), name="web"), 2, list))
    loader.require_confirmation()
    items = iter(loader)
    batch = next(items)
    for following in items:
        loader.record_losses([float(number) for number in batch])
        loader.confirm()
        batch = following
    loader.record_losses([float(number) for number in batch])
    loader.confirm()
    assert loader.report()["web"].losses.mean == 3.5


def test_a_state_and_rewind_forget_what_is_unconfirmed():
    with confirming(shuffled(9)) as loader:
        start = loader.state_dict()
        first = list(islice(loader, 3))
        loader.load_state_dict(start)
        assert list(islice(loader, 3)) == first
        loader.rewind()
        assert loader.state_dict() == start


def test_a_started_loader_is_pickled_only_for_a_process_that_is_spawned():
    loader = loader_of(shuffled(9))
    whole = take(loader_of(shuffled(9)), 9)
    assert take(pickle.loads(pickle.dumps(loader)), 3) == whole[:3]
    assert not loader.has_started
    take(loader, 2)
    assert loader.has_started
    with pytest.raises(StateError, match=r"Save loader\.state_dict"):
        pickle.dumps(loader)
    multiprocessing.context.set_spawning_popen(object())
    try:
        copy = pickle.loads(pickle.dumps(loader))
    finally:
        multiprocessing.context.set_spawning_popen(None)
    assert take(copy, 3) == whole[2:5]


def test_the_end_of_a_loop_is_known_with_its_last_item():
    loader = loader_of(shuffled(3))
    assert [loader.at_loop_end for _ in loader] == [False, False, True]

"""The names and arguments that loaders have in Megatron-Energon, and what went wrong with them."""

from __future__ import annotations

import importlib
import logging
import threading
from itertools import islice

import pytest
from energize.savable_loader import SavableDataLoader as AtItsPath

from energize import (
    BasicDataLoader,
    BatchDataset,
    ConfigError,
    Loader,
    MapDataset,
    SavableDataLoader,
    SavableDataLoaderState,
    WorkerConfig,
    get_loader,
    get_savable_loader,
)
from tests.support.datasets import numbers, shuffled
from tests.support.loading import loader_of

ARGUMENTS = {
    "checkpoint_every_sec": 60,
    "checkpoint_every_min_n_samples": 4,
    "n_checkpoints": 3,
    "gc_collect_every_n_steps": 10,
    "prefetch_factor": 2,
    "cache_pool": None,
    "watchdog_timeout_seconds": 60,
    "watchdog_initial_timeout_seconds": None,
    "fail_on_timeout": False,
}


@pytest.mark.parametrize("make", [get_savable_loader, get_loader, SavableDataLoader])
def test_every_argument_is_taken(make):
    loader = make(numbers(5), worker_config=WorkerConfig(0, 1, 1), **ARGUMENTS)
    with loader:
        assert list(loader) == list(range(5))
        assert len(loader) == 5
        assert loader.config()["kind"] == "ListSource"
    assert isinstance(loader, SavableDataLoader)
    assert isinstance(loader, BasicDataLoader)
    assert isinstance(loader, Loader)
    assert AtItsPath is SavableDataLoader
    assert isinstance(loader.save_state_rank(), SavableDataLoaderState)


def test_an_argument_that_nobody_has():
    with pytest.raises(TypeError, match="unexpected keyword argument 'checkpoint_every'"):
        get_savable_loader(numbers(5), checkpoint_every=60)
    with pytest.raises(ConfigError, match="got list"):
        SavableDataLoader([1, 2])


def test_what_has_no_effect_is_told_of(caplog, monkeypatch):
    monkeypatch.setattr(importlib.import_module("energize.core.ignored"), "_said", set())
    caplog.set_level(logging.INFO, "energize")
    get_savable_loader(numbers(5), **ARGUMENTS)
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == 4
    assert any("get_loader: checkpoint_every_sec=60 has no effect" in each for each in told)


# A state after fewer items than workers, and another one


# Loops of a number of steps, over something that ends


# What was misused in silence


# Nothing is kept in classes


def test_loaders_in_threads_of_one_process():
    datasets = [
        BatchDataset(MapDataset(shuffled(60, start), abs, seeded=False), 4, list)
        for start in (0, 1000, 2000)
    ]
    alone = [list(loader_of(each)) for each in datasets]
    found: dict[int, list] = {}

    def read(number: int) -> None:
        found[number] = [list(loader_of(datasets[number])) for _ in range(5)]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {number: [alone[number]] * 5 for number in range(3)}


def test_a_loader_inside_a_function_of_another_one():
    def inner(number):
        return number, list(islice(iter(loader_of(shuffled(9, 10 * number))), 3))

    expected = [inner(number) for number in range(4)]
    assert list(loader_of(MapDataset(numbers(4), inner))) == expected

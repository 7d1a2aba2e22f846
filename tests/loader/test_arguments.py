"""What `get_loader` accepts, refuses and takes from elsewhere; names of Energon."""

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
    BlendDataset,
    ConfigError,
    FilterDataset,
    Loader,
    MapDataset,
    SavableDataLoader,
    SavableDataLoaderState,
    WorkerConfig,
    get_loader,
    get_savable_loader,
)
from energize.data.memory import ListSource
from energize.errors import EmptyDatasetError
from tests.support.datasets import is_even, numbers, shuffled
from tests.support.loading import loader_of


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"prefetch_factor": 2.0}, "prefetch_factor"),
        ({"failure_budget": -1}, "failure_budget"),
        ({"failure_budget": True}, "failure_budget"),
        ({"prefetch_bytes": 0}, "prefetch_bytes"),
        ({"lanes": 0}, "lanes"),
        ({"uneven": "padd"}, "did you mean 'pad'"),
        ({"on_error": "ignore"}, "on_error"),
        ({"global_batch_size": 4}, "micro_batch_size"),
        ({"global_batch_size": 4, "micro_batch_size": 3}, "whole number of micro batches"),
        ({"timeout": 0}, "timeout"),
        ({"watchdog_timeout_seconds": -1.0}, "watchdog_timeout_seconds"),
        ({"watchdog_initial_timeout_seconds": True}, "watchdog_initial_timeout_seconds"),
        ({"asked_ahead": 1}, "asked_ahead"),
        ({"fail_on_timeout": "yes"}, "fail_on_timeout"),
        ({"cache_pool": "pool"}, "cache_pool"),
        ({"ledger": 3}, "ledger"),
        ({"quarantine": 3}, "quarantine"),
        ({"timeout": float("nan")}, "timeout"),
        ({"multiprocessing_context": "thread"}, r"fork.*'thread'"),
    ],
)
def test_values_that_cannot_be_used(options, message):
    with pytest.raises(ConfigError, match=message):
        get_loader(numbers(5), **options)


@pytest.mark.parametrize("uneven", ["pad", "drop", "repeat", "allow"])
def test_an_empty_dataset(uneven):
    with pytest.raises(EmptyDatasetError):
        list(get_loader(ListSource([]), uneven=uneven))


def test_without_any_config_a_plain_process_reads_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    config = get_loader(numbers(5)).worker_config
    assert (config.rank, config.world_size, config.num_workers) == (0, 1, 0)


def test_without_any_config_the_rank_is_that_of_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(get_loader(numbers(9))) == [1, 4, 7]


def test_the_config_of_the_dataset_is_taken():
    config = WorkerConfig(rank=1, world_size=2, num_workers=0)
    dataset = BlendDataset((numbers(5), 1), (numbers(5, 100), 1), worker_config=config)
    assert get_loader(dataset).worker_config == config


def test_the_loaders_config_may_name_another_topology():
    dataset = numbers(6)._with_worker_config(WorkerConfig(rank=0, world_size=1, num_workers=4))
    loader = get_loader(dataset, worker_config=WorkerConfig(rank=1, world_size=2))
    assert list(loader) == [1, 3, 5]


def test_two_different_seed_offsets_are_refused():
    dataset = numbers(6)._with_worker_config(WorkerConfig(seed_offset=3))
    with pytest.raises(ConfigError, match=r"seed_offset 4.*seed_offset 3"):
        get_loader(dataset, worker_config=WorkerConfig(seed_offset=4))


def test_a_seed_offset_gives_another_order_to_a_dataset_without_config():
    dataset = shuffled(30)
    plain = list(get_loader(dataset, worker_config=WorkerConfig()))
    offset = list(get_loader(dataset, worker_config=WorkerConfig(seed_offset=1)))
    assert sorted(plain) == sorted(offset)
    assert plain != offset
    assert offset == list(dataset.reseeded(1))


def test_a_world_size_that_lanes_do_not_fit_lists_those_that_do():
    stream = FilterDataset(numbers(60), is_even)
    loader = get_loader(stream, worker_config=WorkerConfig(rank=0, world_size=5), lanes=12)
    with pytest.raises(ConfigError, match=r"12 lanes .* world_size 5.*: 1, 2, 3, 4, 6, 12"):
        list(loader)


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

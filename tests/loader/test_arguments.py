"""What `get_loader` accepts, refuses and takes from elsewhere."""

from __future__ import annotations

import pytest

from energize import BlendDataset, FilterDataset, WorkerConfig
from energize.data.memory import ListSource
from energize.errors import ConfigError, EmptyDatasetError
from energize.loader import get_loader
from tests.support.datasets import is_even, numbers, shuffled


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

"""What `get_loader` accepts, refuses and takes from elsewhere; names of Energon."""

from __future__ import annotations

import importlib
import logging

import pytest

from energize import (
    BatchDataset,
    BlendDataset,
    ConcatDataset,
    ConfigError,
    FailurePolicy,
    LimitDataset,
    Loader,
    MapDataset,
    RepeatDataset,
    WorkerConfig,
    get_loader,
)
from energize.data.memory import ListSource
from energize.errors import EmptyDatasetError
from energize.loader.loader import (
    BasicDataLoader,
    SavableDataLoader,
    SavableDataLoaderState,
    get_savable_loader,
)
from tests.support.datasets import numbers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"prefetch_factor": 2.0}, "prefetch_factor"),
        ({"failures": "skip"}, "failures"),
        ({"on_error": "skip", "failures": FailurePolicy()}, "on_error= or failures="),
        ({"prefetch_bytes": 0}, "prefetch_bytes"),
        ({"lanes": 0}, "lanes"),
        ({"uneven": "padd"}, "did you mean 'pad'"),
        ({"on_error": "ignore"}, "on_error"),
        ({"global_batch_size": 4}, "micro_batch_size"),
        (
            {"global_batch_size": 4, "micro_batch_size": 3},
            "multiple of the micro batch size",
        ),
        ({"timeout": 0}, "timeout"),
        ({"warn_after": -1.0}, "warn_after"),
        ({"role": "test"}, "role"),
        ({"cache_pool": "pool"}, "cache_pool"),
        ({"ledger": 3}, "ledger"),
        ({"timeout": float("nan")}, "timeout"),
        ({"multiprocessing_context": "thread"}, r"fork.*'thread'"),
    ],
)
def test_values_that_cannot_be_used(options, message):
    with pytest.raises(ConfigError, match=message):
        get_loader(numbers(5), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "skipp"}, "on_error='skipp' .* did you mean 'skip'"),
        ({"budget": -1}, "budget must be a whole number >= 0, got -1"),
        ({"budget": True}, "budget"),
        ({"tolerance": 0}, "tolerance must be a whole number >= 1"),
        ({"retry": "never"}, "retry must be True or False"),
        ({"check_functions": "never"}, "check_functions"),
        ({"quarantine": 3}, "quarantine and skip_listed must be paths, got 3"),
        ({"skip_listed": 3}, "skip_listed must be a path or a list of paths, got 3"),
        ({"skip_listed": [3]}, "quarantine and skip_listed must be paths, got 3"),
    ],
)
def test_a_failure_policy_with_values_that_cannot_be_used(options, message):
    with pytest.raises(ConfigError, match=f"FailurePolicy: .*{message}"):
        FailurePolicy(**options)


def test_a_loader_where_a_dataset_is_meant():
    loader = get_loader(numbers(5))
    with pytest.raises(
        ConfigError, match=r"got SavableDataLoader\. It reads a dataset already"
    ):
        get_loader(loader)
    with pytest.raises(
        ConfigError, match="BatchDataset reads from datasets, got SavableData"
    ):
        BatchDataset(loader, 2, list)


@pytest.mark.parametrize("uneven", ["pad", "drop", "repeat", "allow"])
def test_an_empty_dataset(uneven):
    with pytest.raises(EmptyDatasetError):
        list(get_loader(ListSource([]), uneven=uneven))


def test_two_different_seed_offsets_are_refused():
    dataset = numbers(6).with_worker_config(WorkerConfig(seed_offset=3))
    with pytest.raises(ConfigError, match=r"seed_offset 4.*seed_offset 3"):
        get_loader(dataset, worker_config=WorkerConfig(seed_offset=4))


ARGUMENTS = {
    "checkpoint_every_sec": 60,
    "checkpoint_every_min_n_samples": 4,
    "n_checkpoints": 3,
    "gc_collect_every_n_steps": 10,
    "prefetch_factor": 2,
    "cache_pool": None,
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
    assert isinstance(loader.save_state_rank(), SavableDataLoaderState)


def test_an_argument_that_nobody_has():
    with pytest.raises(
        TypeError, match="unexpected keyword argument 'checkpoint_every'"
    ):
        get_savable_loader(numbers(5), checkpoint_every=60)
    with pytest.raises(ConfigError, match="got list"):
        SavableDataLoader([1, 2])


# A state after fewer items than workers, and another one


# Loops of a number of steps, over something that ends


# What was misused in silence


# Nothing is kept in classes


def test_what_has_no_effect_is_told_of(caplog, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("energize.core.ignored"), "_logged", set()
    )
    caplog.set_level(logging.INFO, "energize")
    get_savable_loader(numbers(5), **ARGUMENTS)
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == 4
    assert any(
        "get_loader: checkpoint_every_sec=60 has no effect" in each for each in told
    )


@pytest.mark.parametrize(
    "over", ["limit", "repeat", "blend", "concat", "map in a blend"]
)
def test_what_chooses_among_batches_keeps_their_size(over):
    first, second = (BatchDataset(numbers(40, start), 2, list) for start in (0, 40))
    dataset = {
        "limit": lambda: LimitDataset(first, 10),
        "repeat": lambda: RepeatDataset(first, 2),
        "blend": lambda: BlendDataset((first, 1), (second, 1)),
        "concat": lambda: ConcatDataset(first, second),
        "map in a blend": lambda: BlendDataset(
            (MapDataset(first, sorted), 1), (second, 1)
        ),
    }[over]()
    assert get_loader(dataset, global_batch_size=6).accumulation_steps == 3
    unlike = ConcatDataset(first, BatchDataset(numbers(40, 80), 3, list))
    with pytest.raises(ConfigError, match="Pass micro_batch_size too"):
        get_loader(unlike, global_batch_size=6)

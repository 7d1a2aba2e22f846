"""The names and arguments that loaders have in Megatron-Energon, and what went wrong with them."""

from __future__ import annotations

import importlib
import inspect
import json
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
    EpochizeDataset,
    FilterDataset,
    Loader,
    MapDataset,
    RepeatDataset,
    SavableDataLoader,
    SavableDataLoaderState,
    WorkerConfig,
    get_loader,
    get_savable_loader,
)
from energize.errors import StateMismatchError
from tests.support.datasets import numbers, shuffled
from tests.support.loading import loader_of, take

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


def test_all_settings_can_be_given():
    named = set(inspect.signature(get_loader).parameters)
    assert named >= set(ARGUMENTS) - {
        "checkpoint_every_sec",
        "checkpoint_every_min_n_samples",
        "n_checkpoints",
        "gc_collect_every_n_steps",
    }


# A state after fewer items than workers, and another one


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_states_one_soon_after_another_lose_no_place(streams, workers):
    source = FilterDataset(shuffled(80), lambda n: n % 3 > 0) if streams else shuffled(80)
    dataset = RepeatDataset(BatchDataset(source, 2, list))
    with loader_of(dataset, lanes=6) as loader:
        whole = take(loader, 60)
    got, state = [], None
    for steps in (9, 1, 1, 2, 1, 5, 1, 20):
        with loader_of(dataset, workers, lanes=6) as loader:
            if state is not None:
                loader.restore_state_rank(state)
            got += take(loader, steps)
            state = json.loads(json.dumps(loader.save_state_rank()))
    assert got == whole[: len(got)]


# Loops of a number of steps, over something that ends


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_loops_go_on_after_their_input_has_ended(streams, workers):
    source = FilterDataset(numbers(10), lambda n: True) if streams else numbers(10)
    with loader_of(EpochizeDataset(source, 6), workers, lanes=2) as loader:
        loops = [list(loader) for _ in range(5)]
    assert [len(each) for each in loops] == [6] * 5
    together = [item for each in loops for item in each]
    assert [sorted(together[at : at + 10]) for at in (0, 10, 20)] == [list(range(10))] * 3


# What was misused in silence


def test_options_that_change_no_item_change_no_state():
    dataset = RepeatDataset(shuffled(20))
    plain = loader_of(dataset)
    take(plain, 7)
    state = plain.save_state_rank()
    after = take(plain, 5)
    for options in (
        {"gc_collect_every_n_steps": 0},
        {"watchdog_timeout_seconds": None},
        {"fail_on_timeout": True},
        {"prefetch_factor": 4},
        {"n_checkpoints": 9},
    ):
        config = WorkerConfig(0, 1, 0, worker_log_level=2, global_error_handler=print)
        other = get_loader(dataset, worker_config=config, **options)
        other.restore_state_rank(state)
        assert take(other, 5) == after


def test_a_state_of_two_ranks_is_one_of_four():
    dataset = RepeatDataset(shuffled(40))
    whole = take(loader_of(dataset), 40)
    loaders = [loader_of(dataset, rank=rank, ranks=2) for rank in range(2)]
    for loader in loaders:
        take(loader, 5)
    four = [loader_of(dataset, rank=rank, ranks=4) for rank in range(4)]
    for loader in four:
        loader.restore_state_rank(loaders[0].save_state_rank())
    found = zip(*[take(loader, 6) for loader in four], strict=True)
    assert [item for step in found for item in step] == whole[10:34]


@pytest.mark.parametrize(
    "other",
    [
        BlendDataset((shuffled(10, 100), 1), (shuffled(10), 2)),
        BlendDataset((shuffled(10), 2), (shuffled(10, 100), 2)),
        BlendDataset((shuffled(10), 1), (shuffled(10, 100), 2), (shuffled(10, 200), 1)),
        BlendDataset((shuffled(10), 1), (shuffled(12, 100), 2)),
    ],
    ids=["reordered", "other weights", "one more", "another one"],
)
def test_a_state_of_another_mix_is_refused_with_what_differs(other):
    loader = loader_of(BlendDataset((shuffled(10), 1), (shuffled(10, 100), 2)))
    take(loader, 3)
    with pytest.raises(StateMismatchError, match=r"(?s)another dataset.*\n  "):
        loader_of(other).restore_state_rank(loader.save_state_rank())


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

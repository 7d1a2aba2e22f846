"""Handlers of a worker config decide what becomes of samples that fail."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest

import energize
from energize import (
    ConfigError,
    DataError,
    EncoderError,
    FailureBudgetError,
    FatalSampleError,
    FilterDataset,
    MapDataset,
    SkipSample,
    WorkerConfig,
    get_train_dataset,
    log_exception,
    reraise_exception,
)
from energize.loader import get_loader
from tests.support.datasets import numbers
from tests.support.prepared import captions


def everything(item: Any) -> bool:
    return True


def no_tens(number: int) -> int:
    if number % 10 == 0:
        raise ValueError(f"{number} is a multiple of ten")
    return number


def read(dataset, workers: int = 0, **options):
    """All items, and the loader."""
    loading = {k: options.pop(k) for k in ("failure_budget", "on_error") if k in options}
    with get_loader(
        dataset, worker_config=WorkerConfig(0, 1, workers, **options), lanes=1, **loading
    ) as loader:
        return list(loader), loader


DATASETS = {
    "indexed": MapDataset(numbers(40), no_tens),
    "stream": MapDataset(FilterDataset(numbers(40), everything), no_tens),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_log_exception_leaves_the_sample_out(name, workers, caplog):
    items, loader = read(DATASETS[name], workers, global_error_handler=log_exception)
    assert not [item for item in items if item % 10 == 0]
    assert len(items) == (40 if name == "indexed" else 36)
    assert loader.failures.count >= 4
    if not workers:
        logged = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert logged[0].exc_info[0] is ValueError
        assert "ValueError: 0 is a multiple of ten" in logged[0].message


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_reraise_exception_raises_what_the_function_raised(name, workers):
    with pytest.raises(ValueError, match="0 is a multiple of ten") as caught:
        read(DATASETS[name], workers, global_error_handler=reraise_exception)
    assert "no_tens raised ValueError" in str(caught.value.__notes__)


def test_a_handler_is_given_the_sample_and_its_sources(tmp_path):
    told: list[tuple[Exception, Any, Any]] = []

    class Encoder(energize.DefaultTaskEncoder):
        def encode_sample(self, sample):
            if sample.caption.endswith("3"):
                raise KeyError("no threes")
            return sample

    config = WorkerConfig(0, 1, 0, global_error_handler=lambda *each: told.append(each))
    dataset = get_train_dataset(
        captions(tmp_path / "captions", 8), worker_config=config, batch_size=None,
        task_encoder=Encoder(), shuffle_buffer_size=None, max_samples_per_sequence=None,
    )  # fmt: skip
    loader = get_loader(dataset)
    for _ in zip(range(20), loader, strict=False):
        pass
    error, sample, sources = told[0]
    assert (type(error), sample.caption) == (KeyError, "caption 3")
    assert sources == sample.__sources__
    assert sources[0].shard_name.endswith(".tar")
    assert loader.failures.count == len(told)


def test_a_handler_is_told_of_damaged_samples_too():
    told = []

    def damaged(number):
        if number == 3:
            raise DataError("bad bytes")
        return number

    handler = lambda *each: told.append(each)  # noqa: E731
    items, loader = read(MapDataset(numbers(5), damaged), global_error_handler=handler)
    assert (len(items), loader.failures.count) == (5, len(told))
    assert (type(told[0][0]), told[0][1]) == (DataError, "numbers0, sample 3")
    with pytest.raises(DataError, match="bad bytes"):
        read(MapDataset(numbers(5), damaged), 1, global_error_handler=reraise_exception)


def test_a_handler_is_not_asked_about_skips():
    def skips(number):
        if number:
            return number
        raise SkipSample

    items, loader = read(MapDataset(numbers(5), skips), global_error_handler=reraise_exception)
    assert (len(items), loader.failures.count) == (5, 0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("handler", [log_exception, reraise_exception])
def test_faults_of_the_program_are_fatal(handler, workers):
    def encode(number):
        return undefined_name  # noqa: F821

    with pytest.raises(FatalSampleError, match=r"(?s)NameError: name 'undefined_name'.*numbers"):
        read(MapDataset(numbers(5), encode), workers, global_error_handler=handler)


def ends_the_run(number):
    raise FatalSampleError("the token store is gone")


@pytest.mark.parametrize("options", [{"on_error": "skip"}, {"global_error_handler": log_exception}])
@pytest.mark.parametrize("workers", [0, 1])
def test_nobody_passes_over_a_fatal_error(options, workers):
    with pytest.raises(FatalSampleError, match="the token store is gone"):
        read(MapDataset(numbers(5), ends_the_run), workers, **options)


def test_two_who_decide_are_refused():
    with pytest.raises(ConfigError, match="give one of the two"):
        read(DATASETS["indexed"], global_error_handler=log_exception, on_error="skip")
    with pytest.raises(ConfigError, match=r"global_error_handler is a function.*got 'log'"):
        WorkerConfig(global_error_handler="log")


def test_a_spawned_worker_has_the_handler_too():
    config = WorkerConfig(0, 1, 1, global_error_handler=log_exception)
    dataset = MapDataset(numbers(20), no_tens)
    with get_loader(dataset, worker_config=config, multiprocessing_context="spawn") as loader:
        assert len(list(loader)) == 20
        assert loader.failures.count >= 2


# Worker configs


def test_configs_with_handlers_are_compared_and_copied():
    config = WorkerConfig(0, 2, 3, global_error_handler=log_exception)
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert other == config
        assert hash(other) == hash(config)
        assert other.global_error_handler is log_exception
    assert config != WorkerConfig(0, 2, 3)
    assert WorkerConfig(0, 2, 3) != WorkerConfig(0, 2, 3, seed_offset=1)
    assert "global_error_handler=log_exception" in repr(config)


# Failures that are alike


def test_the_budget_says_what_failed_and_how_often():
    with pytest.raises(FailureBudgetError, match=r"(?s)5 samples .*  5 like .*no_tens.*the last"):
        read(MapDataset(numbers(100), no_tens), on_error="skip", failure_budget=4)


def test_samples_do_not_travel_with_errors():
    error = EncoderError("it raised")
    error.sample = lambda: None
    error.add_note("a note")
    other = pickle.loads(pickle.dumps(error))
    assert (str(other), other.sample, other.__notes__) == ("it raised", None, ["a note"])

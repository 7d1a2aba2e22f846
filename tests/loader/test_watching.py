"""When no item comes: who is busy, and with what; and nothing is left over."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from energize import FilterDataset, LoaderError, MapDataset, WorkerConfig
from energize.loader import get_loader
from tests.support.datasets import numbers


def late_for_three(number: int) -> int:
    if number == 3:
        time.sleep(1.5)
    return number


def hangs_at_three(number: int) -> int:
    if number == 3:
        waits_for_ever()
    return number


def waits_for_ever() -> None:
    while True:
        time.sleep(0.01)


def everything(number: int) -> bool:
    return True


def loading(function, workers, *, streams=False, **options):
    source = FilterDataset(numbers(6), everything) if streams else numbers(6)
    config = WorkerConfig(0, 1, workers)
    return get_loader(MapDataset(source, function), worker_config=config, **options)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_late_item_is_told_of_with_what_is_busy(workers, streams, caplog):
    options = {"watchdog_timeout_seconds": 0.4, "watchdog_initial_timeout_seconds": 60}
    with loading(late_for_three, workers, streams=streams, **options) as loader:
        assert list(loader) == list(range(6))
    told = [each.getMessage() for each in caplog.records if "no item" in each.getMessage()]
    assert 1 <= len(told) <= 2, "after 0.4 s, perhaps 0.8 s"
    assert "late_for_three" in told[0], "the Python stack"
    if workers:
        assert "energize worker 0 (pid" in told[0]
        assert "to answer" in told[0]
    assert loader.workers_replaced == 0


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_fail_on_timeout_is_an_error_whoever_handles_exceptions(workers, streams, on_error):
    options = {"watchdog_timeout_seconds": 0.5, "watchdog_initial_timeout_seconds": 60}
    loader = loading(
        hangs_at_three, workers, streams=streams, fail_on_timeout=True, on_error=on_error, **options
    )
    got: list[int] = []
    said = r"(?s)no item.*fail_on_timeout.*waits_for_ever"
    with loader, pytest.raises(LoaderError, match=said):
        got.extend(loader)
    assert got in ([], [0], [0, 1], [0, 1, 2])
    assert workers or got == [0, 1, 2]
    assert not [each for each in threading.enumerate() if each.name == "energize watch"]


def test_the_first_item_has_a_patience_of_its_own(caplog):
    def slow_start(number):
        time.sleep(0.8 if number == 0 else 0)
        return number

    for workers in (0, 1):
        patient = {"watchdog_timeout_seconds": 0.2, "watchdog_initial_timeout_seconds": 20}
        with loading(slow_start, workers, prefetch_factor=1, **patient) as loader:
            assert list(loader) == list(range(6))
        assert "no item" not in caplog.text
    impatient = {"watchdog_timeout_seconds": 20, "watchdog_initial_timeout_seconds": 0.2}
    with loading(slow_start, 0, **impatient) as loader:
        assert list(loader) == list(range(6))
    assert "no item came" in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_nobody_watches_without_a_timeout(workers, caplog):
    with loading(late_for_three, workers, watchdog_timeout_seconds=None) as loader:
        assert list(loader) == list(range(6))
    assert "no item" not in caplog.text


def test_a_training_loop_that_takes_its_time_is_not_told_of(caplog):
    with loading(int, 0, watchdog_timeout_seconds=0.1) as loader:
        for _ in loader:
            time.sleep(0.2)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_worker_that_is_stopped_is_told_of_too(caplog, tmp_path):
    noted = tmp_path / "pid"

    def note(number):
        noted.write_text(str(os.getpid()))
        return number

    options = {"watchdog_timeout_seconds": 0.4, "timeout": 2.5, "prefetch_factor": 1}
    with loading(note, 1, **options) as loader:
        items = iter(loader)
        assert next(items) == 0
        os.kill(int(Path(noted).read_text()), signal.SIGSTOP)
        assert list(items) == [1, 2, 3, 4, 5]
    assert "it does not say what it is busy with: it is stopped" in caplog.text
    assert loader.workers_replaced == 1


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_start_from_nothing_show_their_stacks(method, caplog):
    options = {"watchdog_timeout_seconds": 0.4, "watchdog_initial_timeout_seconds": 60}
    with loading(late_for_three, 1, multiprocessing_context=method, **options) as loader:
        assert list(loader) == list(range(6))
    assert "late_for_three" in caplog.text

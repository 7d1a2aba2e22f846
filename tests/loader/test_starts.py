"""A trainer that is held up while it starts a worker: it is told, and it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import forkserver

import pytest

from energize import LoaderError, MapDataset
from tests.support.datasets import numbers
from tests.support.loading import loader_of

OPTIONS = {"timeout": 1.0, "watchdog_timeout_seconds": 0.3}


class HangsInPickle:
    def __call__(self, number: int) -> int:
        return number

    def __reduce__(self):
        while True:
            time.sleep(0.01)


def plus_one(number: int) -> int:
    return number + 1


def server() -> int:
    """The process id of multiprocessing's fork server, which runs."""
    forkserver.ensure_running()
    return forkserver._forkserver._forkserver_pid


def ends(function, method: str, caplog, **options) -> str:
    """What is said by a loader whose worker cannot start."""
    loader = loader_of(
        MapDataset(numbers(9), function), 1, multiprocessing_context=method, **OPTIONS
    )
    began = time.monotonic()
    with loader, pytest.raises(LoaderError, match=r"energize worker 0 has not started") as caught:
        list(loader)
    assert time.monotonic() - began >= 1.0, "not before the timeout"
    told = [each.getMessage() for each in caplog.records if "not started" in each.getMessage()]
    assert told, "the watchdog speaks first"
    return str(caught.value)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_class_that_hangs_while_it_is_pickled(method, caplog):
    assert "__reduce__" in ends(HangsInPickle(), method, caplog)


def test_a_thread_of_its_own_is_ended_too(caplog):
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(ends(HangsInPickle(), "spawn", caplog)))
    thread.start()
    thread.join(60)
    assert "__reduce__" in said[0]


def test_a_fork_server_that_is_stopped(caplog):
    stopped = server()
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert "forkserver.py" in ends(plus_one, "forkserver", caplog)
    finally:
        os.kill(stopped, signal.SIGCONT)


_hold_up = threading.Event()
os.register_at_fork(before=lambda: _hold_up.is_set() and time.sleep(600))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_registered_for_forks_hangs(caplog):
    """Python drops what is raised there, so the fork goes on."""
    _hold_up.set()
    timer = threading.Timer(0.8, _hold_up.clear)
    timer.start()
    try:
        with loader_of(MapDataset(numbers(9), plus_one), 1, **OPTIONS) as loader:
            assert list(loader) == list(range(1, 10))
    finally:
        timer.cancel()
        _hold_up.clear()
    assert "has not started for" in caplog.text
    assert "register_at_fork" in caplog.text


def test_fail_on_timeout_ends_the_start_with_the_watchdog():
    loader = loader_of(
        MapDataset(numbers(9), HangsInPickle()),
        1,
        multiprocessing_context="spawn",
        watchdog_timeout_seconds=0.3,
        fail_on_timeout=True,
    )
    with loader, pytest.raises(LoaderError, match="fail_on_timeout"):
        list(loader)


def test_signal_handlers_are_put_back():
    numbers_of = [signal.SIGINT, signal.SIGRTMIN + 6]
    before = [signal.getsignal(each) for each in numbers_of]
    with loader_of(numbers(9), 1) as loader:
        list(loader)
    assert [signal.getsignal(each) for each in numbers_of] == before


@pytest.mark.jobs
def test_a_fork_server_that_was_killed_is_started_again():
    os.kill(server(), signal.SIGKILL)
    with loader_of(
        MapDataset(numbers(9), plus_one), 1, multiprocessing_context="forkserver"
    ) as each:
        assert list(each) == list(range(1, 10))

"""Users' functions that do in a worker what nobody should: it is told, and nothing waits."""

from __future__ import annotations

import logging
import os
import resource
import signal
import stat
import time
from contextlib import suppress

import pytest
import torch

from energize import LoaderError, MapDataset, WorkerDiedError
from tests.support.datasets import numbers
from tests.support.loading import eventually, gone, loader_of

AT = 5
"""The sample at which it happens."""


def sockets() -> list[int]:
    found = []
    for descriptor in range(3, 300):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found.append(descriptor)
    return found


def writes_everywhere(number: int) -> int:
    if number == AT:
        for descriptor in sockets():
            os.write(descriptor, b"\0what belongs to a log, say")
        time.sleep(60)
    return number


def closes_everything(number: int) -> int:
    if number == AT:
        os.closerange(3, 300)
    return number


class Panic(BaseException):
    """As native code has it that was written in Rust."""


def panics(number: int) -> int:
    if number == AT:
        raise Panic("index out of bounds")
    return number


class NoWayBack:
    def __reduce__(self):
        return int, ("no number",)


def cannot_be_rebuilt(number: int):
    return NoWayBack() if number == AT else number


def forks_itself(number: int) -> int:
    if number == AT:
        os.fork()  # and both go on
    return number


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (writes_everywhere, LoaderError, r"sent what is no message, b'.*what belongs.*at \d"),
        (closes_everything, WorkerDiedError, r"ended with exit code 0 .*closed its file descri"),
        (panics, Panic, "index out of bounds"),
        (
            cannot_be_rebuilt,
            LoaderError,
            r"cannot be rebuilt in the trainer: ValueError.*leave out",
        ),
    ],
)
def test_it_is_told(function, error, message):
    loader = loader_of(MapDataset(numbers(40), function), workers=2, timeout=60)
    with loader, pytest.raises(error, match=message):
        list(loader)


def test_a_worker_that_forks_itself_goes_on_alone():
    with loader_of(MapDataset(numbers(400), forks_itself), workers=2, timeout=60) as loader:
        assert list(loader) == list(range(400))
        assert loader.workers_replaced == 0


def test_a_worker_whose_child_lives_on_is_missed_at_once(tmp_path, caplog):
    def leaves_a_child(number: int) -> int:
        if number == AT and not (tmp_path / "child").exists():
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            (tmp_path / "child").write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    try:
        with loader_of(MapDataset(numbers(40), leaves_a_child), 2, timeout=60) as loader:
            assert list(loader) == list(range(40))
            assert loader.workers_replaced == 1
        assert "was killed by SIGKILL" in caplog.text
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_signal_handlers_of_a_function_keep_no_worker_alive():
    def ignores_signals(number: int) -> tuple[int, int]:
        for each in (signal.SIGIO, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(each, signal.SIG_IGN)
        return os.getpid(), number

    loader = loader_of(MapDataset(numbers(40), ignores_signals), workers=1)
    pid, _ = next(iter(loader))
    loader.close()
    assert eventually(lambda: gone(pid))


def five_large(number: int) -> list[torch.Tensor]:
    return [torch.full((600_000,), number, dtype=torch.uint8) for _ in range(5)]


def test_too_few_file_descriptors_for_shared_memory_are_told():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with loader_of(MapDataset(numbers(90), five_large), workers=1) as loader:
        items = iter(loader)
        kept = [next(items)]
        room = len(os.listdir("/proc/self/fd")) + 8
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, before[1]))
        try:
            with pytest.raises(LoaderError, match=r"cannot be taken over.*ulimit -n"):
                kept.extend(items)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert all(int(each.max()) == at for at, item in enumerate(kept) for each in item)


def test_a_replaced_worker_says_nothing_of_the_trainers_errors(capfd):
    """What a forked worker prints as it ends begins with its own error."""

    def interrupts(number: int) -> int:
        raise KeyboardInterrupt

    logging.getLogger("energize").disabled = True
    try:
        loader = loader_of(MapDataset(numbers(9), interrupts), workers=1)
        with loader, pytest.raises(WorkerDiedError):
            list(loader)
    finally:
        logging.getLogger("energize").disabled = False
    assert "During handling" not in capfd.readouterr().err

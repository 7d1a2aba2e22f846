"""When nothing comes, or a function misbehaves: who is busy, and with what."""

from __future__ import annotations

import gc
import os
import resource
import signal
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from energize import FilterDataset, LoaderError, MapDataset, WorkerConfig, energon
from energize.errors import WorkerDiedError
from energize.loader import get_loader
from tests.support.datasets import numbers
from tests.support.loading import loader_of

pytestmark = pytest.mark.jobs  # they wait


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
    options = {"warn_after": 0.4}
    with loading(late_for_three, workers, streams=streams, **options) as loader:
        assert list(loader) == list(range(6))
    told = [
        each.getMessage() for each in caplog.records if "no item" in each.getMessage()
    ]
    assert 1 <= len(told) <= 2, "after 0.4 s, perhaps 0.8 s"
    assert "late_for_three" in told[0], "the Python stack"
    if workers:
        assert "energize worker 0 (pid" in told[0]
        assert "to answer" in told[0]
    assert loader.workers_replaced == 0


def watching_threads() -> int:
    return sum(each.name == "energize watch" for each in threading.enumerate())


def test_the_watching_thread_ends_after_the_loader():
    before = watching_threads()
    loader = loading(late_for_three, 0, warn_after=60.0)
    next(iter(loader))
    assert watching_threads() == before + 1
    del loader
    gc.collect()
    until = time.monotonic() + 10
    while watching_threads() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert watching_threads() == before


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_fail_on_timeout_of_energon_is_an_error_whoever_handles_exceptions(
    streams, on_error
):
    source = FilterDataset(numbers(6), everything) if streams else numbers(6)
    loader = energon.get_loader(
        MapDataset(source, hangs_at_three),
        worker_config=WorkerConfig(0, 1, 1),
        watchdog_timeout_seconds=0.5,
        fail_on_timeout=True,
        on_error=on_error,
    )
    got: list[int] = []
    before = threading.active_count()
    with (
        loader,
        pytest.raises(LoaderError, match=r"gave no answer within timeout=0\.5"),
    ):
        got.extend(loader)
    assert got == [0, 1, 2][: len(got)]
    assert threading.active_count() <= before


@pytest.mark.jobs
def test_a_worker_that_is_stopped_is_told_of_too(caplog, tmp_path):
    noted = tmp_path / "pid"

    def note(number):
        if not noted.exists():  # later ones are read ahead while the first is looked at
            noted.write_text(str(os.getpid()))
        return number

    options = {"warn_after": 0.4, "timeout": 2.5, "prefetch_factor": 1}
    with loading(note, 1, **options) as loader:
        items = iter(loader)
        assert next(items) == 0
        os.kill(int(Path(noted).read_text()), signal.SIGSTOP)
        assert list(items) == [1, 2, 3, 4, 5]
    assert "its stacks are unknown: it is stopped" in caplog.text
    assert loader.workers_replaced == 1


@pytest.mark.jobs
@pytest.mark.parametrize(
    "method", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"]
)
def test_workers_that_start_from_nothing_show_their_stacks(method, caplog):
    options = {"warn_after": 0.4}
    with loading(
        late_for_three, 1, multiprocessing_context=method, **options
    ) as loader:
        assert list(loader) == list(range(6))
    assert "late_for_three" in caplog.text


AT = 5
"""The sample at which it happens."""


def sockets() -> list[int]:
    found = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                found.append(descriptor)
    return found


def writes_everywhere(number: int) -> int:
    if number == AT:
        for descriptor in sockets():
            with suppress(OSError):  # one whose other end is closed
                os.write(descriptor, b"\0what belongs to a log, say")
        time.sleep(60)
    return number


def closes_everything(number: int) -> int:
    if number == AT:
        os.closerange(3, 4096)
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


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (
            writes_everywhere,
            LoaderError,
            r"sent data that is not a message, b'.*what belongs.*at \d",
        ),
        (
            closes_everything,
            WorkerDiedError,
            r"ended with exit code 0 .*closed its file descri",
        ),
        (panics, Panic, "index out of bounds"),
        (
            cannot_be_rebuilt,
            LoaderError,
            r"cannot be rebuilt in the trainer: ValueError.*Remove",
        ),
    ],
)
def test_it_is_told(function, error, message):
    loader = loader_of(MapDataset(numbers(40), function), workers=2, timeout=60)
    with loader, pytest.raises(error, match=message):
        list(loader)


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
            with pytest.raises(LoaderError, match=r"cannot be received.*ulimit -n"):
                kept.extend(items)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert all(int(each.max()) == at for at, item in enumerate(kept) for each in item)

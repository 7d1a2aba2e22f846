"""Worker processes: how they start, die and end, and what is left of them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import islice
from pathlib import Path

import pytest

from energize import BatchDataset, FilterDataset, MapDataset, RepeatDataset
from energize.errors import (
    ConfigError,
    LoaderError,
    WorkerDiedError,
)
from energize.loader.pool import WorkerPool
from tests.support.datasets import is_even, numbers
from tests.support.loading import (
    eventually,
    gone,
    loader_of,
    take,
    with_pid,
)

pytestmark = [pytest.mark.timeout(240), pytest.mark.jobs]


def pids_of(loader) -> set[int]:
    return {pid for pid, _ in take(loader, 64 * 12)}


def worker_pids() -> list[int]:
    return [
        p.pid
        for p in multiprocessing.active_children()
        if p.name.startswith("energize")
    ]


def endless_pids():
    return MapDataset(RepeatDataset(numbers(100)), with_pid)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_spawned_says_what_to_do(method):
    dataset = BatchDataset(MapDataset(numbers(9), lambda x: x), 2, list)
    loader = loader_of(dataset, 1, multiprocessing_context=method)
    message = r"lambda.*multiprocessing_context='fork'"
    with pytest.raises(ConfigError, match=message):
        iter(loader)


class OnlyHere:
    """Comes to a worker, and cannot be rebuilt there."""

    def __init__(self, here):
        self.here = here

    def __call__(self, item):
        return item

    def __setstate__(self, state):
        raise RuntimeError("no such device")


def test_a_dataset_that_cannot_be_rebuilt_shows_the_cause_from_the_worker():
    loader = loader_of(
        MapDataset(numbers(9), OnlyHere(1)), 1, multiprocessing_context="spawn"
    )
    with pytest.raises(LoaderError, match=r"RuntimeError: no such device") as caught:
        list(loader)
    assert "__setstate__" in caught.value.__notes__[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
@pytest.mark.parametrize(
    "dataset", [endless_pids(), FilterDataset(endless_pids(), bool)]
)
def test_a_worker_that_dies_or_stops_is_replaced_and_the_stream_goes_on(
    dataset, how, caplog
):
    with loader_of(dataset, workers=2, lanes=2, timeout=1.5) as loader:
        taken = take(loader, 200)
        victim = taken[-1][0]
        os.kill(victim, how)
        taken += take(loader, 1500)
        state = loader.state_dict()
        taken += take(loader, 100)
        assert loader.workers_replaced == 1
    assert gone(victim)
    with loader_of(dataset, lanes=2) as plain_loader:
        whole = [number for _, number in take(plain_loader, 1800)]
    assert [number for _, number in taken] == whole
    with loader_of(dataset) as resumed:
        resumed.load_state_dict(state)
        assert [number for _, number in take(resumed, 100)] == whole[-100:]
    assert f"pid {victim}" in caplog.text
    assert ("timeout=1.5" if how is signal.SIGSTOP else how.name) in caplog.text
    assert "replacement 1" in caplog.text


@pytest.mark.parametrize("dataset", [MapDataset(numbers(9), with_pid), endless_pids()])
def test_a_worker_that_died_while_nobody_asked_it_is_noticed_at_once(dataset, caplog):
    with loader_of(dataset, workers=1, timeout=60) as loader:
        first = take(loader, 9)
        loader.rewind()
        os.kill(first[0][0], signal.SIGKILL)
        assert eventually(lambda: gone(first[0][0]))
        began = time.monotonic()
        again = take(loader, 9)
        assert time.monotonic() - began < 20
        assert loader.workers_replaced == 1
    assert [number for _, number in again] == [number for _, number in first]
    assert "SIGKILL" in caplog.text


def test_a_dataset_that_ends_every_worker():
    loader = loader_of(MapDataset(numbers(9), lambda _: sys.exit(7)), workers=1)
    with pytest.raises(
        WorkerDiedError, match=r"exit code 7 while it had the items at 0 .*last of 3"
    ):
        take(loader, 1)
    assert not worker_pids()


@pytest.mark.parametrize("end", ["close", "with", "forget loader", "forget iterator"])
def test_no_worker_outlives_its_loader(end):
    loader = loader_of(endless_pids(), workers=2)
    pids = pids_of(loader)
    iterator = iter(loader)
    next(iterator)
    if end == "close":
        loader.close()
        loader.close()
    elif end == "with":
        with loader:
            pass
    elif end == "forget loader":
        del iterator
        del loader
    else:
        del loader
        del iterator
    gc.collect()
    assert len(pids) == 2
    assert eventually(lambda: all(gone(pid) for pid in pids))


def test_a_closed_loader_goes_on_with_new_workers():
    loader = loader_of(numbers(200), workers=2)
    assert take(loader, 70) == list(range(70))
    loader.close()
    assert take(loader, 130) == list(range(70, 200))
    loader.close()


def test_workers_are_kept_from_epoch_to_epoch():
    with loader_of(MapDataset(numbers(300), with_pid), workers=1) as loader:
        pids = {pid for _ in range(3) for pid, _ in loader}
    assert len(pids) == 1


def test_ctrl_c_in_the_middle_of_an_import_comes_after_it():
    """Of torch, which a program that has not imported it gets with the first loop."""
    program = """
        import os, signal, sys
        from energize import ListSource, get_loader
        class Finder:
            def find_spec(self, name, *_):
                if name == "torch.nn":
                    sys.meta_path.remove(self)
                    os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.meta_path.insert(0, Finder())
        loader = get_loader(ListSource(range(9)))
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print(next(iter(loader)), loader.state_dict()["cursor"])
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ('0 {"position":1}', "")


def test_a_handler_of_sigterm_is_not_the_workers():
    marks = []
    before = signal.signal(signal.SIGTERM, lambda *_: marks.append(os.getpid()))
    try:
        loader = loader_of(endless_pids(), workers=1)
        (pid,) = pids_of(loader)
        os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: gone(pid))
        loader.close()
        assert not marks
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_copy_does_not_go_on_with_workers_of_its_parent():
    with loader_of(endless_pids(), workers=1, prefetch_factor=1) as loader:
        iterator = iter(loader)
        next(iterator)
        ours, theirs = multiprocessing.Pipe()

        def read_on():
            with pytest.raises(
                LoaderError, match="a fork of the one that has them"
            ) as told:
                list(islice(iterator, 100))
            theirs.send(str(told.value))

        child = multiprocessing.get_context("fork").Process(target=read_on)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert ours.poll()
        assert next(iterator)[1] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_another_thread_may_close_a_loader(workers):
    loader = loader_of(MapDataset(RepeatDataset(numbers(100)), with_pid), workers)
    told, begun = [], threading.Event()

    def read():
        with pytest.raises(LoaderError, match="closed") as found:
            any(begun.set() for _ in loader)
        told.append(found)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert begun.wait(60)
    loader.close()
    thread.join(60)
    assert told
    assert not worker_pids()
    assert take(loader, 1)
    loader.close()


def test_a_forked_copy_of_a_loader_starts_workers_of_its_own():
    with loader_of(endless_pids(), workers=1) as loader:
        (here,) = pids_of(loader)
        ours, theirs = multiprocessing.Pipe()

        def read_on():
            theirs.send(next(iter(loader)))
            loader.close()

        child = multiprocessing.get_context("fork").Process(target=read_on)
        child.start()
        there, number = ours.recv()
        child.join(20)
        assert child.exitcode == 0
        assert there != here
        assert next(iter(loader)) == (here, number)


MOST_GROWTH = 3_000_000
"""Bytes: what an interpreter takes more or less from one moment to another."""


def held() -> tuple[int, int, int, int]:
    """Open descriptors, threads, child processes, and pools of workers."""
    gc.collect()
    tasks = Path("/proc/self/task").iterdir()
    children = [
        pid for task in tasks for pid in (task / "children").read_text().split()
    ]
    return (
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        sum(not gone(int(pid)) for pid in children),
        sum(type(each) is WorkerPool for each in gc.get_objects()),
    )


def resident() -> int:
    """Bytes of memory of this process that it does not share with files."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def use(count: int, again) -> None:
    """Open loaders and end them in every way, of which one is iterated again and
    again."""
    indexed = MapDataset(numbers(40), with_pid)
    stream = BatchDataset(FilterDataset(RepeatDataset(numbers(40)), is_even), 2, list)
    for number in range(count):
        loader = loader_of(
            (indexed, stream)[number % 2], workers=1 + number % 2, lanes=2
        )
        how = number // 2 % 5
        if how == 0:
            assert len(list(islice(loader, 5))) == 5
            loader.close()
        elif how == 1:
            iterator = iter(loader)
            next(iterator)
            del loader  # and then the iterator
        elif how == 2:
            with loader:
                next(iter(loader))
        elif how == 3:
            iter(loader)  # nothing is read
        else:
            next(iter(again))
            again.close()  # and its next pool is another one


@pytest.mark.parametrize(
    "count",
    [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_loaders_opened_again_and_again_leave_nothing(count):
    again = loader_of(MapDataset(numbers(40), with_pid), workers=1)
    use(count // 2, again)
    before, memory = held(), resident()
    use(count, again)
    assert eventually(lambda: held() == before), (held(), before)
    assert resident() - memory < MOST_GROWTH

"""What is left of loaders and trainers: no process, no descriptor, no thread, no memory."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import pytest

from energize import BatchDataset, FilterDataset, MapDataset, RepeatDataset
from energize.loader.workers import WorkerPool
from tests.support import leftover_program
from tests.support.datasets import is_even, numbers
from tests.support.loading import eventually, gone, loader_of, with_pid

pytestmark = [pytest.mark.timeout(240), pytest.mark.jobs]

SECONDS = 2.0
"""After these, nothing is left of a trainer that was killed or interrupted."""

ENDS_IN = 0.7
"""Seconds in which a program ends that has done nothing but import torch. On a machine that has
much else to do all takes longer.
"""

MOST_GROWTH = 3_000_000
"""Bytes: what an interpreter takes more or less from one moment to another."""


@pytest.fixture(scope="module")
def ends(tmp_path_factory) -> dict[str, dict]:
    """What became of each trainer of the program, all of which one process starts."""
    folder = tmp_path_factory.mktemp("trainers")
    done = subprocess.run(
        [sys.executable, "-m", leftover_program.__name__, folder],
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {end["case"]: end for end in map(json.loads, done.stdout.splitlines())}


def limit(ends) -> float:
    without = [end["seconds"] for name, end in ends.items() if "without a loader" in name]
    return SECONDS * max(1, *(seconds / ENDS_IN for seconds in without))


@pytest.mark.parametrize("name", [name for name in leftover_program.CASES if "killed" in name])
def test_a_killed_trainer_leaves_nothing(ends, name):
    end = ends[name]
    assert (end.get("failed"), end.get("left"), end.get("code")) == (None, 0, -signal.SIGKILL)
    assert end["seconds"] < limit(ends)
    assert end["said"] == ""


@pytest.mark.parametrize("name", [name for name in leftover_program.CASES if "interrupt" in name])
def test_ctrl_c_ends_a_trainer_and_its_workers(ends, name):
    end = ends[name]
    assert (end.get("failed"), end.get("left"), end.get("code")) == (None, 0, -signal.SIGINT)
    assert end["seconds"] < limit(ends)
    assert end["said"].endswith("KeyboardInterrupt\n")
    if name != "interrupted_twice":  # the second may come while Python itself ends
        assert end["said"].count("Traceback") == end.get("trials", 1), end["said"]


def held() -> tuple[int, int, int, int]:
    """Open descriptors, threads, child processes, and pools of workers."""
    gc.collect()
    tasks = Path("/proc/self/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
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
    """Open loaders and end them in every way, of which one is iterated again and again."""
    indexed = MapDataset(numbers(40), with_pid)
    stream = BatchDataset(FilterDataset(RepeatDataset(numbers(40)), is_even), 2, list)
    for number in range(count):
        loader = loader_of((indexed, stream)[number % 2], workers=1 + number % 2, lanes=2)
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
    "count", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_loaders_opened_again_and_again_leave_nothing(count):
    again = loader_of(MapDataset(numbers(40), with_pid), workers=1)
    use(count // 2, again)
    before, memory = held(), resident()
    use(count, again)
    assert eventually(lambda: held() == before), (held(), before)
    assert resident() - memory < MOST_GROWTH

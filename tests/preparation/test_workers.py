"""Processes: their order, their ends, and what is left when anything is stopped in the
middle."""

import ast
import gc
import os
import resource
import signal
import subprocess
import sys
import weakref
from concurrent.futures import process
from functools import partial

import pytest

from energize.preparation import prepare
from energize.preparation.workers import map_in_order
from tests.support.tars import contents, unprepared
from tests.support.trying import tried

ALL = {"train": 1}


@pytest.mark.jobs
def test_too_few_open_files_for_so_many_processes(tmp_path):
    folder = unprepared(tmp_path / "ds", (3,) * 20)

    def with_few():
        gc.collect()  # which closes files
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1,) * 2)
        for each in held[-25:]:
            os.close(each)
        return prepare(folder, split_ratios=ALL, workers=16, sqlite=True).samples

    told = tried(with_few).message
    assert "cannot be started" in told
    assert "Too many open files" in told
    assert "--num-workers" in told
    assert all(name.endswith(".tar") for name in contents(folder))


def test_a_full_disk(tmp_path):
    folder = unprepared(tmp_path / "ds", counts=(200, 200, 200))
    before = contents(folder)

    def written(
        limit, **options
    ):  # a limit on file sizes makes writing fail as a full disk does
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return prepare(folder, split_ratios=ALL, workers=2, **options)

    for writing in (partial(written, 1000), partial(written, 20000, sqlite=True)):
        assert "cannot be written" in tried(writing).message
        assert contents(folder) == before


@pytest.mark.jobs
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_moment_leaves_a_folder_that_only_looks_prepared(tmp_path, number):
    command = [
        sys.executable,
        "-m",
        "tests.support.prepare_kills",
        str(tmp_path),
        str(int(number)),
    ]
    ran = subprocess.run(
        [*command, "10", "7"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, (
        ran.stderr
    )  # where Python tells of signals that met a finalizer
    assert ast.literal_eval(ran.stdout)["died"] > 0


def test_a_signal_that_meets_the_pool_before_its_thread_has_begun(
    tmp_path, monkeypatch
):
    folder = unprepared(tmp_path / "ds", (3,) * 3)
    before = contents(folder)
    told = partial(signal.raise_signal, signal.SIGTERM)
    monkeypatch.setattr(process._ExecutorManagerThread, "start", lambda _: told())
    ended = tried(partial(prepare, folder, split_ratios=ALL, workers=2))
    assert (ended.error, ended.message) == ("SystemExit", "143")
    assert contents(folder) == before


def name_and_process(name):
    if name == "bad":
        raise ValueError(name)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return name, os.getpid()


def test_processes_share_names_keep_their_order_and_are_told_of_when_they_die():
    names = [f"n{i}" for i in range(20)]
    names[7] = "bad"
    results = list(map_in_order(name_and_process, names, 3))
    assert str(results.pop(7)) == "bad"
    assert [name for name, _ in results] == names[:7] + names[8:]
    assert os.getpid() not in {process for _, process in results}
    assert {process for _, process in map_in_order(name_and_process, "abc", 1)} == {
        os.getpid()
    }


def test_what_was_dropped_before_is_not_finalized_in_processes():
    """A loader's watch would wait there for a lock that its thread holds here."""

    class Dropped:
        pass

    def collects(number: int) -> int:
        gc.collect()
        return number

    gc.collect()
    gc.disable()
    dropped = Dropped()
    dropped.itself = dropped
    end = weakref.finalize(dropped, os._exit, 3)
    del dropped
    try:
        assert list(map_in_order(collects, range(4), 2)) == [0, 1, 2, 3]
    finally:
        end.detach()
        gc.enable()

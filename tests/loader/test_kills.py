"""Jobs and workers killed at random moments: what they deliver stays the same."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from energize import FilterDataset, MapDataset, RepeatDataset, ShuffleDataset
from tests.support import kill_program
from tests.support.datasets import numbers
from tests.support.loading import gone, loader_of, take

pytestmark = pytest.mark.jobs

IN_SOCKET, IN_SLOT = 300_000, 700_000
"""Bytes of an item: those that are sent in the message itself, and those in shared memory."""

SENDING = ("44", "46")
"""The numbers of sendto and sendmsg (x86-64)."""


def is_wanted(item: int) -> bool:
    return item % 3 != 0


def large(item: int) -> tuple[int, bytes, torch.Tensor]:
    value = item % 251
    return item, bytes([value]) * IN_SOCKET, torch.full((IN_SLOT,), value, dtype=torch.uint8)


def checked(item: tuple[int, bytes, torch.Tensor]) -> int:
    number, text, pixels = item
    value = number % 251
    assert text == bytes([value]) * IN_SOCKET
    assert len(pixels) == IN_SLOT
    assert bool((pixels == value).all())
    return number


def indexed():
    return RepeatDataset(ShuffleDataset(numbers(1000)))


def stream():
    return RepeatDataset(FilterDataset(ShuffleDataset(numbers(1000)), is_wanted))


def children() -> set[int]:
    """This process's child processes that run, but for multiprocessing's own."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            path = Path(f"/proc/{pid}/cmdline")
            if not gone(int(pid)) and b"multiprocessing.resource_tracker" not in path.read_bytes():
                found.add(int(pid))
    return found


def is_sending(pid: int) -> bool:
    """Whether a thread of the process is in the middle of sending."""
    try:
        calls = [(t / "syscall").read_text() for t in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return any(call.startswith(SENDING) for call in calls)


class Attacker(threading.Thread):
    """Kills and stops children at random moments, each when the loader has got over the last."""

    def __init__(self, loader, signals: list[signal.Signals]) -> None:
        super().__init__(daemon=True)
        self._loader, self._signals = loader, signals
        self._rng = random.Random(len(signals))
        self._others = children()
        self.taken = 0
        self.victims: list[int] = []
        self.stopped_sending = 0

    def run(self) -> None:
        for how in self._signals:
            seen, replaced = self.taken, self._loader.workers_replaced
            while self.taken < seen + 24:
                time.sleep(0.002)
            time.sleep(self._rng.uniform(0, 0.05))
            victim = self._rng.choice(sorted(children() - self._others))
            os.kill(victim, how)
            self.victims.append(victim)
            if how is signal.SIGSTOP:
                self.stopped_sending += is_sending(victim)
            while self._loader.workers_replaced == replaced:
                time.sleep(0.002)


def attacked(dataset, signals, caplog, *, workers: int, timeout: float, method: str = "fork"):
    """Read on while workers are killed and stopped, and compare every item; the attacker."""
    with loader_of(
        MapDataset(dataset, large),
        workers,
        lanes=4,
        timeout=timeout,
        multiprocessing_context=method,
    ) as loader:
        attacker = Attacker(loader, signals)
        rng, got, after = random.Random(1), [], 30
        with caplog.at_level(logging.WARNING, "energize"):
            for item in loader:
                got.append(checked(item))
                attacker.taken += 1
                if len(got) == 1:
                    attacker.start()
                time.sleep(rng.choice((0.0, 0.0, 0.0, 0.02)))  # in which the sockets fill
                after -= not attacker.is_alive()
                if not after:
                    break
        replaced = loader.workers_replaced
        state = loader.state_dict()
    with loader_of(dataset, lanes=4) as plain:
        *whole, following = take(plain, len(got) + 1)
    assert got == whole
    with loader_of(MapDataset(dataset, large), lanes=4) as resumed:
        resumed.load_state_dict(state)
        assert checked(next(iter(resumed))) == following
    assert len(attacker.victims) == len(signals)
    # On a machine with much else to do, one more may have been too slow.
    assert replaced >= len(signals)
    assert caplog.text.count("takes its place") == replaced
    assert all(f"(pid {victim})" in caplog.text and gone(victim) for victim in attacker.victims)
    return attacker


def either(count: int) -> list[signal.Signals]:
    return [signal.SIGKILL, signal.SIGSTOP] * (count // 2)


FIFTY = pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])


@pytest.mark.parametrize("dataset", [indexed, stream])
@pytest.mark.parametrize("count", [4, FIFTY])
def test_workers_killed_and_stopped_at_random(dataset, count, caplog):
    attacker = attacked(dataset(), either(count), caplog, workers=3, timeout=1.0)
    print(f"{attacker.stopped_sending} of {count // 2} were stopped while they were sending")
    if count > 10 and os.uname().machine == "x86_64":
        assert attacker.stopped_sending


def test_spawned_workers_killed_at_random(caplog):
    attacked(stream(), [signal.SIGKILL], caplog, workers=2, timeout=60, method="spawn")


def killed_jobs(*options: str, seconds: float) -> list[dict]:
    command = [sys.executable, "-m", kill_program.__name__, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            output, _ = program.communicate(timeout=seconds)
        except BaseException:
            program.terminate()  # it ends the job that runs
            raise
    reports = [json.loads(line) for line in output.splitlines()]
    assert program.returncode == 0, reports[-1]
    return reports


def test_a_job_killed_at_random_is_trained_on_what_one_process_is():
    options = ["--kills", "4", "--kinds", "endless_stream,indexed_epochs", "--torchrun-every", "4"]
    *runs, whole = killed_jobs(*options, seconds=100)
    assert [run["kills"] for run in runs] == [2, 2]
    assert whole["kills"] == 4
    assert sum(run["seen"].get("torchrun", 0) for run in runs) == 1
    assert all(run["compared"] >= run["batches"] >= 40 for run in runs)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_jobs_killed_two_hundred_times():
    *runs, whole = killed_jobs("--kills", "200", "--seconds", "3000", seconds=3500)
    assert whole["kills"] == 200
    assert len(runs) == len(kill_program.DATASETS)

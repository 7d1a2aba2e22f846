"""Trainers that are killed or interrupted, and what is left of them.

`python -m tests.support.leftover_program FOLDER [NAME...]` prints a line of JSON for each: how many
seconds its processes took to be gone, and what it wrote. Each trainer is a process group, forked
from this process, which has imported torch: so many would take minutes to start from nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path


class First:
    """What a program lets go of when it ends, and has named before it imports energize."""


weakref.finalize(First, str)

from energize import ListSource, MapDataset, RepeatDataset, WorkerConfig, get_loader  # noqa: E402
from tests.support.leftovers import die_with, in_group  # noqa: E402

LONGEST = 15.0
"""Seconds after which the program itself ends what is left."""

TRIALS = 6
"""Of what takes little time and has to be met at the right moment."""

CASES: dict[str, Callable[[Path], dict]] = {}


def case(function):
    CASES[function.__name__] = function
    return function


def note(path: Path, word: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{word}\n".encode())
    os.close(descriptor)


def noted(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def busy(path: Path, item: int) -> int:
    """Busy for minutes: asleep, in a call that lets no other thread run, or asleep again."""
    if item >= 3:
        note(path, "busy")
        if item % 3 == 1:
            pow(3, 10**9)
        time.sleep(300)
    return item


def loader_of(function: Callable[[int], int], workers: int, method: str | None = None):
    dataset = MapDataset(RepeatDataset(ListSource(range(30))), function)
    config = WorkerConfig(num_workers=workers)
    return get_loader(dataset, worker_config=config, multiprocessing_context=method)


def waits_for_busy_workers(path: Path, method: str | None = None, workers: int = 3) -> None:
    for _ in loader_of(partial(busy, path), workers, method):
        pass


def starts_workers(path: Path, method: str | None = None) -> None:
    """Of a dataset that is more than fits into a pipe."""
    dataset = MapDataset(RepeatDataset(ListSource([bytes(10_000 + n) for n in range(30)])), len)
    config = WorkerConfig(num_workers=3)
    note(path, "starting")
    for _ in get_loader(dataset, worker_config=config, multiprocessing_context=method):
        pass


def does_something_else(path: Path) -> None:
    loaders = [loader_of(partial(busy, path), 3) for _ in range(2)]
    for loader in loaders:
        next(iter(loader))
    time.sleep(300)


def sleeps(path: Path) -> None:
    note(path, "sleeping")
    time.sleep(300)


class Trainer:
    """A forked trainer in a process group of its own, that writes what it says into a file."""

    def __init__(self, folder: Path, body: Callable[[Path], None]) -> None:
        self.folder = folder
        folder.mkdir()
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            die_with(parent)
            self._be(body)
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)
        self.code: int | None = None

    def _be(self, body: Callable[[Path], None]) -> None:
        os.setpgid(0, 0)
        descriptor = os.open(self.folder / "said", os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 2)
        body(self.folder / "notes")
        sys.exit(0)  # through all that a program does at its end

    def until(self, notes: list[str]) -> None:
        until = time.monotonic() + 60
        while noted(self.folder / "notes") != notes:
            if time.monotonic() > until or self.ended():
                self.end(signal.SIGKILL)
                said = (self.folder / "said").read_text()
                raise RuntimeError(f"{noted(self.folder / 'notes')} instead of {notes}: {said}")
            time.sleep(0.002)

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def stop_workers(self, count: int) -> None:
        """Stop some of its children."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for child in children[:count]:
            os.kill(int(child), signal.SIGSTOP)

    def end(self, how: int, *, group: bool = False, again: float | None = None) -> dict:
        """Send it a signal, or all its processes; and how long it takes until all are gone."""
        (os.killpg if group else os.kill)(self.pid, how)
        began = time.monotonic()
        while (left := in_group(self.pid)) or not self.ended():
            passed = time.monotonic() - began
            if again is not None and passed > again:
                os.killpg(self.pid, how)
                again = None
            if passed > LONGEST:
                os.killpg(self.pid, signal.SIGKILL)
                self.ended() or os.waitpid(self.pid, 0)
                break
            time.sleep(0.005)
        said = (self.folder / "said").read_text() if (self.folder / "said").exists() else ""
        seconds = round(time.monotonic() - began, 3)
        return {"seconds": seconds, "left": len(left), "code": self.code, "said": said}


def killed_while_busy(folder: Path, method: str) -> dict:
    trainer = Trainer(folder, partial(waits_for_busy_workers, method=method, workers=2))
    trainer.until(["busy"] * 2)  # one asleep, one that lets no other thread run
    time.sleep(0.2)
    return trainer.end(signal.SIGKILL)


def killed_while_starting(folder: Path, method: str, trials: int, longest: float) -> dict:
    folder.mkdir()
    rng = random.Random(method)
    ends = []
    for trial in range(trials):
        trainer = Trainer(folder / str(trial), partial(starts_workers, method=method))
        trainer.until(["starting"])
        time.sleep(rng.uniform(0, longest))
        ends.append(trainer.end(signal.SIGKILL))
    return max(ends, key=lambda end: end["seconds"])


for name in ("fork", "spawn", "forkserver"):
    CASES[f"killed while busy, {name}"] = partial(killed_while_busy, method=name)


@case
def killed_while_busy_from_a_thread(folder: Path) -> dict:
    """Workers whose parent, as the kernel sees it, is a thread that may end any time."""

    def body(path: Path) -> None:
        thread = threading.Thread(target=waits_for_busy_workers, args=(path, "fork", 2))
        thread.start()
        thread.join()

    trainer = Trainer(folder, body)
    trainer.until(["busy"] * 2)
    time.sleep(0.2)
    return trainer.end(signal.SIGKILL)


CASES |= {
    "killed while starting, fork": partial(
        killed_while_starting, method="fork", trials=TRIALS, longest=0.1
    ),
    "killed while starting, spawn": partial(
        killed_while_starting, method="spawn", trials=2, longest=1.0
    ),
    "killed while starting, forkserver": partial(
        killed_while_starting, method="forkserver", trials=2, longest=1.0
    ),
}


@case
def interrupted_while_busy(folder: Path) -> dict:
    trainer = Trainer(folder, waits_for_busy_workers)
    trainer.until(["busy"] * 3)
    time.sleep(0.2)
    return trainer.end(signal.SIGINT, group=True)


@case
def interrupted_while_stopped(folder: Path) -> dict:
    trainer = Trainer(folder, waits_for_busy_workers)
    trainer.until(["busy"] * 3)
    trainer.stop_workers(2)
    return trainer.end(signal.SIGINT, group=True)


@case
def interrupted_elsewhere(folder: Path) -> dict:
    """In other code than the loader's, while workers of two loaders are busy or stopped."""
    trainer = Trainer(folder, does_something_else)
    trainer.until(["busy"] * 6)
    trainer.stop_workers(4)
    time.sleep(0.2)
    return trainer.end(signal.SIGINT, group=True)


@case
def interrupted_twice(folder: Path) -> dict:
    trainer = Trainer(folder, waits_for_busy_workers)
    trainer.until(["busy"] * 3)
    trainer.stop_workers(2)
    return trainer.end(signal.SIGINT, group=True, again=0.3)


def interrupted_while_starting(folder: Path, method: str, trials: int, longest: float) -> dict:
    folder.mkdir()
    rng = random.Random(method)
    ends = []
    for trial in range(trials):
        trainer = Trainer(folder / str(trial), partial(starts_workers, method=method))
        trainer.until(["starting"])
        time.sleep(rng.uniform(0, longest))
        ends.append(trainer.end(signal.SIGINT, group=True))
    slowest = max(ends, key=lambda end: end["seconds"])
    return slowest | {"said": "".join(end["said"] for end in ends), "trials": trials}


def reads_on(path: Path) -> None:
    """One loader after the other: starts, messages large and small, ends."""
    note(path, "starting")
    while True:
        dataset = MapDataset(RepeatDataset(ListSource(range(30))), bytes_of)
        with get_loader(dataset, worker_config=WorkerConfig(num_workers=2)) as loader:
            for _ in zip(range(50), loader, strict=False):
                pass


def bytes_of(item: int) -> bytes:
    return bytes(30_000 * item)


def interrupted_at_random(folder: Path, trials: int) -> dict:
    folder.mkdir()
    rng = random.Random(trials)
    ends = []
    for trial in range(trials):
        trainer = Trainer(folder / str(trial), reads_on)
        trainer.until(["starting"])
        time.sleep(rng.uniform(0, 1.0))
        ends.append(trainer.end(signal.SIGINT, group=True))
    slowest = max(ends, key=lambda end: end["seconds"])
    codes = {end["code"] for end in ends}
    if codes != {-signal.SIGINT} or any(end["left"] for end in ends):
        raise RuntimeError(f"exit codes {codes}; slowest {slowest}")
    return slowest | {"said": "".join(end["said"] for end in ends), "trials": trials}


def interrupted_without_a_loader(folder: Path) -> dict:
    """What a program that has imported torch takes to end."""
    trainer = Trainer(folder, sleeps)
    trainer.until(["sleeping"])
    return trainer.end(signal.SIGINT, group=True)


CASES["interrupted without a loader"] = interrupted_without_a_loader
CASES["interrupted at random"] = partial(interrupted_at_random, trials=TRIALS)
CASES["interrupted while starting, fork"] = partial(
    interrupted_while_starting, method="fork", trials=TRIALS, longest=0.1
)
CASES["interrupted while starting, spawn"] = partial(
    interrupted_while_starting, method="spawn", trials=2, longest=1.0
)


CASES["interrupted without a loader, again"] = interrupted_without_a_loader


def main(folder: Path, names: list[str]) -> None:
    import torch  # noqa: F401 - before trainers are forked; not in each spawned worker

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in names or CASES:
        began = time.monotonic()
        try:
            result = CASES[name](folder / name.replace(" ", "-"))
        except Exception:
            result = {"failed": traceback.format_exc()}
        took = round(time.monotonic() - began, 1)
        print(json.dumps({"case": name, "took": took, **result}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

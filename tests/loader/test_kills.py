"""Workers, trainers and whole jobs that are killed, stopped or interrupted at random
moments."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
import torch

from energize import (
    BatchDataset,
    FilterDataset,
    MapDataset,
    PackingDataset,
    RepeatDataset,
    ShuffleDataset,
)
from tests.support import killed_training
from tests.support.datasets import is_even, numbers
from tests.support.killed_training import KINDS, LANES, dataset_of, saved
from tests.support.launching import running
from tests.support.leftovers import in_group, workers_of
from tests.support.loading import eventually, loader_of, take

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(240)]

SECONDS = 5.0
"""After these, nothing is left of a trainer that was killed or interrupted, on a busy
machine."""


def large(item: int) -> tuple[int, bytes, torch.Tensor]:
    """What travels in the message itself, and what does in shared memory."""
    value = item % 251
    return (
        item,
        bytes([value]) * 300_000,
        torch.full((700_000,), value, dtype=torch.uint8),
    )


def checked(item):
    """The number of a large item, all of whose bytes are right; a small item itself."""
    if isinstance(item, tuple):
        number, text, pixels = item
        assert text == bytes([number % 251]) * len(text), "the bytes of another one"
        assert bool((pixels == number % 251).all()), "the pixels of another one"
        return number
    return item


def in_fives(items: list[int]) -> list[list[int]]:
    return [items[at : at + 5] for at in range(0, len(items), 5)]


def indexed():
    return RepeatDataset(ShuffleDataset(numbers(1000)))


def stream():
    return RepeatDataset(FilterDataset(ShuffleDataset(numbers(1000)), is_even))


READ = {
    "large indexed": lambda: MapDataset(indexed(), large),
    "large stream": lambda: MapDataset(stream(), large),
    "small batches": lambda: BatchDataset(indexed(), 8, list),
    "packs": lambda: PackingDataset(stream(), 30, in_fives, list),
}


def strike(pid: int, how: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)


def attacked(loader, how: int, times: int, rng: random.Random) -> list:
    """What is read while workers are attacked: while they read, send, and have just
    started."""
    got: list = []

    def read(count: int) -> None:
        for item in islice(iter(loader), count):
            got.append(checked(item))
            time.sleep(rng.choice((0.0, 0.0, 0.001, 0.01)))  # in which the sockets fill

    for at in range(times):
        read(100)  # more than is read ahead: so all workers have answered
        for _ in range(
            1 + at % 2
        ):  # the second time one that has taken the place of the first
            before = loader.workers_replaced
            victim = (
                max(workers_of(os.getpid(), set()))
                if at % 2
                else rng.choice(sorted(workers_of(os.getpid(), set())))
            )
            threading.Timer(rng.uniform(0, 0.05), strike, (victim, how)).start()
            until = time.monotonic() + 60
            while loader.workers_replaced == before:
                assert time.monotonic() < until, "nobody took the place of the victim"
                read(1)
    read(40)
    return got


@pytest.mark.parametrize("times", [2, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "method", "how"),
    [
        *((kind, "fork", signal.SIGKILL) for kind in READ if kind != "large indexed"),
        pytest.param("large stream", "fork", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(
            "large indexed", "forkserver", signal.SIGKILL, marks=pytest.mark.slow
        ),
        pytest.param("packs", "spawn", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(3600)
def test_workers_killed_and_stopped_at_random(kind, method, how, times, caplog):
    dataset = READ[kind]()
    lanes = None if dataset.indexed else 4
    patience = 3.0 if how == signal.SIGSTOP else 60.0
    options = {"timeout": patience, "multiprocessing_context": method}
    loader = loader_of(dataset, workers=2, lanes=lanes, **options)
    with loader:
        got = attacked(loader, how, times, random.Random(kind))
        state, replaced = loader.state_dict(), loader.workers_replaced
    del loader  # which holds the last item
    gc.collect()
    assert eventually(lambda: not workers_of(os.getpid(), set()))
    assert "/memfd:energize" not in Path("/proc/self/maps").read_text()
    with loader_of(dataset, lanes=lanes) as plain:
        *whole, following = (
            checked(item) for item in islice(iter(plain), len(got) + 1)
        )
    assert got == whole
    with loader_of(dataset, lanes=lanes) as resumed:
        resumed.load_state_dict(state)
        assert checked(take(resumed, 1)[0]) == following
    assert replaced >= times
    assert caplog.text.count("takes its place") == replaced


BODIES = {
    "busy": """
        def busy(item):
            if item % 3 == 1:
                pow(3, 10**8)  # lets no other thread run
            time.sleep(300 if item > 3 else 0)
            return item
        dataset = MapDataset(RepeatDataset(ListSource(range(30))), busy)
    """,
    "starting": """
        dataset = MapDataset(RepeatDataset(ListSource([bytes(10_000)] * 300)), len)
    """,
}
COUNTING = "dataset = RepeatDataset(ListSource(range(100)))"


class Trainer:
    """A trainer in a session of its own, that prints a line when it begins to read."""

    def __init__(self, tmp_path: Path, body: str, method: str, loop: str) -> None:
        script = tmp_path / "trainer.py"
        text = """
            import sys, time
            from energize import ListSource, MapDataset, RepeatDataset, WorkerConfig, get_loader
        """
        text = textwrap.dedent(text) + textwrap.dedent(body)
        text += textwrap.dedent(f"""
            if __name__ == "__main__":
                config = WorkerConfig(num_workers=3)
                options = dict(timeout=1.5, multiprocessing_context={method!r})
                loader = get_loader(dataset, worker_config=config, **options)
                print("reading", flush=True)
        """) + textwrap.indent(textwrap.dedent(loop), " " * 4)
        script.write_text(text)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.running = subprocess.Popen(
            [sys.executable, script], start_new_session=True, **pipes
        )
        self.group = self.running.pid
        assert self.running.stdout.readline() == "reading\n", self.running.stderr.read()

    def ended(self) -> str:
        """What it wrote; it and all its workers are gone soon."""
        try:
            _, said = self.running.communicate(timeout=60)
            assert eventually(lambda: not in_group(self.group), SECONDS), in_group(
                self.group
            )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.group, signal.SIGKILL)
        return said


READ_ALL = "for item in loader: pass\n"


@pytest.mark.parametrize(
    ("body", "method"),
    [
        ("busy", "fork"),
        ("busy", "forkserver"),
        ("starting", "spawn"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [
                ("busy", "spawn"),
                ("starting", "fork"),
                ("starting", "forkserver"),
            ]
        ),
    ],
)
def test_a_killed_trainer_leaves_nothing(tmp_path, body, method):
    trainer = Trainer(tmp_path, BODIES[body], method, READ_ALL)
    time.sleep(1.0 if body == "busy" else random.Random(method).uniform(0, 0.2))
    trainer.running.kill()
    said = trainer.ended()
    # Python itself says so of a process that is being spawned at that moment.
    assert not said or (
        method == "spawn" and said.count("EOFError") == said.count("Traceback")
    )


@pytest.mark.parametrize(
    ("body", "stopped"),
    [
        ("busy", 2),
        ("starting", 0),
        pytest.param("busy", 0, marks=pytest.mark.slow),
        pytest.param("starting", 2, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_a_trainer_and_its_workers(tmp_path, body, stopped):
    trainer = Trainer(tmp_path, BODIES[body], "fork", READ_ALL)
    time.sleep(0.3)
    for worker in sorted(workers_of(trainer.group, set()))[:stopped]:
        os.kill(worker, signal.SIGSTOP)
    os.killpg(trainer.group, signal.SIGINT)
    said = trainer.ended()
    assert trainer.running.returncode == -signal.SIGINT
    assert said.endswith("KeyboardInterrupt\n")
    assert said.count("Traceback") == 1, said


def test_a_trainer_that_ends_without_closing_leaves_no_worker_and_no_noise(tmp_path):
    trainer = Trainer(
        tmp_path, COUNTING, "fork", "iterator = iter(loader)\nnext(iterator)\n"
    )
    assert (trainer.ended(), trainer.running.returncode) == ("", 0)


def test_a_trainer_may_save_after_ctrl_c_and_go_on(tmp_path):
    """With the item after the last one; or the one after that, where Ctrl-C came
    between what was delivered and the name that the trainer gives it.
    """
    loop = """
        last = 99
        try:
            for last in loader: pass
        except KeyboardInterrupt:
            sys.exit(10 + (next(iter(loader)) - last) % 100)
    """
    trainer = Trainer(tmp_path, COUNTING, "fork", loop)
    time.sleep(0.5)
    os.killpg(trainer.group, signal.SIGINT)
    assert trainer.ended() == ""
    assert trainer.running.returncode in (11, 12)


def test_a_trainer_that_is_stopped_for_a_while_blames_nobody(tmp_path):
    loop = """
        until = time.monotonic() + 5
        for item in loader:
            if time.monotonic() > until:
                break
        sys.exit(10 + loader.workers_replaced)
    """
    trainer = Trainer(tmp_path, BODIES["starting"], "fork", loop)
    time.sleep(0.7)
    os.kill(trainer.group, signal.SIGSTOP)
    time.sleep(3)
    os.kill(trainer.group, signal.SIGCONT)
    assert trainer.ended() == ""
    assert trainer.running.returncode == 10


def steps_of(folder: Path, job: int) -> list[tuple]:
    """The steps that all ranks of a job made: a batch of each rank, None for
    padding."""
    files = sorted(folder.glob(f"trained-{job}-*"))
    lines = [file.read_text().splitlines(keepends=True) for file in files]
    ranks = [
        [json.loads(line) for line in each if line.endswith("\n")] for each in lines
    ]
    return list(zip(*ranks, strict=False))


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("indexed epochs", 1),
        ("endless stream", 1),
        *(pytest.param(kind, 50, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
@pytest.mark.timeout(3600)
def test_a_killed_job_is_trained_on_what_one_process_is(tmp_path, kind, kills):
    rng, batches = random.Random(kind), 0
    dataset = dataset_of(kind)
    with loader_of(dataset, lanes=None if dataset.indexed else LANES) as plain:
        for job in range(kills + 1):
            target = batches + 40 if job == kills else 0
            written, ranks = tmp_path / f"{job}", rng.choice((2, 3))
            written.mkdir()
            given = (killed_training.__name__, tmp_path, job, kind, 2, target)
            with running(written, *given, ranks=ranks) as processes:
                if target:
                    processes.wait(120)
                    assert processes.codes == [0] * ranks, processes.stderr
                else:
                    assert eventually(
                        lambda job=job: len(steps_of(tmp_path, job)) > 20, 120
                    )
                    time.sleep(rng.uniform(0, 0.3))
            gone = eventually(
                lambda group=processes.group: not in_group(group), SECONDS
            )
            assert gone, in_group(processes.group)
            steps = steps_of(tmp_path, job)
            trained = [batch for step in steps for batch in step if batch is not None]
            plain.rewind()
            whole = json.loads(json.dumps(take(plain, batches + len(trained))))
            assert trained == whole[batches:], f"job {job}"
            state = saved(tmp_path)
            if state is not None and state["job"] == str(job):
                kept = [each for step in steps[: state["steps"]] for each in step]
                batches += sum(each is not None for each in kept)
                assert state["batches"] == batches
    assert batches > 20

"""A training job that is killed again and again, and resumed on other numbers of ranks.

`python -m tests.support.kill_program --kills 200` starts real ranks (gloo, each with workers) that
train on a stream or an indexed dataset and save the loader's state together with a model. It kills
them with SIGKILL, resumes from the last state saved, and compares what all of them together were
trained on with one process that was never stopped. It prints what it saw, and fails if anything
differs or is left running.

Every tenth job is started by torchrun. The others are forked from this process, which has imported
torch, with the variables that torchrun would set: it takes a tenth of the time.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from energize import WorkerConfig, get_loader
from tests.support.kill_jobs import Job, forked, launched
from tests.support.kill_training import DATASETS, LANES, PHASES, counted, read_state

WORLDS = (1, 2, 3, 4, 6, 8)
METHODS = ("fork",) * 10 + ("spawn", "forkserver")
"""How workers start; from nothing takes each of them seconds."""

SECONDS_TO_END = 5.0
"""After a kill nothing of a job is left after so many seconds."""


class Difference(Exception):
    """What was trained on is not what one process is trained on, or something is left running."""


class Uninterrupted:
    """The batches of one process that is never stopped."""

    def __init__(self, kind: str) -> None:
        config = WorkerConfig(rank=0, world_size=1)
        lanes = None if DATASETS[kind]().indexed else LANES
        self._loader = get_loader(DATASETS[kind](), worker_config=config, lanes=lanes)
        self._batches: list[list] = []

    def upto(self, count: int) -> list[list]:
        while len(self._batches) < count:
            more = islice(iter(self._loader), count - len(self._batches))
            self._batches.extend(json.loads(json.dumps(batch)) for batch in more)
        return self._batches[:count]


class Run:
    """One training run, over as many jobs as are killed, and what is known of it."""

    def __init__(self, kind: str, folder: Path, rng: random.Random) -> None:
        self.kind, self.folder, self.rng = kind, folder, rng
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0
        self.jobs = 0
        self.compared = 0
        self.batches = 0
        """Trained on up to the last state saved."""
        self._from: list[int] = []
        self._whole = Uninterrupted(kind)

    def start(self, *, by_torchrun: bool, world: int, target: int | None = None) -> Job:
        """The next job: it goes on from the last state saved, until it has trained on `target`
        batches, or is killed.
        """
        workers = 2 if not self.jobs else self.rng.choice((2, 2, 2, 1, 0))
        method = self.rng.choice(METHODS)
        numbers = (str(workers), str(target or 0))
        arguments = [str(self.folder), str(self.jobs), self.kind, *numbers, method]
        (self.folder / "phase").write_bytes(b"\0")
        self._from.append(self.batches)
        job = (launched if by_torchrun else forked)(world, arguments, self.folder)
        self.jobs += 1
        self.seen["torchrun" if by_torchrun else "forked"] += 1
        self.seen[f"{world} ranks"] += 1
        self.seen[f"{workers} workers"] += 1
        self.seen[method] += 1
        return job

    def kill(self, job: Job) -> None:
        """End a job at a random moment, and see that it is gone."""
        moment = self.rng.choice(("start", "train", "save"))
        if moment == "start":
            self._wait(job, self.rng.uniform(0, job.seconds_to_start))
        else:
            self._until(job, {1, 2, 3})
            self._wait(job, self.rng.uniform(0, 1.0))
            self._disturb(job)
            if moment == "save":
                self._until(job, {2, 3})
                time.sleep(self.rng.uniform(0, 0.004))
        self.seen[PHASES[self._phase()]] += 1
        if self.rng.random() < 0.5:
            self.seen["all at once"] += 1
            job.kill_all()
        else:
            self.seen["ranks one by one"] += 1
            job.kill_ranks(self.rng)
        began = time.monotonic()
        while left := job.running():
            if time.monotonic() - began > SECONDS_TO_END:
                raise Difference(f"processes {sorted(left)} are left {SECONDS_TO_END} s after")
            time.sleep(0.01)
        self.slowest = max(self.slowest, time.monotonic() - began)
        job.reap()
        self.check()

    def _disturb(self, job: Job) -> None:
        """Before the end: a worker is killed, or a rank stopped for a while, and nobody notices."""
        what = self.rng.choice(("nothing", "nothing", "a worker killed", "a rank stopped"))
        if what == "a worker killed" and job.kill_a_worker(self.rng):
            self.seen[what] += 1
        elif what == "a rank stopped":
            job.stop_a_rank(self.rng, self.rng.uniform(0.2, 1.0))
            self.seen[what] += 1
        self._wait(job, self.rng.uniform(0, 0.3))

    def _phase(self) -> int:
        return (self.folder / "phase").read_bytes()[0]

    def _wait(self, job: Job, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check_running(job)
            time.sleep(0.002)

    def _until(self, job: Job, phases: set[int]) -> None:
        until = time.monotonic() + 120
        while self._phase() not in phases:
            self._check_running(job)
            if time.monotonic() > until:
                raise Difference(f"the job hangs: {job.log()}")

    def _check_running(self, job: Job) -> None:
        if job.ended():
            raise Difference(f"the job ended by itself: {job.log()}")

    def finish(self, job: Job) -> None:
        """Let a job train on until it ends by itself."""
        until = time.monotonic() + 300
        while not job.ended():
            if time.monotonic() > until:
                raise Difference(f"the job hangs: {job.log()}")
            time.sleep(0.02)
        if not job.succeeded():
            raise Difference(f"the last job failed: {job.log()}")
        before = self.batches
        self.check()
        if self.batches == before:
            raise Difference("the last job trained on nothing")

    def check(self) -> None:
        """Compare what the last job did, saved or not; and the model, if it saved one."""
        number = self.jobs - 1
        first = self._from[number]
        steps = self._steps(number)
        trained = [batch for step in steps for batch in step if batch is not None]
        wanted = self._whole.upto(first + len(trained))[first:]
        if trained != wanted:
            at = next(n for n, (a, b) in enumerate(zip(trained, wanted, strict=True)) if a != b)
            raise Difference(
                f"job {number} ({self.kind}): batch {first + at} is {trained[at]}, of one process "
                f"{wanted[at]}"
            )
        self.compared += len(trained)
        state = read_state(self.folder)
        if state is None or state["job"] != number:
            return
        kept = [batch for step in steps[: state["steps"]] for batch in step if batch is not None]
        if len(steps) < state["steps"]:
            raise Difference(f"{len(steps)} whole steps are on file, {state['steps']} were saved")
        self.batches = first + len(kept)
        if state["model"] != counted(self._whole.upto(self.batches)).tolist():
            raise Difference(f"the model after {self.batches} batches is another one")

    def _steps(self, number: int) -> list[list]:
        """The steps of a job that all its ranks made: a batch for each rank, None for padding."""
        files = sorted(self.folder.glob(f"trained-{number}-*"))
        ranks = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        if not files or len(files) != int(files[0].name.rsplit("-", 1)[1]):
            return []  # not all of its ranks have begun
        return [list(step) for step in zip(*ranks, strict=False)]


@contextmanager
def ended_on_error(job: Job) -> Iterator[None]:
    try:
        yield
    except BaseException:
        job.kill_all()
        raise


def one_run(
    kind: str, kills: int, by_torchrun: Iterator[bool], rng: random.Random, until: float
) -> dict:
    """Kill jobs of a run so many times, or until it is late, and then let it end."""
    with tempfile.TemporaryDirectory(prefix="energize-kills-") as folder:
        run = Run(kind, Path(folder), rng)
        done = 0
        while done < kills and time.monotonic() < until:
            world = WORLDS[3] if not done else rng.choice(WORLDS)
            job = run.start(by_torchrun=next(by_torchrun), world=world)
            with ended_on_error(job):
                run.kill(job)
            done += 1
        job = run.start(by_torchrun=False, world=rng.choice(WORLDS), target=run.batches + 40)
        with ended_on_error(job):
            run.finish(job)
        return {
            "kind": kind,
            "kills": done,
            "batches": run.batches,
            "compared": run.compared,
            "slowest_end": round(run.slowest, 3),
            "seen": dict(sorted(run.seen.items())),
        }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200, help="of all kinds together")
    options.add_argument("--kinds", default=",".join(DATASETS))
    options.add_argument("--torchrun-every", type=int, default=10)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=3600, help="begin no kill after these")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the job that runs
    began = time.monotonic()
    kinds = given.kinds.split(",")
    rng = random.Random(given.seed)
    by_torchrun = cycle(
        number == given.torchrun_every - 1 for number in range(given.torchrun_every)
    )
    reports = []
    for number, kind in enumerate(kinds):
        kills = given.kills // len(kinds) + (number < given.kills % len(kinds))
        until = began + given.seconds * (number + 1) / len(kinds)
        try:
            report = one_run(kind, kills, by_torchrun, rng, until)
        except Difference as difference:
            print(json.dumps({"kind": kind, "difference": str(difference)}), flush=True)
            return 1
        reports.append(report)
        print(json.dumps(report), flush=True)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"kills": sum(each["kills"] for each in reports), "seconds": seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Workers that are killed and stopped at random moments, and what is delivered meanwhile.

`python -m tests.support.attack_program --kills 1000 --stops 1000` starts trainers, each with a
process beside it that kills (SIGKILL) and stops (SIGSTOP) its workers: while they start, in the
middle of a message, while they read, at the end. All items are compared with those that one process
reads; nothing may be left of the workers afterwards, and none may be missing in what the log tells.
It prints a line for each trainer and a table of all attacks, and fails if anything differs.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import mmap
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import islice
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np

from energize import Loader, WorkerConfig, get_loader
from tests.support.attack_kinds import KINDS, LANES, checked, unadorned
from tests.support.leftovers import die_with, in_group, workers_of

STARTS = {"fork": 0.05, "forkserver": 2.5, "spawn": 2.5}
"""Seconds in which a worker starts, about: it is killed within them."""

SILENCE = 3.0
"""Seconds after which a stopped worker is replaced. On a machine that has much else to do another
one may need as long for an answer.
"""

PAUSE = 5.0
"""Seconds for which a trainer is stopped, in which nobody's silence counts."""

LONGEST = 90.0
"""Seconds after which it is taken for a hang that a worker is not replaced."""

SENDING = ("44", "46")
"""The numbers of sendto and sendmsg (x86-64)."""

TAKEN, REPLACED, ENDS, CLOSING, OVER = range(5)
"""What trainer and attacker tell each other, numbers in shared memory."""


class Difference(Exception):
    """Something is not as it is without attacks."""


@dataclass(frozen=True)
class Plan:
    """What one trainer reads, and how its workers are attacked: pairs of a signal and a moment."""

    number: int
    kind: str
    method: str
    workers: int
    attacks: list[tuple[int, str]]

    @property
    def stops(self) -> bool:
        return any(how == signal.SIGSTOP for how, _ in self.attacks)


@dataclass
class Strike:
    """One attack: of whom and when, and how long the trainer took to get over it."""

    how: str
    moment: str
    victim: int
    sending: bool
    seconds: float = 0.0


@dataclass
class Report:
    """What one trainer saw."""

    number: int
    kind: str
    method: str
    workers: int
    items: int
    replaced: int
    strikes: list[Strike] = field(default_factory=list)


def is_sending(pid: int) -> bool:
    """Whether a thread of the process is in the middle of sending."""
    try:
        calls = [(task / "syscall").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return any(call.startswith(SENDING) for call in calls)


class Attacker:
    """Beside a trainer, in a process of its own: each attack comes when the last is got over."""

    def __init__(self, plan: Plan, shared: Any, told: Any) -> None:
        self._plan, self._shared, self._told = plan, shared, told
        self._rng = random.Random(plan.number)
        self._trainer = os.getppid()
        self._others = {os.getpid()}

    def run(self) -> None:
        for how, moment in self._plan.attacks:
            if moment == "pause":
                self._pause()
                continue
            victim = self._victim(moment)
            if victim is None:  # the trainer has ended its workers before the moment came
                continue
            before, taken = self._shared[REPLACED], self._shared[TAKEN]
            strike = Strike(signal.Signals(how).name, moment, victim, is_sending(victim))
            try:
                os.kill(victim, how)
            except ProcessLookupError:
                continue
            began = time.monotonic()
            if moment != "exit":
                self._until(lambda before=before: self._shared[REPLACED] > before)
                strike.seconds = time.monotonic() - began
                self._until(
                    lambda taken=taken: self._shared[TAKEN] > taken + 4 and not self._shared[ENDS]
                )
            self._told.send(strike)
        self._shared[OVER] = 1

    def _pause(self) -> None:
        """Stop the trainer for a while."""
        taken = self._shared[TAKEN]
        self._until(lambda: self._shared[TAKEN] > taken)
        time.sleep(self._rng.uniform(0, 0.05))
        os.kill(self._trainer, signal.SIGSTOP)
        time.sleep(PAUSE)
        taken = self._shared[TAKEN]
        os.kill(self._trainer, signal.SIGCONT)
        self._until(lambda: self._shared[TAKEN] > taken + 40)
        self._told.send(Strike("pause", "pause", self._trainer, False))

    def _victim(self, moment: str) -> int | None:
        old = self._workers()
        if moment == "exit":
            self._shared[OVER] = 1
            self._until(lambda: self._shared[CLOSING] or self._shared[CLOSING] == -1)
            time.sleep(self._rng.uniform(0, 0.01))
            left = self._workers()
            return self._rng.choice(sorted(left)) if left else None
        if moment == "start":
            # A worker that has just been started: at first, or in place of one killed for that.
            if self._shared[TAKEN]:
                os.kill(self._rng.choice(sorted(old)), signal.SIGKILL)
            self._until(lambda: self._workers() - old)
            time.sleep(self._rng.uniform(0, STARTS[self._plan.method]))
            new = self._workers() - old
            return self._rng.choice(sorted(new)) if new else self._victim("any")
        taken = self._shared[TAKEN]
        self._until(lambda: self._shared[TAKEN] > taken and self._workers())
        time.sleep(self._rng.uniform(0, 0.05))
        if moment == "sending":
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                for worker in self._workers():
                    if is_sending(worker):
                        return worker
        found = self._workers()
        return self._rng.choice(sorted(found)) if found else self._victim(moment)

    def _workers(self) -> set[int]:
        return workers_of(self._trainer, self._others)

    def _until(self, condition: Any) -> None:
        until = time.monotonic() + LONGEST
        while not condition():
            if time.monotonic() > until:
                raise Difference(f"not within {LONGEST} s")
            time.sleep(0.001)


def _attack(plan: Plan, shared: Any, told: Any, trainer: int) -> None:
    die_with(trainer)
    try:
        Attacker(plan, shared, told).run()
    except BaseException as error:
        told.send(f"{error}\n{traceback.format_exc()}")
        shared[OVER] = 1


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def attacked(plan: Plan) -> Report:
    """Read while the workers are attacked, and compare; in a process and a group of its own."""
    log = _Log()
    logging.getLogger("energize").addHandler(log)
    logging.getLogger("energize").propagate = False
    shared = np.frombuffer(mmap.mmap(-1, 4096), dtype=np.int64, count=5)
    resource_tracker.ensure_running()
    if plan.method == "forkserver":
        forkserver.ensure_running()
    telling, told = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    attacker = context.Process(target=_attack, args=(plan, shared, told, os.getpid()), daemon=True)
    attacker.start()
    told.close()
    dataset = KINDS[plan.kind]()
    loader = loader_for(plan, dataset)
    got, state = _read(loader, shared, random.Random(plan.number))
    replaced = loader.workers_replaced
    shared[CLOSING] = 1
    loader.close()
    attacker.join(LONGEST)
    strikes = list(_received(telling))
    loader = None
    _check_nothing_left(attacker.pid or 0)
    numbers = unadorned(dataset)
    with get_loader(numbers, worker_config=WorkerConfig(0, 1), lanes=_lanes(dataset)) as plain:
        *whole, following = (checked(item) for item in islice(iter(plain), len(got) + 1))
    if got != whole:
        at = next(
            n for n, (item, wanted) in enumerate(zip(got, whole, strict=True)) if item != wanted
        )
        raise Difference(f"item {at} is {got[at]}, and without attacks {whole[at]}")
    with get_loader(dataset, worker_config=WorkerConfig(0, 1), lanes=_lanes(dataset)) as resumed:
        resumed.load_state_dict(state)
        if checked(next(iter(resumed))) != following:
            raise Difference("the state is not that after the last item")
    _check_told(strikes, replaced, log.lines)
    return Report(plan.number, plan.kind, plan.method, plan.workers, len(got), replaced, strikes)


def loader_for(plan: Plan, dataset: Any) -> Loader[Any]:
    return get_loader(
        dataset,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=plan.workers),
        lanes=_lanes(dataset),
        timeout=SILENCE if plan.stops else 60.0,
        multiprocessing_context=plan.method,
    )


def _lanes(dataset: Any) -> int | None:
    return None if dataset.indexed else LANES


def _read(loader: Loader[Any], shared: Any, rng: random.Random) -> tuple[list[Any], Any]:
    """Read until the attacks are over and a little more, at a random pace."""
    got, after = [], 20
    for item in loader:
        got.append(checked(item))
        shared[TAKEN], shared[REPLACED] = len(got), loader.workers_replaced
        # The third worker that ends in one place without an answer is an error, and rightly so.
        shared[ENDS] = max(member.ends for member in loader._pool._members)
        time.sleep(rng.choice((0.0, 0.0, 0.001, 0.02)))  # in which the sockets fill
        after -= bool(shared[OVER])
        if not after:
            break
    return got, loader.state_dict()


def _received(telling: Any) -> Iterator[Strike]:
    while True:
        try:
            strike = telling.recv()
        except EOFError:
            return
        if not isinstance(strike, Strike):
            raise Difference(f"the attacker: {strike}")
        yield strike


def _check_nothing_left(attacker: int) -> None:
    """No process of the trainer but multiprocessing's own, and no shared memory."""
    gc.collect()
    left = workers_of(os.getpid(), {attacker})
    if left:
        raise Difference(f"workers {sorted(left)} are left after close()")
    if "/memfd:energize" in Path("/proc/self/maps").read_text():
        raise Difference("shared memory is mapped after close()")


def _check_told(strikes: list[Strike], replaced: int, lines: list[str]) -> None:
    text = "\n".join(lines)
    survived = [each for each in strikes if each.moment not in ("exit", "pause")]
    if replaced and not survived:
        raise Difference(f"{replaced} were replaced, and nobody was attacked: {text}")
    if replaced < len(survived):
        raise Difference(f"{replaced} were replaced, {len(survived)} attacked")
    if text.count("takes its place") != replaced:
        raise Difference(f"{replaced} were replaced, and the log says {text}")
    for each in survived:
        if f"(pid {each.victim})" not in text:
            raise Difference(f"the log does not tell of worker {each.victim}: {text}")


def trained(plan: Plan) -> Report:
    """A trainer in a process of its own; `Difference` for all that goes wrong in it."""
    receiving, sending = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setpgid(0, 0)
            die_with(parent)
            os.close(receiving)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                said = json.dumps(asdict(attacked(plan)))
                code = 0
            except BaseException:
                said = traceback.format_exc()
            with os.fdopen(sending, "w") as file:
                file.write(said)
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving) as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status):
        _end_group(pid)
        raise Difference(f"{plan}: {said or os.waitstatus_to_exitcode(status)}")
    until = time.monotonic() + 5
    while left := in_group(pid):
        if time.monotonic() > until:
            _end_group(pid)
            raise Difference(f"{plan}: processes {sorted(left)} outlive the trainer by 5 s")
        time.sleep(0.01)
    report = json.loads(said)
    return Report(**report | {"strikes": [Strike(**each) for each in report["strikes"]]})


def _end_group(group: int) -> None:
    for pid in in_group(group):
        os.kill(pid, signal.SIGKILL)


def planned(kills: int, stops: int, pauses: int, rng: random.Random) -> Iterator[Plan]:
    """Trainers for so many attacks; those that start workers from nothing, which takes seconds,
    have a few of the kills.
    """
    for number in range(pauses):
        kind = list(KINDS)[number % len(KINDS)]
        paused = [(int(signal.SIGSTOP), "pause")]
        yield Plan(rng.randrange(2**31), kind, "fork", 2, paused)
    number = 0
    while kills > 0 or stops > 0:
        method = "fork" if number % 8 or not kills else ("spawn", "forkserver")[number // 8 % 2]
        count = 30 if method == "fork" else 4
        of_kills, of_stops = min(kills, count), min(stops, count) if method == "fork" else 0
        attacks = [(int(signal.SIGSTOP), rng.choice(("any", "sending"))) for _ in range(of_stops)]
        moments = ["start", "any", "sending"]
        attacks += [(int(signal.SIGKILL), rng.choice(moments)) for _ in range(max(0, of_kills - 1))]
        rng.shuffle(attacks)
        if of_kills > 1:
            attacks.insert(0, (int(signal.SIGKILL), "start"))
            attacks[-1] = (
                (attacks[-1][0], "exit") if attacks[-1][0] == signal.SIGKILL else attacks[-1]
            )
        elif of_kills:
            attacks.append((int(signal.SIGKILL), "any"))
        kills, stops = kills - of_kills, stops - of_stops
        kind = list(KINDS)[number % len(KINDS)]
        yield Plan(rng.randrange(2**31), kind, method, rng.choice((1, 2, 3)), attacks)
        number += 1


def table(reports: list[Report]) -> str:
    """How many attacks of each kind there were, and how long they took to get over."""
    rows: dict[tuple[str, str, str], list[Strike]] = {}
    for report in reports:
        for strike in report.strikes:
            rows.setdefault((strike.how, report.method, strike.moment), []).append(strike)
    lines = [
        f"{'signal':8} {'start':11} {'moment':8} {'count':>5} {'sending':>7} {'longest, s':>10}"
    ]
    for (how, method, moment), strikes in sorted(rows.items()):
        sending, longest = sum(s.sending for s in strikes), max(s.seconds for s in strikes)
        lines.append(f"{how:8} {method:11} {moment:8} {len(strikes):5} {sending:7} {longest:10.2f}")
    return "\n".join(lines)


def left_in_shared_memory(before: set[str]) -> list[str]:
    """What is in /dev/shm and was not, when what goes by itself has had five seconds to."""
    until = time.monotonic() + 5
    while (left := set(os.listdir("/dev/shm")) - before) and time.monotonic() < until:
        time.sleep(0.1)
    return sorted(left)


def shown(report: Report) -> dict[str, Any]:
    """A line of what a trainer was, and read."""
    return {
        "kind": report.kind,
        "method": report.method,
        "workers": report.workers,
        "items": report.items,
        "replaced": report.replaced,
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=1000)
    options.add_argument("--stops", type=int, default=1000)
    options.add_argument("--pauses", type=int, default=20, help="trainers stopped for a while")
    options.add_argument("--at-once", type=int, default=4, help="trainers at a time")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    began = time.monotonic()
    rng, pauses = random.Random(given.seed), given.pauses
    reports: list[Report] = []
    counts: Counter[str] = Counter()
    shared_before = set(os.listdir("/dev/shm"))
    try:
        # Again for those whose victims were gone before their moment came.
        while any(
            missing := (given.kills - counts["SIGKILL"], given.stops - counts["SIGSTOP"], pauses)
        ):
            plans, pauses = planned(*missing, rng), 0
            with ThreadPoolExecutor(given.at_once) as trainers:
                for report in trainers.map(trained, plans):
                    reports.append(report)
                    attacks = Counter(each.how for each in report.strikes)
                    counts += attacks
                    print(json.dumps(shown(report) | attacks), flush=True)
    except Difference as difference:
        print(json.dumps({"difference": str(difference)}), flush=True)
        return 1
    lying = left_in_shared_memory(shared_before)
    print(table(reports))
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({**counts, "seconds": seconds, "left in /dev/shm": lying}))
    return 1 if lying else 0


if __name__ == "__main__":
    sys.exit(main())

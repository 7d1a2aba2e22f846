"""Jobs of several ranks: started, watched and killed."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support import kill_training
from tests.support.leftovers import children_of, die_with, in_group, marked, workers_of


class Job:
    """Ranks and what they have started: the children in a process group of their own, or an agent
    that has started them; `processes` finds all of them that run.
    """

    def __init__(
        self, children: list[int], processes: Callable[[], set[int]], log: Path, group: int | None
    ) -> None:
        self.seconds_to_start = 9.0 if group is None else 1.2
        self._children, self._processes, self._log, self._group = children, processes, log, group
        self._codes: dict[int, int] = {}

    def running(self) -> set[int]:
        """All its processes, workers too."""
        return self._processes()

    def reap(self) -> None:
        """Take note of the exit codes of children that have ended."""
        for child in self._children:
            if child not in self._codes:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    self._codes[child] = os.waitstatus_to_exitcode(status)

    def ended(self) -> bool:
        """Whether a rank has failed, or all have ended."""
        self.reap()
        return any(self._codes.values()) or len(self._codes) == len(self._children)

    def succeeded(self) -> bool:
        return self.ended() and not any(self._codes.values())

    def log(self) -> str:
        return f"exit codes {list(self._codes.values())}\n{self._log.read_text()[-6000:]}"

    def _hold(self) -> None:
        """Have an agent start no rank any more that nobody would find."""
        if self._group is None:
            with suppress(ProcessLookupError):
                os.kill(self._children[0], signal.SIGSTOP)

    def kill_all(self) -> None:
        """SIGKILL to all processes, at once."""
        self._hold()
        if self._group is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGKILL)
        for pid in self.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ranks(self) -> list[int]:
        """The ranks themselves, without an agent."""
        return list(self._children if self._group is not None else children_of(self._children[0]))

    def kill_a_worker(self, rng: random.Random) -> bool:
        """SIGKILL to a worker of a rank, if there is one now; it is replaced."""
        workers = workers_of(rng.choice(self.ranks()), set())
        if workers:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(sorted(workers)), signal.SIGKILL)
        return bool(workers)

    def stop_a_rank(self, rng: random.Random, seconds: float) -> None:
        """SIGSTOP to a rank, and SIGCONT a little later: the others wait for it."""
        rank = rng.choice(self.ranks())
        for how in (signal.SIGSTOP, signal.SIGCONT):
            with suppress(ProcessLookupError):
                os.kill(rank, how)
            if how is signal.SIGSTOP:
                time.sleep(seconds)

    def kill_ranks(self, rng: random.Random) -> None:
        """SIGKILL to one rank after another; their workers have to find out."""
        self._hold()
        ranks = self.ranks()
        rng.shuffle(ranks)
        for pid in [*(self._children if self._group is None else ()), *ranks]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 0.05))))


def launched(world: int, arguments: list[str], folder: Path) -> Job:
    """By torchrun."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={world}", "-m", kill_training.__name__, *arguments]
    environment = {**os.environ, "ENERGIZE_TEST_MARK": mark, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        agent = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    return Job([agent.pid], lambda: marked(mark), folder / "log", group=None)


def forked(world: int, arguments: list[str], folder: Path) -> Job:
    """From this process, with the variables that torchrun sets."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "log").write_text("")
    children: list[int] = []
    parent = os.getpid()
    for rank in range(world):
        pid = os.fork()
        if not pid:
            die_with(parent)
            _be_rank(rank, world, port, arguments, folder / "log", children[:1])
        with suppress(OSError):  # it may have done so itself
            os.setpgid(pid, children[0] if children else pid)
        children.append(pid)
    group = children[0]
    return Job(children, lambda: in_group(group), folder / "log", group=group)


def _be_rank(
    rank: int, world: int, port: int, arguments: list[str], log: Path, group: list[int]
) -> None:
    code = 1
    try:
        os.setpgid(0, group[0] if group else 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        ranks = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
        for name, value in ranks.items():
            os.environ[name] = str(value)
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        kill_training.main(arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

"""Programs on ranks as torchrun starts them, and alone: forked from one process that
has imported what they do, for torch and the trainers take seconds to import.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TRAINERS = (
    "accelerate",
    "lightning_fabric",
    "pytorch_lightning",
    "transformers.trainer",
)
GRACE = 30.0
"""Seconds that ranks may go on after one of them has failed."""


@dataclass
class Job:
    """The processes of a program, which are one group."""

    group: int
    written: Path

    @property
    def codes(self) -> list[int] | None:
        """How they ended, once all have."""
        file = self.written / "codes"
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def stdout(self) -> str:
        return (self.written / "out").read_text()

    @property
    def stderr(self) -> str:
        return (self.written / "err").read_text()

    def wait(self, timeout: float) -> None:
        """For the end of all."""
        until = time.monotonic() + timeout
        while self.codes is None:
            assert time.monotonic() < until, f"{timeout} s\n{self.stderr[-4000:]}"
            time.sleep(0.01)


@contextmanager
def running(
    written: Path,
    program: str,
    *arguments: object,
    ranks: int = 0,
    folder: Path = ROOT,
    imports: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Job]:
    """Run a module, or a script by its path, once or on so many ranks; what runs in the
    end is killed. What is in `imports` is imported before, once for all programs.
    """
    told = {
        "program": program,
        "arguments": [*map(str, arguments)],
        "ranks": ranks,
        "folder": str(folder),
        "imports": [*imports],
        "environment": {**os.environ, **(environment or {})},
        "written": str(written),
    }
    server = _server()
    server.stdin.write(json.dumps(told).encode() + b"\n")
    server.stdin.flush()
    job = Job(int(server.stdout.readline()), written)
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.group, signal.SIGKILL)
        server.stdout.readline()


def launched(
    program: str,
    *arguments: object,
    fails: bool = False,
    timeout: float = 110,
    **options: Any,
) -> Done:
    """What a program does that is `running`. It has to succeed, unless it `fails`."""
    with tempfile.TemporaryDirectory() as name:
        with running(Path(name), program, *arguments, **options) as job:
            job.wait(timeout)
        done = Done(job.codes or [], job.stdout, job.stderr)
    assert fails or not any(done.codes), (
        f"{done.codes}\n{done.stdout}\n{done.stderr[-4000:]}"
    )
    return done


class Done(NamedTuple):
    """How the processes of a program ended, and what they wrote."""

    codes: list[int]
    stdout: str
    stderr: str


@cache
def _server() -> Any:
    """The process that forks, which ends with this one and is no child of it."""
    command = [sys.executable, "-m", __name__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, cwd=ROOT, **pipes)
    server.wait()
    return server


def _serve() -> None:
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    for name in ("torch.distributed", "torch._dynamo", "energize.loader"):
        import_module(name)
    for line in sys.stdin.buffer:
        job = json.loads(line)
        for name in job["imports"]:
            import_module(name)
        if not (agent := os.fork()):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.close(answers)
            _start(job)
            return
        os.write(answers, f"{agent}\n".encode())
        os.waitpid(agent, 0)
        os.write(answers, b"\n")


def _start(job: dict[str, Any]) -> None:
    """Become a process of the program; the agent is another one, which stays in
    here."""
    os.setsid()
    written = Path(job["written"])
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(written / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(job["ranks"] or 1):
        if not (pid := os.fork()):
            if job["ranks"]:
                _on_rank(rank, job["ranks"], port)
            _become(job["program"], job["arguments"])
            return
        pids.append(pid)
    new = written / "new"
    new.write_text(json.dumps(_ended(pids)))
    new.replace(written / "codes")
    os._exit(0)


def _on_rank(rank: int, ranks: int, port: int) -> None:
    """As torchrun has it."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
    told |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "OMP_NUM_THREADS": 1}
    os.environ |= {name: str(value) for name, value in told.items()} | {
        "MASTER_ADDR": "127.0.0.1"
    }
    sys.modules["torch"].set_num_threads(1)


def _become(program: str, arguments: list[str]) -> None:
    sys.argv[1:] = arguments
    if program.endswith(".py"):
        sys.argv[0] = program
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def _ended(pids: list[int]) -> list[int]:
    codes: dict[int, int] = {}
    until = float("inf")
    while len(codes) < len(pids):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[pid] = os.waitstatus_to_exitcode(status)
            until = min(until, time.monotonic() + GRACE) if codes[pid] else until
        elif time.monotonic() > until:
            for each in set(pids) - codes.keys():
                os.kill(each, signal.SIGKILL)
        else:
            time.sleep(0.005)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    _serve()

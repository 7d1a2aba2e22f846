"""Options that partition a command into tasks, and run them here, by Ray or Slurm."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typer import Option

from energize.cli.console import Console
from energize.core.lazy import optional_module
from energize.core.progress import Progress, progress
from energize.errors import ConfigError, PrepareError
from energize.preparation.tasks import check_tasks

_RETRIES = 3
# What Ray ends must not run on beside the task that takes its place.
_PROGRAM = (
    "import sys; from energize.preparation.workers import end_with; "
    "end_with(int(sys.argv.pop(1))); from energize.cli.main import app; app()"
)
_SCRIPT = """\
#!/bin/bash
# Runs {tasks} tasks, and then their merge. SBATCH_PARTITION, SBATCH_ACCOUNT and the
# other variables of sbatch choose the nodes.
set -eu
job=$(sbatch --parsable --job-name=energize --array=0-{last} --ntasks=1 \\
    --cpus-per-task={cpus}{gpus} <<'ENERGIZE'
#!/bin/bash
cd {folder}
exec {command} --task "$SLURM_ARRAY_TASK_ID"
ENERGIZE
)
sbatch --job-name=energize-merge --dependency="afterany:${{job%%;*}}" \\
    --ntasks=1 <<'ENERGIZE'
#!/bin/bash
cd {folder}
exec {command} --merge
ENERGIZE
"""


Number = int | None


@dataclass(frozen=True)
class Work:
    """Options of the number of processes, and of the progress display."""

    num_workers: Annotated[
        Number,
        Option(
            "--num-workers",
            "--workers",
            min=1,
            help="Number of processes; by default one for each core.",
        ),
    ] = None
    progress: Annotated[bool, Option("--progress/--no-progress")] = True

    def reporter(self, action: str) -> Progress:
        """Return a function that displays progress, or does nothing."""
        return progress(action) if self.progress else lambda done, total: None


def _check_cluster(name: str) -> None:
    if name not in ("local", "ray", "slurm") and not name.startswith("ray://"):
        raise ConfigError(
            f"--on must be local, ray, ray://HOST:PORT or slurm, got {name!r}"
        )


@dataclass(frozen=True)
class Tasks(Work):
    """Options of tasks: their number, the current task, and the cluster."""

    tasks: Annotated[
        Number, Option(min=1, help="Number of tasks to partition the shards into.")
    ] = None
    task: Annotated[Number, Option(help="Do this task, counted from 0.")] = None
    merge: Annotated[
        bool, Option("--merge", help="Merge the results of all tasks.")
    ] = False
    on: Annotated[
        str,
        Option(
            help=("Run tasks here or on a cluster: local, ray, ray://HOST:PORT, slurm.")
        ),
    ] = "local"
    submit: Annotated[
        bool, Option("--submit", help="Submit the Slurm script instead of printing it.")
    ] = False
    gpus_per_task: Annotated[
        float, Option(min=0, help="GPUs of each task, with Ray or Slurm.")
    ] = 0

    def __post_init__(self) -> None:
        check_tasks(self.tasks, self.task, merge=self.merge)
        _check_cluster(self.on)
        is_local = self.on == "local"
        some = self.task is not None or self.merge
        if not is_local and (self.tasks is None or some):
            raise ConfigError(
                f"--on {self.on} runs all tasks. Pass --tasks, and no other of them"
            )
        if (self.submit and self.on != "slurm") or (self.gpus_per_task and is_local):
            raise ConfigError(
                "--submit needs --on slurm, --gpus-per-task needs --on slurm or --on "
                "ray"
            )

    def arguments(self, action: str) -> dict[str, Any]:
        """Return the arguments of functions that do tasks and display progress."""
        how = {"workers": self.num_workers, "on_progress": self.reporter(action)}
        return {"tasks": self.tasks, "task": self.task, "merge": self.merge, **how}

    def run(self, console: Console) -> Tasks:
        """Run the tasks on the cluster, and return the options of the remaining work.

        Exits if Slurm does all of it.
        """
        if self.on == "local":
            return self
        arguments = [argument for argument in sys.argv[1:] if argument != "--submit"]
        extra = (
            "--on",
            "local",
            "--gpus-per-task",
            "0",
            "--no-progress",
        )  # what is said last holds
        workers = self.num_workers or 1
        command = [*arguments, *extra, "--num-workers", str(workers)]
        if self.on == "slurm":
            self._by_slurm(console, command, workers)
            raise typer.Exit
        self._by_ray(command, workers)
        return replace(self, merge=True, on="local", gpus_per_task=0)

    def _by_slurm(self, console: Console, command: list[str], workers: int) -> None:
        script = _SCRIPT.format(
            tasks=self.tasks,
            last=(self.tasks or 1) - 1,
            cpus=workers,
            gpus=f" --gpus-per-task={self.gpus_per_task:g}"
            if self.gpus_per_task
            else "",
            folder=shlex.quote(os.getcwd()),
            command=shlex.join([sys.executable, "-m", "energize", *command]),
        )
        if not self.submit:
            typer.echo(script, nl=False)
            return
        if shutil.which("sbatch") is None:
            raise ConfigError(
                "--submit: sbatch is missing. Omit --submit, and run the script"
            )
        command = ["bash", "-c", script]
        done = subprocess.run(  # noqa: S603
            command, text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise PrepareError(f"sbatch: {done.stderr or done.stdout}")
        console.write_line(done.stdout.strip())

    def _by_ray(self, command: list[str], workers: int) -> None:
        """Run the tasks, and print the output of failures; the merge reports them."""
        ray = optional_module("ray", "energize[ray]", "--on ray")
        tasks = self.tasks or 1
        shown = set[str]()
        console = Console(stderr=True)
        needs = {
            "num_cpus": workers,
            "num_gpus": self.gpus_per_task,
            "max_retries": _RETRIES,
        }
        try:
            address = None if self.on == "ray" else self.on
            ray.init(address, logging_level="WARNING", log_to_driver=False)
            run = ray.remote(**needs)(_ran).remote
            commands = ([*command, "--task", str(task)] for task in range(tasks))
            waiting = {
                run(arguments, os.getcwd()): task
                for task, arguments in enumerate(commands)
            }
            advance = self.reporter("Running tasks")
            while waiting:
                advance(tasks - len(waiting), tasks)
                [done], _ = ray.wait([*waiting])
                task = waiting.pop(done)
                try:
                    code, printed = ray.get(done)
                except ray.exceptions.RayError as reason:
                    code = 1
                    printed = str(reason)
                if code and printed not in shown:
                    shown.add(printed)
                    console.note(printed.strip(), f"Task {task} of {tasks}", "bold red")
            advance(tasks, tasks)
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as reason:
            raise PrepareError(f"--on {self.on}: {reason}") from reason
        finally:
            ray.shutdown()


@dataclass(frozen=True)
class Readers(Tasks):
    """Tasks with another help text for the number of processes."""

    num_workers: Annotated[
        Number,
        Option(
            "--parallel", "--num-workers", min=1, help="Number of processes that read."
        ),
    ] = None


def _ran(arguments: list[str], folder: str) -> tuple[int, str]:
    """Run a command that ends with this process; return exit code and output."""
    with suppress(OSError):  # a node that does not have it takes whole paths
        os.chdir(folder)
    command = [sys.executable, "-c", _PROGRAM, str(os.getpid()), *arguments]
    options: Any = {"capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **options)  # noqa: S603
    return done.returncode, done.stdout + done.stderr

"""Measuring several libraries in turn, and what to make of the numbers."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common.measuring import Case, Measurement

__all__ = ["OWN", "Comparison", "Subject", "compare", "failure", "run_module"]

OWN = "energize"
"""The library that the others are compared with."""

_REPOSITORY = Path(__file__).resolve().parents[2]
_SECONDS = 1800
_SECONDS_OF_MEASUREMENT = 300
"""Limits how long a library that hangs delays the others."""


@dataclass(frozen=True)
class Subject:
    """A library that is measured: the interpreter of its environment and the module to
    run.
    """

    python: str
    module: str

    def measure(self, case: Case) -> Measurement:
        """Measure in a new process. Raises `RuntimeError` with what it wrote when it
        fails.
        """
        arguments = str(time.monotonic()), json.dumps(asdict(case))
        seconds = _SECONDS_OF_MEASUREMENT
        done = run_module(self.python, self.module, *arguments, seconds=seconds)
        if done.returncode:
            raise failure(done)
        return Measurement(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True)
class Comparison:
    """What was measured of one case: for each library one measurement per round, in
    order.
    """

    case: Case
    measured: Mapping[str, Sequence[Measurement]]

    def rates(self, name: str) -> list[float]:
        """Samples per second in each round."""
        return [each.samples / each.wall for each in self.measured[name]]

    def rate(self, name: str) -> float:
        """Samples per second; the median of the rounds."""
        return statistics.median(self.rates(name))

    def cpu(self, name: str) -> float:
        """Microseconds of CPU time per sample, of all processes; the median of the
        rounds.
        """
        return statistics.median(
            each.cpu / each.samples * 1e6 for each in self.measured[name]
        )

    def startup(self, name: str) -> float:
        """Seconds from the start of the process to the first item; the median of the
        rounds.
        """
        return statistics.median(each.startup for each in self.measured[name])

    def ratios(self, name: str) -> list[float]:
        """How many times as many samples per second energize reads, in each round."""
        return [
            (own.samples / own.wall) / (other.samples / other.wall)
            for own, other in zip(self.measured[OWN], self.measured[name], strict=True)
        ]

    def check_same_work(self) -> None:
        """Raises `RuntimeError` when the libraries did not deliver the same kind of
        items.
        """
        for name, rounds in self.measured.items():
            for own, other in zip(self.measured[OWN], rounds, strict=True):
                # Shuffle buffers hold samples back, so which ones were read differs a
                # little.
                sizes = other.bytes / other.samples, own.bytes / own.samples
                if own.item != other.item or not 0.9 < sizes[0] / sizes[1] < 1.1:
                    raise RuntimeError(
                        f"{name} and {OWN} did not do the same work: items are "
                        f"{other.item} and "
                        f"{own.item}, bytes per sample {sizes[0]:.0f} and "
                        f"{sizes[1]:.0f}"
                    )


def run_module(
    python: str, module: str, *arguments: str, seconds: float = _SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a module of this repository in a new process, with what it writes as text."""
    return subprocess.run(
        [python, "-m", module, *arguments],
        cwd=_REPOSITORY,
        # A pool of threads for tiny tensors spins on cores that others need, and
        # measures them.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def failure(done: subprocess.CompletedProcess[str]) -> RuntimeError:
    """The error of a process that failed: its command, and what it wrote."""
    return RuntimeError(f"{' '.join(done.args)} failed:\n{done.stderr}")


def compare(case: Case, subjects: Mapping[str, Subject], runs: int) -> Comparison:
    """Measure each library `runs` times, in turn, so that they share the machine's bad
    moments.
    """
    measured: dict[str, list[Measurement]] = {name: [] for name in subjects}
    for _ in range(runs):
        for name, subject in subjects.items():
            measured[name].append(subject.measure(case))
    comparison = Comparison(case, measured)
    comparison.check_same_work()
    return comparison

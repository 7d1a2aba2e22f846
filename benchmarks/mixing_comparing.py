"""What a delivered sample of a mix costs, energize and other libraries side by side."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence

from benchmarks.comparing import OWN, failure, run_module
from benchmarks.mixing_peers import LIMIT, Drawn

__all__ = ["compare_delivery", "drawn_by"]

_UNITS = (("s", 60.0), ("min", 60.0), ("h", 24.0), ("days", 1000.0))


def compare_delivery(
    peers: str,
    libraries: Sequence[str],
    sources: Sequence[int],
    positions: Sequence[int],
) -> list[Drawn]:
    """Measure libraries in turn, print the table and return the numbers.

    `peers` is the interpreter of the environment that has the libraries other than
    energize. A mix that another library cannot make has the last line of its error as a
    row. Raises `RuntimeError` with what the process wrote when energize fails.
    """
    print(f"\n{'library':<19} {'sources':>8} {'position':>18} {'build s':>8}", end=" ")
    print(f"{'first s':>8} {'us each':>9}")
    found: list[Drawn] = []
    for count in sources:
        for library in libraries:
            python = sys.executable if library == OWN else peers
            try:
                drawn = drawn_by(python, library, count, positions)
            except RuntimeError as error:
                if library == OWN:
                    raise
                reason = str(error).strip().splitlines()[-1]
                print(f"{library:<19} {count:>8,} {reason}", flush=True)
                continue
            found.extend(drawn)
            for each in drawn:
                print(_row(each), flush=True)
            if len(drawn) < len(positions):
                print(
                    f"{library:<19} {count:>8,} no sample within {LIMIT} s", flush=True
                )
    return found


def drawn_by(
    python: str, library: str, sources: int, positions: Sequence[int]
) -> list[Drawn]:
    """What one process measures; fewer than `positions` when a first sample took too
    long.
    """
    done = run_module(
        python, "benchmarks.mixing_peers", library, str(sources), *map(str, positions)
    )
    if done.returncode not in (0, -signal.SIGALRM):
        raise failure(done)
    return [Drawn(**json.loads(line)) for line in done.stdout.splitlines()]


def _row(each: Drawn) -> str:
    name = f"{each.library} {each.version}"
    row = f"{name:<19} {each.sources:>8,} {each.position:>18,} {each.build:>8.3f}"
    if each.each is None:
        return f"{row} replays {each.position:,}, about {_duration(each.first)}"
    return (
        f"{row} {each.first:>8.3f} "
        f"{each.each:>9.2f}{' after a replay' * _replayed(each)}"
    )


def _replayed(each: Drawn) -> bool:
    return each.replays and each.position > 0


def _duration(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    amount = seconds
    for unit, size in _UNITS:
        if amount < size:
            return f"{amount:.0f} {unit}"
        amount /= size
    return f"{amount * 1000 / 365:,.0f} years"

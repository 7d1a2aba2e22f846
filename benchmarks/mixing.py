"""CPU time of mixing: per slot of a scheme, and per delivered sample beside other
libraries.

    python -m benchmarks.mixing [--sources 8 1000 100000] [--slots 1049600]
        [--peers PYTHON]

A slot is which source comes next, and which of its samples. Slots are asked for in
calls of 256, as a loader does, from a position on without anything before it. `first`
is the first call. `mean` is over all later calls, those among them that lay out a
window too, the longest of which has 2**16 slots. `steady` is the median call.

The second table is of mixes that are iterated over, see `benchmarks.programs.mixing`.
`--peers` is the interpreter of an environment that has the other libraries.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.common.comparing import OWN, failure, run_module
from benchmarks.programs.mixing import LIMIT, OPENERS, Drawn
from energize.order import Schedule, Scheme, make_scheme

__all__ = ["Cost", "cost", "main"]

_CALL = 256
_RUNS = 3
_MANY = 10_000
_VERY_MANY = 100_000
"""Sources from which on 4 and 8 times as many slots are measured."""
_LONG_RUN = 200
"""ms of CPU time for the first call from which on one run has to do."""

_SCHEMES = ("even", "exact", "block", "random", "uniform", "round_robin")
_UNWEIGHTED = ("uniform", "round_robin")
_FAR = 10**12
_LESS_FAR = 10**9
_NEARER = ("glides",)
"""Kinds of weights that are measured less far out."""
_GLIDE = 2**31

Locate = Callable[[npt.NDArray[np.int64]], object]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What slots of a mix cost from one position on: `first` in ms of CPU time for the
    first call, `mean` and `steady` in us of CPU time per slot, medians of several runs.
    """

    mixer: str
    weights: str
    sources: int
    position: int
    first: float
    mean: float
    steady: float


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
        python,
        "benchmarks.programs.mixing",
        library,
        str(sources),
        *map(str, positions),
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print both tables and write them to the JSON file when one is asked
    for.
    """
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--sources", type=int, nargs="+", default=[8, 1000, 100_000])
    parser.add_argument(
        "--slots", type=int, default=2**20 + 2**10, help="measured per position"
    )
    parser.add_argument(
        "--peers", help="the Python interpreter that has the other libraries"
    )
    parser.add_argument(
        "--libraries", nargs="+", choices=OPENERS, default=list(OPENERS)
    )
    parser.add_argument(
        "--positions",
        type=int,
        nargs="+",
        default=[0, 10**6, 10**9, 10**12],
        help="of deliveries",
    )
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    libraries = [each for each in options.libraries if each == OWN or options.peers]
    costs = _compare_schemes(options.sources, options.slots)
    drawn = compare_delivery(
        options.peers, libraries, options.sources, options.positions
    )
    if options.json:
        found = {
            "slots": list(map(asdict, costs)),
            "delivery": list(map(asdict, drawn)),
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def cost(
    open_mixer: Callable[[], Locate], position: int, slots: int
) -> tuple[float, float, float]:
    """First call in ms, mean and median call in us per slot, of a mixer opened anew."""
    starts = range(position, position + max(slots, 2 * _CALL), _CALL)
    locate = open_mixer()
    times = []
    for start in starts:
        asked = np.arange(start, start + _CALL, dtype=np.int64)
        before = time.process_time_ns()
        locate(asked)
        times.append(time.process_time_ns() - before)
    first, *others = times
    per_slot = 1e3 * _CALL
    return (
        first / 1e6,
        statistics.mean(others) / per_slot,
        statistics.median(others) / per_slot,
    )


def _compare_schemes(numbers_of_sources: Sequence[int], slots: int) -> list[Cost]:
    """Measure all schemes at two positions each, and print the table."""
    print(f"{'mixer':<12} {'weights':<9} {'sources':>8} {'position':>18}", end=" ")
    print(f"{'first ms':>10} {'mean us':>9} {'steady us':>9}")
    costs: list[Cost] = []
    for sources in numbers_of_sources:
        measured = slots * (
            8 if sources >= _VERY_MANY else 4 if sources >= _MANY else 1
        )
        for kind, weights in _weights(sources).items():
            for name in _SCHEMES:
                if name in _UNWEIGHTED and kind != "integers":
                    continue
                far = _LESS_FAR if kind in _NEARER else _FAR
                for position in (0, far):
                    costs.append(_scheme_cost(name, kind, weights, position, measured))
                    _show(costs[-1])
    return costs


def _weights(sources: int) -> dict[str, list[Any]]:
    """Weights as people write them, which repeat soon; measured ones, which never do;
    and those that glide, each along half a cosine, to a slot beyond all that are
    measured.
    """
    rng = np.random.default_rng(sources)
    ways = (rng.random((sources, 2)) + 0.01).tolist()
    return {
        "integers": rng.integers(1, 100, sources).tolist(),
        "floats": (rng.random(sources) + 0.01).tolist(),
        "glides": [Schedule([(0, a), (_GLIDE, b)], "cosine") for a, b in ways],
    }


def _scheme_cost(
    name: str, kind: str, weights: Sequence[Any], position: int, slots: int
) -> Cost:
    def opened() -> Locate:
        scheme: Scheme = make_scheme(name, weights, key=1)
        return scheme.locate

    runs = [cost(opened, position, slots)]
    while len(runs) < _RUNS and runs[0][0] < _LONG_RUN:
        runs.append(cost(opened, position, slots))
    first, mean, steady = (
        statistics.median(values) for values in zip(*runs, strict=True)
    )
    return Cost(
        mixer=name,
        weights=kind,
        sources=len(weights),
        position=position,
        first=first,
        mean=mean,
        steady=steady,
    )


def _show(each: Cost) -> None:
    print(
        f"{each.mixer:<12} {each.weights:<9} {each.sources:>8,} {each.position:>18,}",
        end=" ",
    )
    print(f"{each.first:>10.2f} {each.mean:>9.3f} {each.steady:>9.3f}", flush=True)


if __name__ == "__main__":
    main()

"""CPU time per slot of mixing: which source comes next, and which of its samples.

    python -m benchmarks.mixing [--sources 8 1000 100000] [--slots 2097152] [--json FILE]

Slots are asked for in calls of 256, as a loader does, from a position on without anything before
it. `first` is the first call. `mean` is over all later calls, those among them that compute an era,
a block or a leaf too: measure more slots than the longest of these has, 2**20. `steady` is the
median call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energize.order.schemes import Scheme, make_scheme

__all__ = ["Cost", "cost", "main"]

_CALL = 256
_RUNS = 3
_SCHEMES = ("block", "exact", "random", "uniform", "round_robin")
_FAR = {"random": 10**9, "uniform": 10**9}
_DEFAULT_FAR = 10**12

Locate = Callable[[npt.NDArray[np.int64]], object]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What slots of a mix cost from one position on: `first` in ms of CPU time for the first call,
    `mean` and `steady` in us of CPU time per slot, medians of several runs.
    """

    mixer: str
    weights: str
    sources: int
    position: int
    first: float
    mean: float
    steady: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all schemes, print the table and write it to the JSON file when one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sources", type=int, nargs="+", default=[8, 1000, 100_000])
    parser.add_argument("--slots", type=int, default=2**21, help="measured at each position")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args(arguments)
    costs: list[Cost] = []
    print(f"{'mixer':<12} {'weights':<9} {'sources':>8} {'position':>15}", end=" ")
    print(f"{'first ms':>10} {'mean us':>9} {'steady us':>9}")
    for sources in options.sources:
        for kind, weights in _weights(sources).items():
            for name in _SCHEMES:
                for position in (0, _FAR.get(name, _DEFAULT_FAR)):
                    costs.append(_scheme_cost(name, kind, weights, position, options.slots))
                    _show(costs[-1])
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in costs], indent=1) + "\n")


def cost(open_mixer: Callable[[], Locate], position: int, slots: int) -> tuple[float, float, float]:
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
    return first / 1e6, statistics.mean(others) / per_slot, statistics.median(others) / per_slot


def _weights(sources: int) -> dict[str, list[float]]:
    """Weights as people write them, which repeat soon, and measured ones, which never do."""
    rng = np.random.default_rng(sources)
    return {
        "integers": rng.integers(1, 100, sources).tolist(),
        "floats": (rng.random(sources) + 0.01).tolist(),
    }


def _scheme_cost(name: str, kind: str, weights: Sequence[float], position: int, slots: int) -> Cost:
    def opened() -> Locate:
        scheme: Scheme = make_scheme(name, weights, key=1)
        return scheme.locate

    runs = [cost(opened, position, slots) for _ in range(_RUNS)]
    first, mean, steady = (statistics.median(values) for values in zip(*runs, strict=True))
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
    print(f"{each.mixer:<12} {each.weights:<9} {each.sources:>8,} {each.position:>15,}", end=" ")
    print(f"{each.first:>10.2f} {each.mean:>9.3f} {each.steady:>9.3f}", flush=True)


if __name__ == "__main__":
    main()

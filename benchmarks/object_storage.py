"""Two epochs of photographs in an object store, beside the same from a local folder:
energize and other libraries that read such stores.

    python -m benchmarks.object_storage --runs 3 --streaming PYTHON --litdata PYTHON

The store answers on loopback, each request `--latency` seconds late, from the last core
of the machine. Libraries have the others, also for the local folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.comparing import failure, run_module
from benchmarks.common.photographs import prepared_folder
from benchmarks.loading import _machine
from benchmarks.programs.object_storage import (
    ENDPOINT,
    OPENERS,
    WRITERS,
    Asked,
    Epoch,
    Measured,
)
from tests.support.object_server import object_server

_CORES = sorted(os.sched_getaffinity(0))
_BUCKET = "bucket"
_LARGE = 960
"""Width and height of photographs of about 100 KB."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is read: photographs of `side`, a `part` of the samples where they are
    large.
    """

    side: int = 256
    decoded: bool
    workers: int
    part: float = 1.0


CASES = {
    "raw, 15 KB, in process": Case(decoded=False, workers=0),
    "raw, 15 KB, 2 workers": Case(decoded=False, workers=2),
    "torchrgb, 15 KB, 1 worker": Case(decoded=True, workers=1),
    "torchrgb, 15 KB, 2 workers": Case(decoded=True, workers=2),
    "raw, 100 KB, in process": Case(decoded=False, workers=0, side=_LARGE, part=0.25),
    "torchrgb, 100 KB, 2 workers": Case(
        decoded=True, workers=2, side=_LARGE, part=0.25
    ),
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one library did in one round: from a local folder, and from the store."""

    local: Measured
    remote: Measured

    def ratio(self, epoch: int) -> float:
        """Samples/s from the store, by those of the same epoch from the local
        folder.
        """
        return _rate(self.remote.epochs[epoch]) / _rate(self.local.epochs[epoch])


def _rate(epoch: Epoch) -> float:
    return epoch.samples / epoch.wall


def run(
    arguments: argparse.Namespace, console: Console
) -> dict[str, dict[str, list[Round]]]:
    """Measure all cases and print them as they come."""
    pythons = {
        name: os.path.abspath(getattr(arguments, name) or sys.executable)
        for name in _PEERS
    }
    named = [name for name in _PEERS if getattr(arguments, name)]
    libraries = [name for name in OPENERS if name not in _PEERS or name in named]
    found: dict[str, dict[str, list[Round]]] = {}
    for title, case in CASES.items():
        if not any(text in title for text in arguments.only or [title]):
            continue
        count = int(arguments.samples * case.part)
        folder = prepared_folder(Path(arguments.data) / _BUCKET, count, case.side)
        asked = Asked(
            data=str(folder),
            key=f"{_BUCKET}/{folder.name}",
            remote=False,
            decoded=case.decoded,
            full=False,
            workers=case.workers,
            samples=count,
            cache="",
            server=0,
        )
        for name in set(libraries) & set(WRITERS):
            _write(name, pythons.get(name, sys.executable), asked)
        rounds = found[title] = {name: [] for name in libraries}
        for _ in range(arguments.runs):
            for name in libraries:
                try:
                    rounds[name].append(_round(name, pythons, asked, arguments.latency))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    lines = str(error).strip().splitlines()
                    console.print(f"[red]{name} fails[/]: {lines[-1][:300]}")
        console.print(
            _table(title, case, {name: each for name, each in rounds.items() if each})
        )
    return found


_PEERS = ("energon", "streaming", "litdata")
_SUFFIXES = {"streaming": "mds", "litdata": "litdata", "energize, Parquet": "parquet"}
"""What is read in another format, and what the names of its folders end with."""

_SECONDS = 180
"""What one measurement may take."""


def _write(name: str, python: str, asked: Asked) -> None:
    """Write the same photographs in another format, once."""
    written = Path(f"{asked.data}.{_SUFFIXES[name]}")
    whole = (written / "index.json", written / "00000000.parquet")
    if not any(each.exists() for each in whole):
        shutil.rmtree(written, ignore_errors=True)
        _module(python, name, asked, "write")


def _round(
    name: str, pythons: Mapping[str, str], asked: Asked, latency: float
) -> Round:
    both = {}
    folder = Path(asked.data)
    for remote in (False, True):
        with _store(folder.parent.parent, latency) as server, _empty() as cache:
            _warm_page_cache(folder)
            each = replace(
                asked,
                remote=remote,
                full="all shuffled" in name,
                cache=cache,
                server=server,
            )
            os.environ["ENERGIZE_CACHE"] = cache
            said = _module(pythons.get(name, sys.executable), name, each)
        read = json.loads(said.splitlines()[-1])
        both[remote] = Measured(
            **read | {"epochs": [Epoch(**each) for each in read["epochs"]]}
        )
    local = both[False]
    far = both[True]
    sizes = [each.epochs[0].bytes / each.epochs[0].samples for each in (local, far)]
    if local.item != far.item or not 0.9 < sizes[0] / sizes[1] < 1.1:
        raise RuntimeError(
            f"{name} gave other items: {local.item}, {far.item}, bytes {sizes}"
        )
    return Round(local=local, remote=far)


def _module(python: str, name: str, asked: Asked, *more: str) -> str:
    module = "benchmarks.programs.object_storage"
    done = run_module(
        python, module, name, json.dumps(asdict(asked)), *more, seconds=_SECONDS
    )
    if done.returncode:
        raise failure(done)
    return done.stdout


@contextmanager
def _store(root: Path, latency: float) -> Iterator[int]:
    """A store of the folder, which the environment names; its process."""
    own = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with object_server(root, latency=latency) as url:
        os.environ.update(own | {ENDPOINT: url, "AWS_ALLOW_HTTP": "true"})
        server = _children()[-1]
        os.sched_setaffinity(server, _CORES[-1:])
        yield server


def _children() -> list[int]:
    return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]


@contextmanager
def _empty() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="energize-cold-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a fetching process may still write


def _warm_page_cache(folder: Path) -> None:
    for each in (
        folder,
        *(folder.with_name(f"{folder.name}.{end}") for end in _SUFFIXES.values()),
    ):
        for path in each.glob("*") if each.is_dir() else ():
            if path.is_file():
                path.read_bytes()


def _table(title: str, case: Case, rounds: Mapping[str, list[Round]]) -> Table:
    some = next(iter(rounds.values()))
    count = some[0].local.epochs[0].samples
    table = Table(title=f"{title}: {count:,} samples an epoch, {len(some)} run(s)")
    for heading in _COLUMNS:
        table.add_column(
            heading, justify="right" if heading else "left", no_wrap=not heading
        )
    for name, each in rounds.items():
        table.add_row(
            name, *(column(each) for heading, column in _COLUMNS.items() if heading)
        )
    return table


def _median(rounds: list[Round], value: Callable[[Round], float]) -> float:
    return statistics.median(map(value, rounds))


def _spread(epoch: int) -> Callable[[list[Round]], str]:
    def shown(rounds: list[Round]) -> str:
        ratios = [each.ratio(epoch) for each in rounds]
        spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
        return f"{statistics.median(ratios):.2f}{spread}"

    return shown


def _micro(role: str, epoch: int) -> Callable[[Round], float]:
    def value(each: Round) -> float:
        found = each.remote.epochs[epoch]
        return float(getattr(found, role)) / found.samples * 1e6

    return value


def _cpu(epoch: int) -> Callable[[list[Round]], str]:
    roles = ("trainer", "fetching", "server")
    return lambda rounds: " + ".join(
        f"{_median(rounds, _micro(r, epoch)):,.0f}" for r in roles
    )


def _local_cpu(each: Round) -> float:
    found = each.local.epochs[1]
    return (found.trainer + found.fetching) / found.samples * 1e6


_COLUMNS: dict[str, Callable[[list[Round]], str]] = {
    "": lambda _: "",
    "local, samples/s": lambda r: (
        f"{_median(r, lambda e: _rate(e.local.epochs[1])):,.0f}"
    ),
    "cold, samples/s": lambda r: (
        f"{_median(r, lambda e: _rate(e.remote.epochs[0])):,.0f}"
    ),
    "cold by local": _spread(0),
    "warm by local": _spread(1),
    "CPU us/sample: local": lambda r: f"{_median(r, _local_cpu):,.0f}",
    "cold: trainer + fetching + store": _cpu(0),
    "warm": _cpu(1),
    "first item, s: local, cold": lambda r: (
        f"{_median(r, lambda e: e.local.startup):.1f}, "
        f"{_median(r, lambda e: e.remote.startup):.1f}"
    ),
    "memory, MB: local, cold": lambda r: (
        f"{_median(r, lambda e: e.local.memory / 1e6):,.0f}, "
        f"{_median(r, lambda e: e.remote.memory / 1e6):,.0f}"
    ),
}


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.object_storage", description=__doc__
    )
    for name in _PEERS:
        parser.add_argument(
            f"--{name}", help="the interpreter of an environment that has it"
        )
    parser.add_argument(
        "--samples", type=int, default=4000, help="photographs of an epoch"
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="measurements of each library and case"
    )
    parser.add_argument(
        "--latency", type=float, default=0.03, help="seconds added to each request"
    )
    parser.add_argument(
        "--only", action="append", help="only cases whose name contains this text"
    )
    parser.add_argument("--json", help="file for all measurements")
    parser.add_argument(
        "--data",
        default=os.path.join(tempfile.gettempdir(), "energize-object-storage"),
        help="where the photographs are kept between runs",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Measure what the arguments say."""
    arguments = _parsed(argv)
    os.sched_setaffinity(0, _CORES[:-1] or _CORES)
    console = Console(width=max(Console().width, 160))
    machine: dict[str, Any] = _machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    found = run(arguments, console)
    if arguments.json:
        cases = {
            case: {
                name: [asdict(each) for each in rounds]
                for name, rounds in libraries.items()
            }
            for case, libraries in found.items()
        }
        Path(arguments.json).write_text(
            json.dumps({"machine": machine, "cases": cases}, indent=1)
        )


if __name__ == "__main__":
    main()

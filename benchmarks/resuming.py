"""What saving a state and resuming from it costs, energize and other loaders side by
side.

    python -m benchmarks.resuming --energon PYTHON --streaming PYTHON --torchdata PYTHON

Each library, kind of mix, number of sources and of workers has a process of its own.
There, fresh starts and resumed ones take turns, each of a description made anew, at
several positions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common.comparing import OWN, failure, run_module
from benchmarks.common.small_folders import small_mix
from benchmarks.large_photographs import compare_large
from benchmarks.programs.resuming import Asked, Resumption

__all__ = ["Subject", "compare", "main"]

_PEERS = {
    "energon": ("benchmarks.programs.resuming_energon", "folders"),
    "streaming": ("benchmarks.programs.resuming_streaming", "folders"),
    "torchdata": ("benchmarks.programs.resuming_torchdata", "indexed"),
}
"""The module that measures each of the others, and the kind of mix that it is set
beside."""


@dataclass(frozen=True)
class Subject:
    """A library that is measured: its interpreter, the module to run, and the kinds it
    has.
    """

    name: str
    python: str
    module: str
    kinds: tuple[str, ...]

    def measure(self, asked: Asked) -> list[Resumption]:
        """Measure in a new process. Raises `RuntimeError` with what it wrote when it
        fails.
        """
        done = run_module(self.python, self.module, json.dumps(asdict(asked)))
        if done.returncode:
            raise failure(done)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return [Resumption(**json.loads(line)) for line in lines]


def compare(
    subjects: Sequence[Subject], cases: Sequence[Asked], console: Console
) -> list[Resumption]:
    """Measure all cases and print each kind's table; a peer that fails has its reason
    printed.
    """
    found: list[Resumption] = []
    for kind in dict.fromkeys(each.kind for each in cases):
        table = _table(kind)
        for asked in (each for each in cases if each.kind == kind):
            for subject in (each for each in subjects if kind in each.kinds):
                try:
                    rows = subject.measure(asked)
                except RuntimeError as error:
                    if subject.name == OWN:
                        raise
                    reason = str(error).strip().splitlines()[-1]
                    console.print(f"{subject.name}, {asked.sources} sources: {reason}")
                    continue
                found += rows
                for each in rows:
                    table.add_row(*_shown(each))
            table.add_section()
        console.print(table)
    return found


def _cases(options: argparse.Namespace) -> Iterator[Asked]:
    for kind in options.kinds:
        for sources in options.sources:
            if kind == "folders" and sources > options.most_folders:
                continue
            data = str(small_mix(options.data, sources)) if kind == "folders" else ""
            for workers in options.workers:
                yield Asked(
                    kind=kind,
                    sources=sources,
                    workers=workers,
                    positions=tuple(options.positions),
                    rounds=options.rounds,
                    seconds=options.seconds,
                    data=data,
                )


def _subjects(options: argparse.Namespace) -> list[Subject]:
    kinds = ("indexed", "stream", "folders")
    subjects = [
        Subject(OWN, sys.executable, "benchmarks.programs.resuming_energize", kinds)
    ]
    for name, (module, kind) in _PEERS.items():
        python = getattr(options, name)
        if python is not None:
            # Not resolved: a virtual environment is known by the path of its link.
            subjects.append(Subject(name, os.path.abspath(python), module, (kind,)))
    return subjects


def _table(kind: str) -> Table:
    table = Table(
        title=f"{kind}: ms, medians; in process of CPU time, with workers of time"
    )
    headings = [
        "",
        "sources",
        "workers",
        "position",
        "build",
        "fresh start",
        "resumed",
        "ratio",
    ]
    headings += [
        "with build",
        "state, first",
        "later",
        "JSON bytes",
        "torch.save bytes",
    ]
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _shown(each: Resumption) -> list[str]:
    seconds = (each.build, each.fresh, each.resumed)
    states = (each.state, each.state_again)
    return [
        each.library,
        *(f"{number:,}" for number in (each.sources, each.workers, each.position)),
        *(f"{value * 1e3:.2f}" for value in seconds),
        f"{each.ratio:.2f}",
        f"{each.whole_ratio:.2f}",
        *(f"{value * 1e3:.3f}" for value in states),
        "-" if each.json_bytes is None else f"{each.json_bytes:,}",
        f"{each.torch_bytes:,}",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.resuming", description=__doc__)
    for name in _PEERS:
        parser.add_argument(
            f"--{name}", help=f"the interpreter of an environment with {name}"
        )
    kinds = ["indexed", "stream", "folders"]
    parser.add_argument("--kinds", nargs="*", choices=kinds, default=kinds)
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 200, 10_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument(
        "--positions", type=int, nargs="+", default=[0, 10**6, 10**9], help="in samples"
    )
    parser.add_argument(
        "--rounds", type=int, default=21, help="of each position, at most"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="for the rounds of a position"
    )
    parser.add_argument(
        "--most-folders", type=int, default=200, help="prepared for a mix of them"
    )
    parser.add_argument(
        "--large-photographs",
        type=int,
        default=0,
        metavar="RUNS",
        help="measure the first batch and the memory of photographs of 2000 x 2000 too",
    )
    parser.add_argument("--json", type=Path, help="file for all measurements")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "energize-benchmarks" / "small",
        help="where folders are kept between runs",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables and write them to the JSON file when one is asked
    for.
    """
    options = _parser().parse_args(arguments)
    console = Console(width=max(170, Console().width))
    found = compare(_subjects(options), list(_cases(options)), console)
    large = compare_large(options.data, options.large_photographs, console)
    if options.json:
        report = {
            "resumptions": [asdict(each) for each in found],
            "large": [asdict(each) for each in large],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

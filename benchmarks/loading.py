"""Samples per second of energize and of what else reads such folders, side by side.

python -m benchmarks.loading --energon .venv-energon/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.comparing import OWN, Comparison, Subject, compare
from benchmarks.common.measuring import Case
from benchmarks.common.photographs import prepared_folder, shard_paths

__all__ = ["run"]

_BATCH_SIZE = 32


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Comparison]:
    """Measure all cases and print them as they come."""
    folder = prepared_folder(Path(arguments.data), arguments.samples)
    subjects = _subjects(arguments.energon)
    comparisons: dict[str, Comparison] = {}
    for name, case in _cases(str(folder), arguments.samples).items():
        if arguments.only and arguments.only not in name:
            continue
        _warm_page_cache(folder)
        comparisons[name] = compare(case, subjects, arguments.runs)
        console.print(_table(name, comparisons[name]))
    return comparisons


def _cases(folder: str, samples: int) -> dict[str, Case]:
    def case(image_decode: str | None, workers: int) -> Case:
        return Case(
            folder=folder,
            image_decode=image_decode,
            batch_size=None if image_decode is None else _BATCH_SIZE,
            workers=workers,
            samples=samples,
        )

    return {
        "raw, in process": case(None, 0),
        "torchrgb, in process": case("torchrgb", 0),
        "torchrgb, 2 workers": case("torchrgb", 2),
        "torchrgb8, in process": case("torchrgb8", 0),
        "torchrgb8, 2 workers": case("torchrgb8", 2),
    }


def _subjects(energon: str | None) -> dict[str, Subject]:
    subjects = {OWN: Subject(sys.executable, "benchmarks.programs.loading_energize")}
    if energon is not None:
        # Not resolved: a virtual environment is known by the path of its link to the
        # interpreter.
        subjects["energon"] = Subject(
            os.path.abspath(energon), "benchmarks.programs.loading_energon"
        )
    subjects["webdataset"] = Subject(
        sys.executable, "benchmarks.programs.loading_webdataset"
    )
    return subjects


def _warm_page_cache(folder: Path) -> None:
    for shard in shard_paths(folder):
        with open(shard, "rb") as file:
            while file.read(1 << 24):
                pass


def _table(name: str, comparison: Comparison) -> Table:
    runs = len(comparison.measured[OWN])
    table = Table(title=f"{name}: {comparison.measured[OWN][0].item}, {runs} runs")
    headings = (
        "samples/s",
        "energize is faster by",
        "CPU us/sample",
        "CPU by",
        "first item, s",
    )
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for subject in comparison.measured:
        ratios = comparison.ratios(subject)
        spread = (
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
        )
        table.add_row(
            subject,
            f"{comparison.rate(subject):,.0f}",
            "" if subject == OWN else spread,
            f"{comparison.cpu(subject):,.0f}",
            ""
            if subject == OWN
            else f"{comparison.cpu(subject) / comparison.cpu(OWN):.2f}",
            f"{comparison.startup(subject):.2f}",
        )
    return table


def _machine() -> dict[str, Any]:
    """What the numbers depend on beside the libraries."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _as_json(
    machine: Mapping[str, Any], comparisons: Mapping[str, Comparison]
) -> dict[str, object]:
    return {
        "machine": dict(machine),
        "cases": {name: asdict(each) for name, each in comparisons.items()},
    }


def _versions(comparisons: Mapping[str, Comparison]) -> str:
    shown = [
        f"{name}: "
        + ", ".join(f"{package} {v}" for package, v in rounds[0].versions.items())
        for name, rounds in next(iter(comparisons.values())).measured.items()
    ]
    return "\n".join(shown)


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.loading", description=__doc__)
    parser.add_argument(
        "--energon", help="the interpreter of an environment with megatron-energon"
    )
    parser.add_argument(
        "--samples", type=int, default=16000, help="photographs made and measured"
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="measurements of each library and case"
    )
    parser.add_argument("--only", help="only cases whose name contains this text")
    parser.add_argument("--json", help="file for all measurements")
    parser.add_argument(
        "--data",
        default=os.path.join(tempfile.gettempdir(), "energize-benchmarks"),
        help="where the photographs are kept between runs",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = _parsed(argv)
    console = Console()
    machine = _machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    comparisons = run(arguments, console)
    if comparisons:
        console.print(_versions(comparisons))
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps(_as_json(machine, comparisons), indent=1)
        )


if __name__ == "__main__":
    main()

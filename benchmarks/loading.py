"""Samples per second of energize and of other libraries, side by side in one run.

    python -m benchmarks.loading --energon PYTHON --streaming PYTHON --litdata PYTHON

`python -m benchmarks` installs the other libraries first, and writes a JSON file and a
plot. Two folders of photographs have six and four tenths of the samples; MosaicML
Streaming and litData read them in their own formats. Batches have 32 samples: bytes
("raw"), or pixels as uint8 ("decoded"), which have to be equal in number and size.
Samples of "small" have 200 random bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.comparing import (
    OWN,
    Comparison,
    Subject,
    compare,
    failure,
    run_module,
)
from benchmarks.common.measuring import Case
from benchmarks.common.photographs import SIDE, prepared_folder

__all__ = ["parsed", "run"]

_BATCH_SIZE = 32


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Comparison]:
    """Measure all cases and print them as they come."""
    subjects = _subjects(arguments)
    comparisons: dict[str, Comparison] = {}
    for name, (side, image_decode, workers) in _CASES.items():
        if arguments.only and not any(text in name for text in arguments.only):
            continue
        root = Path(arguments.data)
        folder = _two_folders(root, arguments.samples, side, subjects)
        case = Case(
            folder=str(folder),
            image_decode=image_decode,
            batch_size=_BATCH_SIZE,
            workers=workers,
            samples=arguments.samples,
        )
        _warm_page_cache(folder)
        comparisons[name] = compare(case, subjects, arguments.runs)
        console.print(_table(name, comparisons[name]))
    return comparisons


_CASES: Mapping[str, tuple[int, str | None, int]] = {
    "raw, in process": (SIDE, None, 0),
    "raw, 2 workers": (SIDE, None, 2),
    "small, in process": (0, None, 0),
    "small, 2 workers": (0, None, 2),
    "decoded, in process": (SIDE, "torchrgb8", 0),
    "decoded, 2 workers": (SIDE, "torchrgb8", 2),
}
"""Sides of photographs, what they are decoded to, and number of workers."""

_PEERS = ("energon", "streaming", "litdata")
"""Libraries with environments of their own."""


def _subjects(arguments: argparse.Namespace) -> dict[str, Subject]:
    subjects = {OWN: Subject(sys.executable, "benchmarks.programs.loading_energize")}
    for name in _PEERS:
        python = getattr(arguments, name)
        if python is not None:
            # Not resolved: a virtual environment is known by the path of its link to
            # the interpreter.
            module = f"benchmarks.programs.loading_{name}"
            subjects[name] = Subject(os.path.abspath(python), module)
    subjects["webdataset"] = Subject(
        sys.executable, "benchmarks.programs.loading_webdataset"
    )
    return subjects


def _two_folders(
    root: Path, samples: int, side: int, subjects: Mapping[str, Subject]
) -> Path:
    """Return a folder of two folders of photographs, in all formats that are read."""
    folder = root / (f"two-{samples}" + f"-{side}" * (side != SIDE))
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("0", "1"):
        if not (folder / part).exists():
            made = prepared_folder(folder / "made", samples // 2, side)
            shutil.copytree(made, folder / part)
        for name in set(subjects) & {"streaming", "litdata"}:
            suffix = {"streaming": "mds", "litdata": "litdata"}[name]
            if not (folder / f"{part}.{suffix}" / "index.json").exists():
                _write(subjects[name].python, name, folder / part)
    for library, name in (("energize", "mix"), ("megatron.energon", "mix-energon")):
        parts = "".join(
            f"      - {{weight: {weight}, path: ./{part}}}\n"
            for part, weight in enumerate((6, 4))
        )
        (folder / f"{name}.yaml").write_text(
            f"__module__: {library}\n__class__: MetadatasetV2\n"
            f"splits:\n  train:\n    blend:\n{parts}"
        )
    return folder


def _write(python: str, name: str, folder: Path) -> None:
    """Write the photographs of a folder in the format of a library."""
    case = json.dumps({"data": str(folder)})
    module = "benchmarks.programs.object_storage"
    done = run_module(os.path.abspath(python), module, name, case, "write")
    if done.returncode:
        raise failure(done)


def _warm_page_cache(folder: Path) -> None:
    for shard in folder.rglob("*"):
        if not shard.is_file():
            continue
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


def _overview(comparisons: Mapping[str, Comparison]) -> Table:
    """Return samples per second of all cases: median, and lowest to highest."""
    table = Table(title="samples per second: median (lowest - highest)")
    table.add_column("")
    for name in comparisons:
        table.add_column(name, justify="right")
    for subject in next(iter(comparisons.values())).measured:
        cells = []
        for comparison in comparisons.values():
            rates = comparison.rates(subject)
            spread = f"{min(rates):,.0f} - {max(rates):,.0f}"
            cells.append(f"{statistics.median(rates):,.0f} ({spread})")
        table.add_row(subject, *cells)
    return table


def _draw(
    machine: Mapping[str, Any], comparisons: Mapping[str, Comparison], path: str
) -> None:
    """Draw the medians as bars, with the lowest and highest rates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(comparisons), 3), layout="constrained")
    axes = figure.subplots(1, len(comparisons), squeeze=False)[0]
    for axis, (name, comparison) in zip(axes, comparisons.items(), strict=True):
        subjects = list(comparison.measured)[::-1]
        rates = [comparison.rates(subject) for subject in subjects]
        medians = [statistics.median(values) for values in rates]
        lower = [m - min(values) for m, values in zip(medians, rates, strict=True)]
        upper = [max(values) - m for m, values in zip(medians, rates, strict=True)]
        colours = ["#3b7dd8" if subject == OWN else "#a8a8a3" for subject in subjects]
        axis.barh(subjects, medians, xerr=[lower, upper], color=colours)
        axis.set_title(name, loc="left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(
        f"samples per second, {machine['cores']} cores, {machine['cpu']}", fontsize=8
    )
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def _versions(comparisons: Mapping[str, Comparison]) -> str:
    shown = [
        f"{name}: "
        + ", ".join(f"{package} {v}" for package, v in rounds[0].versions.items())
        for name, rounds in next(iter(comparisons.values())).measured.items()
    ]
    return "\n".join(shown)


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.loading", description=__doc__)
    for name in _PEERS:
        parser.add_argument(
            f"--{name}", help=f"the interpreter of an environment with {name}"
        )
    parser.add_argument(
        "--samples", type=int, default=16000, help="photographs made and measured"
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="measurements of each library and case"
    )
    parser.add_argument(
        "--only", action="append", help="only cases whose name contains this text"
    )
    parser.add_argument("--json", help="file for all measurements")
    parser.add_argument("--plot", help="file for a plot, .svg or .png")
    parser.add_argument(
        "--data",
        default=os.path.join(tempfile.gettempdir(), "energize-benchmarks"),
        help="where the photographs are kept between runs",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    arguments = parsed(argv)
    console = Console()
    machine = _machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    comparisons = run(arguments, console)
    if comparisons:
        console.print(_versions(comparisons))
        console.print(_overview(comparisons))
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps(_as_json(machine, comparisons), indent=1)
        )
    if arguments.plot:
        _draw(machine, comparisons, arguments.plot)


if __name__ == "__main__":
    main()

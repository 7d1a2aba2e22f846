"""`energize profile`: find the stage that limits a run, and the workers it needs."""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections import defaultdict
from itertools import chain, repeat
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from typer import Option

from energize.cli.console import Console, print_json, table
from energize.cli.mixes import AsJson, MixPath, RunOptions, takes_run
from energize.core.failures import FailurePolicy
from energize.core.progress import progress
from energize.errors import ConfigError
from energize.loader import get_loader
from energize.report import Report

_PACKAGE = f"{Path(__file__).parents[1]}/"
_STAGES = {
    "data/av.py": "decode",
    "data/": "read",
    "task/load.py": "decode",
    "datasets/transform.py": "encode",
    "datasets/batch.py": "batch",
    "datasets/packing.py": "batch",
    "datasets/group.py": "batch",
}
"""Stage by the innermost file of the stack in the package; else order."""

_EVERY = 0.001
"""Seconds between samples of the stack."""

_WARM = 0.2
"""Part of a measurement that is not counted, at its start."""

_BUSY = 0.5
"""Part of the trainer's time that handing over items may take."""

_HEADROOM = 1.1
"""Required rate of a loader with workers, relative to consumption."""

_ALONE = 9.0
"""Required rate without workers: training waits for loading a tenth of its time."""

_SUFFICIENT = 0.95
"""Rates from this part of the highest measured rate on count as equal."""

_REMEDIES = {
    "read": (
        "copy the data to a disk of this machine, or keep reads local by "
        "shuffle_buffer_size"
    ),
    "decode": (
        "store smaller images, or leave what is not used undecoded (SampleDecoder)"
    ),
    "encode": (
        "make the encoder cheaper, or do that part once when the data are prepared"
    ),
    "batch": "make batch() cheaper: fewer copies, less padding, smaller types",
    "hand over": (
        "send smaller items: uint8 in place of float32, and convert on the GPU"
    ),
    "order": (
        "give simpler weights or larger batches, and report it: this should cost "
        "nothing"
    ),
}


@takes_run
def profile(
    mix: MixPath,
    run: RunOptions,
    *,
    workers: Annotated[
        str, Option(help="Numbers of workers to measure, separated by commas.")
    ] = "0,1,2,4",
    consume: Annotated[
        str | None,
        Option(help=("Samples that the trainer consumes on a rank, such as 120/s.")),
    ] = None,
    step_time: Annotated[
        str | None, Option(help="Time of a training step, such as 250ms.")
    ] = None,
    seconds: Annotated[
        float, Option(min=1, help="Approximate total time of the measurement.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure the stage that limits a run, and how many workers it needs.

    Batches are made as on one rank, with the encoder of the run: first in this process,
    where each stage is timed, and then with each number of workers. Every measurement
    continues where the previous one ended.
    """
    numbers = {
        0,
        *(
            int(_number("--workers", samples_per_item, r"(\d+)$"))
            for samples_per_item in workers.split(",")
        ),
    }
    step = _number("--step-time", step_time, r"(\d+\.?\d*) ?(m?)s$")
    consumed = _number("--consume", consume, r"(\d+\.?\d*)(?:/s)?$")
    dataset = run.read(mix, samples=True)
    state = None
    rows: list[dict[str, Any]] = []
    busy: dict[tuple[str, str], float] = defaultdict(float)
    report = progress("Measuring")
    for many in sorted(numbers):
        report(len(rows), len(numbers))
        into = None if many else busy
        row, state = _measured(dataset, many, seconds / len(numbers), state, into)
        rows.append(row)
    samples_per_item = rows[0]["samples_per_item"]
    total = sum(busy.values())
    stages: dict[str, float] = defaultdict(float)
    for (stage, _), part in busy.items():
        stages[stage] += part / total
    lines = {line: part / total for (_, line), part in busy.items() if line}
    result: dict[str, Any] = {
        "stages": dict(sorted(stages.items(), key=lambda pair: -pair[1])),
        "lines": dict(sorted(lines.items(), key=lambda pair: -pair[1])[:3]),
        "workers": rows,
        "samples_per_item": samples_per_item,
        "consumes": samples_per_item / step if step else consumed or None,
        "cpus": len(os.sched_getaffinity(0)),
    }
    result |= _verdict(result)
    if as_json:
        print_json(result)
    else:
        _show(Console(), result)


def _number(option: str, text: str | None, form: str) -> float:
    match = re.match(form, text.strip()) if text else None
    if text is not None and (
        match is None or (option != "--workers" and not float(match[1]))
    ):
        forms = {
            "--workers": "0,1,2,4",
            "--consume": "120/s",
            "--step-time": "250ms or 0.25s",
        }
        raise ConfigError(f"{option}: expected {forms[option]}, got {text!r}")
    return float(match[1]) / (1000 if "m" in match.groups() else 1) if match else 0.0


def _measured(
    dataset: Any, workers: int, seconds: float, state: Any, into: Any
) -> tuple[dict[str, Any], Any]:
    """Return the rate of a loader with some workers, and its state."""
    with get_loader(
        dataset, num_workers=workers, failures=FailurePolicy(budget=None)
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        began = time.perf_counter()
        items = chain.from_iterable(repeat(loader))
        next(items)
        first = start = time.perf_counter()
        counted = 0
        used = 0.0
        over = threading.Event()
        arguments = into, threading.get_ident(), over
        watch = threading.Thread(target=_watch, args=arguments, daemon=True)
        for _ in items:
            counted = counted + 1
            current = time.perf_counter()
            if not used and current - first >= _WARM * seconds:
                counted = 0
                start = current
                used = time.thread_time()
                if into is not None:
                    watch.start()
            elif used and current - first >= seconds:
                break
        passed = time.perf_counter() - start
        used = time.thread_time() - used
        over.set()
        if watch.ident is not None:
            watch.join()
        samples_per_item = _samples_per_item(loader.report())
        samples = counted * samples_per_item
        row = {
            "workers": workers,
            "samples_per_second": samples / passed,
            "samples_per_item": samples_per_item,
            "hand_over_seconds": used / samples if workers else 0.0,
            "first_item_seconds": first - began,
        }
        return row, loader.state_dict()


def _samples_per_item(report: Report) -> float:
    items = sum(rank.items for rank in report.ranks)
    return report.total.counts.samples / max(items, 1)


def _watch(
    busy: dict[tuple[str, str], float], thread: int, over: threading.Event
) -> None:
    """Add up the time that a thread spends in each stage, by sampling its stack."""
    previous = time.perf_counter()
    while not over.wait(_EVERY):
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented in sys
        current = time.perf_counter()
        stage, line = _stage_of(frame)
        busy[stage, line if stage in ("encode", "batch") else ""] += current - previous
        previous = current


def _stage_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the stage of a stack, and the innermost line of the user's code."""
    line = ""
    while frame is not None and frame.f_code.co_name != "route":
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            stage = _stage_of_module(file.removeprefix(_PACKAGE))
            if stage is not None:
                return stage, line
        elif not line and not _is_library(file):
            line = f"{file}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return "order", line


def _stage_of_module(path: str) -> str | None:
    stages = (stage for start, stage in _STAGES.items() if path.startswith(start))
    return next(stages, None)


def _is_library(file: str) -> bool:
    return "/site-packages/" in file or "/lib/python" in file


def _rates(rows: dict[int, dict[str, Any]], most: int) -> dict[int, float]:
    """Return samples per second by number of workers, for up to `most` workers."""
    usable = [workers for workers in rows if 0 < workers <= most] or [max(rows)]
    return {workers: rows[workers]["samples_per_second"] for workers in usable}


def _verdict(result: dict[str, Any]) -> dict[str, Any]:
    """Return the limiting stage, the number of workers, and advice."""
    consumed = result["consumes"]
    row_of = {row["workers"]: row for row in result["workers"]}
    limit = next(iter(result["stages"]), "read")
    most = (
        max(row_of) if limit == "read" else result["cpus"]
    )  # who waits for disks needs no core
    rate = _rates(row_of, most)
    enough = (
        _SUFFICIENT * max(rate.values()) if consumed is None else _HEADROOM * consumed
    )
    use = _fewest_workers(rate, enough)
    needed_alone = _ALONE * consumed if consumed else math.inf
    if row_of[0]["samples_per_second"] >= needed_alone:
        use = 0
    achieved = row_of[use]["samples_per_second"]
    if row_of[use]["hand_over_seconds"] * achieved > _BUSY:
        limit = "hand over"
    lines = [_rate_line(use, achieved, consumed), f"What limits it is {limit}"]
    if achieved < enough:
        could_use_more = use == max(rate) < result["cpus"]
        lines += _too_slow_lines(limit, result["cpus"], could_use_more=could_use_more)
    elif not consumed:
        lines.append(f"To have more: {_REMEDIES[limit]}")
    return {"limit": limit, "num_workers": use, "verdict": lines}


def _too_slow_lines(limit: str, cpus: int, *, could_use_more: bool) -> list[str]:
    lines = [f"The trainer will wait: {_REMEDIES[limit]}"]
    if could_use_more and limit != "hand over":
        lines.append(f"Measure more workers, too: this machine has {cpus} CPUs")
    return lines


def _rate_line(workers: int, rate: float, consumes: float | None) -> str:
    """Return the line of the verdict about the number of workers and their rate."""
    line = f"Use num_workers={workers}: {rate:,.0f} samples/s"
    if not consumes:
        return line
    times = f"{rate / consumes:.2f} times the {consumes:,.0f}"
    return f"{line}, {times} that the trainer consumes"


def _fewest_workers(rate: dict[int, float], enough: float) -> int:
    """Return the fewest workers with a sufficient rate, or the fastest."""
    fastest = max(rate, key=lambda workers: rate[workers])
    return min(
        (workers for workers in rate if rate[workers] >= enough), default=fastest
    )


def _show(console: Console, result: dict[str, Any]) -> None:
    cost = result["workers"][0]["samples_per_second"]
    stages = result["stages"].items()
    rows = [
        (name, f"{1000 * part / cost:.3f}", f"{100 * part:.1f}")
        for name, part in stages
    ]
    console.print(table("stage", ">ms per sample", ">%", rows=rows))
    for line, share in result["lines"].items():
        console.write_line(f"  {100 * share:.1f} % in {line}")
    columns = (
        ">samples/s",
        ">% of what is consumed",
        ">hand over, ms",
        ">first item, s",
    )
    measured = []
    for row in result["workers"]:
        rate = row["samples_per_second"]
        first = f"{row['first_item_seconds']:.2f}"
        of = f"{100 * rate / result['consumes']:.0f}" if result["consumes"] else "-"
        hands = f"{1000 * row['hand_over_seconds']:.3f}" if row["workers"] else "-"
        measured.append((str(row["workers"]), f"{rate:,.1f}", of, hands, first))
    console.print(table(">workers", *columns, rows=measured))
    console.write_line(
        "\n".join(f"{line_of_verdict}." for line_of_verdict in result["verdict"])
    )

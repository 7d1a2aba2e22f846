"""`energize profile`: which stage limits a run, and how many workers it takes."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import defaultdict
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text
from typer import Option

import energize
from energize.cli.console import Console, print_json, progress_bar, table
from energize.cli.mixes import AsJson, MixPath, Run, takes_run
from energize.errors import ConfigError
from energize.loader import get_loader

_PACKAGE = str(Path(energize.__file__).parent) + "/"
_STAGES = {
    "data/": "read",
    "task/load.py": "decode",
    "extras/av.py": "decode",
    "datasets/transform.py": "encode",
    "datasets/batch.py": "batch",
    "datasets/packing.py": "batch",
    "datasets/group.py": "batch",
}
"""What a thread is busy with, by the innermost of these files in which it is; else with order."""

_EVERY = 0.001
"""Seconds after which the reading thread is looked at."""

_WARM, _HEADROOM, _ALONE, _ALIKE = 0.2, 1.1, 9.0, 0.95
"""The part of a measurement that is not counted; what a loader has to give of what is consumed, and
without workers, when training waits for each batch, for no more than a tenth of its time; and what
of the most that was measured."""

_REMEDIES = {
    "read": "copy the data to a disk of this machine, or keep reads local by shuffle_buffer_size",
    "decode": "store smaller images, or leave what is not used undecoded (SampleDecoder)",
    "encode": "make the encoder cheaper, or do that part once when the data are prepared",
    "batch": "make batch() cheaper: fewer copies, less padding, smaller types",
    "hand over": "send smaller items: uint8 in place of float32, and convert on the GPU",
    "order": "give simpler weights or larger batches, and report it: this should cost nothing",
}


@takes_run
def profile(
    mix: MixPath,
    run: Run,
    *,
    workers: Annotated[
        str, Option(help="The numbers of workers to measure, with commas between them.")
    ] = "0,1,2,4",
    consume: Annotated[
        str | None, Option(help="Samples that the trainer takes on a rank, such as 120/s.")
    ] = None,
    step_time: Annotated[
        str | None, Option(help="What a step of the trainer takes, such as 250ms.")
    ] = None,
    seconds: Annotated[float, Option(min=1, help="How long to measure in all, about.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Measure which stage limits a run, and how many workers it takes; with the encoder of the run.

    Its batches are made as a rank makes them, first in this process, where each stage is timed, and
    then by each number of workers. Every measurement goes on where the one before stood.
    """
    numbers = {0, *(int(_number(n, "--workers", r"(\d+)$")) for n in workers.split(","))}
    step = None if step_time is None else _number(step_time, "--step-time", r"([\d.]+) ?(ms|s)$")
    asked = None if consume is None else _number(consume, "--consume", r"([\d.]+)(?:/s)?$")
    dataset = run.read(mix, samples=True)
    part, state, rows = seconds / len(numbers), None, []
    stages: defaultdict[str, float] = defaultdict(float)
    lines: defaultdict[str, float] = defaultdict(float)
    with progress_bar(Console(stderr=True), "Measuring") as tell:
        for many in sorted(numbers):
            tell(len(rows), len(numbers))
            into = None if many else (stages, lines)
            row, state = _measured(dataset, many, part, state, into)
            rows.append(row)
    each = rows[0]["samples_per_item"]
    if step is not None:
        asked = each / step
    total = sum(stages.values())
    cost = 1 / rows[0]["samples_per_second"]
    told: dict[str, Any] = {
        "stages": {
            name: {"share": part / total, "seconds_per_sample": cost * part / total}
            for name, part in sorted(stages.items(), key=lambda each: -each[1])
        },
        "lines": [[n, lines[n] / total] for n in sorted(lines, key=lambda n: -lines[n])[:3]],
        "workers": rows,
        "samples_per_item": each,
        "consumes": asked,
        "cpus": len(os.sched_getaffinity(0)),
    }
    told |= _verdict(told)
    if as_json:
        print_json(told)
    else:
        _show(Console(), told)


def _number(text: str, option: str, form: str) -> float:
    found = re.match(form, text.strip())
    try:
        value = float(found[1]) if found else -1.0
    except ValueError:
        value = -1.0
    if value < 0 or (value == 0 and option != "--workers"):
        forms = {"--workers": "0,1,2,4", "--consume": "120/s", "--step-time": "250ms or 0.25s"}
        raise ConfigError(f"{option}: expected {forms[option]}, got {text!r}")
    return value / 1000 if found and found[found.lastindex or 1] == "ms" else value


def _measured(
    dataset: Any, workers: int, seconds: float, state: Any, into: Any
) -> tuple[dict[str, Any], Any]:
    """Return what a loader with so many workers gives, and its state; `into` is for its stages."""
    with get_loader(dataset, num_workers=workers, failure_budget=None) as loader:
        if state is not None:
            loader.load_state_dict(state)
        began = time.perf_counter()
        items = chain.from_iterable(repeat(loader))
        next(items)
        first = start = time.perf_counter()
        counted, used, sampler = 0, 0.0, None
        for _ in items:
            counted, now = counted + 1, time.perf_counter()
            if not used and now - first >= _WARM * seconds:
                counted, start, used = 0, now, time.thread_time()
                sampler = None if into is None else _Sampler(*into)
            elif used and now - first >= seconds:
                break
        passed, used = time.perf_counter() - start, time.thread_time() - used
        if sampler is not None:
            sampler.stop()
        report = loader.report(show=False)
        each = report.total.samples / max(sum(rank.items for rank in report.ranks), 1)
        samples = counted * each
        row = {
            "workers": workers,
            "samples_per_second": samples / passed,
            "samples_per_item": each,
            "hand_over_seconds": used / samples if workers else 0.0,
            "first_item_seconds": first - began,
        }
        return row, loader.state_dict()


class _Sampler:
    """Looks what the thread that made it is busy with, until it is told to stop."""

    def __init__(self, stages: defaultdict[str, float], lines: defaultdict[str, float]) -> None:
        self._stages, self._lines, self._over = stages, lines, threading.Event()
        self._thread = threading.Thread(target=self._look, args=(threading.get_ident(),))
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()

    def _look(self, of: int) -> None:
        last = time.perf_counter()
        while not self._over.wait(_EVERY):
            frame, own = sys._current_frames().get(of), None
            now, stage = time.perf_counter(), "order"
            while frame is not None:
                file = frame.f_code.co_filename
                if file.startswith(_PACKAGE):
                    inner = file.removeprefix(_PACKAGE)
                    found = (name for at, name in _STAGES.items() if inner.startswith(at))
                    stage = next(found, stage)
                    if stage != "order" or frame.f_code.co_name == "route":
                        break
                elif own is None and "/site-packages/" not in file and "/lib/python" not in file:
                    own = f"{file}:{frame.f_lineno} ({frame.f_code.co_name})"
                frame = frame.f_back
            self._stages[stage] += now - last
            if own is not None and stage in ("encode", "batch"):
                self._lines[own] += now - last
            last = now


def _verdict(told: dict[str, Any]) -> dict[str, Any]:
    """Return what limits, how many workers to use, and what to do, in words."""
    rows, asked = told["workers"], told["consumes"]
    rate = {row["workers"]: row["samples_per_second"] for row in rows}
    beside = {many: each for many, each in rate.items() if many} or rate
    best = max(beside.values())
    enough = best * _ALIKE if asked is None else asked * _HEADROOM
    fitting = [many for many in beside if beside[many] >= enough]
    use = min(fitting, default=max(beside, key=beside.__getitem__))
    if asked is not None and rate[0] >= asked * _ALONE:
        use, best = 0, rate[0]
    limit = next(iter(told["stages"]))
    hands = next(row["hand_over_seconds"] for row in rows if row["workers"] == use)
    if hands * rate[use] > 1 / (2 * _HEADROOM):
        limit = "hand over"
    words = [f"Use num_workers={use}: {rate[use]:,.0f} samples/s"]
    if asked is not None:
        words[0] += f", {rate[use] / asked:.2f} times the {asked:,.0f} that the trainer consumes"
    words.append(f"What limits it is {limit}")
    if asked is not None and best < enough:
        words.append(f"The trainer will wait: {_REMEDIES[limit]}")
        if use == max(rate) < told["cpus"] and limit != "hand over":
            words.append(f"Measure more workers, too: this machine has {told['cpus']} CPUs")
    elif asked is None:
        words.append(f"To have more: {_REMEDIES[limit]}")
    if use > told["cpus"]:
        words.append(f"This machine has {told['cpus']} CPUs only")
    return {"limit": limit, "num_workers": use, "verdict": words}


def _show(console: Console, told: dict[str, Any]) -> None:
    made = table("stage", ">ms per sample", ">share")
    for name, each in told["stages"].items():
        made.add_row(
            name, f"{1000 * each['seconds_per_sample']:.3f}", f"{100 * each['share']:.1f} %"
        )
    console.print(made)
    for line, share in told["lines"]:
        console.print(Text(f"  {100 * share:.1f} % in {line}"))
    made = table(
        ">workers", ">samples/s", ">of what is consumed", ">hand over, ms", ">first item, s"
    )
    for row in told["workers"]:
        rate, asked = row["samples_per_second"], told["consumes"]
        of = "-" if asked is None else f"{100 * rate / asked:.0f} %"
        hands = f"{1000 * row['hand_over_seconds']:.3f}" if row["workers"] else "-"
        made.add_row(
            str(row["workers"]), f"{rate:,.1f}", of, hands, f"{row['first_item_seconds']:.2f}"
        )
    console.print(made)
    console.say("\n".join(f"{each}." for each in told["verdict"]))

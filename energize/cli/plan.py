"""`energize plan` and `energize simulate`: what a run will read, and when it repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

from energize.cli.console import Console, counted, print_json, short, table
from energize.cli.mixes import AsJson, MixPath, Run, takes_run
from energize.core.stream import INFINITE
from energize.errors import ConfigError
from energize.extras.plots import check_plot, draw, intervals_for
from energize.report import PlannedBatch, PlannedSample, Simulation, SourceForecast
from energize.report.forecast import indexed, weighed_in
from energize.report.forecast import plan as planned
from energize.report.forecast import simulate as simulated

_STEPS_PER_TABLE = 20
_SHARDS_SHOWN = 12

Plot = Annotated[
    Path | None,
    Option(help="Draw shares over the steps, and epochs, to a .png, .svg, .pdf or .html."),
]


@takes_run
def plan(
    mix: MixPath,
    run: Run,
    *,
    at: Annotated[int, Option(min=0, help="The first step: batches of all ranks before it.")] = 0,
    steps: Annotated[int, Option(min=1, help="How many batches of all ranks together.")] = 1,
    world_size: Annotated[int | None, Option(min=1, help="Show which of so many ranks.")] = None,
    keys: Annotated[bool, Option("--keys", help="Show keys; this opens the shards.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which samples of which sources the batches of some steps are made of.

    Nothing but the metadata of the folders is read, and a far step costs what the first one does.
    """
    dataset = run.read(mix)
    batches = planned(dataset, at, steps, world_size=world_size, keys=keys)
    if as_json:
        for batch in batches:
            print_json(asdict(batch), indent=None)
        return
    console = Console()
    totals: Counter[str] = Counter()
    while chunk := list(islice(batches, _STEPS_PER_TABLE)):
        console.print(_plan_table(chunk))
        totals.update(sample.source for batch in chunk for sample in batch.samples)
    samples = totals.total()
    parts = [f"{name} {n:,} ({100 * n / samples:.1f} %)" for name, n in totals.most_common()]
    total = f"{counted(steps, 'step')}, {counted(samples, 'sample')}: {', '.join(parts)}"
    console.say(total if run.validates else f"{total}; weights count {weighed_in(dataset)}")


def _plan_table(batches: Sequence[PlannedBatch]) -> Table:
    first, last = batches[0].step, batches[-1].step
    title = f"Step {first:,}" if first == last else f"Steps {first:,} to {last:,}"
    ranked = batches[0].rank is not None
    ranks = (">rank",) if ranked else ()
    made = table(">step", *ranks, "source", ">samples", ">epoch", "shard[samples]", title=title)
    for batch in batches:
        place = [f"{batch.step:,}", *([str(batch.rank)] if ranked else [])]
        parts: dict[tuple[str, int], list[PlannedSample]] = {}
        for sample in batch.samples:
            parts.setdefault((sample.source, sample.epoch), []).append(sample)
        for (source, epoch), samples in parts.items():
            cells = (f"{len(samples):,}", short(epoch), Text(_where(samples)))
            made.add_row(*place, Text(source), *cells)
            place = [""] * len(place)
        made.add_section()
    return made


def _where(samples: Iterable[PlannedSample]) -> str:
    """Where samples lie, shard by shard: "a.tar[0,3-5] b.tar[7]"."""
    ordered = sorted(samples, key=lambda each: (each.shard or "", each.index))
    by_shard = [(shard, list(group)) for shard, group in groupby(ordered, lambda each: each.shard)]
    texts = [f"{shard or ''}[{_numbers(group)}]" for shard, group in by_shard[:_SHARDS_SHOWN]]
    if hidden := by_shard[_SHARDS_SHOWN:]:
        number = sum(len(group) for _, group in hidden)
        texts.append(f"and {number:,} samples of {len(hidden):,} more shards (--json lists all)")
    return " ".join(texts)


def _numbers(samples: Sequence[PlannedSample]) -> str:
    """Keys where they are known, else numbers with runs as "3-5"."""
    if any(sample.key is not None for sample in samples):
        return ",".join(f"#{s.index}" if s.key is None else s.key for s in samples)
    numbers = [sample.index for sample in samples]
    cuts = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    runs = [(numbers[a], numbers[b - 1]) for a, b in pairwise([0, *cuts, len(numbers)])]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


@takes_run
def simulate(
    mix: MixPath,
    run: Run,
    *,
    steps: Annotated[
        int | None, Option(min=1, help="How many batches of all ranks; by default to the end.")
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run of many steps takes of each source, and when it begins to repeat.

    Nothing but the metadata of the folders is read; any number of steps costs the same.
    """
    if plot is not None:
        check_plot(plot)
    dataset = indexed(run.read(mix), "simulate")
    if steps is None and dataset.size == INFINITE:
        raise ConfigError("this mix never ends; say with --steps how many steps to look at")
    steps = steps or dataset.size
    intervals = 1 if plot is None else intervals_for(dataset, steps)
    simulation = simulated(dataset, steps, intervals=intervals)
    if as_json:
        print_json(_as_json(simulation, validates=run.validates))
    else:
        _show(Console(), simulation, validates=run.validates)
    if plot is not None:
        draw(simulation, plot, title=f"{mix}, split {run.split}")
        typer.echo(f"Drawn: {plot}", err=True)


def _as_json(simulation: Simulation, *, validates: bool) -> dict[str, Any]:
    return {
        "steps": simulation.steps,
        "samples": simulation.samples,
        "weights_count": None if validates else simulation.unit,
        "validates": validates,
        "stages": [asdict(each) for each in simulation.stages],
        "sources": [{**asdict(each), "epochs": each.epochs} for each in simulation.sources],
    }


def _show(console: Console, simulation: Simulation, *, validates: bool) -> None:
    steps, samples = simulation.steps, simulation.samples
    length = f"{counted(steps, 'step')}, {counted(samples, 'sample')}"
    if validates:
        console.say(f"Validation, every sample once in stored order: {length}")
    else:
        console.say(f"{length}; weights count {simulation.unit}")
    asked = any(each.asked is not None for each in simulation.sources)
    columns = (">planned %", ">drawn", ">of", ">epochs", ">repeats at")
    made = table("source", *([">asked %"] if asked else []), *columns)
    for each in simulation.sources:
        cells = ["-" if each.asked is None else f"{100 * each.asked:.3f}"] if asked else []
        made.add_row(Text(each.name), *cells, *_cells(each))
    if len(simulation.sources) > 1:
        made.add_section()
        count = sum(each.count for each in simulation.sources)
        made.add_row("all", *([""] if asked else []), "", short(samples), short(count))
    console.print(made)
    for each in simulation.sources:
        if not each.drawn:
            why = "its weight is 0" if each.asked == 0 else f"not in {counted(steps, 'step')}"
            console.note(f"{each.name}: {why}", "Never reached")


def _cells(each: SourceForecast) -> Iterator[str]:
    yield f"{100 * each.share:.3f}"
    yield short(each.drawn)
    yield short(each.count)
    yield short(each.epochs, 2)
    first = "-" if each.repeats_at is None else f"{each.repeats_at:,}"
    latest = "unknown" if each.repeats_at is None else f"<= {first}"
    yield first if each.repeats_exact else latest

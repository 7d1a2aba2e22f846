"""`energize simulate`: what a run of many steps takes of each source."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from energize.cli.console import (
    Console,
    count_text,
    counted_text,
    print_json,
    print_table,
    show_note,
    table_console,
    waiting,
)
from energize.cli.mixes import AsJson, MixPath, ReadMix, Run, at_least, steps_of, takes_run
from energize.extras.plots import check_plot, draw, intervals_for
from energize.report.forecast import Simulation, SourceForecast, indexed
from energize.report.forecast import simulate as simulated

Steps = Annotated[
    int | None,
    typer.Option(
        callback=at_least(1),
        help="How many steps: batches of all ranks together; by default all, where the mix ends.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw shares over the steps, and epochs, to a .png, .svg, .pdf or .html."),
]


@takes_run
def simulate(
    mix: MixPath, run: Run, *, steps: Steps = None, plot: Plot = None, as_json: AsJson = False
) -> None:
    """Show what a run of many steps takes of each source, and when it begins to repeat.

    Nothing but the metadata of the folders is read; any number of steps costs the same.
    """
    if plot is not None:
        check_plot(plot)
    with waiting("Working out " + (counted_text(steps, "step") if steps else "all steps")):
        read = run.read(mix)
        steps = steps_of(read.dataset, steps)
        intervals = 1 if plot is None else intervals_for(indexed(read.dataset, "simulate"), steps)
        simulation = simulated(read.dataset, steps, intervals=intervals)
    if as_json:
        print_json(_as_json(simulation, read))
    else:
        console = table_console()
        _show(console, simulation, read)
        note = run.said_of_types(read)
        if note:
            show_note(console, note)
    if plot is not None:
        draw(simulation, plot, title=f"{mix}, split {run.split}")
        typer.echo(f"Drawn: {plot}", err=True)


def _as_json(simulation: Simulation, mix: ReadMix) -> dict[str, Any]:
    return {
        "steps": simulation.steps,
        "samples": simulation.samples,
        "weights_count": None if mix.validates else simulation.unit,
        "validates": mix.validates,
        "types": list(mix.types),
        "stages": [asdict(each) for each in simulation.stages],
        "sources": [
            {**asdict(each), "epochs": each.epochs, "source": source.describe()}
            for each, source in zip(simulation.sources, mix.dataset.sources, strict=True)
        ],
    }


def _show(console: Console, simulation: Simulation, mix: ReadMix) -> None:
    console.print(_title(simulation, mix), style="italic", markup=False)
    print_table(console, _table(simulation))
    for each in simulation.sources:
        if not each.drawn:
            steps = counted_text(simulation.steps, "step")
            why = "its weight is 0" if each.asked == 0 else f"not in {steps}"
            console.print("Never reached:", style="yellow", end=" ")
            console.print(f"{each.name}: {why}", markup=False)


def _title(simulation: Simulation, mix: ReadMix) -> str:
    steps, samples = simulation.steps, simulation.samples
    length = f"{counted_text(steps, 'step')}, {counted_text(samples, 'sample')}"
    if mix.validates:
        return f"Validation, every sample once in stored order: {length}"
    return f"{length}; weights count {simulation.unit}"


def _table(simulation: Simulation) -> Table:
    asked = any(each.asked is not None for each in simulation.sources)
    table = Table(box=SIMPLE_HEAD, show_footer=len(simulation.sources) > 1)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    table.add_column("source", "all", overflow="fold", min_width=12)
    for name, total in (
        *([("asked %", "")] if asked else []),
        ("planned %", ""),
        ("drawn", count_text(simulation.samples)),
        ("of", count_text(sum(each.count for each in simulation.sources))),
        ("epochs", ""),
        ("repeats at", ""),
    ):
        table.add_column(name, total, justify="right", no_wrap=True)
    for each in simulation.sources:
        cells = ["-" if each.asked is None else f"{100 * each.asked:.3f}"] if asked else []
        style = None if each.drawn else "yellow"
        table.add_row(Text(each.name), *cells, *_numbers(each), style=style)
    return table


def _numbers(each: SourceForecast) -> list[str]:
    first = "-" if each.repeats_at is None else f"{each.repeats_at:,}"
    latest = "unknown" if each.repeats_at is None else f"<= {first}"
    return [
        f"{100 * each.share:.3f}",
        count_text(each.drawn),
        count_text(each.count),
        count_text(each.epochs, 2),
        first if each.repeats_exact else latest,
    ]

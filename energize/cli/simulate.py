"""`energize simulate`: what a run of many steps takes of each source."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

import energize.cli.mix_options as opt
from energize.cli.console import Console, print_json
from energize.cli.mix_options import count_text, counted_text, print_table, table_console
from energize.cli.showing import show_note
from energize.extras.plots import check_plot, draw, intervals_for
from energize.preview.arguments import indexed
from energize.preview.asked import AskedMix
from energize.preview.simulating import Simulation, SourceForecast
from energize.preview.simulating import simulate as simulated

_WIDE = 100
"""Columns of a terminal from which on weights are shown beside the shares."""

Plot = Annotated[
    Path | None,
    typer.Option(help="Draw shares over the steps, and epochs, to a .png, .svg, .pdf or .html."),
]


def simulate(
    mix: opt.MixPath,
    *,
    steps: opt.MaybeSteps = None,
    batch_size: opt.BatchSize = None,
    split: opt.SplitPart = "train",
    validation: opt.Validation = None,
    encoder_per_type: opt.EncoderPerType = False,
    seed: opt.Seed = 0,
    shuffle_buffer_size: opt.ShuffleBufferSize = None,
    max_samples_per_sequence: opt.MaxSamplesPerSequence = None,
    plot: Plot = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show what a run of many steps takes of each source, and when it begins to repeat.

    Nothing but the metadata of the folders is read; any number of steps costs the same.
    """
    if plot is not None:
        check_plot(plot)
    with waiting("Working out " + (counted_text(steps, "step") if steps else "all steps")):
        read = opt.given_mix(
            mix,
            split,
            validation,
            batch_size=batch_size,
            seed=seed,
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
            encoder_per_type=encoder_per_type,
        )
        steps = opt.steps_of(read.dataset, steps)
        intervals = 1 if plot is None else intervals_for(indexed(read.dataset, "simulate"), steps)
        simulation = simulated(read.dataset, steps, intervals=intervals)
    if as_json:
        print_json(_as_json(simulation, read))
    else:
        console = table_console()
        _show(console, simulation, read)
        note = opt.said_of_types(read, encoder_per_type=encoder_per_type)
        if note and not read.validates:
            show_note(console, note)
    if plot is not None:
        draw(simulation, plot, title=f"{mix}, split {split}")
        typer.echo(f"Drawn: {plot}", err=True)


def waiting(text: str) -> AbstractContextManager[object]:
    """A spinner with `text` while there is nothing to show yet, and gone afterwards.

    It is for people alone: rich takes a pipe for a terminal too when FORCE_COLOR is set.
    """
    return Console(stderr=True).status(text) if sys.stderr.isatty() else nullcontext()


def _as_json(simulation: Simulation, mix: AskedMix) -> dict[str, Any]:
    rows = zip(simulation.sources, mix.dataset.sources, mix.asked, strict=True)
    return {
        "steps": simulation.steps,
        "samples": simulation.samples,
        "weights_count": None if mix.validates else simulation.unit,
        "validates": mix.validates,
        "types": list(mix.types),
        "stages": [asdict(each) for each in simulation.stages],
        "sources": [
            {
                "name": each.name,
                "count": each.count,
                "drawn": each.drawn,
                "share": each.share,
                "repeats_at": each.repeats_at,
                "repeats_exact": each.repeats_exact,
                "epochs": each.epochs,
                "asked_weight": None if asked is None else asked.weight,
                "asked_share": each.asked,
                "asked_at": None if asked is None else asked.place,
                "source": source.describe(),
            }
            for each, source, asked in rows
        ],
    }


def _show(console: Console, simulation: Simulation, mix: AskedMix) -> None:
    weights: list[str | None] = []
    if not mix.validates and console.width >= _WIDE:
        weights = [None if each is None else each.weight for each in mix.asked]
    console.print(_title(simulation, mix), style="italic", markup=False)
    print_table(console, _table(simulation, weights))
    for each in simulation.sources:
        if not each.drawn:
            steps = counted_text(simulation.steps, "step")
            why = "its weight is 0" if each.asked == 0 else f"not in {steps}"
            console.print("Never reached:", style="yellow", end=" ")
            console.print(f"{each.name}: {why}", markup=False)


def _title(simulation: Simulation, mix: AskedMix) -> str:
    steps, samples = simulation.steps, simulation.samples
    length = f"{counted_text(steps, 'step')}, {counted_text(samples, 'sample')}"
    if mix.validates:
        return f"Validation, every sample once in stored order: {length}"
    return f"{length}; weights count {simulation.unit}"


def _table(simulation: Simulation, weights: Sequence[str | None]) -> Table:
    several = len(simulation.sources) > 1
    asked = any(each.asked is not None for each in simulation.sources)
    table = Table(box=SIMPLE_HEAD, show_footer=several)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    table.add_column("source", "all", overflow="fold", min_width=12)
    if weights:
        table.add_column("weight", overflow="fold", justify="right", min_width=8)
    for name, total in (
        *([("asked %", "")] if asked else []),
        ("planned %", ""),
        ("drawn", count_text(simulation.samples)),
        ("of", count_text(sum(each.count for each in simulation.sources))),
        ("epochs", ""),
        ("repeats at", ""),
    ):
        table.add_column(name, total, justify="right", no_wrap=True)
    for number, each in enumerate(simulation.sources):
        cells = [weights[number] or "-"] if weights else []
        if asked:
            cells.append("-" if each.asked is None else f"{100 * each.asked:.3f}")
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

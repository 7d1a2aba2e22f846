"""`energize simulate`: what a run of many steps takes of each source."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import energize.cli.mix_options as opt
from energize.cli.mix_options import count_text, counted_text, print_table, table_console
from energize.preview.asked import Asked, AskedMix, read_mix
from energize.preview.chart import check_chart, draw_shares
from energize.preview.simulating import Simulation, SourceForecast
from energize.preview.simulating import simulate as simulated

_WIDE = 100
"""Columns of a terminal from which on weights are shown beside the shares."""

_PLOTTED = 200
"""How many shares are drawn for each source."""

Plot = Annotated[
    Path | None, typer.Option(help="Draw the shares over time to this file: PNG, SVG or PDF.")
]


def simulate(
    mix: opt.MixPath,
    *,
    steps: opt.Steps,
    batch_size: opt.BatchSize = None,
    split: opt.SplitPart = "train",
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
        check_chart(plot)
    with _waiting(f"Working out {counted_text(steps, 'step')}"):
        read = read_mix(
            mix,
            split_part=split,
            batch_size=batch_size,
            seed=seed,
            shuffle_buffer_size=shuffle_buffer_size,
            max_samples_per_sequence=max_samples_per_sequence,
        )
        simulation = simulated(read.dataset, steps, intervals=1 if plot is None else _PLOTTED)
    if as_json:
        typer.echo(json.dumps(_as_json(simulation, read), indent=2, ensure_ascii=False))
    else:
        _show(table_console(), simulation, read)
    if plot is not None:
        shares = [None if asked is None else asked.share for asked in read.asked]
        draw_shares(simulation, plot, None if read.changes else shares)
        typer.echo(f"Shares over time: {plot}", err=True)


def _waiting(text: str) -> AbstractContextManager[object]:
    """A spinner with `text` while there is nothing to show yet, and gone afterwards.

    It is for people alone: rich takes a pipe for a terminal too when FORCE_COLOR is set.
    """
    return Console(stderr=True).status(text) if sys.stderr.isatty() else nullcontext()


def _as_json(simulation: Simulation, mix: AskedMix) -> dict[str, Any]:
    rows = zip(simulation.sources, mix.dataset.sources, mix.asked, strict=True)
    return {
        "steps": simulation.steps,
        "samples": simulation.samples,
        "sources": [
            {
                **asdict(each),
                "epochs": each.epochs,
                "asked_weight": None if asked is None else asked.weight,
                "asked_share": None if asked is None else asked.share,
                "asked_at": None if asked is None else asked.place,
                "source": source.describe(),
            }
            for each, source, asked in rows
        ],
    }


def _show(console: Console, simulation: Simulation, mix: AskedMix) -> None:
    print_table(console, _table(simulation, mix, with_weights=console.width >= _WIDE))
    for each, asked in zip(simulation.sources, mix.asked, strict=True):
        if not each.drawn:
            never = asked is not None and not asked.share and not mix.changes
            steps = counted_text(simulation.steps, "step")
            why = "its weight is 0" if never else f"not in {steps}"
            console.print("Never reached:", style="yellow", end=" ")
            console.print(f"{each.name}: {why}", markup=False)


def _table(simulation: Simulation, mix: AskedMix, *, with_weights: bool) -> Table:
    steps, samples = simulation.steps, simulation.samples
    title = f"{counted_text(steps, 'step')}, {counted_text(samples, 'sample')}"
    several = len(simulation.sources) > 1
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_footer=several)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    table.add_column("source", "all", overflow="fold", min_width=12)
    if with_weights:
        table.add_column("weight", overflow="fold", justify="right", min_width=8)
    for name, total in (
        ("asked % at 0" if mix.changes else "asked %", ""),
        ("planned %", ""),
        ("drawn", count_text(simulation.samples)),
        ("of", count_text(sum(each.count for each in simulation.sources))),
        ("epochs", ""),
        ("repeats at", ""),
    ):
        table.add_column(name, total, justify="right", no_wrap=True)
    for each, asked in zip(simulation.sources, mix.asked, strict=True):
        weight = [(asked and asked.weight) or "-"] if with_weights else []
        style = None if each.drawn else "yellow"
        table.add_row(Text(each.name), *weight, *_numbers(each, asked), style=style)
    return table


def _numbers(each: SourceForecast, asked: Asked | None) -> list[str]:
    first = "-" if each.repeats_at is None else f"{each.repeats_at:,}"
    latest = "unknown" if each.repeats_at is None else f"<= {first}"
    return [
        "-" if asked is None else f"{100 * asked.share:.3f}",
        f"{100 * each.share:.3f}",
        count_text(each.drawn),
        count_text(each.count),
        count_text(each.epochs, 2),
        first if each.repeats_exact else latest,
    ]

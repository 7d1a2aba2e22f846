"""`energize plan`: which samples the batches of some steps are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby, islice, pairwise
from typing import Annotated

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
)
from energize.cli.mixes import AsJson, MixPath, Run, at_least, takes_run
from energize.report.forecast import PlannedBatch, PlannedSample, weighed_in
from energize.report.forecast import plan as planned

_STEPS_PER_TABLE = 20
_SHARDS_SHOWN = 12

At = Annotated[
    int,
    typer.Option(
        callback=at_least(0),
        help="The first step, from 0: how many batches all ranks have had before.",
    ),
]
WorldSize = Annotated[
    int | None,
    typer.Option(
        callback=at_least(1), help="How many ranks take turns: shows which one gets a batch."
    ),
]
Steps = Annotated[
    int, typer.Option(callback=at_least(1), help="How many steps: batches of all ranks together.")
]
Keys = Annotated[
    bool, typer.Option("--keys", help="Show keys instead of numbers; this opens the shards.")
]


@takes_run
def plan(
    mix: MixPath,
    run: Run,
    *,
    at: At = 0,
    steps: Steps = 1,
    world_size: WorldSize = None,
    keys: Keys = False,
    as_json: AsJson = False,
) -> None:
    """Show which samples of which sources the batches of some steps are made of.

    Nothing but the metadata of the folders is read, and a far step costs what the first one does.
    """
    read = run.read(mix)
    batches = planned(read.dataset, at, steps, world_size=world_size, keys=keys)
    if as_json:
        for batch in batches:
            print_json(asdict(batch), indent=None)
        return
    console = table_console()
    _show(console, batches, "" if read.validates else f"; weights count {weighed_in(read.dataset)}")
    note = run.said_of_types(read)
    if note:
        show_note(console, note)


def _show(console: Console, batches: Iterator[PlannedBatch], unit: str) -> None:
    steps = 0
    totals: Counter[str] = Counter()
    while chunk := list(islice(batches, _STEPS_PER_TABLE)):
        print_table(console, _table(chunk))
        steps += len(chunk)
        totals.update(sample.source for batch in chunk for sample in batch.samples)
    samples = totals.total()
    parts = [f"{name} {n:,} ({100 * n / samples:.1f} %)" for name, n in totals.most_common()]
    total = f"{counted_text(steps, 'step')}, {counted_text(samples, 'sample')}"
    console.print(f"{total}: {', '.join(parts)}{unit}", markup=False)


def _table(batches: Sequence[PlannedBatch]) -> Table:
    title = f"Steps {batches[0].step:,} to {batches[-1].step:,}"
    if len(batches) == 1:
        title = f"Step {batches[0].step:,}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    ranked = batches[0].rank is not None
    for column in ("step", "rank") if ranked else ("step",):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    for column in ("samples", "epoch"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(Text("shard[samples]"), overflow="fold", ratio=1)
    for batch in batches:
        place = [f"{batch.step:,}", str(batch.rank)] if ranked else [f"{batch.step:,}"]
        for source, epoch, samples in _parts(batch):
            cells = (f"{len(samples):,}", count_text(epoch), Text(_where(samples)))
            table.add_row(*place, Text(source), *cells)
            place = [""] * len(place)
        table.add_section()
    return table


def _parts(batch: PlannedBatch) -> Iterator[tuple[str, int, list[PlannedSample]]]:
    """The samples of a batch by source and epoch, sources in the order in which they come."""
    parts: dict[tuple[str, int], list[PlannedSample]] = {}
    for sample in batch.samples:
        parts.setdefault((sample.source, sample.epoch), []).append(sample)
    for (source, epoch), samples in parts.items():
        yield source, epoch, samples


def _where(samples: Iterable[PlannedSample]) -> str:
    """Where samples lie, shard by shard: "a.tar[0,3-5] b.tar[7]"."""
    by_shard = [
        (shard, list(group))
        for shard, group in groupby(sorted(samples, key=_place), key=lambda each: each.shard)
    ]
    texts = []
    for shard, group in by_shard[:_SHARDS_SHOWN]:
        texts.append(f"{shard or ''}[{_numbers(group)}]")
    hidden = by_shard[_SHARDS_SHOWN:]
    if hidden:
        number = sum(len(group) for _, group in hidden)
        texts.append(f"and {number:,} samples of {len(hidden):,} more shards (--json lists all)")
    return " ".join(texts)


def _place(sample: PlannedSample) -> tuple[str, int]:
    return sample.shard or "", sample.index


def _numbers(samples: Sequence[PlannedSample]) -> str:
    """Keys where they are known, else numbers with runs as "3-5"."""
    if any(sample.key is not None for sample in samples):
        return ",".join(f"#{s.index}" if s.key is None else s.key for s in samples)
    numbers = [sample.index for sample in samples]
    cuts = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    runs = [(numbers[a], numbers[b - 1]) for a, b in pairwise([0, *cuts, len(numbers)])]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)

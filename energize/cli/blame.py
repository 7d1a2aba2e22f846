"""`energize blame`: show the samples of a step of a run, with losses and images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf, isnan
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, cast

import numpy as np
from rich.filesize import decimal
from typer import Option

from energize.cli.console import Console, print_json, table
from energize.cli.mixes import AsJson, RunOptions, takes, takes_run
from energize.cli.pages import PreviewBatch, PreviewPage
from energize.cli.state import (
    SavedState,
    StatePath,
    fitting,
    mix_of,
    read_states,
    single_state,
)
from energize.core import tree
from energize.core.blends import Edits
from energize.core.config import leaves
from energize.core.dataset import Dataset
from energize.core.node import Refs
from energize.core.progress import counted
from energize.data.files import path_of
from energize.data.quarantine import files_of
from energize.data.writing import write_new
from energize.errors import ConfigError, StateError
from energize.loader.state import (
    check_place,
    cursor_of,
    resumed,
    saved_details,
    tree_of,
)
from energize.report.blame import BlamedSample
from energize.report.blame import blame as blamed
from energize.report.levels import levels_of


@dataclass(frozen=True)
class Output:
    """Options of the formats in which samples are shown."""

    html: Annotated[
        Path | None,
        Option(parser=path_of, help="Write an HTML page of the samples, with images."),
    ] = None
    as_json: AsJson = False


@takes_run
@takes("output", Output)
def blame(
    state: StatePath,
    run: RunOptions,
    output: Output,
    *,
    step: Annotated[int, Option(min=0, help="The step of the run, from 0 on.")],
    rank: Annotated[
        int | None, Option(min=0, help="Show only the batch of this rank.")
    ] = None,
    mix: Annotated[
        Path | None,
        Option(
            parser=path_of,
            help="The mix of the run, if it was moved.",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        Option(
            min=1,
            help=("Ranks of the run at that step; by default those of the state."),
        ),
    ] = None,
    losses: Annotated[
        str | None,
        Option(
            help=(
                "The file of get_loader(losses=...); the files of all ranks are read."
            )
        ),
    ] = None,
) -> None:
    """Show the samples of the batches of a step, and their losses.

    STATE can be any state of the run; it determines mix, split, seed and batch size.
    Only the keys of the samples are read, and with --html the samples, even for a late
    step.
    """
    saved = single_state(read_states([state]))
    details = saved_details(saved.state)
    mix, run = _mix(saved, details, mix, run)
    html = output.html
    dataset = _dataset(saved, mix, run, samples=html is not None)
    ranks = world_size or _saved_world_size(details)
    files = [] if losses is None else _loss_files(losses)
    samples = blamed(dataset, step, world_size=ranks, rank=rank, losses=files)
    if html is not None:
        past = list(_batches(dataset, samples, step))
        write_new(
            html, PreviewPage(mix, run, dataset).page(step, 1, past=past), ConfigError
        )
    if output.as_json:
        print_json([row.as_json() for row in samples])
        return
    _show(Console(), samples, step)
    if all(sample.loss is None for sample in samples):
        _show_notes(dataset, saved, step, ranks)
    if html is not None:
        Console().write_line(f"Wrote {html}: {decimal(html.stat().st_size)}")


def _show_notes(
    dataset: Dataset[Any], saved: SavedState, step: int, ranks: int
) -> None:
    """Show notes on the step, if the dataset is indexed."""
    if not dataset.indexed:
        return
    position = cursor_of(saved.state).get("position", 0)
    for line in _notes(dataset, position, step, ranks):
        Console().note(line)


def _saved_world_size(details: dict[str, Any]) -> int:
    """Return the number of ranks that saved a state; 1 if it is unknown."""
    saved = details.get("world_size")
    return saved if isinstance(saved, int) and saved > 0 else 1


def _loss_files(losses: str) -> list[Path]:
    """Return the files of recorded losses; raise `ConfigError` if there are none."""
    files = files_of(losses)
    if not files:
        raise ConfigError(
            f"--losses: {losses} is missing, and so are the files of ranks beside it"
        )
    return files


def _mix(
    saved: SavedState, details: dict[str, Any], mix: Path | None, run: RunOptions
) -> tuple[Path, RunOptions]:
    """Return the mix of the run, and its options as saved in the state."""
    location = _saved_mix(details)
    if location is not None:
        file, split = location
        run = replace(run, split=split) if run.split == "train" else run
        if mix is None and not (mix := path_of(file)).exists():
            raise ConfigError(
                f"{saved.location} is of {mix}, which no longer exists. Pass --mix"
            )
    if mix is None:
        raise ConfigError(
            f"{saved.location} does not name its mix, as its dataset was built in "
            "Python. Pass a file of it as --mix, or use "
            "energize.report.blame in Python"
        )
    seed = run.seed or _seed_of(saved)
    return mix, run if seed is None else replace(run, seed=seed)


def _saved_mix(details: dict[str, Any]) -> tuple[str, str] | None:
    """Return the file and the split of the mix that a state was saved of, or None."""
    location = details.get("mix")
    if not isinstance(location, list) or len(location) != 2:
        return None
    file, split = location
    if isinstance(file, str) and isinstance(split, str):
        return file, split
    return None


def _seed_of(saved: SavedState) -> int | None:
    """Return the seed that all sources of a state share, or None."""
    seeds = {leaf.get("seed") for leaf in leaves(tree_of(saved.state))}
    seed = seeds.pop() if len(seeds) == 1 else None
    return seed if isinstance(seed, int) else None


def _dataset(
    saved: SavedState, mix: Path, run: RunOptions, *, samples: bool
) -> Dataset[Any]:
    """Return the dataset of the run, with the changes made during the run."""
    dataset: Dataset[Any] = mix_of(saved, mix, run, samples=samples)
    with fitting(saved, mix) as bare:
        cursor, _ = resumed(dataset, bare)
    edits = Edits.loaded(cursor)
    if edits.moves:
        raise StateError(
            f"{saved.location}: the mix was edited during the run, and the state does "
            "not contain the order before the edit. Use a state that was saved before "
            "it, or one of a run without the edit"
        )
    dataset = edits.applied(dataset, anchored=tree.anchors_in(dataset, cursor))
    check_place(dataset, cursor)
    return dataset


def _show(console: Console, samples: list[BlamedSample], step: int) -> None:
    title = f"Step {step:,}: {counted(len(samples), 'sample')}"
    columns = ("key", ">epoch", ">weight", ">loss")
    rows = []
    for sample in samples:
        file = sample.shard or ""
        key = sample.key or f"sample {sample.index:,}"
        loss = sample.loss
        alone = file in ("", PurePosixPath(sample.location.dataset).name)
        stored = (
            sample.location.dataset if alone else f"{sample.location.dataset}/{file}"
        )
        weight = "function" if sample.weight is None else f"{sample.weight:g}"
        loss_text = "-" if loss is None else f"{loss:.4g}"
        rows.append(
            (
                sample.rank,
                sample.source,
                stored,
                key,
                f"{sample.epoch:,}",
                weight,
                loss_text,
            )
        )
    console.print(
        table(">rank", "source", "stored in", *columns, rows=rows, title=title)
    )


def _notes(dataset: Any, position: int, step: int, ranks: int) -> Iterator[str]:
    """Yield notes on a step of an indexed dataset."""
    if (step + 1) * ranks > position:
        yield (
            f"the state was saved after {counted(position // ranks, 'step')} on "
            f"{counted(ranks, 'rank')}: step {step:,} is what would come, if no weight "
            "is changed"
        )
    epoch, of = divmod(step, -(-dataset.size // ranks))
    if epoch:
        yield (
            f"an epoch ends before it: this is step {of:,} of epoch {epoch:,}, "
            "counted from 0"
        )


def _batches(
    dataset: Dataset[Any], blamed_samples: list[BlamedSample], step: int
) -> Iterator[PreviewBatch]:
    """Yield the batch of each rank, with samples by descending loss."""
    leaves = levels_of(dataset).leaves
    for rank, of_rank in groupby(blamed_samples, lambda sample: sample.rank):
        samples = sorted(of_rank, key=lambda sample: _height(sample.loss), reverse=True)
        sources = [
            dataset.sources.index(cast("Any", leaves[sample.origin.row].source))
            for sample in samples
        ]
        numbers = [
            (0, n, s.origin.sample, s.epoch)
            for n, s in zip(sources, samples, strict=True)
        ]
        yield PreviewBatch(
            step, None, samples, Refs(*np.array(numbers, dtype=np.int64).T), rank
        )


def _height(loss: float | None) -> float:
    if loss is None:
        return -inf
    if isnan(loss):
        return inf
    return loss

"""`energize report`: what a run had been given when it saved a state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import energize.cli.mix_options as opt
from energize.cli.console import print_json
from energize.cli.mix_options import table_console
from energize.cli.saved_states import SavedState, one_of, read_states
from energize.cli.simulate import Plot, waiting
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import batch_size_of
from energize.core.stream import State
from energize.errors import (
    ConfigError,
    NotIndexedError,
    StateError,
    StateMismatchError,
    WeightError,
)
from energize.extras.plots import check_plot, draw, intervals_for
from energize.ledger import Book, Ledger, Report, Stand
from energize.ledger.saved import report_of_state
from energize.loader.edits import Edits
from energize.loader.state import cursor_of, sealed, tree_of
from energize.preview.of_outline import mix_of_outline
from energize.preview.simulating import simulate

_FROM_STATE = (
    "worked out from the state alone, so within a few samples of each source; give the mix too for "
    "the numbers of the run"
)

StatePath = Annotated[
    Path, typer.Argument(metavar="STATE", help="A file with a state, or a folder of such.")
]
MaybeMix = Annotated[
    Path | None,
    typer.Argument(metavar="MIX", help="What the run reads: a metadataset, or another mix."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        callback=opt.at_least(1),
        help="Samples per batch of one rank; by default that of the state.",
    ),
]


def report(
    state: StatePath,
    mix: MaybeMix = None,
    *,
    batch_size: BatchSize = None,
    split: opt.SplitPart = "train",
    validation: opt.Validation = None,
    encoder_per_type: opt.EncoderPerType = False,
    seed: opt.Seed = 0,
    shuffle_buffer_size: opt.ShuffleBufferSize = None,
    max_samples_per_sequence: opt.MaxSamplesPerSequence = None,
    plot: Plot = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show how far a run had come when it saved a state, and what each source had given it.

    Exactly so with the mix, and the options of the run. A state alone tells as much as it keeps of
    the mix. Nothing but the metadata of the folders is read.
    """
    if plot is not None:
        check_plot(plot)
    saved = one_of(read_states([state]))
    with waiting("Working out what was delivered"):
        if mix is None:
            dataset, told = _of_state_alone(saved, required=plot is not None)
        else:
            dataset = opt.given_mix(
                mix,
                split,
                validation,
                batch_size=batch_size or _batch_size(saved),
                seed=seed,
                shuffle_buffer_size=shuffle_buffer_size,
                max_samples_per_sequence=max_samples_per_sequence,
                encoder_per_type=encoder_per_type,
            ).dataset
            told = _of_mix(saved, dataset, mix)
    if as_json:
        print_json(told.as_json())
    else:
        table_console().print(told)
    if plot is not None and dataset is not None:
        title = state.name if mix is None else f"{state.name} of {mix}, split {split}"
        _draw(saved, dataset, plot, title)


def _of_mix(saved: SavedState, dataset: Dataset[Any], mix: Path) -> Report:
    try:
        return report_of_state(dataset, _without_details(saved))
    except StateMismatchError as error:
        raise StateMismatchError(
            f"{saved.place} does not fit {mix}: {error}\nHere: the options are those of the "
            "run, as --batch-size, --split, --seed or --encoder-per-type"
        ) from None


def _of_state_alone(
    saved: SavedState, *, required: bool
) -> tuple[IndexedDataset[Any] | None, Report]:
    """What a state says without the mix, and the mix as far as it describes it; if that is
    `required`, `StateError` where it says too little.
    """
    cursor = cursor_of(saved.state)
    told = report_of_state(None, saved.state)
    try:
        if "lanes" in cursor:
            raise StateError(f"{saved.place} is of a stream; give the mix too")
        outline = tree_of(saved.state)
        dataset = mix_of_outline(outline)
        edits = Edits.loaded(cursor)
        if edits.moves:
            return dataset, told
        edited = edits.applied(dataset)
    except (StateError, ConfigError, WeightError):
        if required:
            raise
        return None, told
    items = int(cursor.get("position", 0))
    book = Book(edited, Ledger())
    book.begin(edited, items)
    found = book.report(Stand(items, 0, 1), title=told.title)
    return dataset, replace(found, notes=(*found.notes, _FROM_STATE))


def _without_details(saved: SavedState) -> State:
    """Without what decides no sample and is not known here: functions, and where loops end."""
    return sealed({**saved.state, "details": "{}"})


def _batch_size(saved: SavedState) -> int | None:
    """Samples per batch, where the state says it."""
    return batch_size_of(tree_of(saved.state))


def _draw(saved: SavedState, dataset: Dataset[Any], plot: Path, title: str) -> None:
    """Draw what the items up to the state are made of, with what was changed on the way."""
    cursor = cursor_of(saved.state)
    if not dataset.indexed:
        raise NotIndexedError(
            f"{saved.place} is of a stream: what its lanes gave is known to who read them, so "
            "there is nothing to draw; loader.report() tells it while the run goes on"
        )
    items = int(cursor.get("position", 0))
    if not items:
        raise ConfigError(f"{saved.place}: nothing was delivered yet, so there is nothing to draw")
    edits = Edits.loaded(cursor)
    if edits.moves:
        raise ConfigError(
            f"{saved.place} is of a run whose mix was edited on the way (remapped), and what was "
            "delivered before is not in it, so there is nothing to draw from the beginning; draw "
            "the state from before the edit over the mix that it had"
        )
    edited = cast("IndexedDataset[Any]", edits.applied(dataset))
    run = simulate(edited, items, intervals=intervals_for(edited, items))
    draw(run, plot, title=title, done="delivered")
    typer.echo(f"Drawn: {plot}", err=True)

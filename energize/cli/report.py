"""`energize report`: what a run had been given when it saved a state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from energize.cli.console import print_json, table_console, waiting
from energize.cli.mixes import AsJson, Run, takes_run
from energize.cli.simulate import Plot
from energize.cli.state import SavedState, one_of, read_states
from energize.core.blends import Edits
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.description import batch_size_of
from energize.core.stream import State
from energize.errors import (
    ConfigError,
    NotIndexedError,
    StateMismatchError,
)
from energize.extras.plots import check_plot, draw, intervals_for
from energize.loader.state import cursor_of, report_of_state, sealed, tree_of
from energize.report import Report
from energize.report.forecast import simulate

StatePath = Annotated[
    Path, typer.Argument(metavar="STATE", help="A file with a state, or a folder of such.")
]
MaybeMix = Annotated[
    Path | None,
    typer.Argument(metavar="MIX", help="What the run reads: a metadataset, or another mix."),
]


@takes_run
def report(
    state: StatePath,
    run: Run,
    mix: MaybeMix = None,
    *,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a run had come when it saved a state, and what each source had given it.

    The options have to be those of the run. A state alone has the names of the sources. Nothing but
    the metadata of the folders is read.
    """
    if plot is not None:
        check_plot(plot)
        if mix is None:
            raise ConfigError("--plot draws what a mix gave; give the mix too")
    saved = one_of(read_states([state]))
    with waiting("Working out what was delivered"):
        if mix is None:
            dataset, told = None, report_of_state(None, saved.state)
        else:
            dataset = run.read(mix, batch_size_of(tree_of(saved.state))).dataset
            told = _of_mix(saved, dataset, mix)
    if as_json:
        print_json(told.as_json())
    else:
        table_console().print(told)
    if plot is not None and dataset is not None:
        _draw(saved, dataset, plot, f"{state.name} of {mix}, split {run.split}")


def _of_mix(saved: SavedState, dataset: Dataset[Any], mix: Path) -> Report:
    try:
        return report_of_state(dataset, _without_details(saved))
    except StateMismatchError as error:
        raise StateMismatchError(
            f"{saved.place} does not fit {mix}: {error}\nHere: the options are those of the "
            "run, as --batch-size, --split, --seed or --encoder-per-type"
        ) from None


def _without_details(saved: SavedState) -> State:
    """Without what decides no sample and is not known here: functions, and where loops end."""
    return sealed({**saved.state, "details": "{}"})


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

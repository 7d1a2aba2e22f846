"""`energize blame`: from a step of a run to its samples, their losses and their pictures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import numpy as np
import PIL.Image
import typer
from rich.text import Text
from typer import Option

from energize.cli.console import Console, counted, print_json, table
from energize.cli.mixes import AsJson, Run, takes_run
from energize.cli.state import SavedState, StatePath, one_of, read_states
from energize.core.blends import Edits
from energize.core.dataset import Dataset
from energize.core.description import batch_size_of, leaves
from energize.core.quarantine import files_of
from energize.core.trace import Failed
from energize.data.files import os_errors_as, path_of
from energize.data.writing import write_new
from energize.errors import ConfigError, StateError, StateMismatchError
from energize.loader.state import check_place, cursor_of, resumed, saved_details, sealed, tree_of
from energize.report.blame import BlamedSample, mean_loss
from energize.report.blame import blame as blamed
from energize.report.levels import levels_of

_PICTURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"RIFF": "webp"}
"""How files with images begin, and what they are called."""

_LONGEST = 120


@takes_run
def blame(
    state: StatePath,
    run: Run,
    *,
    step: Annotated[int, Option(min=0, help="The step of the run, from 0 on.")],
    rank: Annotated[int | None, Option(min=0, help="Show the batch of this rank alone.")] = None,
    mix: Annotated[
        Path | None,
        Option(parser=path_of, help="What the run reads, if it is not where it was any more."),
    ] = None,
    world_size: Annotated[
        int | None, Option(min=1, help="Ranks of the run at that step; by default of the state.")
    ] = None,
    losses: Annotated[
        str | None, Option(help="The file of get_loader(losses=...); those of all ranks are read.")
    ] = None,
    images: Annotated[
        Path | None, Option(parser=path_of, help="Write the images of the samples to this folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which samples the batches of a step were made of, and the losses they had.

    The state is any one of the run; mix, split, seed and batch size are those that it says. Nothing
    is read but the keys of the samples, with --images the samples, however far the step is.
    """
    saved = one_of(read_states([state]))
    details = saved_details(saved.state)
    dataset = _dataset(saved, details, mix, run)
    known = details.get("world_size")
    ranks = world_size or (known if isinstance(known, int) and known > 0 else 1)
    files = [] if losses is None else files_of(losses)
    if losses is not None and not files:
        raise ConfigError(f"--losses: there is no file {losses}, nor those of ranks beside it")
    found = blamed(dataset, step, world_size=ranks, rank=rank, losses=files)
    pictures = {} if images is None else _written(dataset, found, images)
    if as_json:
        print_json(
            [{**asdict(each), "images": pictures.get(n, [])} for n, each in enumerate(found)]
        )
        return
    _show(Console(), found, step, rank)
    for line in _notes(saved, dataset, found, step, ranks):
        Console().note(line)
    if images is not None:
        number = sum(map(len, pictures.values()))
        typer.echo(f"Wrote {counted(number, 'image')} to {images}")


def _dataset(
    saved: SavedState, details: dict[str, Any], mix: Path | None, run: Run
) -> Dataset[Any]:
    """The dataset as the run read it, with what was changed on the way."""
    tree = tree_of(saved.state)
    place = details.get("mix")
    if isinstance(place, list) and len(place) == 2 and all(isinstance(p, str) for p in place):
        run = replace(run, split=place[1]) if run.split == "train" else run
        if mix is None and not (mix := path_of(place[0])).exists():
            raise ConfigError(f"{saved.place} is of {mix}, which is not there any more; give --mix")
    if mix is None:
        raise ConfigError(
            f"{saved.place} does not say which mix it is of, as its dataset was put together in "
            "Python; give a file of it as --mix, or use energize.report.blame in Python"
        )
    seeds = {leaf.get("seed") for leaf in leaves(tree)}
    if not run.seed and len(seeds) == 1 and isinstance(seed := seeds.pop(), int):
        run = replace(run, seed=seed)
    size = batch_size_of(tree)
    run = replace(run, unbatched=run.unbatched or size is None)
    dataset = run.read(mix, size)
    # Functions, and where loops end, decide no sample and are not known here.
    try:
        cursor, _ = resumed(dataset, sealed({**saved.state, "details": "{}"}))
    except StateMismatchError as error:
        raise StateMismatchError(
            f"{saved.place} does not fit {mix}, which has changed since, or was read with other "
            f"options: {error}\nHere: give the mix as it was as --mix, and the options "
            "of the run, as --encoder-per-type or --shuffle-buffer-size"
        ) from None
    edits = Edits.loaded(cursor)
    if edits.moves:
        raise StateError(
            f"{saved.place}: the mix was edited while the run went on, and the state does not say "
            "what came before; blame a step by a state saved before that, or one without the edit"
        )
    edited: Dataset[Any] = edits.applied(dataset)
    check_place(edited, cursor)
    return edited


def _show(console: Console, found: list[BlamedSample], step: int, rank: int | None) -> None:
    whose = "all ranks" if rank is None else f"rank {rank}"
    title = f"Step {step:,} of {whose}: {counted(len(found), 'sample')}"
    weighed = any(each.weight != 1.0 for each in found)
    lost = any(each.loss is not None for each in found)
    extra = [*([">weight"] if weighed else []), *([">loss"] if lost else [])]
    made = table(">rank", "source", "stored in", "key", ">sample", ">epoch", *extra, title=title)
    before = None
    for each in found:
        if before not in (None, each.rank):
            made.add_section()
        stored = each.dataset if each.shard is None else f"{each.dataset}/{each.shard}"
        cells = [str(each.rank), each.source, stored, each.key or "-", f"{each.index:,}"]
        cells.append(f"{each.epoch:,}")
        cells += ["by function" if each.weight is None else f"{each.weight:g}"] if weighed else []
        cells += ["-" if each.loss is None else f"{each.loss:.4g}"] if lost else []
        made.add_row(*map(Text, cells))
        before = each.rank
    console.print(made)
    mean = mean_loss(found)
    if mean is not None:
        console.say(f"Mean loss: {mean:.4g}")


def _notes(
    saved: SavedState, dataset: Any, found: list[BlamedSample], step: int, ranks: int
) -> Iterator[str]:
    """What to know of the step."""
    if not found:
        yield "there is no sample: the step, or that of this rank, is padding"
    cursor = cursor_of(saved.state)
    if dataset.indexed and (step + 1) * ranks > cursor.get("position", 0):
        reached = cursor.get("position", 0) // ranks
        yield (
            f"the state was saved after {counted(reached, 'step')} of {counted(ranks, 'rank')}: "
            f"step {step:,} is what would come then, if weights are not changed in between"
        )
    steps = -(-dataset.size // ranks) if dataset.indexed and dataset.sized else 0
    if steps and step >= steps:
        epoch, of = divmod(step, steps)
        yield f"an epoch has {counted(steps, 'step')}: this is step {of:,} of epoch {epoch:,}"


def _written(dataset: Any, found: list[BlamedSample], folder: Path) -> dict[int, list[str]]:
    """Write the images of samples; return their files by the numbers of these."""
    sources = [each.source for each in levels_of(dataset).leaves]
    written: dict[int, list[str]] = {}
    with os_errors_as(ConfigError, folder, "cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(found):
        source: Any = sources[each.row]
        raw = source.read(np.array([each.sample], dtype=np.int64))[0]
        if isinstance(raw, Failed):
            Console(stderr=True).note(f"{raw}; another sample took its place", "Not readable")
            continue
        begin = f"{each.rank}-{each.number:03d}-{quote(each.key or str(each.index), safe='')}"
        for part, data in _images(raw):
            file = folder / f"{begin[:_LONGEST]}.{part}"
            write_new(file, data, ConfigError)
            written.setdefault(number, []).append(file.name)
    return written


def _images(raw: Any) -> Iterator[tuple[str, bytes]]:
    """The images in a sample as it is stored: what to call each, and its bytes."""
    parts = raw.items() if isinstance(raw, dict) else enumerate(raw)
    for name, value in parts:
        if isinstance(value, PIL.Image.Image):
            data = io.BytesIO()
            value.save(data, "png")
            value = data.getvalue()  # noqa: PLW2901
        if isinstance(value, bytes):
            kind = next((kind for head, kind in _PICTURES.items() if value.startswith(head)), None)
            called = quote(str(name), safe="")[:_LONGEST]
            if kind is not None:
                yield called if called.endswith(kind) else f"{called}.{kind}", value
        elif isinstance(value, dict | list | tuple):
            for inner, data in _images(value):
                yield f"{quote(str(name), safe='')[:_LONGEST]}.{inner}", data

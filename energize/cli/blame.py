"""`energize blame`: from a step of a run to its samples, their losses and their pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import numpy as np
import typer
from typer import Option

from energize.cli.console import Console, counted, print_json, table
from energize.cli.mixes import AsJson, Run, takes_run
from energize.cli.state import SavedState, StatePath, fitting, mix_of, one_of, read_states
from energize.core.blends import Edits
from energize.core.dataset import Dataset
from energize.core.description import leaves
from energize.core.quarantine import files_of
from energize.core.trace import Failed
from energize.data.files import os_errors_as, path_of
from energize.data.writing import write_new
from energize.errors import ConfigError, StateError
from energize.loader.state import check_place, cursor_of, resumed, saved_details, tree_of
from energize.report.blame import BlamedSample, short_loss
from energize.report.blame import blame as blamed
from energize.report.levels import levels_of

_PICTURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"RIFF": "webp"}
"""How files with images begin, and what they are called."""

_LONGEST = 100


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
    pictures: list[list[str]] = [[] for _ in found]
    if images is not None:
        pictures = _written(dataset, found, images)
    if as_json:
        told = [asdict(each) | {"loss": short_loss(each.loss)} for each in found]
        print_json([each | {"images": files} for each, files in zip(told, pictures, strict=True)])
        return
    _show(Console(), found, step)
    if dataset.indexed and all(each.loss is None for each in found):
        position = cursor_of(saved.state).get("position", 0)
        for line in _notes(dataset, position, step, ranks):
            Console().note(line)
    if images is not None:
        typer.echo(f"Wrote {counted(sum(map(len, pictures)), 'image')} to {images}")


def _dataset(
    saved: SavedState, details: dict[str, Any], mix: Path | None, run: Run
) -> Dataset[Any]:
    """The dataset as the run read it, with what was changed on the way."""
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
    seeds = {leaf.get("seed") for leaf in leaves(tree_of(saved.state))}
    if not run.seed and len(seeds) == 1 and isinstance(seed := seeds.pop(), int):
        run = replace(run, seed=seed)
    dataset: Dataset[Any] = mix_of(saved, mix, run, samples=False)
    with fitting(saved, mix) as bare:
        cursor, _ = resumed(dataset, bare)
    edits = Edits.loaded(cursor)
    if edits.moves:
        raise StateError(
            f"{saved.place}: the mix was edited while the run went on, and the state does not say "
            "what came before; blame a step by a state saved before that, or one without the edit"
        )
    dataset = edits.applied(dataset)
    check_place(dataset, cursor)
    return dataset


def _show(console: Console, found: list[BlamedSample], step: int) -> None:
    title = f"Step {step:,}: {counted(len(found), 'sample')}"
    columns = ("key", ">epoch", ">weight", ">loss")
    rows = []
    for each in found:
        stored = each.dataset if each.shard is None else f"{each.dataset}/{each.shard}"
        key, loss = each.key or f"sample {each.index:,}", each.loss
        weight = "function" if each.weight is None else f"{each.weight:g}"
        told = "-" if loss is None else f"{loss:.4g}"
        rows.append((each.rank, each.source, stored, key, f"{each.epoch:,}", weight, told))
    console.print(table(">rank", "source", "stored in", *columns, rows=rows, title=title))


def _notes(dataset: Any, position: int, step: int, ranks: int) -> Iterator[str]:
    """What to know of a step that is found by the order."""
    if (step + 1) * ranks > position:
        yield (
            f"the state was saved after {counted(position // ranks, 'step')} on "
            f"{counted(ranks, 'rank')}: step {step:,} is what would come, if no weight is changed"
        )
    epoch, of = divmod(step, -(-dataset.size // ranks))
    if epoch:
        yield f"an epoch ends before it: this is step {of:,} of epoch {epoch:,}, counted from 0"


def _written(dataset: Any, found: list[BlamedSample], folder: Path) -> list[list[str]]:
    """Write the images of samples; return their files, sample by sample."""
    sources: list[Any] = [each.source for each in levels_of(dataset).leaves]
    written: list[list[str]] = []
    with os_errors_as(ConfigError, folder, "cannot be made"):
        folder.mkdir(parents=True, exist_ok=True)
    for each in found:
        [raw] = sources[each.row].read(np.array([each.sample], dtype=np.int64))
        if isinstance(raw, Failed):
            Console(stderr=True).note(f"{raw}; another sample took its place", "Not readable")
        begin = f"{each.rank}-{each.number:03d}-{each.key or each.index}"
        written.append([])
        for part, data in _images("", raw):
            file = folder / (quote(begin, safe="")[:_LONGEST] + quote(part, safe="")[-_LONGEST:])
            write_new(file, data, ConfigError)
            written[-1].append(file.name)
    return written


def _images(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """The images in a part of a sample as it is stored: what to call each, and its bytes."""
    if isinstance(value, bytes):
        for head, kind in _PICTURES.items():
            if value.startswith(head):
                yield name if name.endswith(kind) else f"{name}.{kind}", value
    if isinstance(value, dict | list | tuple):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for inner, each in inside:
            yield from _images(f"{name}.{inner}", each)

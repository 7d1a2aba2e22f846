"""`energize state`: what a saved state holds, how it differs, how it goes on in an edited mix."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import energize.cli.mix_options as opt
from energize.cli.checkpoint import info
from energize.cli.console import Console
from energize.cli.contents import TrustCode
from energize.cli.mix_options import counted_text
from energize.cli.replay import Encoder, PackingBufferSize, Unbatched, made_encoder
from energize.cli.saved_states import SavedState, one_of, read_states, write_state
from energize.cli.state_views import change_lines, taken_of
from energize.core.dataset import Dataset
from energize.core.description import batch_size_of, leaf_names
from energize.core.description import differences as config_differences
from energize.data.writing import writing
from energize.errors import ConfigError
from energize.loader import get_loader
from energize.loader.state import cursor_of, differences, tree_of
from energize.preview.asked import read_mix

_STATE_SUFFIXES = (".pt", ".pth", ".json", ".state")

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look into saved states, compare them, and have them go on in an edited mix.",
)
app.command("show")(info)

StateFile = Annotated[
    Path, typer.Argument(metavar="STATE", help="A file with a state, or a folder of such.")
]
Other = Annotated[
    Path, typer.Argument(metavar="OTHER", help="Another state, or a mix as it is now.")
]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="The file to write; in the format of STATE.")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        callback=opt.at_least(1),
        help="Samples per batch of one rank; by default that of the state.",
    ),
]


@app.command("diff")
def diff(
    state: StateFile,
    other: Other,
    *,
    batch_size: BatchSize = None,
    unbatched: Unbatched = False,
    split: opt.SplitPart = "train",
    seed: opt.Seed = 0,
    shuffle_buffer_size: opt.ShuffleBufferSize = None,
    max_samples_per_sequence: opt.MaxSamplesPerSequence = None,
    packing_buffer_size: PackingBufferSize = None,
    encoder: Encoder = None,
    trust_code: TrustCode = None,
) -> None:
    """Show how a state differs from another one, or from a mix that may have been edited since.

    With a mix, the options have to be those of the run. Ends with 1 where there are differences.
    """
    saved = one_of(read_states([state]))
    if other.suffix in _STATE_SUFFIXES or (other.is_dir() and not (other / ".nv-meta").exists()):
        lines = list(_apart(saved, one_of(read_states([other]))))
    else:
        dataset = _mix(saved, other, locals())
        lines = differences(dataset, saved.state)
    console = Console(soft_wrap=True)
    for line in lines:
        console.print(line, markup=False)
    if not lines:
        console.print("No differences: the one goes on where the other stands.")
    raise typer.Exit(int(bool(lines)))


@app.command("remap")
def remap(
    state: StateFile,
    mix: opt.MixPath,
    output: Output,
    *,
    batch_size: BatchSize = None,
    unbatched: Unbatched = False,
    split: opt.SplitPart = "train",
    seed: opt.Seed = 0,
    shuffle_buffer_size: opt.ShuffleBufferSize = None,
    max_samples_per_sequence: opt.MaxSamplesPerSequence = None,
    packing_buffer_size: PackingBufferSize = None,
    encoder: Encoder = None,
    trust_code: TrustCode = None,
) -> None:
    """Write the state with which a run goes on in an edited mix, every source at its place.

    The options have to be those of the run. A loader does the same with
    load_state_dict(state, on_mismatch="remap").
    """
    saved = one_of(read_states([state]))
    if output.exists() and output.resolve() == saved.file.resolve():
        raise ConfigError(f"{output} is the state given; write to another file")
    dataset = _mix(saved, mix, locals())
    with get_loader(dataset, lanes=_lanes(saved)) as loader, _unlogged():
        loader.load_state_dict(saved.state, on_mismatch="remap")
        report = loader.remapped
        found = loader.state_dict() if report is not None else saved.state
    with writing(output, ConfigError):
        output.parent.mkdir(parents=True, exist_ok=True)
    write_state(replace(saved, state=found), output, 1)
    console = Console(soft_wrap=True)
    lines = ["It fits as it is; nothing had to be moved."] if report is None else report.lines()
    for line in lines:
        console.print(line, markup=False)
    console.print(f"Wrote {output}", markup=False)


def _mix(saved: SavedState, mix: Path, given: dict[str, Any]) -> Dataset[Any]:
    """The dataset that a run reads, by the options of a command."""
    options: dict[str, Any] = {}
    if given["encoder"] is not None:
        options["task_encoder"] = made_encoder(given["encoder"])
    for name in ("trust_code", "packing_buffer_size"):
        if given[name]:
            options[name] = given[name]
    tree = tree_of(saved.state)
    return read_mix(
        mix,
        split_part=given["split"],
        batch_size=given["batch_size"] or batch_size_of(tree),
        seed=given["seed"],
        unbatched=given["unbatched"],
        reads=True,
        shuffle_buffer_size=given["shuffle_buffer_size"],
        max_samples_per_sequence=given["max_samples_per_sequence"],
        **options,
    ).dataset


@contextmanager
def _unlogged() -> Iterator[None]:
    """What a loader would log is printed by who asks."""
    log = logging.getLogger("energize")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _lanes(saved: SavedState) -> int | None:
    lanes = cursor_of(saved.state).get("lanes")
    return lanes if isinstance(lanes, int) else None


def _apart(one: SavedState, other: SavedState) -> Iterator[str]:
    """How two states differ: in their mixes, in where they stand, and in what was changed."""
    trees = [tree_of(each.state) for each in (one, other)]
    if one.state["fingerprint"] != other.state["fingerprint"]:
        found = list(config_differences(trees[0], trees[1]))
        yield from found or ["something of the settings of their mixes (not kept in the states)"]
    cursors = [cursor_of(each.state) for each in (one, other)]
    items = [int(cursor.get("position", 0)) for cursor in cursors]
    for name in ("lanes", "epoch", "position", "step"):
        before, after = (cursor.get(name) for cursor in cursors)
        if before != after:
            told = f" ({items[1] - items[0]:+,})" if name == "position" else ""
            yield f"{name} was {_shown(before)}, is {_shown(after)}{told}"
    yield from _taken_apart(trees, cursors)
    changes = [change_lines(cursor) for cursor in cursors]
    yield from (f"only the first: {line}" for line in changes[0] if line not in changes[1])
    yield from (f"only the second: {line}" for line in changes[1] if line not in changes[0])
    if cursors[0].get("cursors") != cursors[1].get("cursors") and items[0] == items[1]:
        yield "the lanes of the stream stand elsewhere"


def _taken_apart(trees: list[Any], cursors: list[Any]) -> Iterator[str]:
    counts = []
    for tree, cursor in zip(trees, cursors, strict=True):
        names = list(leaf_names(tree))
        counts.append(dict(zip(names, taken_of(cursor, names), strict=False)))
    for name in {**counts[0], **counts[1]}:
        before, after = (each.get(name) for each in counts)
        if before is not None and after is not None and before != after:
            taken = counted_text(before, "sample")
            yield f"{name}: {taken} taken, then {after:,} ({after - before:+,})"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "not there"

"""`energize state`: what a saved state holds, how it differs, how it goes on in an edited mix."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from energize.cli.console import Console, counted_text, print_table, table_console
from energize.cli.mixes import MixPath, Run, takes_run
from energize.core import limits
from energize.core.blends import Edits
from energize.core.dataset import Dataset
from energize.core.description import batch_size_of, leaf_names, leaves, unpacked
from energize.core.description import differences as config_differences
from energize.core.lazy import torch
from energize.core.limits import load_json
from energize.core.stream import State
from energize.data.files import files_at, read_file
from energize.data.writing import write_new, writing
from energize.errors import ConfigError, DatasetNotFoundError, StateError
from energize.loader import get_loader
from energize.loader.feeds import StreamState
from energize.loader.state import checked_state, cursor_of, differences, tree_of

_STATE_SUFFIXES = (".pt", ".pth", ".json", ".state")

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look into saved states, compare them, and have them go on in an edited mix.",
)

StateFile = Annotated[
    Path, typer.Argument(metavar="STATE", help="A file with a state, or a folder of such.")
]
Other = Annotated[
    Path, typer.Argument(metavar="OTHER", help="Another state, or a mix as it is now.")
]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="The file to write; in the format of STATE.")
]


@app.command("diff")
@takes_run
def diff(
    state: StateFile,
    other: Other,
    run: Run,
) -> None:
    """Show how a state differs from another one, or from a mix that may have been edited since.

    With a mix, the options have to be those of the run. Ends with 1 where there are differences.
    """
    saved = one_of(read_states([state]))
    if other.suffix in _STATE_SUFFIXES or (other.is_dir() and not (other / ".nv-meta").exists()):
        lines = list(_apart(saved, one_of(read_states([other]))))
    else:
        dataset = _mix(saved, other, run)
        lines = differences(dataset, saved.state)
    console = Console(soft_wrap=True)
    for line in lines:
        console.print(line, markup=False)
    if not lines:
        console.print("No differences: the one goes on where the other stands.")
    raise typer.Exit(int(bool(lines)))


@app.command("remap")
@takes_run
def remap(
    state: StateFile,
    mix: MixPath,
    run: Run,
    *,
    output: Output,
) -> None:
    """Write the state with which a run goes on in an edited mix, every source at its place.

    The options have to be those of the run. A loader does the same with
    load_state_dict(state, on_mismatch="remap").
    """
    saved = one_of(read_states([state]))
    if output.exists() and output.resolve() == saved.file.resolve():
        raise ConfigError(f"{output} is the state given; write to another file")
    dataset = _mix(saved, mix, run)
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


def _mix(saved: SavedState, mix: Path, run: Run) -> Dataset[Any]:
    """The dataset that a run reads, by the options of a command."""
    return run.read(mix, batch_size_of(tree_of(saved.state)), samples=True).dataset


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


Inputs = Annotated[
    list[Path], typer.Argument(metavar="IN...", help="Files of states, or folders of such.")
]


@app.command("show")
def show(files: Inputs) -> None:
    """Show what the saved states of a loader hold: where it stood, and over which dataset."""
    console = table_console()
    groups: dict[Any, list[SavedState]] = {}
    for each in read_states(files):
        groups.setdefault(each.decides, []).append(each)
    for alike in groups.values():
        show_states(console, alike)


def show_states(console: Console, alike: Sequence[SavedState]) -> None:
    """Print what states that are all the same hold."""
    first = alike[0]
    more = f" and {len(alike) - 1} more, all of them the same" if len(alike) > 1 else ""
    console.print(f"{first.place}{more}", markup=False, style="bold", soft_wrap=True)
    cursor, tree = cursor_of(first.state), tree_of(first.state)
    console.print(
        f"  version: {first.state['version']}, fingerprint: {first.state['fingerprint']}",
        markup=False,
    )
    console.print(f"  position: {_position(cursor)}", markup=False)
    console.print(f"  dataset: {tree.get('kind', 'unknown')}", markup=False)
    details = unpacked(first.state["details"], "details")
    if details.get("loop") is not None:
        console.print(f"  a loop is {details['loop']} steps", markup=False)
    names = details.get("functions", [])
    for name in map(str, names if isinstance(names, list) else []):
        told = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."
        console.print(f"  calls {told}", markup=False, soft_wrap=True)
    _show_sources(console, tree, cursor)
    for line in change_lines(cursor):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    if "lanes" in cursor:
        _show_lanes(console, StreamState.loaded(cursor))


def _position(cursor: State) -> str:
    position = f"{cursor.get('position', 0):,}"
    if "lanes" not in cursor:
        return f"{position} items delivered, those of all ranks"
    return (
        f"{position} items of epoch {cursor.get('epoch')} delivered, those of all ranks; step "
        f"{cursor.get('step'):,} of the loop, {cursor['lanes']} lanes"
    )


def _show_sources(console: Console, tree: State, cursor: State) -> None:
    table = Table(title="Sources", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("name", overflow="fold", min_width=12)
    table.add_column("split", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column("seed", justify="right", no_wrap=True)
    taken = taken_of(cursor, list(leaf_names(tree)))
    if taken:
        table.add_column("taken", justify="right", no_wrap=True)
    for number, leaf in enumerate(leaves(tree)):
        count = leaf.get("count")
        table.add_row(
            Text(str(leaf.get("name", leaf.get("kind")))),
            Text(str(leaf.get("split_part", "-"))),
            f"{count:,}" if isinstance(count, int) else "-",
            Text(str(leaf.get("seed", "-"))),
            *([f"{taken[number]:,}"] if taken else []),
        )
    print_table(console, table)


def taken_of(cursor: State, names: Sequence[str]) -> list[int]:
    """How many samples were taken of each source, where the state keeps it of all of them."""
    places = cursor.get("places")
    found = list(places.values()) if isinstance(places, dict) else []
    return found if len(found) == len(names) else []


def change_lines(cursor: State) -> list[str]:
    """A line for each change of weights that was made while the run went on."""
    lines = []
    for change in Edits.loaded(cursor).changes:
        of = f"of the blend {change.blend!r} " if change.blend else ""
        place = (
            f"item {change.at:,}, when it comes to it," if change.waits else f"slot {change.at:,}"
        )
        weights = ", ".join(f"{name} {weight:g}" for name, weight in change.weights)
        lines.append(f"weights {of}from {place} on: {weights}")
    return lines


def _show_lanes(console: Console, state: StreamState) -> None:
    table = Table(title="Lanes", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("lane", justify="right", no_wrap=True)
    table.add_column("items", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=12)
    for lane in range(min(state.lanes, _LANES_SHOWN)):
        cursor = state.cursors.get(lane)
        if cursor is None:
            table.add_row(str(lane), "-", "-", "before its first item")
            continue
        text = json.dumps(cursor, separators=(",", ":"))
        shown = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
        position = cursor.get("position", cursor.get("taken"))
        told = f"{position:,}" if isinstance(position, int) else "-"
        table.add_row(str(lane), told, f"{len(text):,}", Text(shown))
    print_table(console, table)
    if state.lanes > _LANES_SHOWN:
        console.print(f"  and {state.lanes - _LANES_SHOWN} more lanes")


_LANES_SHOWN, _WIDEST, _LONGEST = 64, 60, 80
_FIELDS = ("version", "cursor")
_ONE_OF = ("fingerprint", "digest")  # that of version 4
_DEEPEST = 8
_SUFFIXES = (".pt", ".pth", ".json")
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state, the file that holds it, and the keys under which it lies there."""

    file: Path
    keys: tuple[str | int, ...]
    state: State

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return str(self.file) + "".join(f"[{key!r}]" for key in self.keys)

    @property
    def is_json(self) -> bool:
        """Whether the file is JSON, whatever it is called."""
        return _is_json(_start(self.file)[:1])

    @property
    def decides(self) -> tuple[Any, ...]:
        """What has to be the same for all ranks of a run."""
        return self.state["fingerprint"], self.state["cursor"]


def read_states(paths: Sequence[Path]) -> list[SavedState]:
    """The states in these files, and in the files of folders: plain, or anywhere in a checkpoint.

    Files are JSON, or written by torch.save. Nothing but tensors and plain data is unpickled.

    Raises `StateError` for a file that holds no state of energize, saying what to do about one of
    Megatron-Energon; `DatasetNotFoundError` for one that does not exist.
    """
    found: list[SavedState] = []
    for file in _files(paths):
        states = [SavedState(file, keys, state) for keys, state in _states(_content(file), ())]
        if not states:
            raise StateError(
                f"{file} holds no state of a loader, which is what its state_dict() returns: a "
                "dict with version, fingerprint, config, details, cursor and check"
            )
        found += states
    for each in found:
        try:
            held = checked_state(each.state)
            cursor_of(held)
            tree_of(held)
        except StateError as reason:
            raise StateError(f"{each.place}: {reason}") from reason
    return found


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names by, their numbers as numbers.

    >>> sorted(["rank10.pt", "rank9.pt"], key=natural)
    ['rank9.pt', 'rank10.pt']
    """
    return [(int(each), "") if each.isdecimal() else (0, each) for each in _NUMBER.split(name)]


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        try:
            if not path.exists():
                raise DatasetNotFoundError(f"{path} does not exist")
            inside = list(path.iterdir()) if path.is_dir() else [path]
        except DatasetNotFoundError:
            raise
        except OSError as reason:
            raise StateError(f"{path} cannot be read: {reason.strerror or reason}") from reason
        if path.is_dir():
            inside = [each for each in inside if each.suffix in _SUFFIXES]
        if not inside:
            raise StateError(f"{path} has no files that end in {', '.join(_SUFFIXES)}")
        files += inside
    return sorted(dict.fromkeys(files), key=lambda file: natural(str(file)))


def _content(file: Path) -> Any:
    """What a file holds, without tensors in memory and without running anything."""
    try:
        start = _start(file)
        if _is_json(start[:1]):
            return load_json(read_file(file, "JSON_BYTES").decode("utf-8"))
        if start[:2] == b"PK":
            _check_stored(file)
        with warnings.catch_warnings(action="ignore"):  # of pickles, which are refused
            mapped = start[:2] == b"PK"
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as reason:
        raise _refused(file, str(reason)) from None
    except OSError as reason:
        raise StateError(f"{file} cannot be read: {reason.strerror or reason}") from reason
    except StateError:
        raise
    except Exception as reason:  # whatever damaged files make torch raise
        # What torch says of such files is how to load them unsafely.
        told = f": {reason}" if isinstance(reason, ValueError) else ""
        raise StateError(
            f"{file} is neither whole JSON nor a whole file of torch.save "
            f"({type(reason).__name__}{told[:200]})"
        ) from reason


def _start(file: Path) -> bytes:
    """The first bytes of a file."""
    place = os.fspath(file)
    files = files_at(place)
    return files.read(place, 0, min(4, files.size(place)))


def _check_stored(file: Path) -> None:
    """Raise `StateError` for what torch.save does not write, and what unpickling would not end."""
    with zipfile.ZipFile(file) as archive:
        for each in archive.infolist():
            if each.compress_type != zipfile.ZIP_STORED:
                raise StateError(f"{file} is compressed, and no file of torch.save")
            if each.filename.endswith(".pkl") and each.file_size > limits.JSON_BYTES:
                raise StateError(f"{file}: {limits.over('JSON_BYTES', each.file_size)}")


def _is_json(start: bytes) -> bool:
    return start in (b"{", b"[")


def _refused(file: Path, reason: str) -> StateError:
    if "megatron.energon" in reason:
        return StateError(
            f"{file} is a state of Megatron-Energon itself: pickled objects of its classes, which "
            "are never unpickled here, and positions of its random order, which mean nothing here. "
            "Finish the epoch with Megatron-Energon, or start the data anew with energize (the "
            "model's checkpoint stays as it is) and save states with loader.state_dict()"
        )
    named = re.search(r"GLOBAL (\S+)", reason)
    what = f"it names {named[1]}" if named else "it holds others"
    return StateError(
        f"{file} holds pickled objects, and nothing but tensors and plain data is unpickled: "
        f"{what}. Save the loader's state in a file of its own, with "
        "torch.save(loader.state_dict(), file)"
    )


def _states(
    content: Any, keys: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], State]]:
    if len(keys) > _DEEPEST:
        return
    if isinstance(content, dict):
        if all(name in content for name in _FIELDS) and any(name in content for name in _ONE_OF):
            yield keys, content
            return
        for key, value in content.items():
            if isinstance(key, str | int):
                yield from _states(value, (*keys, key))
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content):
            yield from _states(value, (*keys, number))


def one_of(states: Sequence[SavedState]) -> SavedState:
    """The state that all of these are; `StateError` when they are of several places or datasets."""
    first = states[0]
    for other in states[1:]:
        if other.decides != first.decides:
            what = (
                "place" if other.state["fingerprint"] == first.state["fingerprint"] else "dataset"
            )
            raise StateError(
                f"{first.place} and {other.place} are of different {what}s. All ranks of a run "
                "have one state after the same number of steps; give those of one step"
            )
    return first


def write_state(found: SavedState, file: Path, ranks: int) -> None:
    """The state as it lay in its file, in the same format; in a list, once for each rank."""
    content: Any = found.state
    for key in reversed(found.keys):
        content = {key: content} if isinstance(key, str) else [content] * ranks
    data = io.BytesIO()
    if found.is_json:
        data.write(json.dumps(content).encode())
    else:
        torch.save(content, data)
    write_new(file, data.getvalue(), ConfigError)

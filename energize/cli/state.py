"""`energize state` and `energize report`: show, compare and move saved states."""

from __future__ import annotations

import io
import json
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

from energize.cli.console import Console, print_json, table
from energize.cli.look import Plot
from energize.cli.mixes import AsJson, MixPath, RunOptions, path_argument, takes_run
from energize.core import limits, tree
from energize.core.blends import Edits, with_names_of
from energize.core.config import (
    batch_size_of,
    leaf_names,
    leaves,
    unpacked,
)
from energize.core.dataset import Dataset, IndexedDataset
from energize.core.lazy import torch
from energize.core.os_errors import os_error_message, os_errors_as
from energize.core.stream import State
from energize.core.validation import parse_json
from energize.data.files import absent, files_at, path_of, read_file
from energize.data.writing import write_new, writing
from energize.errors import (
    ConfigError,
    DatasetNotFoundError,
    StateError,
    StateMismatchError,
)
from energize.extras.plots import check_plot, draw, intervals_for
from energize.loader import get_loader
from energize.loader.state import (
    checked_state,
    cursor_of,
    differences,
    report_of_state,
    sealed,
    tree_of,
)
from energize.report.efficiency import measure_efficiency
from energize.report.forecast import indexed
from energize.report.forecast import simulate as simulated

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Inspect saved states, compare them with a mix, or move them to an edited mix."
    ),
)

StatePath = Annotated[
    Path, path_argument("A file with a state, or a folder of such files.", "STATE")
]


@takes_run
def report(
    state: StatePath,
    run: RunOptions,
    mix: Annotated[Path | None, path_argument("The mix of the run.", "MIX")] = None,
    *,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run at a saved state, and the samples of each source.

    The options must be those of the run. A state alone shows the names of the sources.
    Only the metadata of the folders are read.
    """
    if plot is not None:
        check_plot(plot)
        if mix is None:
            raise ConfigError("--plot draws the samples of a mix. Pass the mix too")
    saved = single_state(read_states([state]))
    dataset = None if mix is None else mix_of(saved, mix, run, samples=False)
    with fitting(saved, mix) as bare:
        statement = report_of_state(dataset, bare)
    if as_json:
        print_json(statement.as_json())
    else:
        Console().print(statement)
    if plot is not None and dataset is not None:
        _draw(saved, dataset, plot, f"{state.name} of {mix}, split {run.split}")


@contextmanager
def fitting(saved: SavedState, mix: Path | None) -> Iterator[State]:
    """Yield the state without details; raise an error if a mix does not fit it."""
    try:
        yield sealed({**saved.state, "details": "{}"})
    except StateMismatchError as error:
        raise StateMismatchError(
            f"{saved.location} does not fit {mix}: the mix has changed, or the options "
            f"differ: {error}\n"
            "Pass the mix as it was, and the options of the run, like "
            "--batch-size, --split, --seed, --encoder-per-type or "
            "--shuffle-buffer-size"
        ) from None


def _draw(saved: SavedState, dataset: Dataset[Any], plot: Path, title: str) -> None:
    """Plot the sources of the items up to the state, with changes during the run."""
    cursor = with_names_of(dataset, cursor_of(saved.state))
    edits = Edits.loaded(cursor)
    items = int(cursor.get("position", 0)) if dataset.indexed else 0
    if not items or edits.moves:
        raise ConfigError(
            f"{saved.location}: nothing to draw. The run has delivered "
            "nothing, or reads a stream, or its mix was edited, and the state does not "
            "contain the order before the edit"
        )
    anchored = tree.anchors_in(dataset, cursor)
    edited = indexed(edits.applied(dataset, anchored=anchored), "report")
    drawn = simulated(edited, items, intervals=intervals_for(edited, items))
    used = measure_efficiency(edited, 0, items)
    draw(drawn, plot, title=title, done="delivered", delivered=used)
    typer.echo(f"Drawn: {plot}", err=True)


def mix_of(
    saved: SavedState, mix: Path, run: RunOptions, *, samples: bool = True
) -> IndexedDataset[Any]:
    """Return the dataset of a run, with the batch size of a state."""
    size = batch_size_of(tree_of(saved.state))
    run = replace(run, unbatched=run.unbatched or size is None)
    return run.read(mix, size, samples=samples)


@app.command("diff")
@takes_run
def diff(state: StatePath, mix: MixPath, run: RunOptions) -> None:
    """Compare a mix with that of a state; exit with 1 if they differ.

    The options must be those of the run.
    """
    saved = single_state(read_states([state]))
    lines = differences(mix_of(saved, mix, run), saved.state)
    for line in lines or ["No differences: the one goes on where the other stands."]:
        Console().write_line(line)
    raise typer.Exit(int(bool(lines)))


@app.command("remap")
@takes_run
def remap(
    state: StatePath,
    mix: MixPath,
    run: RunOptions,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            parser=path_of,
            help="The file to write, in the format of STATE.",
        ),
    ],
) -> None:
    """Write the state that resumes a run in an edited mix.

    The options must be those of the run. A loader does the same with
    load_state_dict(state, on_mismatch="remap").
    """
    saved = single_state(read_states([state]))
    if output.exists() and output.resolve() == saved.file.resolve():
        raise ConfigError(f"{output} is the state itself. Pass another file")
    dataset = mix_of(saved, mix, run)
    with get_loader(dataset, lanes=cursor_of(saved.state).get("lanes")) as loader:
        loader.load_state_dict(saved.state, on_mismatch="remap")
        moved = loader.remapped
        new_state = loader.state_dict() if moved is not None else saved.state
    with writing(output, ConfigError):
        output.parent.mkdir(parents=True, exist_ok=True)
    write_state(replace(saved, state=new_state), output)
    console = Console()
    lines = (
        ["It fits as it is; nothing had to be moved."]
        if moved is None
        else moved.lines()
    )
    for line in [*lines, f"Wrote {output}"]:
        console.write_line(line)


@app.command("show")
def show(
    files: Annotated[
        list[Path],
        path_argument("Files with states, or folders of such files.", "IN..."),
    ],
) -> None:
    """Show the position and the dataset of saved states of a loader."""
    console = Console()
    groups: dict[Any, list[SavedState]] = {}
    for saved in read_states(files):
        groups.setdefault(saved.decides, []).append(saved)
    for first, *equal in groups.values():
        more = f" and {len(equal)} more, all of them the same" if equal else ""
        console.write_line(f"{first.location}{more}", "bold")
        _show(console, first.state)


def _show(console: Console, state: State) -> None:
    cursor = cursor_of(state)
    tree = tree_of(state)
    console.write_line(
        f"  version: {state['version']}, fingerprint: {state['fingerprint']}"
    )
    position = f"{cursor.get('position', 0):,} items"
    if "lanes" in cursor:
        position += f" of epoch {cursor.get('epoch')}, in {cursor['lanes']} lanes,"
    console.write_line(f"  position: {position} delivered, those of all ranks")
    console.write_line(f"  dataset: {tree.get('kind', 'unknown')}")
    names = unpacked(state["details"], "details").get("functions", [])
    for name in names if isinstance(names, list) else []:
        console.write_line(f"  calls {str(name)[:_LONGEST]}")
    places = cursor.get("places")
    read_counts = list(places.values()) if isinstance(places, dict) else []
    has_counts = len(read_counts) == len(list(leaf_names(tree)))
    rows = []
    for number, leaf in enumerate(leaves(tree)):
        count = leaf.get("count")
        cells = [leaf.get("name", leaf.get("kind")), leaf.get("split_part", "-")]
        cells += [
            f"{count:,}" if isinstance(count, int) else "-",
            leaf.get("seed", "-"),
        ]
        cells += [f"{read_counts[number]:,}"] if has_counts else []
        rows.append(cells)
    columns = (
        "name",
        "split",
        ">samples",
        ">seed",
        *([">taken"] if has_counts else []),
    )
    console.print(table(*columns, rows=rows))
    _show_edits(console, Edits.loaded(cursor))


# Reading and writing files with states.

_LONGEST = 80
_FIELDS = ("version", "cursor")
_DEEPEST = 8
_SUFFIXES = (".pt", ".pth", ".json")


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state, its file, and its keys in the content of the file."""

    file: Path
    keys: tuple[str | int, ...]
    state: State

    @property
    def location(self) -> str:
        """File and keys, for messages."""
        return str(self.file) + "".join(f"[{key!r}]" for key in self.keys)

    @property
    def decides(self) -> tuple[Any, ...]:
        """The content that is equal for all ranks of a run."""
        return self.state["fingerprint"], self.state["cursor"]


def read_states(paths: Sequence[Path]) -> list[SavedState]:
    """Return the states in files and folders, also nested in checkpoints.

    Args:
        paths: Files of JSON or torch.save, or folders of such files. Only tensors and
            plain data are unpickled.

    Raises:
        StateError: For a file without a state; with a remedy for Megatron-Energon's.
        DatasetNotFoundError: For a path that does not exist.
    """
    result: list[SavedState] = []
    for file in _files(paths):
        states = [
            SavedState(file, keys, state) for keys, state in _states(_content(file), ())
        ]
        if not states:
            raise StateError(
                f"{file} is not the state of a loader. Its state_dict() returns a dict "
                "with version, fingerprint, config, details, cursor "
                "and check"
            )
        result += states
    for saved in result:
        try:
            held = checked_state(saved.state)
            cursor_of(held)
            tree_of(held)
        except StateError as reason:
            raise StateError(f"{saved.location}: {reason}") from reason
    return result


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the files, with the files of folders."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DatasetNotFoundError(f"{path} {absent(path)}")
        with os_errors_as(StateError, path):
            inside = (
                [e for e in path.iterdir() if e.suffix in _SUFFIXES]
                if path.is_dir()
                else [path]
            )
        if not inside:
            raise StateError(f"{path} has no files that end in {', '.join(_SUFFIXES)}")
        files += sorted(inside)
    return list(dict.fromkeys(files))


def _show_edits(console: Console, edits: Edits) -> None:
    """Show the changes of weights in a state."""
    for change in edits.changes:
        of = f"of the blend {change.blend!r} " if change.blend else ""
        position = f"{'item' if change.waits else 'slot'} {change.at:,}"
        weights = ", ".join(
            f"{name} {weight:g}" for name, weight in change.weights.items()
        )
        console.write_line(f"  weights {of}from {position} on: {weights}")


def _check_archive(local: str | os.PathLike[str], file: Path) -> None:
    """Raise `StateError` for an archive of another program, or a too large one."""
    for entry in zipfile.ZipFile(local).infolist():
        if entry.compress_type != zipfile.ZIP_STORED:
            raise StateError(f"{file} is compressed, and is not a file of torch.save")
        if entry.filename.endswith(".pkl") and entry.file_size > limits.JSON_BYTES:
            raise StateError(f"{file}: {limits.over('JSON_BYTES', entry.file_size)}")


def _content(file: Path) -> Any:
    """Return the content of a file, with mapped tensors, and without running code."""
    try:
        if _is_json(file):
            return parse_json(read_file(file, "JSON_BYTES").decode("utf-8"))
        local = files_at(file).local(os.fspath(file))
        zipped = zipfile.is_zipfile(local)
        if zipped:
            _check_archive(local, file)
        with warnings.catch_warnings(action="ignore"):  # of pickles, which are refused
            return torch.load(local, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as reason:
        raise _refused(file, str(reason)) from None
    except OSError as reason:
        raise StateError(os_error_message(reason, file)) from reason
    except StateError:
        raise
    except Exception as reason:  # whatever damaged files make torch raise
        # What torch says of such files is how to load them unsafely.
        why = f": {reason}" if isinstance(reason, ValueError) else ""
        raise StateError(
            f"{file} is neither whole JSON nor a whole file of torch.save "
            f"({type(reason).__name__}{why[:200]})"
        ) from reason


def _is_json(file: Path) -> bool:
    path = os.fspath(file)
    return files_at(path).read(path, 0, min(1, files_at(path).size(path))) in (
        b"{",
        b"[",
    )


def _refused(file: Path, reason: str) -> StateError:
    if "megatron.energon" in reason:
        return StateError(
            f"{file} is a state of Megatron-Energon itself: pickled objects of its "
            "classes, which are never unpickled here, and positions of its random "
            "order, which mean nothing here. Finish the epoch with Megatron-Energon, "
            "or start the data anew with energize (the model's checkpoint stays as it "
            "is) and save states with loader.state_dict()"
        )
    named = re.search(r"GLOBAL (\S+)", reason)
    return StateError(
        f"{file} holds pickled objects, and nothing but tensors and plain data is "
        f"unpickled: {f'it names {named[1]}' if named else 'it holds others'}. Save "
        "the loader's state in a file of its own, with "
        "torch.save(loader.state_dict(), file)"
    )


def _states(
    content: Any, keys: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], State]]:
    if len(keys) > _DEEPEST:
        return
    if isinstance(content, dict):
        # The fingerprint was called digest in states of version 4, which are refused by
        # name.
        if (
            all(name in content for name in _FIELDS)
            and {"fingerprint", "digest"} & content.keys()
        ):
            yield keys, content
            return
        for key, value in content.items():
            if isinstance(key, str | int):
                yield from _states(value, (*keys, key))
    elif isinstance(content, list | tuple):
        for number, value in enumerate(content):
            yield from _states(value, (*keys, number))


def single_state(states: Sequence[SavedState]) -> SavedState:
    """Return the common state of ranks; raise `StateError` if they differ."""
    first = states[0]
    for other in states[1:]:
        if other.decides != first.decides:
            same = other.state["fingerprint"] == first.state["fingerprint"]
            raise StateError(
                f"{first.location} and {other.location} are of different "
                f"{'places' if same else 'datasets'}. The states of all ranks must be "
                "of the same step. Pass those of one step"
            )
    return first


def write_state(saved: SavedState, file: Path) -> None:
    """Write a state in the format of its file."""
    content: Any = saved.state
    for key in reversed(saved.keys):
        content = {key: content} if isinstance(key, str) else [content]
    data = io.BytesIO()
    if _is_json(saved.file):
        data.write(json.dumps(content).encode())
    else:
        torch.save(content, data)
    write_new(file, data.getvalue(), ConfigError)


# A command of Megatron-Energon by its name.

checkpoint = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Same as `state`, with the names of Megatron-Energon.",
)
checkpoint.command("info")(show)

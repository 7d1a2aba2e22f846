"""States of loaders in files, as checkpoints hold them."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energize.core import limits
from energize.core.lazy import torch
from energize.core.limits import load_json
from energize.core.stream import State
from energize.data.files import files_at, read_file
from energize.data.writing import write_new
from energize.errors import ConfigError, DatasetNotFoundError, StateError
from energize.loader.state import checked_state, cursor_of, tree_of

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


def checked_ranks(number: int) -> int:
    """A world size; `ConfigError` for one that is none."""
    if number < 1:
        raise ConfigError(f"--new-world-size: expected 1 or more, got {number}")
    return number


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

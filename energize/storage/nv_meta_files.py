"""Finding and parsing the files of `.nv-meta`, with errors that say where and what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from energize.errors import (
    ConfigError,
    DatasetError,
    DatasetNotFoundError,
    NotPreparedError,
    nearest,
)
from energize.storage.bounded import load_yaml, read_bounded, read_json
from energize.storage.faults import exists, told

META_FOLDER = ".nv-meta"
INFO_NAMES = (".info.json", ".info.yaml")
SQLITE_NAME = "index.sqlite"
UUID_NAME = "index.uuid"


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file and where it is."""

    path: Path
    content: dict[str, Any]

    def error(self, key: str, value: Any, expected: str) -> DatasetError:
        """An error about one key."""
        return DatasetError(f"{self.path}: {key}: expected {expected}, got {_shown(value)}")

    def check_keys(self, known: Sequence[str], required: Sequence[str] = ()) -> None:
        """Refuse keys that mean nothing here, and miss none that is needed."""
        for key in self.content:
            if key not in known:
                raise DatasetError(
                    f"{self.path}: unknown key {_shown(key)}{nearest(str(key), known)}; "
                    f"known keys are {', '.join(known)}"
                )
        for key in required:
            if key not in self.content:
                found = ", ".join(map(str, self.content)) or "nothing"
                raise DatasetError(f"{self.path}: key {key!r} is missing; found {found}")

    def mapping(self, key: str) -> dict[str, Any]:
        """The mapping from text under `key`."""
        value = self.content[key]
        if not isinstance(value, dict):
            raise self.error(key, value, "a mapping")
        for inner in value:
            if not isinstance(inner, str):
                raise self.error(f"{key}.{inner}", inner, "text as the key (put it in quotes)")
        return dict(value)


def is_inside(name: str) -> bool:
    """Whether a name that stands in a file of a folder is that of something in this folder.

    >>> [is_inside(each) for each in ("parts/0.tar", "../0.tar", "/0.tar", "a/../../0.tar", "")]
    [True, False, False, False, False]
    """
    return (
        name[:1] not in ("", "/")
        and "\0" not in name
        and (".." not in name or ".." not in name.split("/"))
    )


def is_prepared(path: Path) -> bool:
    """Whether the folder has been prepared."""
    return any(exists(path / META_FOLDER / name, follow=False) for name in INFO_NAMES)


def info_document(path: Path) -> Document:
    """The file that makes a folder a prepared dataset."""
    for name in INFO_NAMES:
        # What is no file is told when it is read.
        if exists(path / META_FOLDER / name, follow=False):
            return parsed(path / META_FOLDER / name)
    if not path.exists():
        raise DatasetNotFoundError(f"{path} does not exist{_hint_for_missing(path)}")
    if not path.is_dir():
        raise NotPreparedError(f"{path} is a file; a prepared dataset is a folder of tar shards")
    with suppress(FileNotFoundError, NotADirectoryError):
        os.stat(f"{path / META_FOLDER}/.")  # where it may not be entered, nobody knows
    prepared = [each for each in (path.parent, path.parent.parent) if is_prepared(each)]
    if prepared:
        raise NotPreparedError(
            f"{path} has no {META_FOLDER} folder of its own, but {prepared[0]} above it is a "
            "prepared dataset: give that path"
        )
    raise NotPreparedError(
        f"{path} is not a prepared dataset: it has no {META_FOLDER}/.info.json. "
        f"Prepare it with: energize prepare {path}"
    )


def find_document(path: Path, names: Sequence[str], what: str, suffixes: str) -> Document:
    """The first of the files `names` that is in the `.nv-meta` of a prepared folder."""
    folder = path / META_FOLDER
    for name in names:
        if not is_inside(name):
            raise DatasetError(
                f"{folder}: {what} is a file in this folder, and {_shown(name)} is none; copy it "
                "there"
            )
        if not name.endswith((".yaml", ".json")):
            raise DatasetError(f"{folder / name}: {what} has a name that ends in {suffixes}")
        if exists(folder / name, follow=False):  # what is no file is told when it is read
            return parsed(folder / name)
    info_document(path)
    there = sorted(each.name for each in folder.iterdir() if each.suffix in (".yaml", ".json"))
    there = [name for name in there if name not in INFO_NAMES]
    raise NotPreparedError(
        f"{path} has no {what} {META_FOLDER}/{names[0]}{nearest(names[0], there)}. There is "
        f"{', '.join(there) or 'no such file at all'}. "
        f"Write it with: energize prepare --force-overwrite {path}"
    )


def parsed(path: Path) -> Document:
    """A file of JSON or YAML, by its name; `DatasetError` for one that is no mapping."""
    try:
        if path.suffix == ".json":
            content = read_json(path)
        else:
            content = load_yaml(read_bounded(path).decode("utf-8"))
    except OSError as reason:
        raise DatasetError(told(reason, path)) from reason
    except ConfigError:
        raise
    except (ValueError, yaml.YAMLError) as reason:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise DatasetError(f"{path} is not valid {kind}: {reason}") from reason
    if not isinstance(content, dict):
        raise DatasetError(f"{path}: expected a mapping of keys, got {_shown(content)}")
    return Document(path, content)


def _hint_for_missing(path: Path) -> str:
    """What there is instead, as far as the path goes."""
    existing = next((each for each in path.absolute().parents if each.is_dir()), None)
    if existing is None:
        return ""
    missing = path.absolute().relative_to(existing).parts[0]
    try:
        there = sorted(each.name for each in existing.iterdir() if each.is_dir())
    except OSError:
        return f" (its folder {existing} does)"
    return f"; its folder {existing} exists{nearest(missing, there)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else f"{text[:77]}..."

"""The files of a configured dataset as a dataset of examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energize.dataset import Dataset
from energize.errors import ConfigError, nearest
from energize.sources.adapting import as_dataset
from energize.sources.json_rows import JsonSource
from energize.sources.optional import optional_module
from energize.sources.parquet import ParquetSource
from energize.sources.row_files import DataFiles, data_files
from energize.wrappers.limit import LimitDataset
from energize.wrappers.map import MapDataset

__all__ = ["TYPES", "Formatted", "rows_of"]

Example = dict[str, Any]

TYPES = {
    "parquet": (".parquet",),
    "json": (".json", ".jsonl"),
    "csv": (".csv",),
    "arrow": (".arrow",),
    "text": (".txt",),
    "huggingface": (),
}
"""What files their names end in."""

_ALIASES = {"jsonl": "json", "hf": "huggingface", "txt": "text"}


@dataclass(frozen=True)
class Formatted:
    """A function of an example, then new names for its fields; the example is left as it is."""

    callback: Callable[[Example], Example] | None
    fields: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.callback is not None and not callable(self.callback):
            raise ConfigError(f"format_callback is a function of an example; got {self.callback!r}")
        if not isinstance(self.fields, Mapping):
            raise ConfigError(
                f"format_fields maps names of fields to their new names; got {self.fields!r}"
            )

    def __call__(self, example: Mapping[str, Any]) -> Example:
        made = {**example}
        if self.callback is not None:
            made = self.callback(made)
        missing = [old for old in self.fields if old not in made]
        if missing:
            raise ConfigError(
                f"format_fields renames {', '.join(missing)}, which an example does not have; it "
                f"has {', '.join(made)}"
            )
        return {self.fields.get(name, name): value for name, value in made.items()}


def rows_of(
    files: DataFiles,
    *,
    name: str,
    kind: str | None,
    split: str,
    streaming: bool,
    num_rows: int | None,
    formatted: Formatted,
) -> Dataset[Example]:
    """The examples in `files`, limited and formatted.

    Parquet and JSON files are read at random. Other kinds are read by the library datasets, as a
    stream where `streaming` is true.
    """
    rows = _read(files, name, _kind(files, kind, name), split, streaming)
    if num_rows is not None:
        rows = LimitDataset(rows, num_rows)
    if formatted.callback is None and not formatted.fields:
        return rows
    return MapDataset(rows, formatted, seeded=False)


def _read(files: DataFiles, name: str, kind: str, split: str, streaming: bool) -> Dataset[Example]:
    if kind == "parquet":
        return ParquetSource(files, name=name)
    if kind == "json":
        return JsonSource(files, name=name)
    hugging_face = optional_module("datasets", "energize[hf]", f"reading {kind} files")
    if kind == "huggingface":
        loaded = hugging_face.load_dataset(os.fspath(_one(files)), split=split, streaming=streaming)
    else:
        paths = [str(path) for path in data_files(files, f"dataset {name!r}")]
        loaded = hugging_face.load_dataset(
            kind, data_files=paths, split="train", streaming=streaming
        )
    return as_dataset(loaded, name)


def _kind(files: DataFiles, given: str | None, name: str) -> str:
    if given is not None:
        kind = _ALIASES.get(str(given).lower(), str(given).lower())
        if kind not in TYPES:
            raise ConfigError(
                f"dataset {name!r}: unknown type {given!r}{nearest(kind, list(TYPES)) or '.'} "
                f"Known: {', '.join(TYPES)}"
            )
        return kind
    first = os.fspath(_one(files))
    found = [kind for kind, endings in TYPES.items() if first.endswith(endings or (" ",))]
    if not found:
        raise ConfigError(
            f"dataset {name!r}: what {first!r} holds does not show from its name; give type, one "
            f"of {', '.join(TYPES)}"
        )
    return found[0]


def _one(files: DataFiles) -> str | os.PathLike[str]:
    return files[0] if isinstance(files, Sequence) and not isinstance(files, str) else files

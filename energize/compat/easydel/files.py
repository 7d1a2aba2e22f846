"""Files of examples, as configurations name them, as a dataset."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, InstanceOf, StringConstraints

from energize.compat.checks import Count, expected
from energize.dataset import Dataset
from energize.errors import ConfigError, DatasetError, nearest
from energize.optional import optional_module
from energize.sources.adapting import as_dataset
from energize.sources.json_rows import JsonSource
from energize.sources.parquet import ParquetSource
from energize.sources.row_files import DataFiles, data_files
from energize.wrappers.limit import LimitDataset
from energize.wrappers.map import MapDataset

Example = dict[str, Any]

_KINDS = {
    **{name: name for name in ("parquet", "json", "csv", "arrow", "text", "huggingface")},
    "jsonl": "json",
    "txt": "text",
    "hf": "huggingface",
}
"""What a type, or the ending of a file's name, stands for."""


@dataclass(frozen=True, kw_only=True)
class ExampleFiles:
    """Files of examples.

    `data_files`: a path, a pattern, or a list of them; the path of a dataset on the Hugging Face
    hub with `type="huggingface"`.
    `type`: parquet, json (or jsonl), csv, arrow, text, huggingface; by default what the names of
    the files end in.
    `content_field`: the field with the text; `additional_fields`: those kept beside it.
    `format_callback`: a function of each example; `format_fields`: new names of fields by old ones;
    both come before tokenizing, the function first.
    `num_rows`: only the first so many examples.
    """

    data_files: Annotated[
        InstanceOf[os.PathLike[str]] | Annotated[DataFiles, Field(min_length=1)],
        expected("is a path, a pattern or a list of them"),
    ]
    name: str | None = None
    type: Annotated[str, StringConstraints(to_lower=True)] | None = None
    split: str = "train"
    num_rows: Count | None = None
    content_field: str = "text"
    additional_fields: Sequence[str] = ()
    format_callback: Callable[[Example], Example] | None = None
    format_fields: Mapping[str, str] | None = None

    def examples(self, *, streaming: bool) -> Dataset[Example]:
        """The examples, limited and formatted, as a dataset of this name.

        Parquet and JSON files are read at random. Other kinds are read by the library datasets, as
        a stream where `streaming` is true.
        """
        rows = self._read(self.name or "", streaming)
        if self.num_rows is not None:
            rows = LimitDataset(rows, self.num_rows)
        if self.format_callback is None and not self.format_fields:
            return rows
        formatted = Formatted(self.format_callback, self.format_fields or {})
        return MapDataset(rows, formatted, seeded=False)

    def _read(self, name: str, streaming: bool) -> Dataset[Example]:
        kind = self._kind(name)
        if kind == "parquet":
            return ParquetSource(self.data_files, name=name)
        if kind == "json":
            return JsonSource(self.data_files, name=name)
        hugging_face = optional_module("datasets", "energize[hf]", f"reading {kind} files")
        files, split = {}, self.split
        if kind != "huggingface":
            found = data_files(self.data_files, f"dataset {name!r}")
            files, split = {"data_files": list(map(str, found))}, "train"
        path = self._first if kind == "huggingface" else kind
        try:
            rows = hugging_face.load_dataset(path, split=split, streaming=streaming, **files)
        except Exception as error:
            reason = error.__cause__ or error  # most are an "error while generating the dataset"
            raise DatasetError(
                f"dataset {name!r}: {self.data_files} cannot be read as {kind} by the library "
                f"datasets: {type(reason).__name__}: {reason}. Repair the files, or name their "
                "type"
            ) from error
        return as_dataset(rows, name)

    def _kind(self, name: str) -> str:
        given = self.type or Path(self._first).suffix[1:]
        if given not in _KINDS:
            raise ConfigError(
                f"dataset {name!r}: the type {given!r} of {self._first!r} is not known"
                f"{nearest(given, list(_KINDS)) or '.'} Give type, one of {', '.join(_KINDS)}"
            )
        return _KINDS[given]

    @property
    def _first(self) -> str:
        files = self.data_files
        return os.fspath(files if isinstance(files, str | os.PathLike) else files[0])


F = TypeVar("F", bound=ExampleFiles)


@dataclass(frozen=True)
class Formatted:
    """A function of an example, then new names for its fields; the example is left as it is."""

    callback: Callable[[Example], Example] | None
    fields: Mapping[str, str]

    def __call__(self, example: Mapping[str, Any]) -> Example:
        made = {**example}
        if self.callback is not None:
            made = self.callback(made)
        _check_fields(made, self.fields, "format_fields")
        return {self.fields.get(name, name): value for name, value in made.items()}


@dataclass(frozen=True)
class Content:
    """What is made of the content of an example, and the fields that are kept."""

    field: str
    kept: tuple[str, ...]
    make: Callable[[Any], Example]

    def __call__(self, example: Mapping[str, Any]) -> Example:
        _check_fields(example, (self.field, *self.kept), "content_field and additional_fields")
        made = self.make(example[self.field])
        return {**made, **{name: example[name] for name in self.kept}}


def _check_fields(example: Mapping[str, Any], names: Iterable[str], options: str) -> None:
    """`ConfigError` for a field named by `options` that the example does not have."""
    for name in names:
        if name not in example:
            raise ConfigError(
                f"an example has no field {name!r}{nearest(name, list(example)) or '.'} It has "
                f"{', '.join(example)}; set {options} of the dataset"
            )


def named(files: Sequence[F], owner: str, what: str, default: str, first: int) -> list[F]:
    """The same files, those without a name called `default` with their number.

    Raises `ConfigError` where there are none, or two of one name.
    """
    if not files:
        raise ConfigError(f"{owner}: there are no {what}")
    found = [
        each if each.name else replace(each, name=f"{default}{number}")
        for number, each in enumerate(files, first)
    ]
    for name, often in Counter(each.name for each in found).items():
        if often > 1:
            raise ConfigError(f"{owner}: two {what} are called {name!r}")
    return found

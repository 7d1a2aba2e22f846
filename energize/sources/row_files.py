"""What sources of rows in files have in common."""

from __future__ import annotations

import glob
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from energize.arrays import Int64Array
from energize.describing import digest
from energize.errors import ColumnError, ConfigError, DataError, DatasetNotFoundError
from energize.reading import Failed
from energize.sources.field_columns import FieldSource
from energize.sources.sharded import read_by_file
from energize.storage.bounded import load_json

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a pattern with `*`, `?`, `[]` or `**`, or several of them."""

Row = dict[str, Any]

_ROWS_AT_ONCE = 4096


def data_files(given: DataFiles, owner: str) -> tuple[Path, ...]:
    """The files meant by paths and patterns: in the order given, those of a pattern by name.

    Raises `DatasetNotFoundError` for a path or pattern without a file, `ConfigError` for none.
    """
    alone = isinstance(given, str | os.PathLike) or not isinstance(given, Sequence)
    listed: list[Any] = [given] if alone else list(given)  # type: ignore[arg-type]
    for each in listed:
        if not isinstance(each, str | os.PathLike):
            raise ConfigError(
                f"{owner}: files are a path, a pattern or a list of them; got {given!r}"
            )
    if not listed:
        raise ConfigError(f"{owner}: there are no files to read")
    return tuple(path for each in listed for path in _matching(os.fspath(each), owner))


def _matching(pattern: str, owner: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise ConfigError(
            f"{owner}: {pattern} is a folder; name its files with a pattern, {pattern}/* say"
        )
    found = sorted(Path(name) for name in glob.glob(pattern, recursive=True))
    files = [each for each in found if each.is_file()]
    if not files:
        raise DatasetNotFoundError(
            f"{owner}: no file matches {pattern!r} (looked in {Path.cwd()}); only files on a local "
            "or mounted file system are read"
        )
    return files


def parsed_row(text: bytes, where: str) -> Row | Failed:
    """The object that a text of JSON is; a `Failed` with a `DataError` for anything else."""
    try:
        value = load_json(text)
    except (ValueError, RecursionError) as error:
        return Failed(DataError(f"not JSON: {error}: {text[:80]!r}"), where)
    if not isinstance(value, dict):
        return Failed(DataError(f"a row is a JSON object, found {text[:80]!r}"), where)
    return value


class RowFiles(FieldSource[Row]):
    """Rows of files, one file after another, stored in runs that are read together.

    Subclasses give `runs` and `read_run`. The identity, and with it every order, depends on the
    name, the files' names and the number of rows, not on the folder they lie in.
    """

    files: tuple[Path, ...]
    given_name: str

    @property
    @abstractmethod
    def runs(self) -> list[tuple[int, int, int]]:
        """Of each run its file, its number in the file and its rows, in the order of the files."""

    @abstractmethod
    def read_run(self, file: int, number: int, rows: Int64Array) -> list[Row | Failed]:
        """Rows of run `number` of a file, `rows` ascending."""

    @cached_property
    def count(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def _starts(self) -> Int64Array:
        """The first row of each run, and the number of all rows."""
        return np.cumsum([0, *(rows for _, _, rows in self.runs)], dtype=np.int64)

    @property
    def name(self) -> str:
        return self.given_name or self.files[0].stem

    @property
    def _told_name(self) -> str:
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return f"{self.name} ({self.files[0]}{more})"

    @cached_property
    def identity(self) -> str:
        return digest([self.name, [file.name for file in self.files], self.count])

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The keys of the first row."""
        return tuple(next(self._all_rows(), {}))

    def field_values(self, name: str) -> Iterable[Any]:
        """What each row has for a key; None where it has not."""
        return (row.get(name) for row in self._all_rows())

    def _all_rows(self) -> Iterator[Row]:
        for first in range(0, self.count, _ROWS_AT_ONCE):
            stop = min(first + _ROWS_AT_ONCE, self.count)
            for row in self.read(np.arange(first, stop, dtype=np.int64)):
                if isinstance(row, Failed):
                    raise ColumnError(f"{row.where}: {row.reason}; its keys cannot be columns")
                yield row

    def read(self, indices: Int64Array) -> list[Row | Failed]:
        return read_by_file(indices, self._located, self._read_run)

    def _located(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        run = np.searchsorted(self._starts, indices, side="right") - 1
        return run, indices - self._starts[run]

    def _read_run(self, run: int, numbers: list[int]) -> Sequence[Row | Failed]:
        file, number, _ = self.runs[run]
        return self.read_run(file, number, np.array(numbers, dtype=np.int64))

    def where(self, position: int, attempt: int = 0) -> str:
        index = int(self._samples(np.array([position], dtype=np.int64), attempt)[0])
        run = int(np.searchsorted(self._starts, index, side="right")) - 1
        file = self.runs[run][0]
        first = next(i for i, each in enumerate(self.runs) if each[0] == file)
        return f"{self.files[file]}, row {index - int(self._starts[first])}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"files": len(self.files), "identity": self.identity}

"""Rows of JSON and Parquet files and of Hugging Face datasets, read at random."""

from __future__ import annotations

import copy
import glob
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.lazy import is_instance_of, optional_module
from energize.core.limits import load_json
from energize.core.reading import Failed
from energize.data.files import Files, FileStream, Recent, files_at, own_errors
from energize.data.source import Source, read_by_file
from energize.errors import (
    ColumnError,
    ConfigError,
    DataError,
    DatasetNotFoundError,
    EnergizeError,
    ShardError,
    nearest,
)

T_co = TypeVar("T_co", covariant=True)

# A path, a pattern with `*`, `?`, `[]` or `**`, or several of them.
DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

Row = dict[str, Any]

_ROWS_AT_ONCE = 4096

# Bytes searched for ends of lines at once.
_AT_ONCE = 64 * 1024 * 1024
_COMPRESSED = {".gz", ".zst", ".bz2", ".xz"}

_CACHED_BYTES = 256 * 1024 * 1024

# What pyarrow raises for damaged files: each of its own errors is one of these.
_BAD_BYTES = (OSError, ValueError, LookupError, TypeError, NotImplementedError)


class FieldSource(Source[T_co]):
    """A source whose samples have fields: each that holds numbers or words is a column, looked up
    once in each process.
    """

    def _parsed(self, first: int, stop: int) -> Sequence[Any]:
        """Return the rows from `first` to before `stop`, or why one has none."""
        return self.read(np.arange(first, stop, dtype=np.int64))

    def _rows(self) -> Iterator[Row]:
        for first in range(0, self.count, _ROWS_AT_ONCE):
            for row in self._parsed(first, min(first + _ROWS_AT_ONCE, self.count)):
                if isinstance(row, Failed):
                    raise ColumnError(f"{row.where}: {row.reason}; its keys cannot be columns")
                yield row

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The keys of the first row."""
        return tuple(next(self._rows(), {}))

    def _values(self, name: str) -> Iterable[Any]:
        """Return what each row has for a key; None where it has not."""
        return (row.get(name) for row in self._rows())

    def column(self, name: str) -> Column:
        if name not in self._looked_up:
            if name not in self.column_names:
                return super().column(name)
            try:
                self._looked_up[name] = Column.of(self._values(name), name)
            except ColumnError as reason:
                raise ColumnError(f"{self.name}: {reason}") from None
        return self._looked_up[name]

    @cached_property
    def _looked_up(self) -> dict[str, Column]:
        return {}

    def _how_to_index(self, name: str) -> str:
        return "Columns of this source are the fields of its samples: write it into each of them"


def data_files(given: DataFiles, owner: str) -> tuple[Path, ...]:
    """Return the files meant by paths and patterns: in the order given, those of a pattern by name.

    Raise `DatasetNotFoundError` for a path or pattern without a file, `ConfigError` for none.
    """
    alone = isinstance(given, str | os.PathLike) or not isinstance(given, Sequence)
    listed: list[Any] = [given] if alone else list(given)  # type: ignore[arg-type]
    if not listed or not all(isinstance(each, str | os.PathLike) for each in listed):
        what = f"got {given!r}" if listed else "there are no files to read"
        raise ConfigError(f"{owner}: files are a path, a pattern or a list of them; {what}")
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
    """Return the object that a text of JSON is; a `Failed` with a `DataError` for anything else."""
    try:
        return _checked_row(load_json(text), where)
    except (ValueError, RecursionError) as error:
        return Failed(DataError(f"not JSON: {error}: {text[:80]!r}"), where)


def _checked_row(value: Any, where: str) -> Row | Failed:
    if isinstance(value, dict):
        return value
    return Failed(DataError(f"a row is a JSON object, found {value!r:.80}"), where)


class RowFiles(FieldSource[Row]):
    """Rows of files, one file after another, stored in runs that are read together.

    Subclasses give `runs` and `_read_run`. The identity, and with it every order, depends on the
    name, the files' names and the number of rows, not on the folder they lie in.
    """

    files: tuple[Path, ...]
    given_name: str

    @property
    @abstractmethod
    def runs(self) -> list[tuple[int, int, int]]:
        """Of each run its file, its number in the file and its rows, in the order of the files."""

    @abstractmethod
    def _read_run(self, file: int, number: int, rows: list[int]) -> Sequence[Row | Failed]:
        """Return rows of run `number` of a file, `rows` ascending."""

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

    def read(self, indices: Int64Array) -> list[Row | Failed]:
        return read_by_file(
            indices, self._located, lambda run, rows: self._read_run(*self.runs[run][:2], rows)
        )

    def _located(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        run = np.searchsorted(self._starts, indices, side="right") - 1
        return run, indices - self._starts[run]

    def where(self, position: int, attempt: int = 0) -> str:
        index = int(self._samples(np.array([position], dtype=np.int64), attempt)[0])
        run = int(np.searchsorted(self._starts, index, side="right")) - 1
        file = self.runs[run][0]
        first = next(i for i, each in enumerate(self.runs) if each[0] == file)
        return f"{self.files[file]}, row {index - int(self._starts[first])}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"files": len(self.files), "identity": self.identity}

    @cached_property
    def _reader(self) -> Files:
        return files_at(self.files[0])


class JsonSource(RowFiles):
    """The rows of JSON files: one object per line, or a file that is one array of objects.

    `files` is a path, a pattern, or a list of them. Opening passes over the files once to find the
    lines, and keeps 16 bytes for each; a row is then read alone. Empty lines are left out. A file
    that is one array is parsed and kept whole.

    Raise `DatasetNotFoundError` for a path without a file, and `ShardError` for a file that is
    compressed, or an array that is not JSON. A line that is not an object is a `Failed` with a
    `DataError`.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "letters.jsonl")
    >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}' + chr(10))
    >>> list(JsonSource(path))
    [{'text': 'a'}, {'text': 'b'}]
    """

    @own_errors
    def __init__(
        self, files: DataFiles, *, name: str = "", seed: int = 0, occurrence: int = 0
    ) -> None:
        found = data_files(files, "JsonSource")
        for file in found:
            if file.suffix in _COMPRESSED:
                raise ShardError(
                    f"{file} is compressed, so its rows cannot be read at random; unpack it first"
                )
        self._freeze(files=found, given_name=name, seed=seed, occurrence=occurrence)

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        rows = [len(each) for each in self._lines]
        return [(file, 0, count) for file, count in enumerate(rows) if count]

    @cached_property
    @own_errors
    def _lines(self) -> list[Int64Array | list[Any]]:
        """Of each file the first byte of each line and the byte after it, or its parsed rows."""
        return [self._looked_through(str(path)) for path in self.files]

    def _looked_through(self, path: str) -> Int64Array | list[Any]:
        files, size = self._reader, self._reader.size(path)
        if files.read(path, 0, min(4096, size)).lstrip()[:1] == b"[":
            try:
                rows: list[Any] = load_json(files.read(path))
                return rows
            except (ValueError, RecursionError) as error:
                raise ShardError(
                    f"{path} begins as a JSON array and is not one: {error}"
                ) from error
        ends = [np.array([-1], dtype=np.int64)]
        for start in range(0, size, _AT_ONCE):
            part = np.frombuffer(files.read(path, start, min(start + _AT_ONCE, size)), np.uint8)
            ends.append(np.flatnonzero(part == ord("\n")) + start)
        cuts = np.concatenate([*ends, np.array([size])])
        bounds = np.stack([cuts[:-1] + 1, cuts[1:]], axis=1)
        lines: Int64Array = bounds[
            np.diff(bounds)[:, 0] > 1
        ]  # one byte is a carriage return at most
        return lines

    def _read_run(self, file: int, number: int, rows: list[int]) -> list[Row | Failed]:
        lines, path = self._lines[file], str(self.files[file])
        places = [f"{path}, row {row}" for row in rows]
        if isinstance(lines, list):
            # Copies, so that who changes a row does not change what others are given.
            found = [
                _checked_row(lines[row], place) for row, place in zip(rows, places, strict=True)
            ]
            return copy.deepcopy(found)
        starts, stops = lines[rows].T.tolist()
        texts = self._reader.read_ranges(path, starts, stops)
        return [parsed_row(text, place) for text, place in zip(texts, places, strict=True)]


class ParquetSource(RowFiles):
    """The rows of Parquet files as dicts of Python values.

    `files` is a path, a pattern, or a list of them; `columns` limits what is read. Opening reads
    the footers only. Pages that were written with checksums are compared with them. A row group is
    read and decoded as a whole, and kept until `cache_bytes` of later ones have pushed it out; so
    visit neighbours together: `ShuffleDataset` with a `shuffle_buffer_size` does, a full
    permutation of a large file reads a row group for each row.

    Raise `DatasetNotFoundError` for a path without a file, `ShardError` for a file that is not
    Parquet, `ConfigError` for a column that is not in all files, and if pyarrow is missing.

    >>> import tempfile, pyarrow, pyarrow.parquet
    >>> path = tempfile.mkdtemp() + "/letters.parquet"
    >>> pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"]}), path)
    >>> list(ParquetSource(path))
    [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}]
    """

    columns: tuple[str, ...] | None
    cache_bytes: int

    @own_errors
    def __init__(
        self,
        files: DataFiles,
        *,
        columns: Sequence[str] | None = None,
        cache_bytes: int = _CACHED_BYTES,
        name: str = "",
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        self._freeze(
            files=data_files(files, "ParquetSource"),
            columns=None if columns is None else tuple(columns),
            cache_bytes=cache_bytes,
            given_name=name,
            seed=seed,
            occurrence=occurrence,
        )
        _ = self.runs  # footers and columns are checked here, not at the first row

    @property
    def run_length(self) -> int:
        return max(1, self.count // max(1, len(self.runs)))

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        runs: list[tuple[int, int, int]] = []
        for number, path in enumerate(self.files):
            with self._opened(path) as file:
                self._check_columns(path, file.schema_arrow.names)
                groups = range(file.metadata.num_row_groups)
                rows = [int(file.metadata.row_group(group).num_rows) for group in groups]
            runs.extend((number, group, count) for group, count in enumerate(rows) if count)
        return runs

    def _check_columns(self, path: Path, found: list[str]) -> None:
        for column in self.columns or ():
            if column not in found:
                raise ConfigError(
                    f"ParquetSource: {path} has no column {column!r}{nearest(column, found)} "
                    f"It has {', '.join(found)}"
                )

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The columns of all files, read or not."""
        names = []
        for path in self.files:
            with self._opened(path) as file:
                names.append(file.schema_arrow.names)
        return tuple(name for name in names[0] if all(name in each for each in names))

    def _values(self, name: str) -> list[Any]:
        """The column alone is read."""
        values: list[Any] = []
        for path in self.files:
            with self._opened(path) as file, _reading(path, f"column {name}: "):
                values += file.read(columns=[name]).column(name).to_pylist()
        return values

    def _read_run(self, file: int, number: int, rows: list[int]) -> list[Row | Failed]:
        path = self.files[file]
        with _reading(path, f"row group {number}: "):
            table = self._tables.get((file, number), lambda: self._row_group(path, number))
            taken: list[Row | Failed] = table.take(rows).to_pylist()
        return taken

    def _row_group(self, path: Path, group: int) -> Any:
        columns = None if self.columns is None else list(self.columns)
        with self._opened(path) as opened:
            return opened.read_row_group(group, columns=columns)

    def _opened(self, path: Path) -> Any:
        parquet = optional_module("pyarrow.parquet", "energize[hf]", "reading Parquet files")
        stream = FileStream(self._reader, str(path))
        with _reading(path):
            return parquet.ParquetFile(stream, page_checksum_verification=True)

    @cached_property
    def _tables(self) -> Recent[tuple[int, int], Any]:
        return Recent(self.cache_bytes, lambda table: int(table.nbytes))


@contextmanager
def _reading(path: Path, what: str = "") -> Iterator[None]:
    try:
        yield
    except _BAD_BYTES as error:
        if isinstance(error, EnergizeError) or (isinstance(error, OSError) and error.errno):
            raise  # of the disk, not of the file
        raise ShardError(
            f"{path} cannot be read as Parquet: {what}{error}. Write the file again"
        ) from error


class HuggingFaceSource(FieldSource[Row]):
    """The rows of a `datasets.Dataset` as dicts, in its format, read when they are asked for.

    Orders depend on `name` and on the number of rows, not on the fingerprint of the dataset, which
    is not the same on every machine. A streaming dataset is read by `IterableSource`.

    Raise `ConfigError` for anything else than a `datasets.Dataset`.

    >>> import datasets
    >>> rows = datasets.Dataset.from_dict({"text": ["one", "two"]})
    >>> HuggingFaceSource(rows, name="numbers")[1]
    {'text': 'two'}
    """

    rows: Any
    given_name: str

    def __init__(
        self, rows: Any, *, name: str = "hugging face", seed: int = 0, occurrence: int = 0
    ) -> None:
        if not is_instance_of(rows, "datasets", "Dataset"):
            remedy = ""
            if is_instance_of(rows, "datasets", "IterableDataset"):
                remedy = "; a streaming dataset is read by IterableSource"
            elif is_instance_of(rows, "datasets", "DatasetDict"):
                remedy = f"; choose one of its splits: {', '.join(map(str, rows))}"
            raise ConfigError(
                f"HuggingFaceSource {name!r} reads a datasets.Dataset, got "
                f"{type(rows).__name__}{remedy}"
            )
        self._freeze(rows=rows, given_name=name, seed=seed, occurrence=occurrence)

    @property
    def name(self) -> str:
        return self.given_name

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def identity(self) -> str:
        return f"{self.given_name}:{self.count}"

    @property
    def column_names(self) -> tuple[str, ...]:
        """Those of the dataset."""
        return tuple(self.rows.column_names)

    def _values(self, name: str) -> Iterable[Any]:
        """The column alone is read, whatever the format of the dataset."""
        values: Iterable[Any] = self.rows.with_format(None).select_columns([name])[:][name]
        return values

    def read(self, indices: Int64Array) -> list[Row | Failed]:
        rows: list[Row | Failed] = self.rows.__getitems__(indices.tolist())
        return rows

    def _compared(self) -> tuple[Any, ...]:
        return id(self.rows), self.given_name, self.seed, self.occurrence

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"columns": list(self.rows.column_names)}

"""Sources whose samples have fields: each field that holds numbers or words is a column."""

from __future__ import annotations

import glob
import json
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from energize.core.arrays import Int64Array
from energize.core.bounded import load_json
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.lazy import is_instance_of, optional_module
from energize.core.reading import Failed
from energize.data.files import FileStream, LocalFile, OpenFiles
from energize.data.source import Source, read_by_file
from energize.data.writing import own_errors
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


class FieldSource(Source[T_co]):
    """A source that needs no columns of its own: it looks a field of its samples up, once in each
    process.
    """

    @property
    @abstractmethod
    def field_names(self) -> tuple[str, ...]:
        """The fields of its samples."""

    @abstractmethod
    def field_values(self, name: str) -> Iterable[Any]:
        """What the field says of each sample, in their order."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return self.field_names

    def column(self, name: str) -> Column:
        if name not in self._looked_up:
            if name not in self.field_names:
                return super().column(name)
            try:
                self._looked_up[name] = Column.of(self.field_values(name), name)
            except ColumnError as reason:
                raise ColumnError(f"{self.name}: {reason}") from None
        return self._looked_up[name]

    @cached_property
    def _looked_up(self) -> dict[str, Column]:
        return {}

    def _how_to_index(self, name: str) -> str:
        return "Columns of this source are the fields of its samples: write it into each of them"


# What sources of rows in files have in common.

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


# The rows of JSON files, read at random.

_AT_ONCE = 64 * 1024 * 1024
"""Bytes searched for ends of lines at once."""

_COMPRESSED = {".gz", ".zst", ".bz2", ".xz"}


class JsonSource(RowFiles):
    """The rows of JSON files: one object per line, or a file that is one array of objects.

    `files` is a path, a pattern, or a list of them. Opening passes over the files once to find the
    lines, and keeps 16 bytes for each; a row is then read alone. Empty lines are left out. A file
    that is one array is parsed and kept whole.

    Raises `DatasetNotFoundError` for a path without a file, and `ShardError` for a file that is
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
        rows = [len(each) for each in self._rows]
        return [(file, 0, count) for file, count in enumerate(rows) if count]

    @cached_property
    @own_errors
    def _rows(self) -> list[Int64Array | list[Any]]:
        """Of each file the first byte of each line and the byte after it, or its parsed rows."""
        opened = (self._open_files.get(str(path)) for path in self.files)
        return [_array(file) if _is_array(file) else _lines(file) for file in opened]

    @cached_property
    def _open_files(self) -> OpenFiles:
        return OpenFiles()

    def read_run(self, file: int, number: int, rows: Int64Array) -> list[dict[str, Any] | Failed]:
        index = self._rows[file]
        if isinstance(index, list):
            # Parsed again, so that who changes a row does not change what others are given.
            texts = [json.dumps(index[row]).encode() for row in rows.tolist()]
        else:
            bounds = index[rows]
            starts, stops = bounds[:, 0].tolist(), bounds[:, 1].tolist()
            parts = self._open_files.get(str(self.files[file])).read_ranges(starts, stops)
            texts = [
                data[at : at + stop - start]
                for (data, at), start, stop in zip(parts, starts, stops, strict=True)
            ]
        places = rows.tolist()
        return [
            parsed_row(text, f"{self.files[file]}, row {row}")
            for text, row in zip(texts, places, strict=True)
        ]


def _is_array(file: LocalFile) -> bool:
    return file.read(0, 4096).lstrip()[:1] == b"["


def _array(file: LocalFile) -> list[Any]:
    try:
        rows: list[Any] = json.loads(FileStream(file).read())
    except (ValueError, RecursionError) as error:
        text = f"{file.path} begins as a JSON array and is not one: {error}"
        raise ShardError(text) from error
    return rows


def _lines(file: LocalFile) -> Int64Array:
    """The bounds of the lines that are not empty: int64 [lines, 2]."""
    if file.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    ends = [np.array([-1], dtype=np.int64)]
    stream = FileStream(file)
    for start in range(0, file.size, _AT_ONCE):
        part = np.frombuffer(stream.read(_AT_ONCE), dtype=np.uint8)
        ends.append(np.flatnonzero(part == ord("\n")) + start)
    ends.append(np.array([file.size], dtype=np.int64))
    cuts = np.concatenate(ends)
    bounds = np.stack([cuts[:-1] + 1, cuts[1:]], axis=1)
    return bounds[bounds[:, 1] - bounds[:, 0] > 1]  # one byte is at most a carriage return


# The rows of Parquet files, read at random.

_CACHED_BYTES = 256 * 1024 * 1024

_BAD_BYTES = (OSError, ValueError, LookupError, TypeError, NotImplementedError)
"""What pyarrow raises for damaged files: each of its own errors is one of these."""


class ParquetSource(RowFiles):
    """The rows of Parquet files as dicts of Python values.

    `files` is a path, a pattern, or a list of them; `columns` limits what is read. Opening reads
    the footers only. Pages that were written with checksums are compared with them. A row group is
    read and decoded as a whole, and kept until `cache_bytes` of later ones have pushed it out; so
    visit neighbours together: `ShuffleDataset` with a `shuffle_buffer_size` does, a full
    permutation of a large file reads a row group for each row.

    Raises `DatasetNotFoundError` for a path without a file, `ShardError` for a file that is not
    Parquet, `ConfigError` for a column that is not in all files, and where pyarrow is missing.

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

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The columns of all files, read or not."""
        names: list[tuple[str, ...]] = []
        for path in self.files:
            with self._opened(path) as file:
                names.append(tuple(file.schema_arrow.names))
        return tuple(name for name in names[0] if all(name in each for each in names))

    def field_values(self, name: str) -> list[Any]:
        """The column alone is read."""
        values: list[Any] = []
        for path in self.files:
            with self._opened(path) as file, _reading(path, f"column {name}: "):
                values += file.read(columns=[name]).column(name).to_pylist()
        return values

    def read_run(self, file: int, number: int, rows: Int64Array) -> list[dict[str, Any] | Failed]:
        with _reading(self.files[file], f"row group {number}: "):
            table = self._tables.get((file, number), self._row_group)
            taken: list[dict[str, Any] | Failed] = table.take(rows).to_pylist()
        return taken

    def _row_group(self, key: tuple[int, int]) -> Any:
        file, group = key
        columns = None if self.columns is None else list(self.columns)
        with self._opened(self.files[file]) as opened:
            return opened.read_row_group(group, columns=columns)

    def _opened(self, path: Path) -> Any:
        parquet = optional_module("pyarrow.parquet", "energize[hf]", "reading Parquet files")
        stream = FileStream(self._open_files.get(str(path)))
        with _reading(path):
            return parquet.ParquetFile(stream, page_checksum_verification=True)

    @cached_property
    def _open_files(self) -> OpenFiles:
        return OpenFiles()

    @cached_property
    def _tables(self) -> _RowGroups:
        return _RowGroups(self.cache_bytes)

    def _check_columns(self, path: Path, found: list[str]) -> None:
        for column in self.columns or ():
            if column not in found:
                raise ConfigError(
                    f"ParquetSource: {path} has no column {column!r}{nearest(column, found)} "
                    f"It has {', '.join(found)}"
                )


class _RowGroups:
    """The row groups used last, at least one and at most `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tables: OrderedDict[tuple[int, int], Any] = OrderedDict()

    def get(self, key: tuple[int, int], read: Callable[[tuple[int, int]], Any]) -> Any:
        """A row group of a file as a pyarrow table, which `read` reads."""
        if key not in self._tables:
            self._tables[key] = read(key)
            while len(self._tables) > 1 and self._held() > self._limit:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]

    def _held(self) -> int:
        return sum(int(table.nbytes) for table in self._tables.values())


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


# The rows of a map-style Hugging Face dataset.


class HuggingFaceSource(FieldSource[dict[str, Any]]):
    """The rows of a `datasets.Dataset` as dicts, in its format, read when they are asked for.

    Orders depend on `name` and on the number of rows, not on the fingerprint of the dataset, which
    is not the same on every machine. A streaming dataset is read by `IterableSource`.

    Raises `ConfigError` for anything else than a `datasets.Dataset`.

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
    def field_names(self) -> tuple[str, ...]:
        """Those of the dataset."""
        return tuple(self.rows.column_names)

    def field_values(self, name: str) -> Iterable[Any]:
        """The column alone is read, whatever the format of the dataset."""
        values: Iterable[Any] = self.rows.with_format(None).select_columns([name])[:][name]
        return values

    def read(self, indices: Int64Array) -> list[dict[str, Any] | Failed]:
        rows: list[dict[str, Any] | Failed] = self.rows.__getitems__(indices.tolist())
        return rows

    def _compared(self) -> tuple[Any, ...]:
        return id(self.rows), self.given_name, self.seed, self.occurrence

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"columns": list(self.rows.column_names)}

"""Sources of rows with fields: JSON, Parquet and Arrow files with random access.

`FieldSource` derives columns from fields; `RowFiles` is the base of sources of several
files.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from energize.core import limits
from energize.core.arrays import Int64Array
from energize.core.columns import Column
from energize.core.description import digest
from energize.core.failures import Failed
from energize.core.ignored import log_once
from energize.core.lazy import optional_module
from energize.core.os_errors import convert_os_errors, is_url
from energize.core.progress import counting
from energize.core.validation import load_json, parse_json
from energize.data.documents import PACKED, NotRows, document_of
from energize.data.files import files_at, path_of
from energize.data.local import Files, FileStream, Ranges, Recent
from energize.data.source import ShardedSource, Source
from energize.data.tar import check_unpacked
from energize.errors import (
    ColumnError,
    ConfigError,
    DataError,
    DatasetNotFoundError,
    DecodeError,
    EnergizeError,
    ShardError,
    nearest,
)

T_co = TypeVar("T_co", covariant=True)

# A path, a pattern with `*`, `?`, `[]` or `**`, or several of them.
DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

Row = dict[str, Any]

_ROWS_AT_ONCE = 4096

# Rows of Parquet between two looks at how much they are: of a few bytes each may be a
# long word.
_ROWS_DECODED = 256

# Bytes per search for line ends.
_AT_ONCE = 64 * 1024 * 1024

_EXTRA = "energize[hf]"
_PARQUET = "reading Parquet files"
_ARROW = "reading Arrow files"

# How a file of Arrow's file format begins; a stream begins with the length of its
# schema.
_ARROW_FILE = b"ARROW1"

# End of an Arrow stream: a message without bytes.
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"

_CACHED_BYTES = 256 * 1024 * 1024

# What pyarrow reads of the end of a file at once, and files of which it is known where
# chunks lie.
_FOOTER = 64 * 1024
_FILES_KNOWN = 64

# Base classes of all errors of pyarrow for damaged files.
_BAD_BYTES = (OSError, ValueError, LookupError, TypeError, NotImplementedError)


class FieldSource(Source[T_co]):
    """A source of samples with fields; fields of numbers or words are columns."""

    order_name = "FieldSource"

    def _parsed(self, first: int, stop: int) -> Sequence[Any]:
        """Return the rows from `first` to before `stop`; `Failed` for invalid ones."""
        return self.read(np.arange(first, stop, dtype=np.int64))

    def _rows(self) -> Iterator[Row]:
        for first in range(0, self.count, _ROWS_AT_ONCE):
            for row in self._parsed(first, min(first + _ROWS_AT_ONCE, self.count)):
                if isinstance(row, Failed):
                    raise ColumnError(
                        f"{row.where}: {row.reason}. Its keys cannot be columns"
                    )
                yield row

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The keys of the first row."""
        return tuple(next(self._rows(), {}))

    def column_values(self, name: str) -> Iterable[Any]:
        """Return the value of each row at a key; None if it lacks the key."""
        return (row.get(name) for row in self._rows())

    def _column(self, name: str) -> Column:
        try:
            return Column.of(self.column_values(name), name)
        except ColumnError as reason:
            raise ColumnError(f"{self.name}: {reason}") from None

    def indexing_hint(self, name: str) -> str:
        return (
            "Columns of this source are the fields of its samples. Write it into "
            "each sample"
        )


def data_files(files: DataFiles, owner: str) -> tuple[Path, ...]:
    """Return the files of paths and patterns, in order; matches are sorted by name.

    Args:
        files: A path, a pattern, or a list of them.
        owner: Name of the caller in errors.

    Returns:
        The paths.

    Raises:
        DatasetNotFoundError: If a path or pattern matches no file.
        ConfigError: If `files` is empty or invalid.
    """
    is_single = isinstance(files, str | os.PathLike) or not isinstance(files, Sequence)
    listed: list[Any] = [files] if is_single else list(files)  # type: ignore[arg-type]
    if not listed or not all(
        isinstance(pattern, str | os.PathLike) for pattern in listed
    ):
        reason = f"got {files!r}" if listed else "got an empty list"
        raise ConfigError(
            f"{owner}: files must be a path, a pattern or a list of them, {reason}"
        )
    return tuple(
        path for pattern in listed for path in _matching(os.fspath(pattern), owner)
    )


def _matching(pattern: str, owner: str) -> list[Path]:
    path = path_of(pattern)
    if path.is_file():
        return [path]
    if is_url(pattern):
        folder = re.split(r"/[^/]*[*?\[]", pattern, maxsplit=1)[0]
        files = sorted(path_of(folder).glob(pattern[len(folder) + 1 :]))
    else:
        files = sorted(
            filter(Path.is_file, map(Path, glob.glob(str(path), recursive=True)))
        )
    if not files:
        raise DatasetNotFoundError(
            f"{owner}: no file matches {pattern!r} (looked in {Path.cwd()}). To read "
            "the files of a folder, use a pattern such as folder/*"
        )
    return files


def parsed_row(text: bytes, location: str) -> Row | Failed:
    """Parse a JSON object; return a `Failed` with a `DataError` for anything else."""
    try:
        value = load_json(text, unique=True)
    except (DataError, ValueError, RecursionError) as error:
        return Failed(DataError(f"not JSON: {error}: {text[:80]!r}"), location)
    if isinstance(value, dict):
        return value
    return Failed(
        DataError(f"a row must be a JSON object, got {value!r:.80}"), location
    )


def _is_array(line: bytes) -> bool:
    """Return whether a line is an array of objects."""
    try:
        value = load_json(line, unique=True)
    except (DataError, ValueError, RecursionError):
        return False
    return isinstance(value, list) and {*map(type, value)} == {dict}


class RowFiles(FieldSource[Row], ShardedSource[Row]):
    """The rows of several files, one file after another.

    Subclasses implement `counts` and `read_shard`. The identity, which keys the order,
    depends on the name, the file names and the number of rows, not on the folder.
    """

    order_name = "RowFiles"

    files: tuple[Path, ...]
    explicit_name: str

    @convert_os_errors
    def __init__(
        self, files: DataFiles, *, name: str = "", seed: int = 0, occurrence: int = 0
    ) -> None:
        paths = data_files(files, type(self).__name__)
        self.freeze(files=paths, explicit_name=name, seed=seed, occurrence=occurrence)

    @cached_property
    def shards(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(map(str, self.files))

    @property
    def name(self) -> str:
        return self.explicit_name or self.files[0].stem

    @property
    def message_name(self) -> str:
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return f"{self.name} ({self.files[0]}{more})"

    @cached_property
    def identity(self) -> str:
        return digest([self.name, [file.name for file in self.files], self.count])

    @property
    def run_length(self) -> int | None:  # type: ignore[override]
        return None

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"files": len(self.files)}

    def location_in_shard(self, shard: int, number: int) -> str:
        return f"{self.files[shard]}, row {number}"

    @cached_property
    def _files(self) -> Files:
        return files_at(self.files[0])


class JsonSource(RowFiles):
    """The rows of JSON files.

    A file has one object per line, or is an array of objects. A `.json` file may also
    be one object, which is a row or has such an array as `data`, `samples` or `rows`.
    Opening scans the files once for lines, and stores 24 bytes per line; rows are then
    read individually. Blank lines are skipped. Files that are one value are parsed
    completely, and stored as lines.

    A line that is not an object is a `Failed` with a `DataError`.

    Args:
        files: A path, a pattern, or a list of them.
        name: Name in reports, which also keys the order. Defaults to the name of the
            first file.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same files.

    Raises:
        DatasetNotFoundError: If a path or pattern matches no file.
        ShardError: If a file is compressed, is not JSON, or is neither an array nor an
            object.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "letters.jsonl")
        >>> _ = path.write_text('{"text": "a"}' + chr(10) + '{"text": "b"}' + chr(10))
        >>> list(JsonSource(path))
        [{'text': 'a'}, {'text': 'b'}]
    """

    order_name = "JsonSource"

    @cached_property
    def counts(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(map(len, self._lines))

    @cached_property
    @convert_os_errors
    def _lines(self) -> list[Int64Array | list[bytes]]:
        """Per file: start, end and number (from 1) of each line; or its lines."""
        return [self._looked_through(str(path)) for path in self.files]

    def _looked_through(self, path: str) -> Int64Array | list[bytes]:
        files = self._files
        size = self._files.size(path)
        head = files.read(path, 0, min(4096, size))
        check_unpacked(head, path)
        if head.removeprefix(BOM_UTF8).lstrip()[:1] == b"[":
            return self._whole(path)
        ends = [np.array([-1], dtype=np.int64)]
        spaces = list[Int64Array]()
        for start in counting(
            range(0, size, _AT_ONCE), f"{path}: blocks", -(-size // _AT_ONCE)
        ):
            part = np.frombuffer(
                files.read(path, start, min(start + _AT_ONCE, size)), np.uint8
            )
            newlines = np.flatnonzero(part == ord("\n"))
            ends.append(newlines + start)
            # Where a line may begin with white space; a block may begin inside of one.
            firsts = np.append(newlines[newlines < len(part) - 1] + 1, 0)
            spaces.append(firsts[part[firsts] <= ord(" ")] + start)
        cuts = np.concatenate([*ends, np.array([size])])
        bounds = np.stack([cuts[:-1] + 1, cuts[1:], np.arange(1, len(cuts))], axis=1)
        lines: Int64Array = bounds[bounds[:, 1] > bounds[:, 0]]
        if path.endswith(".json") and len(lines):
            first = files.read(path, *lines[0, :2].tolist())
            if isinstance(parsed_row(first, path), Failed):
                return self._whole(path)
        rows = np.flatnonzero(np.isin(lines[:, 0], np.concatenate([ends[0], *spaces])))
        texts = files.read_ranges(path, *lines[rows, :2].T.tolist())
        blank = [
            row
            for row, text in zip(rows.tolist(), texts, strict=True)
            if not text.strip()
        ]
        lines = np.delete(lines, blank, axis=0)  # as in `prepare_jsonl`
        return (
            self._whole(path) if path.endswith(".json") and len(lines) == 1 else lines
        )

    def _whole(self, path: str) -> list[bytes]:
        """Return the rows of a file that is one value."""
        content = self._files.read(path)
        try:
            rows = document_of(parse_json(content, unique=True)).rows
        except NotRows as reason:
            raise ShardError(f"{path} {reason}") from reason
        except (ValueError, RecursionError) as error:
            if _is_array(content.partition(b"\n")[0]):
                raise ShardError(f"{path} {PACKED}") from error
            raise ShardError(
                f"{path} is neither one JSON value nor one object per line: {error}"
            ) from error
        return [json.dumps(row).encode() for row in rows]

    def location_in_shard(self, shard: int, number: int) -> str:
        lines = self._lines[shard]
        if isinstance(lines, list):
            return super().location_in_shard(shard, number)
        return f"{self.files[shard]}, line {lines[number, 2]}"

    def read_shard(self, shard: int, rows: list[int]) -> list[Row | Failed]:
        lines = self._lines[shard]
        locations = [self.location_in_shard(shard, row) for row in rows]
        if isinstance(lines, list):
            texts: Iterable[bytes] = map(lines.__getitem__, rows)
        else:
            starts, stops, _ = lines[rows].T.tolist()
            texts = self._files.read_ranges(self.shards[shard], starts, stops)
        return [
            parsed_row(text.strip(), location)
            for text, location in zip(texts, locations, strict=True)
        ]


class ParquetSource(RowFiles):
    """The rows of Parquet files as dicts of Python values.

    Opening reads the footers only. Page checksums are verified if the file has them.
    Row groups are read and decoded as a whole; the last 256 MiB are cached. So read
    neighbours together: `ShuffleDataset` with a `shuffle_buffer_size` does, but a full
    permutation of a large file reads a row group per row.

    Args:
        files: A path, a pattern, or a list of them.
        columns: Columns to read; None for all.
        name: Name in reports, which also keys the order. Defaults to the name of the
            first file.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same files.

    Raises:
        DatasetNotFoundError: If a path or pattern matches no file.
        ShardError: If a file is not Parquet.
        ConfigError: If a file lacks one of `columns`, or pyarrow is not installed.

    Example:
        >>> import tempfile, pyarrow, pyarrow.parquet
        >>> path = tempfile.mkdtemp() + "/letters.parquet"
        >>> pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"]}), path)
        >>> list(ParquetSource(path))
        [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}]
    """

    order_name = "ParquetSource"

    columns: tuple[str, ...] | None

    @convert_os_errors
    def __init__(
        self,
        files: DataFiles,
        *,
        columns: Sequence[str] | None = None,
        name: str = "",
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        self.freeze(
            files=data_files(files, "ParquetSource"),
            columns=None if columns is None else tuple(columns),
            explicit_name=name,
            seed=seed,
            occurrence=occurrence,
        )
        _ = self._groups  # checks footers and columns before the first row

    @property
    def run_length(self) -> int:
        return max(1, self.count // max(1, sum(map(len, self._groups))))

    @cached_property
    def counts(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(map(sum, self._groups))

    @cached_property
    def _groups(self) -> list[list[int]]:
        """Per file: rows of each row group."""
        return [rows for _, rows in self._footers]

    @cached_property
    def _footers(self) -> list[tuple[Any, list[int]]]:
        """Per file: schema, and rows of each row group."""
        footers = list[tuple[Any, list[int]]]()
        for shard in self.shards[1:]:
            self._files.plan(shard, [-_FOOTER], [0])
        for path in self.files:
            with self._opened(path) as file:
                schema = file.schema_arrow
                metadata = file.metadata
            if self.columns is None:
                _check_names(path, schema.names)
            for column in self.columns or ():
                if column not in schema.names:
                    near = nearest(column, schema.names) or "."
                    raise ConfigError(
                        f"ParquetSource: {path} has no column {column!r}{near} Its "
                        f"columns: {', '.join(schema.names)}"
                    )
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            if footers and schema.equals(footers[-1][0], check_metadata=True):
                schema = footers[-1][0]  # equal schemas share one object
            footers.append((schema, [int(group.num_rows) for group in groups]))
        return footers

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The columns that all files have, read or not."""
        first, *further = (schema.names for schema in self.schemas)
        return tuple(name for name in first if all(name in names for names in further))

    @property
    def schemas(self) -> list[Any]:
        """Arrow schema of each file."""
        return [schema for schema, _ in self._footers]

    def column_values(self, name: str) -> list[Any]:
        """Read the column alone."""
        values: list[Any] = []
        for path in self.files:
            with self._opened(path) as file, _reading(path, f"column {name}: "):
                values += (
                    file.read(columns=[name])
                    .column(name)
                    .to_pylist(maps_as_pydicts="strict")
                )
        return values

    def expect(self, indices: Int64Array) -> int:
        """Skip row groups that earlier samples have already requested."""
        if not len(indices):
            return super().expect(indices)
        groups = set(
            np.searchsorted(self._starts, self._stored(indices), side="right").tolist()
        )
        new = sorted(groups - self._lately)
        self._lately.clear()
        self._lately.update(groups)
        return super().expect(
            self._starts[np.array(new, dtype=np.int64) - 1] - self._bounds[0]
        )

    @cached_property
    def _starts(self) -> Int64Array:
        """First sample of each row group, numbered over all shards."""
        rows = np.array(
            [0, *(rows for file in self._groups for rows in file)], dtype=np.int64
        )
        return np.cumsum(rows)[:-1]

    @cached_property
    def _lately(self) -> set[int]:
        return set()

    def sample_ranges(self, shard: int, numbers: Sequence[int]) -> list[Ranges]:
        chunks = self._chunks.get(shard, partial(self._chunks_of, shard))
        ends = np.cumsum(self._groups[shard])
        path = self.shards[shard]
        groups = np.unique(np.searchsorted(ends, numbers, side="right")).tolist()
        return [(path, *chunks[group]) for group in groups if chunks[group][0]]

    def _chunks_of(self, shard: int) -> list[tuple[list[int], list[int]]]:
        """Return the byte ranges of the read columns per row group, merged."""
        with self._opened(self.files[shard]) as file:
            metadata = file.metadata
            chunks = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            spans = list[tuple[int, int]]()
            for chunk in map(group.column, range(group.num_columns)):
                read = self.columns
                name = f"{chunk.path_in_schema}."
                if read is None or name.startswith(
                    tuple(f"{column}." for column in read)
                ):
                    first = chunk.dictionary_page_offset or chunk.data_page_offset
                    spans.append((first, first + chunk.total_compressed_size))
            starts, stops = ({span[end] for span in spans} for end in (0, 1))
            chunks.append((sorted(starts - stops), sorted(stops - starts)))
        return chunks

    @cached_property
    def _chunks(self) -> Recent[int, list[tuple[list[int], list[int]]]]:
        return Recent(_FILES_KNOWN, lambda _: 1)

    def read_shard(self, shard: int, rows: list[int]) -> list[Row | Failed]:
        path = self.files[shard]
        samples = list[Row | Failed]()
        ends = np.cumsum(self._groups[shard])
        groups = np.searchsorted(ends, rows, side="right")
        for group in np.unique(groups).tolist():
            wanted = np.array(rows)[groups == group] - (ends[group - 1] if group else 0)
            with _reading(path, f"row group {group}: "):
                key = shard, group
                table = self._tables.get(key, partial(self._row_group, path, group))
                samples += _rows_of(table, wanted.tolist())
        return samples

    def _row_group(self, path: Path, group: int) -> Any:
        columns = None if self.columns is None else list(self.columns)
        with self._opened(path) as opened, limits.decoding:
            stored = opened.metadata.row_group(group)
            counted = limits.decoding.spend(
                max(stored.total_byte_size, 8 * stored.num_rows)
            )
            batches = []
            size = 0
            for batch in opened.iter_batches(_ROWS_DECODED, [group], columns):
                batches.append(batch)
                size += batch.nbytes
                counted = limits.decoding.spend(size, counted)
        arrow = optional_module("pyarrow", _EXTRA, _PARQUET)
        return arrow.Table.from_batches(
            batches
        ).combine_chunks()  # `take` is faster on one chunk

    def _opened(self, path: Path) -> Any:
        parquet = optional_module("pyarrow.parquet", _EXTRA, _PARQUET)
        stream = FileStream(self._files, str(path))
        with _reading(path):
            return parquet.ParquetFile(stream, page_checksum_verification=True)

    @cached_property
    def _tables(self) -> Recent[tuple[int, int], Any]:
        return Recent(_CACHED_BYTES, lambda table: int(table.nbytes))


class ArrowSource(RowFiles):
    """The rows of Arrow stream files.

    `save_to_disk` of Hugging Face datasets writes such files. They are memory-mapped,
    so opening reads no row.

    Args:
        files: A path, a pattern, or a list of them.
        name: Name in reports, which also keys the order. Defaults to the name of the
            first file.
        seed: Seed of the order.
        occurrence: Distinguishes several uses of the same files.

    Raises:
        DatasetNotFoundError: If a path or pattern matches no file.
        ShardError: If a file is not an Arrow stream.
        ConfigError: If pyarrow is not installed.
    """

    order_name = "ArrowSource"

    @cached_property
    def counts(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(table.num_rows for table in self._tables)

    @property
    def schemas(self) -> list[Any]:
        """Arrow schema of each file."""
        return [table.schema for table in self._tables]

    def column_values(self, name: str) -> list[Any]:
        return [
            value
            for table in self._tables
            for value in table.column(name).to_pylist(maps_as_pydicts="strict")
        ]

    def read_shard(self, shard: int, rows: list[int]) -> list[Row | Failed]:
        table = self._tables[shard]
        with _reading(self.files[shard]):
            return [*_sliced(table, rows)]  # `take` would read the rows between, too

    @cached_property
    def _tables(self) -> list[Any]:
        arrow = optional_module("pyarrow", _EXTRA, _ARROW)
        tables = []
        for path in self.files:
            with _reading(path):
                mapped = arrow.memory_map(self._files.local(str(path)))
                is_file = (
                    self._files.read(str(path), 0, len(_ARROW_FILE)) == _ARROW_FILE
                )
                opened = arrow.ipc.open_file if is_file else arrow.ipc.open_stream
                tables.append(opened(mapped).read_all())
            _check_names(path, tables[-1].schema.names)
            if not is_file:
                self._check_end(str(path))
        return tables

    def _check_end(self, path: str) -> None:
        """Warn if a stream has no end mark: its writer may have been interrupted."""
        size = self._files.size(path)
        start = self._files.read(path, 0, 4)
        end = self._files.read(path, size - len(_STREAM_END), size)
        if (
            start == _STREAM_END[:4] and end != _STREAM_END
        ):  # Arrow before 0.15 had other marks
            text = (
                "the stream ends without an end mark, so rows may be missing. Write "
                "the file again"
            )
            log_once(path, "end", text, logging.WARNING)


def _rows_of(table: Any, numbers: Sequence[int]) -> list[Row]:
    """Return rows of an Arrow table as dicts; maps become dicts, too."""
    try:
        rows = table.take(numbers)
    except NotImplementedError:  # `take` does not support string views
        return _sliced(table, numbers)
    return rows.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def _sliced(table: Any, numbers: Sequence[int]) -> list[Row]:
    rows = (table.slice(number, 1) for number in numbers)
    return [row.to_pylist(maps_as_pydicts="strict")[0] for row in rows]


def _check_names(path: Path, names: Sequence[str]) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ShardError(
            f"{path} has several columns called {repeated!r}. Write it again with "
            "unique column names"
        )


@contextmanager
def _reading(path: Path, context: str = "") -> Iterator[None]:
    try:
        yield
    except DecodeError as error:
        raise ShardError(f"{path}: {context}{error}") from error
    except _BAD_BYTES as error:
        if isinstance(error, EnergizeError) or (
            isinstance(error, OSError) and error.errno
        ):
            raise  # an error of the disk
        form = "Arrow" if path.suffix in (".arrow", ".feather") else "Parquet"
        raise ShardError(
            f"{path} cannot be read as {form}: {context}{error}. Write the file again"
        ) from error

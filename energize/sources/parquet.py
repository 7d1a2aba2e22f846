"""The rows of Parquet files, read at random."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from energize.arrays import Int64Array
from energize.errors import ConfigError, EnergizeError, ShardError, nearest
from energize.optional import optional_module
from energize.reading import Failed
from energize.sources.row_files import DataFiles, RowFiles, data_files
from energize.storage.faults import own_errors
from energize.storage.files import FileStream, OpenFiles

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

"""Columns of loose data: values per sample, stored beside the data.

    photos/.columns/columns.json         columns of the folder `photos`, by split part
    .talks.jsonl.columns/columns.json    columns of the file `talks.jsonl`
    .../NAME.DIGEST.npy                  values of a column

A split part is recognised by a digest of its rows. If rows change, their columns are
refused; changed images are not noticed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from energize.core.columns import Column
from energize.core.description import digest
from energize.core.os_errors import convert_os_errors
from energize.core.validation import Model
from energize.data.columns import (
    COLUMNS_NAME,
    ColumnName,
    StoredColumn,
    column_command,
    read_stored,
)
from energize.data.files import files_at, path_of, read_document
from energize.data.tables import MemoryRows
from energize.errors import DatasetError

_AT_ENDS = 65_536
"""Bytes at each end of a file that recognise it."""
_LOCATION = re.compile(rb'"__at__":"(?:[^"\\]|\\.)*"')


class PartColumns(Model):
    """The columns of a split part.

    Attributes:
        split: Name of the split part, for people.
        samples: Number of samples.
        columns: Columns by name.
    """

    split: str
    samples: Annotated[int, Field(ge=0)]
    columns: dict[ColumnName, StoredColumn]


class LooseColumnIndex(Model):
    """The columns of a loose folder or file.

    Attributes:
        version: Version of the format.
        parts: The split parts by the version of their rows.
    """

    version: Literal[1] = 1
    parts: dict[str, PartColumns]

    @property
    def measured(self) -> dict[str, str]:
        """Definition of each column."""
        return {
            name: column.measured
            for part in self.parts.values()
            for name, column in part.columns.items()
        }


_INDEX = TypeAdapter(LooseColumnIndex)


def loose_columns_folder(path: Path) -> Path:
    """Return the folder with the columns of a loose folder or file."""
    if path.is_dir():
        return path / ".columns"
    return path_of(f"{os.path.dirname(path)}/.{path.name}.columns")


@convert_os_errors
def read_loose_columns(path: Path) -> LooseColumnIndex | None:
    """Return the columns of a loose folder or file, None without any.

    Raises:
        DatasetError: If the file is damaged.
    """
    return read_document(loose_columns_folder(path) / COLUMNS_NAME, _INDEX)


@convert_os_errors
def rows_version(source: Any) -> str:
    """Return a digest of the rows of a loose source, independent of their location.

    Of files, the sizes and both ends are compared.

    Args:
        source: A `LooseSource` or `JsonlSource`.
    """
    rows = getattr(source, "rows", source)
    counts = list(getattr(rows, "counts", ()))
    selections = list[str]()
    while hasattr(rows, "rows"):
        selections.append(rows.identity)
        rows = rows.rows
    return digest([counts, selections, *_contents(rows)])


def _contents(rows: Any) -> Iterator[Any]:
    """Yield what recognises the files of rows, or rows in memory."""
    if isinstance(rows, MemoryRows):
        yield zlib.crc32(_LOCATION.sub(b"", rows.text)), len(rows.ends)
        return
    for shard in rows.shards:
        # A file of JSON lines is its own location.
        is_alone = os.path.basename(rows.location) == shard
        file = rows.location if is_alone else os.path.join(rows.location, shard)
        files = files_at(path_of(file))
        size = files.size(file)
        start = files.read(file, 0, min(size, _AT_ENDS))
        end = files.read(file, max(0, size - _AT_ENDS), size)
        yield size, zlib.crc32(start), zlib.crc32(end)


def loose_column(path: Path, source: Any, name: str) -> Column | None:
    """Return a column of all samples of a loose source; None if it was not measured.

    Args:
        path: The loose folder or file.
        source: The source, without a window.
        name: Name of the column.

    Raises:
        DatasetError: If the rows have changed since, or the values are damaged.
    """
    index = read_loose_columns(path)
    if index is None or name not in index.measured:
        return None
    command = column_command(path, index.measured)
    part = index.parts.get(rows_version(source))
    if part is None:
        raise DatasetError(
            f"{path}: its column {name!r} was measured of other rows than it has now. "
            f"Measure it again with: {command}"
        )
    if name not in part.columns:
        raise DatasetError(
            f"{path}: the column {name!r} was not measured of the split {part.split}. "
            f"Measure it with: {command}"
        )
    file = loose_columns_folder(path)
    return read_stored(file, path, name, part.columns[name], part.samples)


def loose_column_names(path: Path) -> tuple[str, ...]:
    """Return the names of the measured columns of a loose folder or file."""
    index = read_loose_columns(path)
    return () if index is None else tuple(index.measured)


def dump_loose_columns(parts: Mapping[str, PartColumns]) -> str:
    """Return the text of `columns.json`."""
    index = LooseColumnIndex(parts=dict(parts))
    return index.model_dump_json(indent=2, exclude_none=True)

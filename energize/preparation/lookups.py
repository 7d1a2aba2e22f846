"""Columns of tables, joined to the samples of a dataset by their keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from energize.core.description import digest
from energize.data.files import path_of
from energize.data.tables import AT, DELIMITED, open_table, read_delimited
from energize.errors import (
    ConfigError,
    DataError,
    DatasetNotFoundError,
    PrepareError,
    nearest,
    some,
)
from energize.preparation.scan import StoredSample

_TEXT = re.compile(r"(.+\.(?:parquet|pq|csv|tsv|jsonl)):([^:]+)(?::([^:]+))?")
_KEYS = ("__key__", "key")
"""Names of the column of keys, if none is given."""


@dataclass(frozen=True)
class Lookup:
    """A column of a table; calling it returns the row of a sample.

    Args:
        file: The table.
        column: The column of values.
        key: The column of keys; None for `__key__` or `key`.
    """

    file: Path
    column: str
    key: str | None = None

    @classmethod
    def of(cls, text: str) -> Lookup | None:
        """Return the lookup FILE:COLUMN or FILE:COLUMN:KEY; None for other texts.

        >>> Lookup.of("lengths.parquet:tokens:id").key, Lookup.of("tools.py:count")
        ('id', None)
        """
        match = _TEXT.fullmatch(text)
        return None if match is None else cls(path_of(match[1]), match[2], match[3])

    def __call__(self, sample: StoredSample) -> int:
        """Return the row of a sample; raise `DataError` if no row has its key."""
        row = self._rows.get(sample.key)
        if row is None:
            raise DataError(f"its key is missing in {self.file}")
        return row

    def value(self, row: int) -> Any:
        """Return the value of a row.

        Raises:
            DataError: If several rows have its key, or the value is null.
        """
        if row in self._repeated:
            raise DataError(f"its key is in several rows of {self.file}")
        value = self._columns[1][row]
        if value is None:
            raise DataError(f"its value is null in {self.file}")
        return value

    def key_of(self, row: int) -> str:
        """Return the key of a row."""
        return self._columns[0][row]

    @property
    def version(self) -> str:
        """A text that changes with the table."""
        return digest([str(self.file), *map(str, self._columns)])

    @cached_property
    def _rows(self) -> dict[str, int]:
        """The first row of each key."""
        rows: dict[str, int] = {}
        for row, key in enumerate(self._columns[0]):
            rows.setdefault(key, row)
        return rows

    @cached_property
    def _repeated(self) -> set[int]:
        """The first rows of keys that several rows have."""
        rows = ((row, self._rows[key]) for row, key in enumerate(self._columns[0]))
        return {first for row, first in rows if row != first}

    @cached_property
    def _columns(self) -> tuple[list[str], list[Any]]:
        """The keys and values of all rows."""
        if not self.file.is_file():
            raise DatasetNotFoundError(f"{self.file} does not exist or is not a file")
        table = _Table(self.file)
        key = self.key or next((name for name in _KEYS if name in table.names), None)
        if key is None:
            raise ConfigError(
                f"{self.file} has no column {' or '.join(_KEYS)} with the keys of "
                f"samples. Name the column: {self.file}:{self.column}:KEY. Its columns "
                f"are {some(table.names)}"
            )
        keys = [
            self._checked_key(row, value) for row, value in enumerate(table.values(key))
        ]
        return keys, [*table.values(self.column)]

    def _checked_key(self, row: int, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise PrepareError(
                f"{self.file}, row {row}: keys must be words or whole numbers, got "
                f"{str(value)[:80]!r}. Write the keys as text"
            )
        return str(value)

    def unused(self, rows: Iterable[int]) -> list[str]:
        """Return the keys of the table that have no sample.

        Args:
            rows: Rows of the samples.
        """
        used = {*rows}
        return [key for key, row in self._rows.items() if row not in used]


class _Table:
    """The columns of a table, read one by one."""

    def __init__(self, file: Path) -> None:
        self.file = file
        if file.suffix.lower() in DELIMITED:
            # `open_table` would add keys.
            rows = read_delimited([file])
            names = dict.fromkeys(name for row in rows for name in row if name != AT)
            self._columns = {name: [row.get(name) for row in rows] for name in names}
            self.names = tuple(names)
        else:
            self._rows: Any = open_table([file])
            self._columns = {}
            self.names = tuple(self._rows.column_names)

    def values(self, name: str) -> list[Any]:
        """Return the values of a column; raise `ConfigError` for a missing one."""
        if name not in self.names:
            raise ConfigError(
                f"{self.file} has no column {name!r}"
                f"{nearest(name, self.names) or '.'} Its columns are {some(self.names)}"
            )
        if name not in self._columns:
            self._columns[name] = [*self._rows.column_values(name)]
        return self._columns[name]

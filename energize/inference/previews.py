"""A table and its first rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from energize.data.rows import Row
from energize.data.source import ShardedSource
from energize.inference.columns import (
    ColumnProfile,
)


@dataclass(frozen=True)
class TablePreview:
    """A table with its first rows, rows spread over it, and their columns."""

    files: tuple[str, ...]
    rows: ShardedSource[Row]
    first: list[Row]
    columns: Mapping[str, ColumnProfile]

    @property
    def media(self) -> list[ColumnProfile]:
        """The columns that hold or name media."""
        return [column for column in self.columns.values() if column.is_media]

    @property
    def names(self) -> frozenset[str]:
        """The names of its columns."""
        return frozenset(
            name for name, column in self.columns.items() if not column.is_nested
        )

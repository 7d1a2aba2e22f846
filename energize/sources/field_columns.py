"""Sources whose samples have fields: each field that holds numbers or words is a column."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypeVar

from energize.columns import Column
from energize.errors import ColumnError
from energize.sources.base import Source

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

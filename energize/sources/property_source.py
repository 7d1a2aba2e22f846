"""The samples of a source that have one property, as a source of their own."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from energize.arrays import Int64Array
from energize.columns import Column
from energize.describing import digest
from energize.errors import EmptyDatasetError
from energize.reading import Failed, SamplePlace
from energize.sources.base import Source
from energize.sources.selections import Selection, counts_text, similar

T_co = TypeVar("T_co", covariant=True)


class PropertySource(Source[T_co]):
    """The samples of a source for which a column has one value, in the order of the source.

    `selection` says which value, or that all samples are meant that none of several values names.
    Their numbers are looked up once: 8 bytes for each. What stands for a damaged sample is another
    one of the same value. The name is that of the source and the value, "captions/high".

    Which samples they are is part of the identity: a column that was measured anew and names others
    makes another source. Seed and occurrence are those of the source.

    Raises `ColumnError` for a column that is not known, `EmptyDatasetError` for a value that no
    sample has.

    >>> from energize import ListSource
    >>> texts = ListSource("abcd", name="texts", columns={"quality": ["low", "high", "low", "low"]})
    >>> low = PropertySource(texts, Selection("quality", "low"))
    >>> low.name, list(low)
    ('texts/low', ['a', 'c', 'd'])
    """

    source: Source[T_co]
    selection: Selection
    rows_digest: str

    def __init__(self, source: Source[T_co], selection: Selection) -> None:
        column = source.column(selection.by)
        rows = selection.rows(column)
        if not len(rows):
            raise EmptyDatasetError(
                f"{source.name}: no sample has {selection.by} {selection.name!r}"
                f"{similar([column], selection.name)}; there are {counts_text([column])}"
            )
        self._freeze(
            source=source,
            selection=selection,
            rows_digest=hashlib.blake2b(rows.astype("<i8").tobytes(), digest_size=8).hexdigest(),
            worker_config=source.worker_config,
            seed=source.seed,
            occurrence=source.occurrence,
        )
        self.__dict__["rows"] = rows

    @cached_property
    def rows(self) -> Int64Array:
        """The numbers of its samples in `source`, ascending."""
        return self.selection.rows(self.source.column(self.selection.by))

    def __getstate__(self) -> dict[str, Any]:
        """With the numbers, which no other process has to look up again."""
        return super().__getstate__() | {"rows": self.rows}

    @property
    def count(self) -> int:
        return len(self.rows)

    @cached_property
    def identity(self) -> str:
        chosen_by = [self.selection.by, self.selection.name, self.rows_digest]
        return digest([self.source.identity, *chosen_by])

    @property
    def record(self) -> str | None:
        return self.source.record

    @property
    def name(self) -> str:
        return f"{self.source.name}/{self.selection.name}"

    @property
    def column_names(self) -> tuple[str, ...]:
        return self.source.column_names

    def column(self, name: str) -> Column:
        return self.source.column(name).part(self.rows)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "by": self.selection.by,
            "samples": self.rows_digest,
            "identity": self.identity,
        }

    @property
    def run_length(self) -> int | None:
        length = self.source.run_length
        return None if length is None else max(1, length * self.count // self.source.count)

    def where(self, position: int, attempt: int = 0) -> str:
        index = self._samples(np.array([position], dtype=np.int64), attempt)
        return self.source.where(int(self.rows[index[0]]))

    @property
    def location(self) -> str:
        return self.source.location

    def place(self, index: int) -> SamplePlace:
        return replace(self.source.place(int(self.rows[index])), source=self.identity)

    def find(self, shard: str | None, index: int) -> int | None:
        stored = self.source.find(shard, index)
        if stored is None:
            return None
        at = int(np.searchsorted(self.rows, stored))
        return at if at < self.count and self.rows[at] == stored else None

    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        return self.source.read(self.rows[indices])

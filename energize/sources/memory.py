"""Samples that are in memory, or in an object with `__len__` and `__getitem__`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

from energize.arrays import Int64Array
from energize.columns import Column
from energize.errors import ColumnError, ConfigError, DataError, SkipSample
from energize.reading import Failed
from energize.samples.structure import fields_of, is_record
from energize.sources.base import Source

T_co = TypeVar("T_co", covariant=True)


class SupportsGetItem(Protocol[T_co]):
    """What has a length and gives a sample for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class SequenceSource(Source[T_co]):
    """The samples of any object with `__len__` and `__getitem__`, a torch map-style dataset say.

    `columns` are what is known of each sample without reading it, by name: one value each, numbers
    or words. Of samples in a list or a tuple that have fields (dataclasses, named tuples or dicts),
    each field that holds such values is a column, too.

    `name` tells sources of one kind apart in reports and in their orders: two sources of different
    names are visited in different orders. The object is read in the processes that deliver, so it
    is shared with or pickled to workers; `__getitem__` may raise `SkipSample` or `DataError`.

    Raises `ConfigError` when the object has no `__len__` or no `__getitem__`.

    >>> SequenceSource(["a", "b", "c"], name="letters")[1]
    'b'
    """

    samples: SupportsGetItem[T_co]
    columns: Mapping[str, Column]

    def __init__(
        self,
        samples: SupportsGetItem[T_co],
        *,
        name: str = "",
        columns: Mapping[str, Iterable[Any]] | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        for method in ("__len__", "__getitem__"):
            if not hasattr(samples, method):
                raise ConfigError(
                    f"SequenceSource needs an object with __len__ and __getitem__; "
                    f"{type(samples).__name__} has no {method}"
                )
        called = name or type(samples).__name__
        self._freeze(
            samples=samples,
            given_name=called,
            columns=_checked_columns(columns or {}, len(samples), called),
            seed=seed,
            occurrence=occurrence,
        )

    given_name: str

    @property
    def name(self) -> str:
        return self.given_name

    @property
    def count(self) -> int:
        return len(self.samples)

    @property
    def identity(self) -> str:
        return f"{self.given_name}:{self.count}"

    @property
    def column_names(self) -> tuple[str, ...]:
        first = self.samples[0] if self._listed and self.count else None
        fields = fields_of(first) if is_record(first) else {}
        return tuple(dict.fromkeys([*self.columns, *fields]))

    def column(self, name: str) -> Column:
        if name in self.columns:
            return self.columns[name]
        if name not in self._of_fields:
            if name not in self.column_names:
                return super().column(name)
            values = [fields_of(sample).get(name) for sample in cast("Iterable[Any]", self.samples)]
            self._of_fields[name] = Column.of(values, name)
        return self._of_fields[name]

    @cached_property
    def _of_fields(self) -> dict[str, Column]:
        return {}

    @property
    def _listed(self) -> bool:
        """Whether the samples are in memory, so that looking at all of them costs little."""
        return isinstance(self.samples, list | tuple)

    def read(self, indices: Int64Array) -> list[T_co | Failed]:
        return [self._read(index) for index in indices.tolist()]

    def _read(self, index: int) -> T_co | Failed:
        try:
            return self.samples[index]
        except (SkipSample, DataError) as reason:
            return Failed(reason, f"{self.name}, sample {index}")

    def _compared(self) -> tuple[Any, ...]:
        """Samples are compared as objects: comparing contents may cost all they cost to read."""
        return id(self.samples), self.given_name, self.seed, self.occurrence


class ListSource(SequenceSource[T_co]):
    """Samples given outright, copied into a tuple.

    >>> list(ListSource([1, 2, 3]))
    [1, 2, 3]
    """

    def __init__(
        self,
        samples: Iterable[T_co],
        *,
        name: str = "list",
        columns: Mapping[str, Iterable[Any]] | None = None,
        seed: int = 0,
        occurrence: int = 0,
    ) -> None:
        super().__init__(
            tuple(samples), name=name, columns=columns, seed=seed, occurrence=occurrence
        )


def _checked_columns(
    given: Mapping[str, Iterable[Any]], count: int, owner: str
) -> Mapping[str, Column]:
    columns = {
        name: each if isinstance(each, Column) else Column.of(each, name)
        for name, each in given.items()
    }
    for name, column in columns.items():
        if len(column) != count:
            raise ColumnError(
                f"{owner}: column {name!r} has {len(column)} values for {count} samples"
            )
    return columns

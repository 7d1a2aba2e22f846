"""Selecting samples by the value of a column, and naming sources and inputs.

`selections` checks the values of a mix by property; `PropertySource` is a source with
the samples of one value. `source_labels` makes names that are unique in a mix.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from energize.core.arrays import BoolArray, Int64Array
from energize.core.columns import Column
from energize.core.dataset import Dataset
from energize.core.description import digest
from energize.core.failures import Failed, SamplePlace
from energize.core.node import SourceNode
from energize.core.rng import derive, shuffled
from energize.data.source import Source, Subset
from energize.errors import (
    ColumnError,
    ConfigError,
    EmptyDatasetError,
    WeightError,
    nearest,
)

PropertyValue: TypeAlias = str | int | float
"""A word, a number, or a range of numbers as text.

"0..0.5" includes 0 and excludes 0.5; either end is optional.
"""

NO_VALUE = "(no value)"
OTHERS = "other"
"""Name of the group of samples that match none of the listed values."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})?\s*\.\.\s*({_NUMBER})?\s*")
_SHOWN = 10
_SOURCES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Selection:
    """The samples with a value in the column `by`.

    Attributes:
        by: The column.
        value: The value.
        other_than: If set, selects the samples that match none of these values instead.
    """

    by: str
    value: PropertyValue | None = None
    other_than: tuple[PropertyValue, ...] | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.other_than is None):
            raise ConfigError(
                "a selection must have either a value or the values that it excludes"
            )
        for value in (self.value,) if self.other_than is None else self.other_than:
            if not isinstance(value, str | int | float):
                raise ConfigError(
                    f"{self.by}: a value must be a word, a number or a range of "
                    f"numbers, got {value!r}"
                )

    @property
    def name(self) -> str:
        """Name of the group of samples, after its value."""
        return OTHERS if self.value is None else _text(self.value)

    def rows(self, column: Column) -> Int64Array:
        """Return the numbers of the samples, ascending."""
        if self.value is not None:
            return np.flatnonzero(chosen(column, self.value))
        named = [chosen(column, value) for value in self.other_than or ()]
        return np.flatnonzero(~np.any(named, axis=0))


def selections(
    sources: Sequence[SourceNode[Any]],
    by: str,
    values: Sequence[PropertyValue],
    *,
    other: bool,
) -> list[Selection]:
    """Return a selection per value, and one for the remaining samples.

    Args:
        sources: The sources.
        by: The column.
        values: The values with weights.
        other: Whether remaining samples are allowed; their selection comes last.

    Returns:
        The selections; without one for remaining samples if there are none.

    Raises:
        ColumnError: If a source lacks the column, the column has words in one source
            and numbers in another, a value matches no sample, values overlap, or
            samples remain and `other` is False.
        WeightError: If `values` is empty.
    """
    columns = [source.column(by) for source in sources]
    _check_types(sources, columns, by)
    if not values:
        raise WeightError(
            f"{by}: weights are missing. Its values: {counts_text(columns)}"
        )
    named = [Selection(by, value) for value in values]
    if other and OTHERS in (selection.name for selection in named):
        raise ColumnError(
            f"{by}: {OTHERS!r} is a value and also the name of the remaining samples. "
            "List every value, and remove the weight of the remaining samples"
        )
    owners = [_owners(column, named) for column in columns]
    most = len(named) + 1
    missing, *counts = np.sum(
        [np.bincount(numbers + 1, minlength=most) for numbers in owners], axis=0
    )
    if not all(counts):
        unused = named[counts.index(0)].name
        raise ColumnError(
            f"{by}: no sample of {_names(sources)} has the value "
            f"{unused!r}"
            f"{similar(columns, unused) or '.'} Its values: {counts_text(columns)}"
        )
    if missing and not other:
        pairs = zip(columns, owners, strict=True)
        left = [column.part(np.flatnonzero(owner < 0)) for column, owner in pairs]
        raise ColumnError(
            f"{by}: {missing} samples of {_names(sources)} have values without a "
            f"weight: {counts_text(left)}. Set a weight for each of them, or `other` "
            "for all of them together (0 skips them)"
        )
    return [*named, Selection(by, other_than=tuple(values))] if missing else named


def _check_types(
    sources: Sequence[SourceNode[Any]], columns: Sequence[Column], by: str
) -> None:
    """Raise `ColumnError` if a column has words in one source, numbers in another."""
    names = {
        column.is_text: source.name
        for source, column in zip(sources, columns, strict=True)
    }
    if len(names) > 1:
        raise ColumnError(
            f"{by}: it is a word in {names[True]}, but a number in {names[False]}. "
            "Measure it alike in both"
        )


def _owners(column: Column, named: Sequence[Selection]) -> Int64Array:
    """Return the number of the selection of each sample, -1 for none."""
    names = [selection.name for selection in named]
    for name in names:
        if names.count(name) > 1:
            raise ColumnError(f"{named[0].by}: the value {name!r} is listed twice")
    owners = np.full(len(column), -1, dtype=np.int64)
    for number, selection in enumerate(named):
        rows = selection.rows(column)
        if (owners[rows] >= 0).any():
            other = names[int(owners[rows].max())]
            raise ColumnError(
                f"{selection.by}: {other!r} and {selection.name!r} have samples in "
                "common. Each sample must belong to one value"
            )
        owners[rows] = number
    return owners


def _names(sources: Sequence[SourceNode[Any]]) -> str:
    names = list(dict.fromkeys(source.name for source in sources))
    return ", ".join(names[:_SOURCES_SHOWN]) + (
        ", ..." if names[_SOURCES_SHOWN:] else ""
    )


def _text(value: PropertyValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def chosen(column: Column, value: PropertyValue) -> BoolArray:
    """Return a mask of the samples of a column that `value` matches.

    Args:
        column: The column.
        value: The value or range.

    Returns:
        bool (n,).

    Raises:
        ColumnError: If the column has numbers and `value` is a text that is neither a
            number nor a range, or the column has words and `value` is a number.

    Example:
        >>> chosen(Column.of([0.2, 0.5, 0.9], "score"), "0.5..").tolist()
        [False, True, True]
    """
    if column.categories is not None:
        word = _text(value)
        if word not in column.categories:
            return np.zeros(len(column), dtype=np.bool_)
        is_chosen: BoolArray = column.values == column.categories.index(word)
        return is_chosen
    if isinstance(value, str):
        least, most = _bounds(value)
        within: BoolArray = (column.values >= least) & (column.values < most)
        return within if least != most else column.values == least
    equal: BoolArray = column.values == value
    return equal


def counts_text(columns: Sequence[Column]) -> str:
    """Return the values of columns with counts, most frequent first, for messages."""
    counts: Counter[str] = Counter()
    for column in columns:
        values, times = np.unique(column.values, return_counts=True)
        for value, count in zip(values.tolist(), times.tolist(), strict=True):
            counts[_shown(column, value)] += count
    listed = [f"{value}: {count}" for value, count in counts.most_common(_SHOWN)]
    more = len(counts) - _SHOWN
    return ", ".join(listed) + (f" and {more} more" if more > 0 else "")


def similar(columns: Sequence[Column], value: PropertyValue) -> str:
    """Return a hint with the value that was probably intended, for messages."""
    words = {word for column in columns for word in column.categories or ()}
    return nearest(str(value), sorted(words))


def _shown(column: Column, value: Any) -> str:
    if column.categories is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    return column.categories[value] if value >= 0 else NO_VALUE


def _bounds(text: str) -> tuple[float, float]:
    """Return the lower bound, inclusive, and the upper bound, exclusive."""
    match = _RANGE.fullmatch(text)
    if match and match[0].strip() != "..":
        least, most = (float(bound) if bound else None for bound in match.groups())
        bounds = (
            -math.inf if least is None else least,
            math.inf if most is None else most,
        )
        if bounds[0] < bounds[1]:
            return bounds
    elif re.fullmatch(_NUMBER, text.strip()):
        return float(text), float(text)
    raise ColumnError(
        f"the column has numbers, but {text!r} is not a number or range. Use a range "
        "such as '0..0.5' (from 0 to below 0.5) or '0.5..'"
    )


# Sources of samples with one value.

T_co = TypeVar("T_co", covariant=True)


class RowsSource(Source[T_co]):
    """Some samples of a source, in source order.

    Their numbers are looked up once and take 8 bytes each. Seed and occurrence are
    those of the source.
    """

    order_name = "RowsSource"

    source: Source[T_co]
    rows_digest: str

    def _freeze_rows(
        self, source: Source[T_co], rows: Int64Array, **parameters: Any
    ) -> None:
        """Set the parameters of a subclass."""
        self.freeze(
            source=source,
            **parameters,
            rows_digest=hashlib.blake2b(
                rows.astype("<i8").tobytes(), digest_size=8
            ).hexdigest(),
            worker_config=source.worker_config,
            seed=source.seed,
            occurrence=source.occurrence,
        )
        self.__dict__["rows"] = rows

    @cached_property
    def rows(self) -> Int64Array:
        """Numbers of the selected samples in `source`, ascending."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Include the numbers, so that other processes need no lookup."""
        return super().__getstate__() | {"rows": self.rows}

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def remote(self) -> bool:
        return self.source.remote

    def byte_ranges(self, index: int) -> Iterator[tuple[str, int, int]]:
        return self.source.byte_ranges(int(self.rows[index]))

    def expect(self, indices: Int64Array) -> int:
        return self.source.expect(self.rows[indices])

    @property
    def record(self) -> str | None:
        return self.source.record

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def column_names(self) -> tuple[str, ...]:
        return self.source.column_names

    def _column(self, name: str) -> Column:
        return self.source.column(name).part(self.rows)

    def indexing_hint(self, name: str) -> str:
        return self.source.indexing_hint(name)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "samples": self.rows_digest,
            "identity": self.identity,
        }

    @property
    def run_length(self) -> int | None:
        length = self.source.run_length
        return (
            None if length is None else max(1, length * self.count // self.source.count)
        )

    def where(self, index: int) -> str:
        return self.source.where(int(self.rows[index]))

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


class PropertySource(RowsSource[T_co]):
    """The samples of a source that a selection matches, in source order.

    Substitutes have the same value. The name is "source/value", such as
    "captions/high". The identity covers the selected samples: measuring the column
    again makes another source if they change.

    Args:
        source: The source.
        selection: The value of a column, or the samples that match none of several
            values.

    Raises:
        ColumnError: If the source lacks the column.
        EmptyDatasetError: If no sample matches.

    Example:
        >>> from energize import ListSource
        >>> texts = ListSource(
        ...     "abcd", name="texts", columns={"quality": ["low", "high", "low", "low"]}
        ... )
        >>> low = PropertySource(texts, Selection("quality", "low"))
        >>> low.name, list(low)
        ('texts/low', ['a', 'c', 'd'])
    """

    order_name = "PropertySource"

    selection: Selection

    def __init__(self, source: Source[T_co], selection: Selection) -> None:
        column = source.column(selection.by)
        rows = selection.rows(column)
        if not len(rows):
            raise EmptyDatasetError(
                f"{source.name}: no sample has {selection.by} "
                f"{selection.name!r}"
                f"{similar([column], selection.name) or '.'} Its values: "
                f"{counts_text([column])}"
            )
        self._freeze_rows(source, rows, selection=selection)

    @cached_property
    def rows(self) -> Int64Array:
        return self.selection.rows(self.source.column(self.selection.by))

    @cached_property
    def identity(self) -> str:
        chosen_by = [self.selection.by, self.selection.name, self.rows_digest]
        return digest([self.source.identity, *chosen_by])

    @property
    def name(self) -> str:
        return f"{self.source.name}/{self.selection.name}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"by": self.selection.by}


class DrawnSource(RowsSource[T_co]):
    """A random part of the samples of a source, in source order.

    The draw depends on the identity of the source alone: every run, rank and epoch has
    the same samples. The first `n` drawn samples are the same for any larger number.

    Args:
        source: The source.
        subset: A subset with a number or a ratio of drawn samples.

    Raises:
        ConfigError: If the source has fewer samples.
        EmptyDatasetError: If no sample is drawn.

    Example:
        >>> from energize import ListSource
        >>> len(DrawnSource(ListSource("abcdefgh"), Subset(drawn=0.5)))
        4
    """

    order_name = "DrawnSource"

    subset: Subset

    def __init__(self, source: Source[T_co], subset: Subset) -> None:
        rows = _drawn(source, subset)
        if not len(rows):
            raise EmptyDatasetError(
                f"{source.name}: the subset {subset} of {source.count} samples is empty"
            )
        self._freeze_rows(source, rows, subset=subset)

    @cached_property
    def rows(self) -> Int64Array:
        return _drawn(self.source, self.subset)

    @cached_property
    def identity(self) -> str:
        return digest([self.source.identity, "drawn", self.rows_digest])


def _drawn(source: Source[Any], subset: Subset) -> Int64Array:
    """Return the numbers of the drawn samples, ascending."""
    first, last = subset.drawn_bounds(source.count)
    order = shuffled(derive("subset", source.identity), 0, source.count)
    return np.sort(order[first:last])


def subset_of(source: Any, subset: Subset | None) -> Any:
    """Return the samples of a source that a subset selects, all for None.

    Args:
        source: A source of shards.
        subset: The subset.
    """
    if subset is None:
        return source
    if subset.drawn is None:
        return source.part(*subset.bounds(source.stored_count))
    return DrawnSource(source, subset)


def source_labels(sources: Sequence[SourceNode[Any]]) -> list[str]:
    """Return a unique name for each source, in order.

    Uses the label that a mix assigned, or else `distinct_names` of the paths. If two
    mixes assigned a label to different paths, the path is used.

    >>> from energize import ListSource
    >>> source_labels([ListSource("a", name="x"), ListSource("b", name="x")])
    ['x #1', 'x #2']
    """
    names = [source.label for source in sources]
    if None not in names and len(set(names)) == len(names):
        return cast("list[str]", names)
    paths = [*map(_place, sources)]
    pairs = {(source.label, path) for source, path in zip(sources, paths, strict=True)}
    owners = Counter(label for label, _ in pairs)
    labels = [
        None
        if owners[source.label] > 1 and _is_end(source.label, path)
        else source.label
        for source, path in zip(sources, paths, strict=True)
    ]
    return distinct_names(paths, [*map(_split, sources)], labels)


def _is_end(label: str | None, path: tuple[str, ...]) -> bool:
    return label is not None and "/".join(path).endswith(f"/{label}")


def input_labels(dataset: Dataset[Any]) -> list[list[str]]:
    """Return the names of the sources of each input of a dataset."""
    labels = iter(source_labels(dataset.sources))
    return [
        list(islice(labels, len(input_dataset.sources)))
        for input_dataset in dataset.inputs
    ]


def _place(source: SourceNode[Any]) -> tuple[str, ...]:
    if isinstance(source, PropertySource):
        *above, name = _place(source.source)
        return *above, f"{name}/{source.selection.name}"
    path = getattr(source, "path", None)
    return *(path.absolute().parts[:-1] if path is not None else ()), source.name


def _split(source: SourceNode[Any]) -> str:
    if isinstance(source, PropertySource):
        return _split(source.source)
    return getattr(source, "split_part", "")


def distinct_names(
    paths: Sequence[tuple[str, ...]],
    split_parts: Sequence[str],
    fixed: Sequence[str | None],
) -> list[str]:
    """Return fixed names, and unique names from paths for the rest.

    A name is the last component of the path. Paths with equal ends get as many more
    components as needed; several splits of one path get the split in brackets; names
    that are still equal get a number.

    Args:
        paths: Components of each path.
        split_parts: Split of each path, empty without one.
        fixed: Name of each path, None to make one.

    Returns:
        One name per path.

    Example:
        >>> distinct_names(
        ...     [("a", "x"), ("b", "x"), ("c", "y")],
        ...     ["", "", ""],
        ...     [None, None, "first"],
        ... )
        ['a/x', 'b/x', 'first']
    """
    labels = _shortest(paths, {(name,) for name in fixed if name is not None})
    pairs = list(zip(labels, split_parts, strict=True))
    different = Counter([label for label, _ in set(pairs)])
    labels = [
        f"{label} [{part}]" if different[label] > 1 else label for label, part in pairs
    ]
    labels = [
        label if name is None else name
        for label, name in zip(labels, fixed, strict=True)
    ]
    repeated = Counter(labels)
    seen: Counter[str] = Counter()
    for i, label in enumerate(labels):
        if repeated[label] > 1:
            seen[label] += 1
            labels[i] = f"{label} #{seen[label]}"
    return labels


def _shortest(
    paths: Sequence[tuple[str, ...]], reserved: set[tuple[str, ...]]
) -> list[str]:
    """Return the shortest end of each path that is unique and not reserved."""
    distinct = set(paths)
    counts = Counter([path[-1] for path in distinct])
    counts.update([name[-1] for name in reserved])
    owners: Counter[tuple[str, ...]] = Counter()
    for path in distinct:
        if counts[path[-1]] > 1:
            owners.update([path[-n:] for n in range(1, len(path) + 1)])
    owners.update(reserved)
    ends = []
    for path in paths:
        length = 1
        if counts[path[-1]] > 1:
            while length < len(path) and owners[path[-length:]] != 1:
                length += 1
        ends.append("/".join(path[-length:]).replace("//", "/"))
    return ends

"""Costs of items, computed from columns of their samples or from encoded items."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.call import call_without_draws
from energize.core.checks import real_number
from energize.core.dataset import IndexedDataset
from energize.core.description import described, function_name
from energize.core.node import SourceNode
from energize.core.records import fields_of, is_record
from energize.errors import (
    ColumnError,
    ConfigError,
    EnergizeError,
    NotIndexedError,
    nearest,
)

Cost: TypeAlias = str | Callable[..., Any]
"""The name of a column, or a function of columns.

The parameters of the function have the names of columns, and get arrays with the values
of some samples. It returns one number above 0 for each sample.
"""


@dataclass(frozen=True)
class ColumnCost:
    """The cost of items of indexed datasets: the sum over their samples.

    No samples are read. Substitutes of failed samples are not considered.

    Args:
        cost: The name of a column of the sources, such as "tokens", or a function of
            columns: `lambda width, height: width * height / 196`. A parameter with a
            default is a column that some sources lack, so one function covers images
            and texts: `lambda tokens=0, width=0: tokens + width`. The function must
            not draw random numbers.

    Raises:
        ConfigError: If `cost` is neither.
        ColumnError: Later, if a source lacks the column, it contains words, or a cost
            is not finite and above 0.

    Example:
        >>> from energize import BatchDataset, ListSource
        >>> texts = ListSource(["a b", "c", "d e f"], columns={"tokens": [2, 1, 3]})
        >>> ColumnCost("tokens").of(
        ...     BatchDataset(texts, 2, list), np.array([0, 1])
        ... ).tolist()
        [3.0, 3.0]
        >>> ColumnCost(lambda tokens: tokens**2).of(texts, np.array([2])).tolist()
        [9.0]
    """

    cost: Cost

    def __post_init__(self) -> None:
        if not isinstance(self.cost, str) and not (
            callable(self.cost) and self.columns
        ):
            raise ConfigError(
                "a cost must be the name of a column, or a function whose parameters "
                "have the names of columns, such as lambda width, height: width * "
                f"height, got {self.cost!r}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the required columns."""
        return tuple(self._columns)

    def describe(self) -> dict[str, Any]:
        """Return the names of the columns as JSON; functions are not described."""
        named = isinstance(self.cost, str)
        return {"column": self.cost} if named else {"columns": list(self.columns)}

    def identify(self) -> dict[str, Any]:
        """Return the names of the columns and of a function as JSON."""
        if isinstance(self.cost, str):
            return self.describe()
        return {**self.describe(), "function": described(self.cost)}

    def check(self, source: SourceNode[Any]) -> None:
        """Raise `ColumnError` if a source lacks a column, or has words in it."""
        self._values(source)

    def of(self, dataset: IndexedDataset[Any], positions: Int64Array) -> FloatArray:
        """Return the costs of the items at `positions`: float64 of the same shape."""
        if not dataset.indexed:
            raise NotIndexedError(
                f"{type(dataset).__name__} is read as a stream, so the samples of "
                "its items and their costs are known only by reading"
            )
        refs = dataset.refs(np.asarray(positions, dtype=np.int64))
        costs = np.zeros(len(refs), dtype=np.float64)
        for number, rows in rows_by_value(refs.source):
            costs[rows] = self.of_samples(dataset.sources[number], refs.index[rows])
        return np.bincount(refs.item, costs, len(positions)).astype(
            np.float64, copy=False
        )

    def of_samples(
        self,
        source: SourceNode[Any],
        index: Int64Array,
        *,
        allow_zero: bool = False,
        called: str = "cost",
    ) -> FloatArray:
        """Return the costs of samples of a source: float64 of the shape of `index`.

        Args:
            source: The source.
            index: The samples.
            allow_zero: Whether a cost may be 0, as one of several.
            called: The name of the costs in messages.

        Raises:
            ColumnError: If a cost is not finite and above 0.
        """
        values = {name: column[index] for name, column in self._values(source).items()}
        if isinstance(self.cost, str):
            result = values[self.cost]
        else:
            result = _called(self.cost, source, values)
        costs = np.asarray(result, dtype=np.float64)
        if not costs.ndim:
            costs = np.broadcast_to(
                costs, index.shape
            )  # of no column that this source has
        if costs.shape != index.shape:
            raise ColumnError(
                f"{source.name}: the {called} of {len(index)} samples must be an array "
                f"of {len(index)} numbers, but {self.cost!r} returned one of shape "
                f"{costs.shape}"
            )
        valid = costs >= 0 if allow_zero else costs > 0
        wrong = np.flatnonzero(~(np.isfinite(costs) & valid))
        if len(wrong):
            at = int(wrong[0])
            least = "number >= 0" if allow_zero else "number > 0"
            raise ColumnError(
                f"{source.where(int(index[at]))}: its {called} must be a {least}, got "
                f"{costs[at]:g} by "
                f"{self.cost if isinstance(self.cost, str) else self.columns!r}. "
                "Measure the column again, or pass a function that adds a constant, "
                "such as lambda tokens: tokens + 1"
            )
        return costs

    def _values(self, source: SourceNode[Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the required columns of a source, without missing optional ones."""
        values = {}
        for name, required in self._columns.items():
            if not (required or name in source.column_names):
                continue
            column = source.column(name)
            if column.is_text:
                raise ColumnError(
                    f"{source.name}: the column {name!r} must have numbers as costs, "
                    f"but has words such as {(column.categories or ('',))[0]!r}"
                )
            values[name] = column.values
        return values

    @cached_property
    def _columns(self) -> dict[str, bool]:
        """The columns that are looked at, and whether every source needs them."""
        if isinstance(self.cost, str):
            return {self.cost: True}
        named = inspect.signature(self.cost).parameters
        return {
            name: parameter.default is parameter.empty
            for name, parameter in named.items()
        }


MOST_COSTS = 8
"""Maximum number of costs that are levelled at once."""

_FIRST = 4096
"""Samples of each source that are searched for a cost above 0 before all others."""


@dataclass(frozen=True)
class ColumnCosts:
    """Several costs of items of indexed datasets, levelled at once.

    A sample may have no cost of one kind: a text has no patches. At least one of its
    costs is above 0.

    Args:
        costs: The costs.
        importance: The importance of each cost.

    Raises:
        ColumnError: Later, if a source lacks a column, a cost is not finite and at
            least 0, all costs of a sample are 0, or a cost is 0 for all samples.

    Example:
        >>> from energize import ListSource
        >>> columns = {"tokens": [2, 1, 3], "patches": [0, 9, 4]}
        >>> samples = ListSource("abc", columns=columns)
        >>> costs = level_costs({"tokens": 1, "patches": 0.3})
        >>> costs.of(samples, np.arange(3)).tolist()
        [[2.0, 1.0, 3.0], [0.0, 9.0, 4.0]]
    """

    costs: tuple[ColumnCost, ...]
    importance: tuple[float, ...]

    def identify(self) -> list[dict[str, Any]]:
        """Return the costs and their importance as JSON."""
        return [
            {**cost.identify(), "importance": importance}
            for cost, importance in zip(self.costs, self.importance, strict=True)
        ]

    def check(self, sources: Sequence[SourceNode[Any]]) -> None:
        """Raise `ColumnError` for a missing column, or a cost that is always 0."""
        for cost in self.costs:
            for source in sources:
                cost.check(source)
            if not _is_used(cost, sources):
                raise ColumnError(
                    f"the cost {_label(cost)} is 0 for all samples of "
                    f"{', '.join(source.name for source in sources[:3])}, so it "
                    "cannot be levelled. Remove it, or measure the column again"
                )

    def of(self, dataset: IndexedDataset[Any], positions: Int64Array) -> FloatArray:
        """Return the costs of items: float64, shape (num_costs, num_positions)."""
        refs = dataset.refs(np.asarray(positions, dtype=np.int64))
        costs = np.zeros((len(self.costs), len(refs)), dtype=np.float64)
        for number, rows in rows_by_value(refs.source):
            costs[:, rows] = self._of_samples(dataset.sources[number], refs.index[rows])
        return np.array(
            [np.bincount(refs.item, row, len(positions)) for row in costs],
            dtype=np.float64,
        )

    def _of_samples(self, source: SourceNode[Any], index: Int64Array) -> FloatArray:
        costs = np.array(
            [cost.of_samples(source, index, allow_zero=True) for cost in self.costs]
        )
        free = np.flatnonzero(~costs.any(axis=0))
        if len(free):
            raise ColumnError(
                f"{source.where(int(index[free[0]]))}: one of its costs must be > 0, "
                f"got 0 by {', '.join(map(_label, self.costs))}. Measure the columns "
                "again, or pass a function that adds a constant, such as "
                "lambda tokens: tokens + 1"
            )
        return costs


def _called(
    function: Callable[..., Any], source: SourceNode[Any], values: dict[str, Any]
) -> Any:
    """Return the result of a function of columns for samples of a source."""
    try:
        return call_without_draws(function, "ColumnCost", **values)
    except EnergizeError:
        raise
    except Exception as reason:
        raise ColumnError(
            f"{source.name}: {function_name(function)} of the columns "
            f"{', '.join(values)} raised {type(reason).__name__}: {reason}. Its "
            "parameters are arrays of several samples"
        ) from reason


LevelCost: TypeAlias = (
    Cost | ColumnCost | ColumnCosts | Mapping[Any, float] | Sequence[Cost | ColumnCost]
)
"""A cost, a list of costs, or a dict of costs and the importance of each."""


def _is_used(cost: ColumnCost, sources: Sequence[SourceNode[Any]]) -> bool:
    """Return whether any sample of the sources has a cost above 0."""
    parts = [
        (source, 0, min(source.count, _FIRST)) for source in sources if source.count
    ]
    parts += [
        (source, start, min(start + _FIRST**2, source.count))
        for source in sources
        for start in range(_FIRST, source.count, _FIRST**2)
    ]
    return any(
        cost.of_samples(source, np.arange(start, stop), allow_zero=True).any()
        for source, start, stop in parts
    )


def _label(cost: ColumnCost) -> str:
    """Return the name of a column or function, for messages."""
    return repr(cost.cost if isinstance(cost.cost, str) else function_name(cost.cost))


def level_costs(cost: LevelCost, owner: str = "level") -> ColumnCost | ColumnCosts:
    """Return the argument of a level as a cost, or as several.

    A list or dict with a single cost is this cost.

    Args:
        cost: A cost, a list of costs, or a dict of costs and the importance of each.
        owner: The name of the dataset or key, for messages.

    Raises:
        ConfigError: For no costs, repeated costs, costs of items, or an importance
            that is not finite and above 0.

    Example:
        >>> level_costs(["tokens"])
        ColumnCost(cost='tokens')
    """
    if isinstance(cost, ColumnCost | ColumnCosts):
        return cost
    if isinstance(cost, str) or not isinstance(cost, Mapping | Sequence):
        return ColumnCost(cost)
    if not 0 < len(cost) <= MOST_COSTS:
        raise ConfigError(
            f"{owner}: 1 to {MOST_COSTS} costs can be levelled at once, got "
            f"{len(cost)}. Name the columns that ranks wait for, such as "
            "{'tokens': 1, 'patches': 0.3}"
        )
    weights = list(cost.values()) if isinstance(cost, Mapping) else [1.0] * len(cost)
    costs = tuple(_column_cost(entry, owner) for entry in cost)
    importance = tuple(
        _importance(weight, entry, owner)
        for weight, entry in zip(weights, costs, strict=True)
    )
    for number, entry in enumerate(costs):
        if entry in costs[:number]:
            raise ConfigError(
                f"{owner}: the cost {_label(entry)} is listed twice. Remove one, or "
                "set its importance in a dict of costs"
            )
    return costs[0] if len(costs) == 1 else ColumnCosts(costs, importance)


def _column_cost(cost: Any, owner: str) -> ColumnCost:
    if isinstance(cost, ItemCost):
        raise ConfigError(
            f"{owner}: several costs must be known from columns, got {cost!r}. Name "
            "columns, or pass this ItemCost alone"
        )
    return cost if isinstance(cost, ColumnCost) else ColumnCost(cost)


def _importance(value: object, cost: ColumnCost, owner: str) -> float:
    number = real_number(value)
    importance = math.nan if number is None else float(number)
    if not (math.isfinite(importance) and importance > 0):
        raise ConfigError(
            f"{owner}: the importance of {_label(cost)} must be a finite number > 0, "
            f"got {value!r}. Remove a cost that does not matter"
        )
    return importance


_OWNER = "ItemCost"


@dataclass(frozen=True)
class ItemCost:
    """The cost of an item that is known after encoding or packing only.

    As the `unit` of a `BlendDataset` it makes the blend a stream: the next dataset
    depends on the items before.

    Args:
        cost: A function of the item, or the name of a field with a number, or with a
            list or tensor of this length. For batches, give a function that adds up its
            samples: `lambda batch: int(batch.lengths.sum())`.

    Raises:
        ConfigError: If `cost` is neither; later, if an item lacks the field, or its
            cost is not finite and above 0. The message has the key of the sample.

    Example:
        >>> (
        ...     ItemCost("tokens").of({"tokens": [5, 7, 9]}),
        ...     ItemCost(lambda item: item / 2).of(5),
        ... )
        (3.0, 2.5)
    """

    cost: Callable[[Any], Any] | str

    def __post_init__(self) -> None:
        if not (isinstance(self.cost, str) and self.cost) and not callable(self.cost):
            raise ConfigError(
                f"{_OWNER}: a cost must be a function of an item, or the name of a "
                f"field of it, got {self.cost!r}"
            )

    def describe(self) -> dict[str, Any]:
        """Return the name of the field as JSON; functions are not described."""
        return {"field": self.cost if isinstance(self.cost, str) else None}

    def of(self, item: Any) -> float:
        """Return the cost of an item."""
        called = named(item, "an item")
        amount = measure_item(item, self.cost, called, _OWNER)
        number = real_number(amount)
        cost = math.nan if number is None else float(number)
        if math.isfinite(cost) and cost > 0:
            return cost
        says = (
            f"the field {self.cost!r}" if isinstance(self.cost, str) else "the function"
        )
        raise ConfigError(
            f"{_OWNER}: the cost of {called} must be a finite number > 0, got "
            f"{str(amount)[:80]} ({type(amount).__name__}) by {says}. Leave the sample "
            "out with SkipSample in the hook before, or pass a function that adds a "
            "constant, such as lambda item: len(item['tokens']) + 1"
        )


def measure_item(
    sample: Any, measure: Callable[[Any], Any] | str, called: str, owner: str
) -> Any:
    """Return the value of a function of a sample, or of a field.

    Of a field with entries, the value is their number. The result of a function is not
    counted, since a tensor with a single entry could also be a number.

    Args:
        sample: The sample.
        measure: The function, or the name of the field.
        called: The name of the sample in errors.
        owner: The name of the caller in errors.

    Raises:
        ConfigError: If the field is missing.
    """
    if not isinstance(measure, str):
        return measure(sample)
    fields = fields_of(sample) if is_record(sample) else {}
    if measure not in fields:
        raise ConfigError(
            f"{owner}: {called} has no field {measure!r}; it has "
            f"{', '.join(map(repr, fields)) or 'none'}{nearest(measure, list(fields))}"
        )
    value = fields[measure]
    return (
        len(value)
        if hasattr(value, "__len__") and getattr(value, "ndim", 1) != 0
        else value
    )


def named(sample: Any, otherwise: str) -> str:
    """Return a name of a sample with its key, or `otherwise` without a key."""
    key = fields_of(sample).get("__key__") if is_record(sample) else None
    return otherwise if key is None else f"sample {key!r}"

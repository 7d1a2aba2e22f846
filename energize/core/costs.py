"""Costs of items, computed from columns of their samples or from encoded items."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energize.core.arrays import FloatArray, Int64Array, rows_by_value
from energize.core.call import call_without_draws
from energize.core.checks import real_number
from energize.core.dataset import IndexedDataset
from energize.core.node import SourceNode
from energize.core.records import fields_of, is_record
from energize.errors import ColumnError, ConfigError, NotIndexedError, nearest

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

    def of_samples(self, source: SourceNode[Any], index: Int64Array) -> FloatArray:
        """Return the costs of samples of a source: float64 of the shape of `index`."""
        values = {name: column[index] for name, column in self._values(source).items()}
        if isinstance(self.cost, str):
            result = values[self.cost]
        else:
            result = call_without_draws(self.cost, "ColumnCost", **values)
        costs = np.asarray(result, dtype=np.float64)
        if not costs.ndim:
            costs = np.broadcast_to(
                costs, index.shape
            )  # of no column that this source has
        if costs.shape != index.shape:
            raise ColumnError(
                f"{source.name}: the cost of {len(index)} samples must be an array of "
                f"{len(index)} numbers, but {self.cost!r} returned one of shape "
                f"{costs.shape}"
            )
        wrong = np.flatnonzero(~(np.isfinite(costs) & (costs > 0)))
        if len(wrong):
            at = int(wrong[0])
            raise ColumnError(
                f"{source.where(int(index[at]))}: its cost must be a number > 0, got "
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

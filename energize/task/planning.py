"""Plans of packs and of batches, as arguments of `get_train_dataset`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from energize.core.checks import check_names, checked_choice, checked_whole
from energize.core.dataset import Dataset
from energize.datasets.planned import (
    TOO_LONG,
    WINDOW,
    BudgetBatchDataset,
    Length,
    PackDataset,
    checked_budget,
)
from energize.errors import ConfigError
from energize.packing.packer import Capacity, checked_capacity


@dataclass(frozen=True)
class PackPlan:
    """How packs are planned from columns, see `PackDataset`.

    Args:
        length: Length of a sample: the name of a column or a function of columns. A
            tuple for several capacities.
        capacity: The sum of lengths that a pack holds, or a tuple of such sums.
        window: Samples that are packed together.
        homogeneous: "source", or the name of a column, to keep the samples of a pack
            alike.
        too_long: "error", "drop" or "cut", for samples longer than a capacity.
        measure: Length of an encoded sample: the name of a field, or a function. None
            trusts the columns.

    Raises:
        ConfigError: For invalid capacities and choices.

    Example:
        >>> PackPlan("tokens", 8192).window
        16384
    """

    length: Length | tuple[Length, ...]
    capacity: Capacity
    window: int = WINDOW
    homogeneous: str | None = None
    too_long: Literal["error", "drop", "cut"] = "error"
    measure: Any = None

    def __post_init__(self) -> None:
        checked_capacity(self.capacity, "packing")
        checked_whole(self.window, "packing: window", 1)
        checked_choice(self.too_long, "too_long", TOO_LONG, "packing")

    @classmethod
    def of_argument(cls, packing: PackPlan | Mapping[str, Any]) -> PackPlan:
        """Return the plan of an argument: a plan, or a mapping with its parameters.

        Raises:
            ConfigError: For anything else, and for unknown parameters.
        """
        if isinstance(packing, PackPlan):
            return packing
        if not isinstance(packing, Mapping):
            raise ConfigError(
                "packing must be a PackPlan or a dict such as {'length': 'tokens', "
                f"'capacity': 8192}}, got {packing!r}"
            )
        check_names(packing, list(cls.__dataclass_fields__))
        missing = [name for name in ("length", "capacity") if name not in packing]
        if missing:
            raise ConfigError(f"packing needs {' and '.join(missing)}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in packing.items()
        }
        return cls(**values)

    def with_measure(self, measure: Callable[[Any], int]) -> PackPlan:
        """Return the plan with a measure, unless it has one or several lengths."""
        lengths = self.length if isinstance(self.length, tuple) else (self.length,)
        if self.measure is not None or len(lengths) > 1:
            return self
        return replace(self, measure=measure)

    def packs(
        self, samples: Dataset[Any], packer: Callable[[list[Any]], Any]
    ) -> Dataset[Any]:
        """Return the packs of samples, each made by `packer`."""
        return PackDataset(
            samples,
            self.length,
            self.capacity,
            packer,
            window=self.window,
            homogeneous=self.homogeneous,
            too_long=self.too_long,
            measure=self.measure,
        )


@dataclass(frozen=True)
class BatchBudget:
    """Batches of a budget of padded length, see `BudgetBatchDataset`.

    Args:
        length: Length of a sample: the name of a column or a function of columns.
        size: The maximum number of samples times the longest length.
        window: Samples that are batched together.
        keep_order: Whether batches have consecutive samples.

    Example:
        >>> BatchBudget.of_argument({"tokens": 32768})
        BatchBudget(length='tokens', size=32768, window=16384, keep_order=False)
    """

    length: Length
    size: int
    window: int = WINDOW
    keep_order: bool = False

    @classmethod
    def of_argument(cls, budget: BatchBudget | Mapping[str, int]) -> BatchBudget:
        """Return the budget of an argument: a budget, or a column and its maximum.

        Raises:
            ConfigError: For anything else.
        """
        return (
            budget if isinstance(budget, BatchBudget) else cls(*checked_budget(budget))
        )

    def batches(
        self, samples: Dataset[Any], batcher: Callable[[list[Any]], Any]
    ) -> Dataset[Any]:
        """Return the batches of samples, each made by `batcher`."""
        return BudgetBatchDataset(
            samples,
            (self.length, self.size),
            batcher,
            window=self.window,
            keep_order=self.keep_order,
        )

"""What a ledger is told to count beside samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energize.core.costs import ColumnCost, Cost
from energize.errors import ConfigError


@dataclass(frozen=True)
class Ledger:
    """What a loader's ledger counts beside samples and batches: `get_loader(..., ledger=...)`.

    `cost`: what samples cost, by a column that their sources have, such as "tokens", or a function
    of columns (see `energize.costs.ColumnCost`); nothing is read for it, and samples that took the
    place of failed ones count as these. `item_cost`: what an item costs, by a function of it: a
    number, which its samples share, or one for each of them, 0 or more. One of the two at most.
    `name`: what the cost is called in reports; by default that of the column, or "cost".

    Raises `ConfigError` for what cannot be used.

    >>> from energize import ListSource, get_loader
    >>> words = ListSource(["one two", "three"], name="words", columns={"tokens": [2, 1]})
    >>> loader = get_loader(words, ledger=Ledger("tokens"))
    >>> _ = list(loader)
    >>> loader.report(show=False)["words"].cost
    3.0
    """

    cost: Cost | None = None
    item_cost: Callable[[Any], Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.cost is not None and self.item_cost is not None:
            raise ConfigError("Ledger: give a cost by columns or item_cost, not both")
        if self.cost is not None:
            ColumnCost(self.cost)
        if self.item_cost is not None and not callable(self.item_cost):
            raise ConfigError(
                f"Ledger: item_cost is a function of an item; got {self.item_cost!r}. The name of "
                "a column is a cost: Ledger(cost=...)"
            )
        if self.name is not None and not isinstance(self.name, str):
            raise ConfigError(f"Ledger: name is a text; got {self.name!r}")

    @property
    def cost_name(self) -> str | None:
        """What costs are called; None where nothing is counted."""
        if self.cost is None and self.item_cost is None:
            return None
        return self.name or (self.cost if isinstance(self.cost, str) else "cost")

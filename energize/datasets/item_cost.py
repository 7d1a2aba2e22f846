"""What items cost, by what they hold when they have been read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from energize.core.checks import real_number
from energize.errors import ConfigError
from energize.packing.packer import named, said_of

_OWNER = "ItemCost"


@dataclass(frozen=True)
class ItemCost:
    """What an item costs, where that is known only when it has been encoded or packed.

    `cost` is a function of the item, or the name of its field, which is a number itself or a tensor
    or list that is so long. Of a batch, give a function that says what its samples cost together:
    `lambda batch: int(batch.lengths.sum())`.

    As the `unit` of a `BlendDataset` it makes this a stream: which dataset comes next is known when
    the items before have been read.

    Raises `ConfigError` for what is neither, a field that is not there, and a cost that is no
    finite number above 0, with the key of the sample.

    >>> ItemCost("tokens").of({"tokens": [5, 7, 9]}), ItemCost(lambda item: item / 2).of(5)
    (3.0, 2.5)
    """

    cost: Callable[[Any], Any] | str

    def __post_init__(self) -> None:
        if not (isinstance(self.cost, str) and self.cost) and not callable(self.cost):
            raise ConfigError(
                f"{_OWNER}: a cost is a function of an item, or the name of a field of it; got "
                f"{self.cost!r}"
            )

    def describe(self) -> dict[str, Any]:
        """As JSON: the name of a field; of a function nothing, as of all functions of items."""
        return {"field": self.cost if isinstance(self.cost, str) else None}

    def of(self, item: Any) -> float:
        """What an item costs."""
        called = named(item, "an item")
        given = said_of(item, self.cost, called, _OWNER)
        number = real_number(given)
        cost = math.nan if number is None else float(number)
        if math.isfinite(cost) and cost > 0:
            return cost
        says = f"the field {self.cost!r}" if isinstance(self.cost, str) else "the function"
        raise ConfigError(
            f"{_OWNER}: {called} costs {str(given)[:80]} ({type(given).__name__}) by {says}, and "
            "costs are finite numbers above 0; leave such samples out with SkipSample in the hook "
            "before, or give a function that adds what every item costs, such as "
            "lambda item: len(item['tokens']) + 1"
        )

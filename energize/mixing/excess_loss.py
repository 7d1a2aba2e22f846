"""More of what the model is still worse at than it could be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from energize.errors import ConfigError, nearest
from energize.mixing.policy import (
    checked_floor,
    checked_loss,
    checked_positive,
    floored,
    numbers_of,
)


class ExcessLoss:
    """Weights by softmax(excess / temperature), the excess of a source being how far its loss is
    above its `reference`: the loss of a model that was trained on it alone, say, or of a smaller
    one. So sources differ by what is left to learn, and not by how hard they are by nature.

    `temperature` has the unit of the loss; the higher, the more even the weights. `floor` is the
    least share of each source. The losses are smoothed: each new mean counts `1 - memory`. No
    weights are answered before every source has had a loss. The excess loss that weights follow is
    that of DoReMi (Xie et al. 2023, arXiv:2305.10429), there with a reference model.

    Raises `ConfigError` for values out of range and for a loss of a source without a reference.

    >>> policy = ExcessLoss({"web": 2.0, "code": 1.0}, temperature=0.5, floor=0.1)
    >>> policy.observe(100, {"web": 2.5, "code": 1.0}, {"web": 50, "code": 50})
    {'web': 0.6848..., 'code': 0.3151...}
    """

    def __init__(
        self,
        reference: Mapping[str, float],
        *,
        temperature: float = 1.0,
        floor: float = 0.0,
        memory: float = 0.0,
    ) -> None:
        if not isinstance(reference, Mapping) or not reference:
            raise ConfigError(f"ExcessLoss: reference has a loss by source; got {reference!r}")
        self.reference = {str(name): checked_loss(loss, name) for name, loss in reference.items()}
        self.temperature = checked_positive(temperature, "ExcessLoss: temperature")
        self.floor = checked_floor(floor, "ExcessLoss", len(self.reference))
        if not isinstance(memory, int | float) or not 0 <= memory < 1:
            raise ConfigError(f"ExcessLoss: memory lies in 0 .. 1, below 1; got {memory!r}")
        self.memory = float(memory)
        self._losses: dict[str, float] = {}

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> dict[str, float] | None:
        """The weights of all sources, which sum to 1; None while one had no loss yet."""
        for name, loss in losses.items():
            if name not in self.reference:
                raise ConfigError(
                    f"ExcessLoss: {name!r} has no reference loss"
                    f"{nearest(name, list(self.reference))}"
                )
            before = self._losses.get(name, loss)
            mean = checked_loss(loss, name)
            self._losses[name] = self.memory * before + (1 - self.memory) * mean
        if len(self._losses) < len(self.reference):
            return None
        excess = {name: self._losses[name] - low for name, low in self.reference.items()}
        most = max(excess.values())
        shares = {n: math.exp((each - most) / self.temperature) for n, each in excess.items()}
        return floored(shares, self.floor)

    def state_dict(self) -> dict[str, Any]:
        """The losses so far."""
        return {"losses": dict(self._losses)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from them; `StateError` for what is no such state."""
        self._losses = numbers_of(state_dict, "losses")

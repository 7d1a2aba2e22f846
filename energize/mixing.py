"""Weights that follow the loss: policies, which are told losses by source and answer
weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from energize.core.checks import checked_arguments, real_number
from energize.core.validation import validated
from energize.errors import ConfigError, StateError, nearest

__all__ = ["ExcessLoss", "MixingPolicy", "unimax"]


class MixingPolicy(Protocol):
    """Is told losses now and then, and answers weights. `Loader.follow` takes any such
    object.

    It has to be a function of what it is told and of its state: every rank has one, is
    told the same, and has to answer the same.
    """

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> Mapping[str, float] | None:
        """Return new weights by source, or None to leave them as they are.

        `losses` has the mean loss of each source since the last call, over all ranks,
        and `counts` of how many samples it is the mean; a source that gave none is not
        there. `step` is the next step of the loader.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what it remembers, as plain JSON."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what another one remembered."""


def _plain(value: object) -> object:
    """Return a number of numpy, or a tensor of one, as a float; anything else as it
    is.
    """
    number = real_number(value)
    return value if number is None else float(number)


_LARGEST = 1e300  # no sum of losses comes near it
_Number = Annotated[
    float, BeforeValidator(_plain), Field(strict=True, ge=-_LARGEST, le=_LARGEST)
]
_Positive = Annotated[_Number, Field(gt=0)]
_LessThanOne = Annotated[_Number, Field(ge=0, lt=1)]
_Losses = Annotated[dict[str, _Number], Field(min_length=1)]
_Sizes = Annotated[dict[str, _Positive], Field(min_length=1)]


_STATE = "the state of a policy"


class _Seen(BaseModel):
    losses: dict[str, _Number] = {}


_SEEN = TypeAdapter(_Seen)


class ExcessLoss:
    """Weights by softmax(excess / temperature), the excess of a source being how far
    its loss is above its `reference`: the loss of a model that was trained on it alone,
    say, or of a smaller one. So sources differ by what is left to learn, and not by how
    hard they are by nature.

    `temperature` has the unit of the loss; the higher, the more even the weights.
    `floor` is the least share of each source. The losses are smoothed: each new mean
    counts `1 - memory`. No weights are answered before every source has had a loss. The
    excess loss that weights follow is that of DoReMi (Xie et al. 2023,
    arXiv:2305.10429), there with a reference model.

    Raises `ConfigError` for values out of range and for a loss of a source without a
    reference.

    >>> policy = ExcessLoss({"web": 2.0, "code": 1.0}, temperature=0.5, floor=0.1)
    >>> policy.observe(100, {"web": 2.5, "code": 1.0}, {"web": 50, "code": 50})
    {'web': 0.6848..., 'code': 0.3151...}
    """

    @checked_arguments
    def __init__(
        self,
        reference: _Losses,
        *,
        temperature: _Positive = 1.0,
        floor: _LessThanOne = 0.0,
        memory: _LessThanOne = 0.0,
    ) -> None:
        if floor * len(reference) > 1:
            raise ConfigError(
                f"{len(reference)} sources cannot all have a share of {floor:g} at "
                f"least; floor is at most {1 / len(reference):.4g} here"
            )
        self.reference = reference
        self.temperature = temperature
        self.floor = floor
        self.memory = memory
        self._seen = _Seen()

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> dict[str, float] | None:
        """Return the weights of all sources, which sum to 1; None while one had no loss
        yet.
        """
        seen = self._seen.losses
        for name, loss in losses.items():
            if name not in self.reference:
                raise ConfigError(
                    f"{name!r} has no reference{nearest(name, list(self.reference))}"
                )
            number = real_number(loss)
            if number is None or not math.isfinite(number):
                raise ConfigError(
                    f"the mean loss of {name!r} is {loss!r}: weights cannot follow it. "
                    "Leave out steps whose loss is not finite"
                )
            before = seen.get(name, loss)
            seen[name] = self.memory * before + (1 - self.memory) * float(loss)
        if len(seen) < len(self.reference):
            return None
        excess = {name: seen[name] - low for name, low in self.reference.items()}
        most = max(excess.values())
        shares = {
            n: math.exp((each - most) / self.temperature) for n, each in excess.items()
        }
        left = 1.0 - self.floor * len(shares)
        total = sum(shares.values())
        return {
            name: self.floor + left * share / total for name, share in shares.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the losses so far."""
        return self._seen.model_dump(mode="json")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from them; raise `StateError` for what is no such state."""
        self._seen = validated(_SEEN, state_dict, StateError, _STATE)


# As even as sizes allow.


@checked_arguments
def unimax(sizes: _Sizes, budget: _Positive, max_epochs: _Positive) -> dict[str, float]:
    """Return the share of each source such that a `budget` is shared out as evenly as
    possible and no source is read more than `max_epochs` times: UniMax (Chung et al.
    2023, arXiv:2304.09151).

    `sizes` and `budget` count the same: samples, or tokens. From the smallest source
    on, each gets an equal part of what is left, but no more than `max_epochs` of its
    size. The shares sum to 1; where the budget is larger than all caps together, every
    source is read `max_epochs` times, by its size.

    Raises `ConfigError` for sizes, a budget or epochs that are not above 0.

    >>> unimax({"en": 1000, "de": 300, "fy": 10}, budget=600, max_epochs=4)
    {'en': 0.4666..., 'de': 0.4666..., 'fy': 0.0666...}
    """
    left = budget
    given: dict[str, float] = {}
    for name in sorted(sizes, key=sizes.__getitem__):
        given[name] = min(left / (len(sizes) - len(given)), max_epochs * sizes[name])
        left -= given[name]
    total = sum(given.values())
    return {name: given[name] / total for name in sizes}

"""Policies that change the weights of a mix by its losses, and UniMax weights."""

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
    """Protocol of a policy that turns losses into weights, for `Loader.follow`.

    The weights must be a function of the arguments and the state: every rank has its
    own policy, receives the same arguments, and must return the same weights.
    """

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> Mapping[str, float] | None:
        """Return new weights by source, or None to keep the current weights.

        Args:
            step: The next step of the loader.
            losses: The mean loss of each source since the last call, over all ranks.
                Sources without samples are missing.
            counts: The number of samples of each source since the last call.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""


def _plain(value: object) -> object:
    """Return numpy numbers and tensors of one number as floats."""
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
    """Weights by softmax(excess / temperature).

    The excess of a source is its loss minus its reference, for example the loss of a
    model that was trained on it alone. So weights depend on what is left to learn, not
    on the difficulty of a source. No weights are returned until every source has a
    loss.

    Source: the excess loss of DoReMi (Xie et al. 2023, arXiv:2305.10429), with a
    reference model.

    Args:
        reference: The reference loss of each source.
        temperature: In units of the loss; higher values give more even weights.
        floor: The lowest share of a source.
        memory: Part of the previous smoothed loss; a new mean counts `1 - memory`.

    Raises:
        ConfigError: For values out of range; while observing, for a source without a
            reference.

    Example:
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
                f"{len(reference)} sources cannot all have a share of at least "
                f"{floor:g}. Use a floor of at most {1 / len(reference):.4g} here"
            )
        self.reference = reference
        self.temperature = temperature
        self.floor = floor
        self.memory = memory
        self._seen = _Seen()

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> dict[str, float] | None:
        """Return the weights of all sources; None until every source has a loss.

        Args:
            step: Unused.
            losses: The mean loss of each source since the last call.
            counts: Unused.

        Returns:
            Weights by name, which sum to 1.

        Raises:
            ConfigError: If a source has no reference, or a loss is not finite.
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
                    f"the mean loss of {name!r} is {loss!r}. Leave out steps with a "
                    "loss that is not finite"
                )
            previous = seen.get(name, loss)
            seen[name] = self.memory * previous + (1 - self.memory) * float(loss)
        if len(seen) < len(self.reference):
            return None
        excess = {name: seen[name] - low for name, low in self.reference.items()}
        most = max(excess.values())
        shares = {
            n: math.exp((value - most) / self.temperature)
            for n, value in excess.items()
        }
        left = 1.0 - self.floor * len(shares)
        total = sum(shares.values())
        return {
            name: self.floor + left * share / total for name, share in shares.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the smoothed losses."""
        return self._seen.model_dump(mode="json")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the smoothed losses.

        Args:
            state_dict: A result of `state_dict`.

        Raises:
            StateError: For other values.
        """
        self._seen = validated(_SEEN, state_dict, StateError, _STATE)


# As even as sizes allow.


@checked_arguments
def unimax(sizes: _Sizes, budget: _Positive, max_epochs: _Positive) -> dict[str, float]:
    """Divide a budget evenly among sources, with at most `max_epochs` of each.

    From the smallest source on, each gets an equal part of the remaining budget, capped
    at `max_epochs` times its size. If the budget exceeds all caps, every source is read
    `max_epochs` times. Source: UniMax (Chung et al. 2023, arXiv:2304.09151).

    Args:
        sizes: The size of each source, in samples or tokens.
        budget: The samples or tokens that are read in total.
        max_epochs: The maximum number of epochs of a source.

    Returns:
        Shares by name, which sum to 1.

    Raises:
        ConfigError: If a value is not above 0.

    Example:
        >>> unimax({"en": 1000, "de": 300, "fy": 10}, budget=600, max_epochs=4)
        {'en': 0.4666..., 'de': 0.4666..., 'fy': 0.0666...}
    """
    left = budget
    amounts: dict[str, float] = {}
    for name in sorted(sizes, key=sizes.__getitem__):
        amounts[name] = min(
            left / (len(sizes) - len(amounts)), max_epochs * sizes[name]
        )
        left -= amounts[name]
    total = sum(amounts.values())
    return {name: amounts[name] / total for name in sizes}

"""What every policy is, and what they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from energize.core.checks import real_number
from energize.errors import ConfigError, StateError

_LARGEST = 1e300
"""No sum of losses comes near it."""


class MixingPolicy(Protocol):
    """Is told losses now and then, and answers weights. `Loader.follow` takes any such object.

    It has to be a function of what it is told and of its state: every rank has one, is told the
    same, and has to answer the same.
    """

    def observe(
        self, step: int, losses: Mapping[str, float], counts: Mapping[str, int]
    ) -> Mapping[str, float] | None:
        """New weights by source, or None to leave them as they are.

        `losses` has the mean loss of each source since the last call, over all ranks, and `counts`
        of how many samples it is the mean; a source that gave none is not there. `step` is the next
        step of the loader.
        """

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, as plain JSON."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what another one remembered."""


def floored(shares: Mapping[str, float], floor: float) -> dict[str, float]:
    """Shares of 1 of which each is `floor` at least: the rest is shared out as they are.

    >>> floored({"web": 1.0, "code": 0.0}, 0.1)
    {'web': 0.9, 'code': 0.1}
    """
    left = 1.0 - floor * len(shares)
    total = sum(shares.values())
    return {name: floor + left * share / total for name, share in shares.items()}


def checked_floor(floor: object, owner: str, sources: int | None = None) -> float:
    """A least share of each source; `ConfigError` for one that so many sources cannot have."""
    number = real_number(floor)
    if number is None or not 0 <= number < 1:
        raise ConfigError(f"{owner}: floor is a share, 0 or more and below 1; got {floor!r}")
    if sources is not None and float(number) * sources > 1:
        raise ConfigError(
            f"{owner}: {sources} sources cannot all have a share of {float(number):g} at least; "
            f"floor is at most {1 / sources:.4g} here"
        )
    return float(number)


def checked_positive(value: object, what: str) -> float:
    """A finite number above 0; `ConfigError` beginning with `what` for anything else."""
    number = real_number(value)
    if number is None or not (number > 0 and math.isfinite(number)):
        raise ConfigError(f"{what} is a number above 0; got {value!r}")
    return float(number)


def checked_loss(loss: object, name: str) -> float:
    """A mean loss; `ConfigError` for one that is not finite."""
    number = real_number(loss)
    if number is None or not math.isfinite(number):
        raise ConfigError(
            f"the mean loss of {name!r} is {loss!r}: weights cannot follow it. Leave out steps "
            "whose loss is not finite"
        )
    return float(number)


def is_finite(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -_LARGEST <= value <= _LARGEST  # type: ignore[operator]  # a number


def numbers_of(state: object, field: str, names: Sequence[str] | None = None) -> dict[str, float]:
    """Numbers by name in the state of a policy; `StateError` for anything else."""
    value = state.get(field) if isinstance(state, dict) else None
    if not isinstance(value, dict) or not all(map(is_finite, value.values())):
        raise StateError(f"the state of a policy has no numbers by source under {field!r}")
    if names is not None and set(value) != set(names):
        raise StateError(
            f"the state of a policy is over {', '.join(value)}, and this one over "
            f"{', '.join(names)}"
        )
    return {str(name): float(each) for name, each in value.items()}

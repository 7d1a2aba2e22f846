"""Schemes over fixed weights, by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from energize.errors import ConfigError, nearest
from energize.order.protocol import NamedScheme
from energize.order.schemes.block import BlockScheme
from energize.order.schemes.exact import ExactScheme
from energize.order.schemes.greedy import GreedyScheme
from energize.order.schemes.random_draws import RandomScheme, UniformScheme
from energize.order.schemes.round_robin import RoundRobinScheme
from energize.order.weights import Weights

__all__ = ["SCHEMES", "WEIGHTLESS", "option_names", "plain_scheme"]

SCHEMES: Mapping[str, Callable[..., NamedScheme]] = MappingProxyType(
    {
        "block": BlockScheme,
        "exact": ExactScheme,
        "random": RandomScheme,
        "uniform": UniformScheme,
        "round_robin": RoundRobinScheme,
        "greedy": GreedyScheme,
    }
)

WEIGHTLESS = frozenset({"uniform", "round_robin"})
"""Schemes that treat all sources alike, whatever their weights."""


def plain_scheme(name: str, weights: Weights, *, key: int = 0, **options: Any) -> NamedScheme:
    """`make_scheme` for weights that do not change."""
    known = option_names(name)
    for option in options:
        if option not in known:
            raise ConfigError(
                f"the scheme {name!r} has no option {option!r}{nearest(option, known) or '.'} "
                f"Known: {', '.join(known) or 'none'}"
            )
    return SCHEMES[name](weights, key=key, **options)


def option_names(name: str) -> list[str]:
    """The options of the scheme called `name`; `ConfigError` when there is none.

    >>> option_names("block")
    ['block_size']
    """
    if name not in list(SCHEMES):  # a list takes names that cannot be hashed, too
        raise ConfigError(
            f"unknown scheme {name!r}{nearest(str(name), list(SCHEMES)) or '.'} "
            f"Known: {', '.join(SCHEMES)}"
        )
    parameters = inspect.signature(SCHEMES[name]).parameters
    return [each for each in parameters if each not in ("weights", "key")]

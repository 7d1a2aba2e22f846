"""Schemes: which source each slot of a mix belongs to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from energize.errors import ConfigError, nearest
from energize.order.block import BlockScheme
from energize.order.exact import ExactScheme
from energize.order.greedy import GreedyScheme
from energize.order.random_draws import RandomScheme, UniformScheme
from energize.order.round_robin import RoundRobinScheme
from energize.order.weights import Weights

__all__ = ["SCHEMES", "WEIGHTLESS", "NamedScheme", "Scheme", "make_scheme", "option_names"]

Int64Array = npt.NDArray[np.int64]


class Scheme(Protocol):
    """Slots 0, 1, 2, ... given to sources 0 .. n-1; positions only, nothing is read."""

    def counts(self, n: int) -> Int64Array:
        """Slots given to each source among the first `n`: int64, sums to `n`, monotone in `n`."""

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON, without the weights."""


class NamedScheme(Scheme, Protocol):
    """A scheme that knows what its sources are called."""

    names: tuple[str, ...] | None
    """The names of the sources in their order, or None when they go by position."""


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


def make_scheme(name: str, weights: Weights, *, key: int = 0, **options: Any) -> NamedScheme:
    """The scheme called `name` over sources with these `weights`, which need not sum to 1.

    Weights are given by position, or by name in a mapping; sources are numbered in its order, and
    one of weight 0 keeps its number. `key` is what random choices depend on. `options` are the
    scheme's own: `block_size` of `block`.

    | name | promise |
    |---|---|
    | `block` | exact shares in every block of `block_size` slots, random order inside it |
    | `exact` | exact shares in every prefix, within 1 slot |
    | `random` | independent draws |
    | `uniform` | independent draws, all sources alike |
    | `round_robin` | all sources in turn |
    | `greedy` | the order of Megatron's blending index |

    Raises `WeightError` for weights that cannot be used, and `ConfigError` for an unknown name or
    option.

    >>> scheme = make_scheme("block", {"code": 3, "text": 1}, block_size=4)
    >>> scheme.names, scheme.counts(8).tolist()
    (('code', 'text'), [6, 2])
    """
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
    if name not in SCHEMES:
        raise ConfigError(
            f"unknown scheme {name!r}{nearest(name, list(SCHEMES)) or '.'} "
            f"Known: {', '.join(SCHEMES)}"
        )
    parameters = inspect.signature(SCHEMES[name]).parameters
    return [each for each in parameters if each not in ("weights", "key")]

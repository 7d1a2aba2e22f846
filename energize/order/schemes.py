"""Schemes: which source each slot of a mix belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from energize.errors import ConfigError, nearest
from energize.order.block import BlockScheme

__all__ = ["SCHEMES", "Scheme", "make_scheme"]

Int64Array = npt.NDArray[np.int64]


class Scheme(Protocol):
    """Slots 0, 1, 2, ... given to sources 0 .. n-1; positions only, nothing is read."""

    def counts(self, n: int) -> Int64Array:
        """Slots given to each source among the first `n`: int64, sums to `n`, monotone in `n`."""

    def locate(self, ks: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each slot its source, and how many slots before it went to that source."""

    def describe(self) -> dict[str, Any]:
        """Name and parameters as JSON, without the weights."""


SCHEMES: dict[str, Callable[..., Scheme]] = {"block": BlockScheme}


def make_scheme(name: str, weights: Sequence[float], **options: Any) -> Scheme:
    """The scheme called `name` over sources with these `weights`, which need not sum to 1.

    Raises `WeightError` for weights that cannot be used and `ConfigError` for an unknown name.

    >>> make_scheme("block", [3, 1], block_size=4).counts(8).tolist()
    [6, 2]
    """
    if name not in SCHEMES:
        raise ConfigError(
            f"unknown scheme {name!r}{nearest(name, list(SCHEMES))} Known: {', '.join(SCHEMES)}"
        )
    return SCHEMES[name](weights, **options)

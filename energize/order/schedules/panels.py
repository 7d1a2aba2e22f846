"""Shares as polynomials, a panel of slots at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from energize.arrays import FloatArray

__all__ = ["Panels", "Piece", "Shares", "fitted_panels"]


Shares: TypeAlias = Callable[[FloatArray], FloatArray]
"""The share of each source (columns) at slots (rows), which need not be whole numbers."""

_DEGREE = 16
_TOLERANCE = 1e-14
_SHORTEST_PANEL = 2.0**-20
_LONGEST_PANEL = 2.0**30
"""Within one panel what is due stays below the precision of a float, in parts of a slot."""

_NODES = chebyshev.chebpts1(_DEGREE + 1)
_BETWEEN = np.linspace(-0.99, 0.97, 9)
_WAYS = np.concatenate([_NODES, _BETWEEN])
_MOST_CELLS = 2**21


@dataclass(frozen=True)
class Piece:
    """The slots `start` to `end`, in which shares are smooth."""

    start: int
    end: int


class Panels(NamedTuple):
    """Panels in order, each from where the one before ends."""

    starts: FloatArray
    ends: FloatArray
    shares: FloatArray
    """Coefficients of Chebyshev polynomials (first axis), for each panel and source."""

    def among(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Panels:
        return Panels(self.starts[chosen], self.ends[chosen], self.shares[:, chosen])


def fitted_panels(shares: Shares, pieces: Sequence[Piece]) -> Panels:
    """Pieces halved until the shares are polynomials on each part, up to the rounding of floats."""
    sources = shares(np.array([float(pieces[0].start)])).shape[1]
    at_once = max(_MOST_CELLS // (len(_WAYS) * sources), 1)
    starts = np.array([each.start for each in pieces], dtype=np.float64)
    ends = np.array([each.end for each in pieces], dtype=np.float64)
    found = []
    while len(starts):
        panels, good = _fitted(shares, starts[:at_once], ends[:at_once])
        found.append(panels.among(good))
        split = np.flatnonzero(~good)
        middle = (starts[split] + ends[split]) / 2
        starts = np.concatenate([starts[split], middle, starts[at_once:]])
        ends = np.concatenate([middle, ends[split], ends[at_once:]])
    every = Panels(
        np.concatenate([each.starts for each in found]),
        np.concatenate([each.ends for each in found]),
        np.concatenate([each.shares for each in found], axis=1),
    )
    return every.among(np.argsort(every.starts))


def _fitted(
    shares: Shares, starts: FloatArray, ends: FloatArray
) -> tuple[Panels, npt.NDArray[np.bool_]]:
    """Polynomials through the shares on panels, and which of them are good."""
    slots = starts + (_WAYS[:, np.newaxis] + 1) / 2 * (ends - starts)
    values = shares(slots.ravel()).reshape(*slots.shape, -1)
    at_nodes, between = values[: len(_NODES)], values[len(_NODES) :]
    coefficients = _combined(chebyshev.chebvander(_NODES, _DEGREE).T, at_nodes)
    coefficients[0] /= 2
    coefficients = coefficients * 2 / (_DEGREE + 1)
    fitted = _combined(chebyshev.chebvander(_BETWEEN, _DEGREE), coefficients)
    off = np.abs(fitted - between).max(axis=(0, 2))
    # Far from slot 0 the slots themselves are rounded; finer panels would only fit that noise.
    length = ends - starts
    noise = 8 * np.finfo(np.float64).eps * ends / length
    good = (length <= _LONGEST_PANEL) & (off <= _TOLERANCE + noise)
    return Panels(starts, ends, coefficients), good | (length <= _SHORTEST_PANEL)


def _combined(factors: npt.NDArray[np.floating[Any]], values: FloatArray) -> FloatArray:
    """For each row of factors the sum of `values` (first axis) times these, in this order on every
    machine.
    """
    sums = np.zeros((len(factors), *values.shape[1:]))
    for factor, value in zip(factors.T, values, strict=True):
        sums += factor[:, np.newaxis, np.newaxis] * value
    return sums

"""How many slots each source is due up to a slot, when shares change."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

__all__ = ["UNIT", "UNIT_BITS", "BlockStartSum", "Dues", "Piece", "ShareIntegral"]

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

UNIT_BITS = 20
UNIT = 1 << UNIT_BITS
"""Dues are counted in parts of a slot, so that ties are the same on every machine."""

_DEGREE = 16
_TOLERANCE = 1e-14
_SHORTEST_PANEL = 1 / UNIT
_LONGEST_PANEL = 2**30
"""Within one panel what is due stays far below the precision of a float, in units."""


@dataclass(frozen=True)
class Piece:
    """The slots `start` to `end`, in which shares are smooth: those of `origin` + way * `length`,
    for a way from 0 to 1.
    """

    start: int
    end: int
    origin: int
    length: int


class Dues(Protocol):
    """What each source is due."""

    def units(self, slot: int) -> Int64Array:
        """What the slots before `slot` are due to each source, in units: monotone in `slot`."""


class ShareIntegral:
    """The integral of the shares over the slots.

    Each piece is cut into panels, on which shares are polynomials up to the rounding of floats; one
    panel serves where shares go in straight lines or along a cosine. So the integral up to any slot
    costs the same. It is exact to half a unit for every panel before the slot.

    `shares` gives the shares (columns) at slots (rows).

    >>> import numpy as np
    >>> def rising(slots):
    ...     return np.stack([slots / 100, 1 - slots / 100], axis=1)
    >>> due = ShareIntegral(rising, [Piece(0, 100, 0, 100)])
    >>> (due.units(10) / UNIT).tolist()
    [0.5, 9.5]
    """

    def __init__(self, shares: Callable[[FloatArray], FloatArray], pieces: Sequence[Piece]) -> None:
        self._panels = [panel for piece in pieces for panel in _panels(shares, piece)]
        self._starts = [panel.start for panel in self._panels]
        self._before = [np.zeros(self._panels[0].integral.shape[1], dtype=np.int64)]
        for panel in self._panels:
            self._before.append(self._before[-1] + panel.units(panel.end))

    def units(self, slot: int) -> Int64Array:
        number = max(bisect_right(self._starts, slot) - 1, 0)
        units: Int64Array = self._before[number] + self._panels[number].units(slot)
        return units


class BlockStartSum:
    """The sum of the shares at the first slot of each block, times its slots.

    Only block starts are asked for; their sums are in a table.
    """

    def __init__(
        self, shares: Callable[[FloatArray], FloatArray], start: int, end: int, block_size: int
    ) -> None:
        self._start = start
        self._block_size = block_size
        sums = np.cumsum(shares(np.arange(start, end, block_size, dtype=np.float64)), axis=0)
        self._table = np.rint(np.insert(sums, 0, 0, axis=0) * block_size * UNIT).astype(np.int64)

    def units(self, slot: int) -> Int64Array:
        units: Int64Array = self._table[(slot - self._start) // self._block_size]
        return units


@dataclass(frozen=True)
class _Panel:
    start: float
    end: float
    integral: FloatArray
    """Coefficients (rows) of the integral of each share (columns) in Chebyshev polynomials."""

    def units(self, slot: float) -> Int64Array:
        way = 2 * (slot - self.start) / (self.end - self.start) - 1
        basis = np.cos(np.arange(len(self.integral)) * math.acos(min(max(way, -1.0), 1.0)))
        units: Int64Array = np.rint(basis @ self.integral * UNIT).astype(np.int64)
        return units


def _panels(shares: Callable[[FloatArray], FloatArray], piece: Piece) -> list[_Panel]:
    """A piece halved until the shares are polynomials on each part."""
    stretch = piece.length / (piece.end - piece.start)
    panels: list[_Panel] = []
    waiting = [(float(piece.start), float(piece.end))]
    while waiting:
        start, end = waiting.pop()

        def along(way: FloatArray, start: float = start, end: float = end) -> FloatArray:
            slots = start - piece.start + (way + 1) / 2 * (end - start)
            return shares(piece.origin + slots * stretch)

        fitted = _interpolated(along)
        if end - start > _SHORTEST_PANEL and not _fits(along, fitted, start, end):
            middle = (start + end) / 2
            waiting += [(middle, end), (start, middle)]
            continue
        integral = chebyshev.chebint(fitted, lbnd=-1, axis=0) * (end - start) / 2
        panels.append(_Panel(start, end, integral))
    return panels


def _interpolated(along: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """The Chebyshev coefficients (rows) of several functions (columns) on -1 .. 1."""
    nodes = chebyshev.chebpts1(_DEGREE + 1)
    sums: FloatArray = chebyshev.chebvander(nodes, _DEGREE).T @ along(nodes)
    sums[0] /= 2
    return sums * 2 / (_DEGREE + 1)


def _fits(
    along: Callable[[FloatArray], FloatArray], fitted: FloatArray, start: float, end: float
) -> bool:
    if end - start > _LONGEST_PANEL:
        return False
    between = np.linspace(-0.99, 0.97, 9)
    off = np.abs(chebyshev.chebvander(between, _DEGREE) @ fitted - along(between)).max()
    # Far from slot 0 the slots themselves are rounded; finer panels would only fit that noise.
    noise = 8 * np.finfo(np.float64).eps * end / (end - start)
    return bool(off <= _TOLERANCE + noise)

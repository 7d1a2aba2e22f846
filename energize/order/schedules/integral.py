"""How many slots each source is due up to a slot, when shares change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from energize.arrays import Int64Array
from energize.order.schedules.marks import Marks, Stretch
from energize.order.schedules.panels import Panels, Piece, Shares, fitted_panels

__all__ = ["UNIT", "UNIT_BITS", "BlockStartSum", "Dues", "ShareIntegral"]


UNIT_BITS = 20
UNIT = 1 << UNIT_BITS
"""Dues are counted in parts of a slot, so that ties are the same on every machine."""

_NEGLIGIBLE = 2**-8 / UNIT
"""Coefficients below this are left out: together they are less than a unit."""

_MOST_BENT = 0.4871
"""Eight times how far an integral may be from straight between two marks, in slots. A round number
would meet many a slope exactly, and rounding would decide."""

_MOST_DOUBLINGS = 28


class Dues(Protocol):
    """What the slots before a slot are due to each source, in units: monotone in the slot."""

    def units(self, slots: Int64Array) -> Int64Array:
        """The dues of all sources (columns) at each slot (rows)."""

    def units_of(self, slots: Int64Array, sources: Int64Array) -> Int64Array:
        """The due of one source at one slot, for each pair of them."""


class ShareIntegral:
    """The integral of the shares over the slots.

    Each piece is cut into panels, on which shares are polynomials up to the rounding of floats; one
    panel serves where shares go in straight lines or along a cosine. So the integral up to any slot
    costs the same. It is exact to a unit for every panel before the slot.

    `shares` gives the shares (columns) at slots (rows).

    >>> import numpy as np
    >>> def rising(slots):
    ...     return np.stack([slots / 100, 1 - slots / 100], axis=1)
    >>> due = ShareIntegral(rising, [Piece(0, 100)])
    >>> (due.units(np.array([10])) / UNIT).tolist()
    [[0.5, 9.5]]
    """

    def __init__(self, shares: Shares, pieces: Sequence[Piece]) -> None:
        panels = fitted_panels(shares, pieces)
        self._starts, self._ends = panels.starts, panels.ends
        self._steps = _straight(panels)
        # Coefficients (first axis) of the integral of each share (last) in Chebyshev polynomials.
        half = (panels.ends - panels.starts)[:, np.newaxis] / 2
        integrals = chebyshev.chebint(panels.shares, lbnd=-1, axis=0) * half
        telling = np.flatnonzero(np.abs(integrals).max(axis=(1, 2)) > _NEGLIGIBLE)
        self._integrals = integrals[: telling[-1] + 1].copy()
        self._before = np.zeros(integrals.shape[1:], dtype=np.int64)
        grown = self._within(np.arange(len(self._starts)), self._ends)
        np.cumsum(grown[:-1], axis=0, out=self._before[1:])

    def units(self, slots: Int64Array) -> Int64Array:
        panel = self._panel(slots)
        units: Int64Array = self._before[panel] + self._within(panel, slots)
        return units

    def units_of(self, slots: Int64Array, sources: Int64Array) -> Int64Array:
        panel = self._panel(slots)
        units: Int64Array = self._before[panel, sources] + self._within(panel, slots, sources)
        return units

    def marks(self) -> Marks:
        """Marks between which the integral of each share is within 1/16 slot of a straight line."""
        at, stretches = int(self._starts[0]), []
        for end, step in zip(self._ends.tolist(), self._steps, strict=True):
            whole = math.floor(end)
            if whole > at:
                stretches.append(Stretch(at, whole, step))
                at = whole
            if end > at:  # two panels, or more, share a slot
                stretches.append(Stretch(at, at + 1, 1))
                at += 1
        return Marks(stretches)

    def _panel(self, slots: Int64Array) -> Int64Array:
        panel: Int64Array = np.searchsorted(self._starts, slots, side="right") - 1
        return panel

    def _within(
        self, panel: Int64Array, slots: npt.NDArray[Any], sources: Int64Array | None = None
    ) -> Int64Array:
        """What slots of a panel before each slot are due: to all sources, or to one for each.

        Every number goes through the same operations in the same order, however many are asked for
        at once: sums of floats are not left to a library that orders them as it likes.
        """
        length = self._ends[panel] - self._starts[panel]
        way = np.clip(2 * (slots - self._starts[panel]) / length - 1, -1.0, 1.0)
        which: tuple[Int64Array, ...] = (panel,) if sources is None else (panel, sources)
        if sources is None:
            way = way[:, np.newaxis]
            if len(panel) and (panel == panel[0]).all():
                which = (panel[:1],)
        total = self._integrals[0][which] + way * 0
        before, now = np.ones_like(way), way
        for coefficients in self._integrals[1:]:
            total += coefficients[which] * now
            before, now = now, 2 * way * now - before
        units: Int64Array = np.rint(total * UNIT).astype(np.int64)
        return units


class BlockStartSum:
    """The sum of the shares at the first slot of each block, times its slots.

    Only block starts are asked for; their sums are in a table.
    """

    def __init__(self, shares: Shares, start: int, end: int, block_size: int) -> None:
        self._start = start
        self._block_size = block_size
        sums = np.cumsum(shares(np.arange(start, end, block_size, dtype=np.float64)), axis=0)
        self._table = np.rint(np.insert(sums, 0, 0, axis=0) * block_size * UNIT).astype(np.int64)

    def units(self, slots: Int64Array) -> Int64Array:
        units: Int64Array = self._table[self._block(slots)]
        return units

    def units_of(self, slots: Int64Array, sources: Int64Array) -> Int64Array:
        units: Int64Array = self._table[self._block(slots), sources]
        return units

    def _block(self, slots: Int64Array) -> Int64Array:
        return (slots - self._start) // self._block_size


def _straight(panels: Panels) -> list[int]:
    """For each panel a power of two of slots, over which an integral is straight enough: what it
    bends by is an eighth, at most, of the slope of the share times their number squared.
    """
    degrees = np.arange(len(panels.shares))[:, np.newaxis, np.newaxis]
    slopes = (np.abs(panels.shares) * degrees**2).sum(axis=0).max(axis=1)
    slopes *= 2 / (panels.ends - panels.starts)
    steps = np.ones(len(slopes), dtype=np.int64)
    for _ in range(_MOST_DOUBLINGS):
        steps[slopes * (2.0 * steps) ** 2 <= _MOST_BENT] *= 2
    straight: list[int] = steps.tolist()
    return straight

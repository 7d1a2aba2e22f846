"""The integral of shares that change, to hold counts against."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from energize.order.weights import schedules_in, shares_at

_PANELS = 12
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(24)


def points_of(weight):
    return [slot for each in schedules_in(weight) for slot in each.slots]


def due_at(weights, slot):
    """What each source is due before a slot: the integral of its share from 0, between points by
    Gauss-Legendre quadrature in panels.
    """
    points = {point for each in weights for point in points_of(each) if point < slot}
    due = np.zeros(len(weights))
    for begin, end in pairwise(sorted({0, slot, *points})):
        edges = np.linspace(begin, end, _PANELS + 1)
        half = (edges[1] - edges[0]) / 2
        slots = (edges[:-1, None] + half * (1 + _NODES)).ravel()
        shares = shares_at(weights, slots).reshape(_PANELS, len(_NODES), -1)
        due += half * np.einsum("pns,n->s", shares, _NODE_WEIGHTS)
    return due

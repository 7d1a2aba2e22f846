"""The integral of shares that change, to hold counts against."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from energize.order.schedules.integral import UNIT, ShareIntegral
from energize.order.schedules.panels import Piece
from energize.order.schedules.varying import schedules_in, shares_at


def due_at(dues, slot):
    """What each source is due before a slot, in slots."""
    return dues.units(np.array([slot]))[0] / UNIT


def points_of(weight):
    return [slot for each in schedules_in(weight) for slot in each.slots]


def integral_of(weights, end):
    """The integral of the shares from slot 0 to an end."""
    slots = {slot for each in weights for slot in points_of(each)}
    points = sorted({0, end, *(slot for slot in slots if slot < end)})
    pieces = [Piece(a, b) for a, b in pairwise(points)]
    return ShareIntegral(lambda slots: shares_at(weights, slots), pieces)

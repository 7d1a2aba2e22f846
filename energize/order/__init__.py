"""Positions only: which source, and which of its samples, comes at a slot. Nothing is read here."""

from energize.order.making import make_scheme
from energize.order.protocol import Scheme
from energize.order.schedule import Schedule, WeightSchedulePoint, WeightScheduler

__all__ = [
    "Schedule",
    "Scheme",
    "WeightSchedulePoint",
    "WeightScheduler",
    "make_scheme",
]

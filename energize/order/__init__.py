"""Positions only: which source, and which of its samples, comes at a slot. Nothing is read here."""

from energize.order.schedule import Schedule, WeightSchedulePoint, WeightScheduler
from energize.order.timeline import Scheme, make_scheme

__all__ = [
    "Schedule",
    "Scheme",
    "WeightSchedulePoint",
    "WeightScheduler",
    "make_scheme",
]

"""Positions only: which source, and which of its samples, comes at a slot. Nothing is read here."""

from energize.order.making import make_scheme
from energize.order.protocol import Scheme
from energize.order.schedules.schedule import Schedule, WeightSchedulePoint, WeightScheduler
from energize.order.schedules.scheduled import mixing_scheme

__all__ = [
    "Schedule",
    "Scheme",
    "WeightSchedulePoint",
    "WeightScheduler",
    "make_scheme",
    "mixing_scheme",
]

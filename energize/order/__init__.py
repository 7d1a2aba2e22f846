"""Positions only: which source, and which of its samples, comes at a slot. Nothing is read here."""

from energize.order.protocol import Scheme
from energize.order.schedule import Schedule, WeightSchedulePoint, WeightScheduler
from energize.order.scheduled import mixing_scheme
from energize.order.schemes import make_scheme

__all__ = [
    "Schedule",
    "Scheme",
    "WeightSchedulePoint",
    "WeightScheduler",
    "make_scheme",
    "mixing_scheme",
]

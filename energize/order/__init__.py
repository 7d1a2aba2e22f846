"""Positions only: which source, and which of its samples, comes at a slot. Nothing is
read here.
"""

from energize.order.scheme import Scheme
from energize.order.timeline import make_scheme
from energize.order.weights import Schedule, WeightSchedulePoint, WeightScheduler

__all__ = [
    "Schedule",
    "Scheme",
    "WeightSchedulePoint",
    "WeightScheduler",
    "make_scheme",
]
